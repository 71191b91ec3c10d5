"""ConvNeXt: the convolutions of both networks, over frames of which some may not exist.

In:    frames (B, T, C) float32 and `exists` (B, T, 1), 1.0 inside the utterance and 0.0 outside
Out:   frames (B, T, C')
Owns:  its weights
Never: windows, samples, policy

A network that sees the whole utterance pads every convolution with zeros at the utterance's ends. So does this one:
frames that do not exist are multiplied by 0 before every convolution, wherever in the window the utterance ends.
"""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.checkpoint.layout import below
from pipeline.spec import CONV_NORM_EPS


class Convolution:
    """A dense convolution, as one matrix product over each frame's neighbourhood.

    A matrix product because a float32 one stays float32 on every device; cuDNN's convolutions may round to TF32.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        outputs, inputs, self._kernel = weight.shape
        self._weight = weight.reshape(outputs, inputs * self._kernel)
        self._bias = bias

    def __call__(self, frames: Tensor, exists: Tensor) -> Tensor:
        """Returns one output per frame, (B, T, outputs)."""
        reach = self._kernel // 2
        neighbours = F.pad(frames * exists, (0, 0, reach, reach)).unfold(1, self._kernel, 1)  # (B, T, C, kernel)
        return F.linear(neighbours.flatten(2), self._weight, self._bias)


class ConvNeXtBlock:
    """Depthwise convolution, LayerNorm, two pointwise layers with a GELU between, a scale, a residual connection.

    Source: ChatTTS/model/dvae.py and vocos/modules.py, class ConvNeXtBlock; they differ in the dilation and in the
    scale's name.
    """

    def __init__(self, tensors: Mapping[str, Tensor], *, scale: str, dilation: int) -> None:
        """Takes one block's tensors.

        Args:
            tensors: the block's own, without the block's prefix.
            scale: name of the layer scale (C,): `weight` in the mel decoder, `gamma` in Vocos.
        """
        self._depthwise = tensors["dwconv.weight"].unsqueeze(2)  # (C, 1, 1, kernel)
        self._depthwise_bias = tensors["dwconv.bias"]
        self._dilation = dilation
        self._reach = dilation * (self._depthwise.shape[-1] // 2)
        self._norm = tensors["norm.weight"], tensors["norm.bias"]
        self._widen = tensors["pwconv1.weight"], tensors["pwconv1.bias"]
        # The scale is folded into the layer before it, which saves one pass over the frames.
        self._narrow = tensors["pwconv2.weight"] * tensors[scale][:, None], tensors["pwconv2.bias"] * tensors[scale]

    def __call__(self, frames: Tensor, exists: Tensor) -> Tensor:
        """Returns one output per frame, (B, T, C)."""
        # Two-dimensional with a height of 1: the same numbers as conv1d, five to ten times faster on a CPU,
        # which keeps the channels last instead of copying the frames twice.
        image = (frames * exists).transpose(1, 2).unsqueeze(2)  # (B, C, 1, T), channels last in memory
        if image.is_cuda:
            image = image.contiguous()  # channels last would choose cuDNN, which may round to TF32
        mixed = F.conv2d(
            image,
            self._depthwise,
            self._depthwise_bias,
            padding=(0, self._reach),
            dilation=(1, self._dilation),
            groups=image.shape[1],
        )
        normed = layer_norm(mixed.squeeze(2).transpose(1, 2), *self._norm)
        return frames + F.linear(gelu_(F.linear(normed, *self._widen)), *self._narrow)


def layer_norm(frames: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """LayerNorm over the channels of each frame."""
    return F.layer_norm(frames, weight.shape, weight, bias, CONV_NORM_EPS)


def gelu_(frames: Tensor) -> Tensor:
    """GELU in place: five times faster on a CPU, which then needs no pages for a second large tensor."""
    return torch.ops.aten.gelu_(frames)  # type: ignore[no-any-return]


def convnext_blocks(tensors: Mapping[str, Tensor], prefix: str, *, scale: str, dilation: int) -> list[ConvNeXtBlock]:
    """Returns the blocks `prefix`0, `prefix`1, ... in order, as many as the checkpoint has."""
    blocks: list[ConvNeXtBlock] = []
    while own := below(tensors, f"{prefix}{len(blocks)}."):
        blocks.append(ConvNeXtBlock(own, scale=scale, dilation=dilation))
    return blocks
