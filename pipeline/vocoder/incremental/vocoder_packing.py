"""Vocoder packing: the vocoder's weights in the order in which incremental.cpp reads them.

In:    a checkpoint, whether products are multiplied in tiles
Out:   PackedWeights
Owns:  the packed memory
Never: steps, samples, the state of an utterance
"""

import ctypes
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.bfloat16 import rounded, widened
from pipeline.checkpoint.layout import DILATION, RESIDUAL_SCALES, VQ_GROUPS, VQ_LEVELS, below
from pipeline.checkpoint.weights import Checkpoint
from pipeline.config import VocoderConfig
from pipeline.native.compiler import NativeUnavailable
from pipeline.native.memory import LANES, PANEL, Arena, address, pack, pack_tiles
from pipeline.spec import CODEBOOKS, FFT_SIZE

Floats = NDArray[np.float32]

# As in incremental.cpp.
TILE_DEPTH = 32
CONVOLUTION, CONVOLUTION_GELU, CONVOLUTION_NORM, CONVNEXT, SPECTRUM, OVERLAP = range(6)

BINS = FFT_SIZE // 2 + 1
OVERLAP_BEFORE, OVERLAP_AFTER = 1, 2  # pieces that a hop of samples is the sum of, besides its own
SPARE_BYTES = 64 << 20


def code_tables(tensors: Mapping[str, NDArray[np.float32]]) -> tuple[NDArray[np.float32], ...]:
    """Returns (625, width / groups) float32 for each of the four codes.

    The sum over a group's codes is its part of the embedding. Unlike a matrix product, its order does not depend on the number
    of rows.
    """
    levels = np.array(VQ_LEVELS)
    middle = levels // 2
    digits = np.arange(levels.prod())[:, None] // (levels.cumprod() // levels) % levels
    values = ((digits - middle) / middle).astype(np.float32)
    scales, tables = np.array(RESIDUAL_SCALES, np.float32), []
    for group in range(VQ_GROUPS):
        own = below(tensors, f"vq_layer.quantizer.rvqs.{group}.project_out.")
        for refinement in range(CODEBOOKS // VQ_GROUPS):
            table = _product(values * scales**refinement, own["weight"])
            tables.append(table if refinement else table + own["bias"])
    return tuple(tables)


def _product(values: NDArray[np.float32], weight: NDArray[np.float32]) -> NDArray[np.float32]:
    """Returns values @ weight.T, each term added in float32, in order and without an error in its product: as FMA does."""
    total = np.zeros((len(values), len(weight)), np.float32)
    for digit in range(values.shape[1]):
        total = (total + values[:, digit : digit + 1].astype(np.float64) * weight[:, digit]).astype(np.float32)
    return total


class Product(ctypes.Structure):
    """As in incremental.cpp."""

    _fields_ = (
        ("weights", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("inputs", ctypes.c_int64),
        ("outputs", ctypes.c_int64),
        ("in_tiles", ctypes.c_int64),
    )


class Norm(ctypes.Structure):
    """As in incremental.cpp."""

    _fields_ = (("weight", ctypes.c_void_p), ("bias", ctypes.c_void_p))


class Stage(ctypes.Structure):
    """As in incremental.cpp."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("kind", "channels", "before", "after", "kernel", "dilation")),
        ("taps", ctypes.c_void_p),
        ("taps_bias", ctypes.c_void_p),
        ("norm", Norm),
        ("first", Product),
        ("second", Product),
    )


class _Matrix(NamedTuple):
    """A product before it is packed, its outputs and inputs in the stage's order."""

    weight: Floats  # (outputs, inputs)
    bias: Floats | None = None  # (outputs,)


@dataclass(frozen=True, slots=True, eq=False)
class PackedWeights:
    """One vocoder's weights as incremental.cpp reads them."""

    stages: "ctypes.Array[Stage]"
    squares: Floats  # (FFT_SIZE,) float32: the squared window
    tables: tuple[Floats, ...]
    """what each of the four codes adds to its part of the embedding, one row per value; none if steps are hidden states"""
    fingerprint: int
    """a hash of the weights: the state of an utterance belongs to one vocoder"""
    arrays: tuple[NDArray[Any], ...]
    """every array that `stages` points into; they must live as long as the stages are used"""


def pack_weights(config: VocoderConfig, checkpoint: Checkpoint, *, tiles: bool) -> PackedWeights:
    """Reads and packs the parts of the checkpoint that the configuration needs.

    Args:
        tiles: whether products are packed for AMX.

    Raises:
        NativeUnavailable: incremental.cpp cannot compute a model of these dimensions.
    """
    mel = checkpoint.mel_decoder(config.size) if config.use_decoder else checkpoint.dvae()
    vocos = checkpoint.vocos(config.size)
    tables = () if config.use_decoder else code_tables(mel)
    # The padded copies are at most this much larger than the tensors.
    packer = _Packer(2 * sum(tensor.nbytes for part in (mel, vocos) for tensor in part.values()) + SPARE_BYTES, tiles=tiles)
    stages = [*packer.mel_stages(mel), *packer.vocos_stages(vocos)]
    return PackedWeights(
        stages=(Stage * len(stages))(*stages),
        squares=np.square(vocos["head.istft.window"]),
        tables=tables,
        fingerprint=packer.fingerprint,
        arrays=tuple(packer.arrays),
    )


class _Packer:
    """Packs products into an arena, hashes them, and collects every array that a stage points into."""

    def __init__(self, size: int, *, tiles: bool) -> None:
        self._arena = Arena(size)
        self._tiles = tiles
        self.fingerprint = 0
        self.arrays: list[NDArray[Any]] = []

    def mel_stages(self, tensors: Mapping[str, Floats]) -> list[Stage]:
        """Packs the mel decoder: two convolutions, ConvNeXt blocks, the product to mel bands."""
        # No bias between the two, and zeros stay zeros: one convolution does the work of both.
        leave = tensors["decoder.conv_out.weight"].squeeze(2).astype(np.float64)
        bands = (tensors["out_conv.weight"] * tensors["coef"].reshape(-1, 1, 1)).astype(np.float64)
        to_bands = np.einsum("omk,mi->oik", bands, leave, optimize=True)
        return [
            self._convolution(CONVOLUTION_GELU, *_named(tensors, "decoder.conv_in.0")),
            self._convolution(CONVOLUTION, *_named(tensors, "decoder.conv_in.2")),
            *self._blocks(tensors, "decoder.decoder_block.", scale="weight", dilation=DILATION),
            self._convolution(CONVOLUTION, to_bands.astype(np.float32), None),
        ]

    def vocos_stages(self, tensors: Mapping[str, Floats]) -> list[Stage]:
        """Packs Vocos: a convolution, ConvNeXt blocks, the spectrum and its inverse transform, the overlap of pieces."""
        weight, bias = _named(tensors, "head.out")
        width = weight.shape[1]
        lanes = -(-BINS // LANES) * LANES

        def by_lanes(rows: Floats) -> Floats:  # (2 x bins, ...): sixteen of the first half, then their partners
            halves = _padded(rows.reshape(2, BINS, -1), 1, lanes)
            return halves.reshape(2, lanes // LANES, LANES, -1).swapaxes(0, 1).reshape(2 * lanes, -1)

        spectrum = Stage(
            kind=SPECTRUM,
            channels=width,
            norm=self._norm(tensors, "backbone.final_layer_norm"),
            first=self._product(_Matrix(by_lanes(weight), by_lanes(bias[:, None]).ravel())),
            second=self._product(_Matrix(by_lanes(inverse_transform(tensors["head.istft.window"]).T).T)),
        )
        overlap = Stage(kind=OVERLAP, channels=FFT_SIZE, before=OVERLAP_BEFORE, after=OVERLAP_AFTER)
        return [
            self._convolution(CONVOLUTION_NORM, *_named(tensors, "backbone.embed"), norm=self._norm(tensors, "backbone.norm")),
            *self._blocks(tensors, "backbone.convnext.", scale="gamma", dilation=1),
            spectrum,
            overlap,
        ]

    def _convolution(self, kind: int, weight: Floats, bias: Floats | None, *, norm: Norm | None = None) -> Stage:
        """Packs a dense convolution (outputs, inputs, kernel) as one product with the frames around a frame, in a row."""
        _, inputs, kernel = weight.shape
        # The previous stage pads its outputs with zeros; the first stage reads its input unpadded.
        channels = inputs if kind == CONVOLUTION_GELU else -(-inputs // PANEL) * PANEL
        rows = _padded(weight.swapaxes(1, 2), 2, channels).reshape(len(weight), -1)
        reach = kernel // 2
        return Stage(
            kind=kind,
            channels=channels,
            before=reach,
            after=reach,
            norm=norm or Norm(),
            first=self._product(_Matrix(rows, bias)),
        )

    def _blocks(self, tensors: Mapping[str, Floats], prefix: str, *, scale: str, dilation: int) -> list[Stage]:
        """Packs the ConvNeXt blocks whose names begin with `prefix`.

        Raises:
            NativeUnavailable: a block's width is no multiple of LANES.
        """
        blocks: list[Stage] = []
        while own := below(tensors, f"{prefix}{len(blocks)}."):
            channels, _, kernel = own["dwconv.weight"].shape
            if channels % LANES or own["pwconv1.weight"].shape[0] % LANES:
                raise NativeUnavailable(f"a ConvNeXt block is {channels} wide: widths must be multiples of {LANES}")
            reach = dilation * (kernel // 2)
            # The scale is folded into the layer before it.
            narrow = _Matrix(own["pwconv2.weight"] * own[scale][:, None], own["pwconv2.bias"] * own[scale])
            blocks.append(
                Stage(
                    kind=CONVNEXT,
                    channels=channels,
                    before=reach,
                    after=reach,
                    kernel=kernel,
                    dilation=dilation,
                    taps=self._address(own["dwconv.weight"].squeeze(1).T),
                    taps_bias=self._address(own["dwconv.bias"]),
                    norm=self._norm(own, "norm"),
                    first=self._product(_Matrix(own["pwconv1.weight"], own["pwconv1.bias"])),
                    second=self._product(narrow),
                )
            )
        return blocks

    def _product(self, matrix: _Matrix) -> Product:
        outputs, inputs = matrix.weight.shape
        panels = -(-outputs // PANEL)
        weight = np.ascontiguousarray(_padded(matrix.weight, 0, panels * PANEL))
        bias = np.zeros(outputs, np.float32) if matrix.bias is None else matrix.bias
        self.fingerprint = zlib.crc32(weight.data, self.fingerprint)
        in_tiles = self._tiles and inputs % TILE_DEPTH == 0
        return Product(
            weights=self._address(self._arena.keep(_pack_halves(weight) if in_tiles else pack(weight))),
            bias=self._address(_padded(bias, 0, panels * PANEL)),
            inputs=inputs,
            outputs=-(-outputs // LANES) * LANES,
            in_tiles=in_tiles,
        )

    def _norm(self, tensors: Mapping[str, Floats], name: str) -> Norm:
        return Norm(*map(self._address, _named(tensors, name)))

    def _address(self, array: NDArray[Any]) -> int:
        self.arrays.append(np.ascontiguousarray(array))
        return address(self.arrays[-1])


def inverse_transform(window: Floats) -> Floats:
    """Returns the inverse Fourier transform of a piece times its window, as a matrix (FFT_SIZE, 2 x bins) float32.

    The columns are the real parts of the bins, then the imaginary parts.
    """
    place, frequency = np.arange(FFT_SIZE)[:, None], np.arange(BINS)
    # place x frequency is a whole number: reduced before it becomes an angle, no digit is lost.
    angle = (place * frequency % FFT_SIZE).astype(np.float64) * (2 * math.pi / FFT_SIZE)
    inner = (frequency > 0) & (frequency < BINS - 1)  # stands for its mirror image too
    weight = (1 + inner.astype(np.float64)) / FFT_SIZE * window.astype(np.float64)[:, None]
    return np.concatenate([weight * np.cos(angle), -weight * np.sin(angle) * inner], 1).astype(np.float32)


def _pack_halves(weight: Floats) -> NDArray[np.uint16]:
    """Packs (out, in) float32 as pipeline/native/tiles.h reads it: tiles of the nearest bfloat16 and of the rest alternate."""
    nearest = rounded(weight)
    return np.stack([pack_tiles(half) for half in (nearest, rounded(weight - widened(nearest)))], 2)


def _named(tensors: Mapping[str, Floats], name: str) -> tuple[Floats, Floats]:
    return tensors[f"{name}.weight"], tensors[f"{name}.bias"]


def _padded(array: Floats, axis: int, size: int) -> Floats:
    """Returns the array padded with zeros at the end of an axis, to `size`."""
    missing = [(0, size - length if index == axis else 0) for index, length in enumerate(array.shape)]
    return np.pad(array, missing)
