"""MelDecoder: steps to mel frames, two per step.

In:    hidden states (B, R, width) float32, or embedded codes (code_embedding.py); `exists` (B, 2R, 1)
Out:   log-mel frames (B, 2R, 100) float32
Owns:  its weights
Never: windows, samples, policy

One class reads both files: Decoder.safetensors (from hidden states) and the decoding half of DVAE.safetensors.

Source: ChatTTS/model/dvae.py, classes DVAE (`forward`, mode "decode") and DVAEDecoder.
"""

from collections.abc import Mapping

import torch.nn.functional as F
from torch import Tensor

from pipeline.checkpoint.layout import DILATION
from pipeline.spec import MEL_FRAMES_PER_STEP
from pipeline.vocoder.windowed.convnext import Convolution, convnext_blocks, gelu_


class MelDecoder:
    """Two convolutions, ConvNeXt blocks, two layers, a scale per mel band."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._enter = Convolution(tensors["decoder.conv_in.0.weight"], tensors["decoder.conv_in.0.bias"])
        self._widen = Convolution(tensors["decoder.conv_in.2.weight"], tensors["decoder.conv_in.2.bias"])
        self._blocks = convnext_blocks(tensors, "decoder.decoder_block.", scale="weight", dilation=DILATION)
        self._leave = tensors["decoder.conv_out.weight"].squeeze(2)  # (C', C): a convolution of one frame
        band_scale = tensors["coef"].reshape(-1, 1, 1)  # (bands, 1, 1)
        self._to_bands = Convolution(tensors["out_conv.weight"] * band_scale, None)
        self.width: int = MEL_FRAMES_PER_STEP * tensors["decoder.conv_in.0.weight"].shape[1]
        """numbers per step"""

    def __call__(self, steps: Tensor, exists: Tensor) -> Tensor:
        """Decodes steps (B, R, width) to mel frames (B, 2R, bands)."""
        rows, length, width = steps.shape
        # The first half of a step's numbers is its first mel frame, the second half its second.
        frames = steps.reshape(rows, MEL_FRAMES_PER_STEP * length, width // MEL_FRAMES_PER_STEP)
        frames = self._widen(gelu_(self._enter(frames, exists)), exists)
        for block in self._blocks:
            frames = block(frames, exists)
        return self._to_bands(F.linear(frames, self._leave), exists)
