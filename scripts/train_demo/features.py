"""Features: the mel frames that ChatTTS's networks speak in.

In:    samples at 24 kHz
Out:   frames of log-mel
Owns:  one set of filters for each device
Never: data

Source: ChatTTS/model/dvae.py, class MelSpectrogramFeatures.
"""

import math
from functools import cache

import torchaudio
from torch import Tensor

SAMPLE_RATE, HOP, BANDS = 24_000, 256, 100
FRAMES_PER_STEP = 2
SAMPLES_PER_STEP = FRAMES_PER_STEP * HOP
FLOOR = math.log(1e-5)


@cache
def _filters(device: str) -> torchaudio.transforms.MelSpectrogram:
    return torchaudio.transforms.MelSpectrogram(SAMPLE_RATE, 1024, hop_length=HOP, n_mels=BANDS, center=True, power=1).to(
        device
    )


def log_mel(samples: Tensor) -> Tensor:
    """Maps samples (..., n) to frames (..., 100, n // 256), without the last frame's odd half."""
    mel: Tensor = _filters(str(samples.device))(samples)
    return mel.clip(1e-5).log()[..., :-1]
