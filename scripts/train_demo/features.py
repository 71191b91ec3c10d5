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

from pipeline.spec import FFT_SIZE, HOP, MEL_BANDS, SAMPLE_RATE

FLOOR = math.log(1e-5)


@cache
def _filters(device: str) -> torchaudio.transforms.MelSpectrogram:
    filters = torchaudio.transforms.MelSpectrogram(
        SAMPLE_RATE, FFT_SIZE, hop_length=HOP, n_mels=MEL_BANDS, center=True, power=1
    )
    return filters.to(device)


def log_mel(samples: Tensor) -> Tensor:
    """Maps samples (..., n) to frames (..., 100, n // 256), without the last frame's odd half."""
    mel: Tensor = _filters(str(samples.device))(samples)
    return mel.clip(1e-5).log()[..., :-1]
