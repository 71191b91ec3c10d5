"""Spec: facts of ChatTTS checkpoints. They are no configuration: changing one needs a newly trained model.

Dimensions that differ between checkpoints are read from the files by pipeline/checkpoint/weights.py.
"""

from typing import Literal

VocoderSize = Literal["full", "small"]
CODEBOOKS = 4  # parallel quantiser streams (upstream's num_vq)
CODE_BITS = 10  # a codebook has at most 1024 entries; ChatTTS's have 626
TEXT_TOKEN_BITS = 16
SAMPLE_RATE = 24_000  # Hz
MEL_BANDS = 100
HOP = 256  # samples per mel frame
FFT_SIZE = 1_024  # samples; the iSTFT's window has the same length
MEL_FRAMES_PER_STEP = 2
SAMPLES_PER_STEP = MEL_FRAMES_PER_STEP * HOP  # 512
STEPS_PER_SECOND = SAMPLE_RATE / SAMPLES_PER_STEP  # 46.875

# How far one step affects the audio on each side, in mel frames: the mel decoder's convolutions reach
# 1 + 1 + 12 layers x 6 + 1 = 75, Vocos' 3 + 8 layers x 3 = 27, the iSTFT's overlap 2. Checkpoints with fewer layers reach less.
REACH_FRAMES = 75 + 27 + 2
REACH_STEPS = REACH_FRAMES // MEL_FRAMES_PER_STEP  # 52

REPETITION_WINDOW = 16  # steps that a repetition penalty covers; ChatTTS/model/processors.py, gen_logits
MIN_TOKENS_TO_KEEP = 3  # top-p and top-k never keep fewer
RMS_EPS = 1e-6
CONV_NORM_EPS = 1e-6  # LayerNorm inside the ConvNeXt blocks

PAUSE_TAGS = ("[uv_break]", "[v_break]", "[lbreak]", "[llbreak]")
SPEED_TAGS = frozenset(f"[speed_{k}]" for k in range(10))
CONTROL_TAGS = SPEED_TAGS | frozenset(
    ["[laugh]", *PAUSE_TAGS]
    + [f"[break_{k}]" for k in range(8)]
    + [f"[laugh_{k}]" for k in range(3)]
    + [f"[oral_{k}]" for k in range(10)]
)
"""Tags that a client may write. ChatTTS has more ([Stts], [spk_emb], ...), which only the prompt layout uses."""
