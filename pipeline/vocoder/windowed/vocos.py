"""Vocos: mel frames to the waveform.

In:    log-mel frames (B, T, 100) float32; `exists` (B, T, 1), 1.0 inside the utterance and 0.0 outside
Out:   samples (B, T * 256) float32; frame t of the window gives samples [256 t, 256 (t + 1))
Owns:  its weights
Never: windows, policy

Source: vocos/models.py VocosBackbone, vocos/heads.py ISTFTHead; torch.istft with center=True.
"""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.spec import FFT_SIZE, HOP
from pipeline.vocoder.windowed.convnext import Convolution, convnext_blocks, layer_norm

OVERLAP = FFT_SIZE // HOP  # 4 frames overlap in one hop of samples
CENTER = OVERLAP // 2  # center=True: frame t is centred on hop t, two hops into its piece
MAX_MAGNITUDE = 100.0  # upstream's ceiling for one frequency's magnitude
NO_ENVELOPE = 1e-11  # torch.istft treats a smaller envelope as silence


class Vocos:
    """The backbone, then the inverse Fourier transform."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._enter = Convolution(tensors["backbone.embed.weight"], tensors["backbone.embed.bias"])
        self._first_norm = tensors["backbone.norm.weight"], tensors["backbone.norm.bias"]
        self._blocks = convnext_blocks(tensors, "backbone.convnext.", scale="gamma", dilation=1)
        self._last_norm = tensors["backbone.final_layer_norm.weight"], tensors["backbone.final_layer_norm.bias"]
        self._to_spectrum = tensors["head.out.weight"], tensors["head.out.bias"]  # (FFT_SIZE + 2, C), (FFT_SIZE + 2,)
        self._synthesis = tensors["head.istft.window"]  # (FFT_SIZE,): the Hann window

    def __call__(self, mel: Tensor, exists: Tensor) -> Tensor:
        """Returns the samples of every frame; those of frames that do not exist are meaningless but finite."""
        frames = layer_norm(self._enter(mel, exists), *self._first_norm)
        for block in self._blocks:
            frames = block(frames, exists)
        return self._waveform(layer_norm(frames, *self._last_norm), exists)

    def _waveform(self, frames: Tensor, exists: Tensor) -> Tensor:
        log_magnitude, phase = F.linear(frames, *self._to_spectrum).chunk(2, dim=-1)
        magnitude = log_magnitude.exp().clamp(max=MAX_MAGNITUDE)
        spectrum = torch.complex(magnitude * phase.cos(), magnitude * phase.sin())  # (B, T, FFT_SIZE / 2 + 1)
        pieces = torch.fft.irfft(spectrum, FFT_SIZE) * self._synthesis
        # Only frames that exist are added up, and only their windows are divided out. So the first and the last sample
        # of the utterance equal those of an inverse transform over the whole utterance.
        envelope = overlap_add(exists * self._synthesis.square())
        return (overlap_add(pieces * exists) / envelope.clamp(min=NO_ENVELOPE)).flatten(1)


# piece 0   |  0 |  1 |  2 |  3 |               pieces are a hop apart and OVERLAP quarters of a hop long
# piece 1        |  0 |  1 |  2 |  3 |
# piece 2             |  0 |  1 |  2 |  3 |
# out                 |  0 |  1 |  2 | ...      hop t: quarter 2 of piece t, 1 of t + 1, 0 of t + 2, 3 of t - 1
def overlap_add(pieces: Tensor) -> Tensor:
    """Adds up pieces (B, T, FFT_SIZE), one hop apart, to samples (B, T, HOP) that begin at the middle of piece 0."""
    rows, length, _ = pieces.shape
    hops = pieces.reshape(rows, length, OVERLAP, HOP)
    total = pieces.new_zeros(rows, length + OVERLAP - 1, HOP)
    for quarter in range(OVERLAP):
        total[:, quarter : quarter + length] += hops[:, :, quarter]
    return total[:, CENTER : CENTER + length]
