"""Carry: the vocoder of a CPU as one call into machine code (incremental.cpp) that decodes every frame once.

In:    StepBatches: the next steps of an utterance, and what was carried from the ones before
Out:   DecodedAudio: the samples that no later step can change, and what to carry to the next call
Owns:  the packed weights, the scratch
Never: streams, queues, who asked; anything of an utterance between two calls

Every layer remembers the frames its next ones will see, some 400 kB for an utterance in all. That travels with the
utterance, so this stays a function: any replica continues what another one began. A frame's bits do not depend on how
the utterance was cut into calls.

    codes -> [embedding] -> mel decoder's convolutions, ConvNeXt, to mel -> Vocos' convolution, ConvNeXt -> spectrum -> overlap
"""

import ctypes
import math
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from pipeline.checkpoint.layout import VQ_GROUPS
from pipeline.checkpoint.weights import Checkpoint
from pipeline.config import VocoderConfig
from pipeline.errors import EngineFault
from pipeline.native.compiler import NativeUnavailable, has_tiles, library
from pipeline.native.memory import ALIGNMENT, LANES, PANEL, Arena, aligned, pack, pack_tiles
from pipeline.spec import CODEBOOKS, CONV_NORM_EPS, FFT_SIZE, HOP, MEL_FRAMES_PER_STEP
from pipeline.types import DecodedAudio, DecoderState, StepBatch
from pipeline.vocoder.windowed.code_embedding import CodeEmbedding
from pipeline.vocoder.windowed.convnext import below
from pipeline.vocoder.windowed.mel_decoder import DILATION

SOURCE = Path(__file__).with_name("incremental.cpp")

# As in incremental.cpp.
PASS, PHASES, SKEW = 96, 6, LANES
TILE_ROWS, TILE_DEPTH = 16, 32
CONVOLUTION, CONVOLUTION_GELU, CONVOLUTION_NORM, CONVNEXT, SPECTRUM, OVERLAP = range(6)

BINS = FFT_SIZE // 2 + 1
OVERLAP_BEFORE, OVERLAP_AFTER = 1, 2  # pieces a hop of samples is made of, besides its own


class _Product(ctypes.Structure):
    _fields_ = (
        ("weights", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("inputs", ctypes.c_int64),
        ("outputs", ctypes.c_int64),
        ("in_tiles", ctypes.c_int64),
    )


class _Norm(ctypes.Structure):
    _fields_ = (("weight", ctypes.c_void_p), ("bias", ctypes.c_void_p))


class _Stage(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("kind", "channels", "before", "after", "kernel", "dilation")),
        ("taps", ctypes.c_void_p),
        ("taps_bias", ctypes.c_void_p),
        ("norm", _Norm),
        ("first", _Product),
        ("second", _Product),
    )


class _Network(ctypes.Structure):
    _fields_ = (
        ("count", ctypes.c_int64),
        ("tiles", ctypes.c_int64),
        ("stages", ctypes.POINTER(_Stage)),
        ("eps", ctypes.c_double),
        ("squares", ctypes.c_void_p),
        ("frames", ctypes.c_void_p * 2),
        ("normed", ctypes.c_void_p),
        ("hidden", ctypes.c_void_p),
        ("normed_stride", ctypes.c_int64),
        ("hidden_stride", ctypes.c_int64),
        ("planes", ctypes.c_void_p * 2),
        ("counts", ctypes.c_void_p),
    )


class _Call(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("seen", "count", "ended")),
        *((name, ctypes.c_void_p) for name in ("frames", "memory", "samples")),
        ("threads", ctypes.c_int64),
    )


class _Matrix(NamedTuple):
    """A product, before it is packed: outputs and inputs are those of the stage, in its order."""

    weight: Tensor  # (outputs, inputs)
    bias: Tensor | None = None  # (outputs,)


class IncrementalVocoder:
    """One vocoder's weights, packed for incremental.cpp, and its scratch. Call it from the thread that made it."""

    def __init__(self, config: VocoderConfig, checkpoint: Checkpoint, *, tiles: bool | None = None) -> None:
        """Read and pack the parts the configuration needs.

        Args:
            tiles: whether to multiply with AMX; None: where there is one.

        Raises:
            NativeUnavailable: this machine, or a model of these dimensions, cannot use it.
        """
        self._carry = library(SOURCE).carry
        self._carry.argtypes, self._carry.restype = (ctypes.POINTER(_Network), ctypes.POINTER(_Call)), ctypes.c_int64
        self._threads = torch.get_num_threads()
        self._tiles = has_tiles() if tiles is None else tiles
        self._kept: list[Tensor] = []  # everything the structures below point into
        mel, vocos = checkpoint.mel_decoder() if config.use_decoder else checkpoint.dvae(), checkpoint.vocos()
        # What each of the four codes adds to its part of the embedding, a row a value.
        self._tables = (
            None if config.use_decoder else [table.numpy() for group in CodeEmbedding(mel).tables() for table in group]
        )
        # The padded copies are at most this much larger than the tensors.
        self._fingerprint = 0
        self._arena = Arena(2 * sum(tensor.nbytes for part in (mel, vocos) for tensor in part.values()) + (64 << 20))

        stages = [*self._mel_stages(mel), *self._vocos_stages(vocos)]
        self._stages = (_Stage * len(stages))(*stages)
        self._sizes = [(stage.before + stage.after) * stage.channels for stage in stages]
        self.reach = sum(stage.after for stage in stages)
        """frames after a frame that its samples depend on"""
        self.reach_steps = -(-self.reach // MEL_FRAMES_PER_STEP)
        channels = stages[0].channels
        self.width = CODEBOOKS if self._tables else MEL_FRAMES_PER_STEP * channels
        """numbers a step must have: 4 codes, or a hidden state"""
        rows = PASS + self.reach
        widest = max(stage.channels for stage in stages)
        room = max(stage.before + 2 * stage.after for stage in stages)
        wide = max(stage.first.outputs for stage in stages) + SKEW
        numbers = (rows + room + TILE_ROWS) * max(widest + SKEW, wide)
        self._network = _Network(
            count=len(stages),
            tiles=self._tiles,
            stages=self._stages,
            eps=CONV_NORM_EPS,
            squares=self._pointer(vocos["head.istft.window"].square()),
            frames=(ctypes.c_void_p * 2)(*(self._scratch(rows + room, widest) for _ in range(2))),
            normed=self._scratch(rows, widest + SKEW),
            hidden=self._scratch(rows, wide),
            normed_stride=widest + SKEW,
            hidden_stride=wide,
            planes=(ctypes.c_void_p * 2)(*(self._pointer(aligned(2 * numbers)) for _ in range(2))),
            counts=self._pointer(aligned(ALIGNMENT * PHASES * (len(stages) + 1) * (self._threads + 1))),
        )

    def __call__(self, batch: StepBatch) -> DecodedAudio:
        """Decode the next steps of an utterance.

        Raises:
            EngineFault: the steps are not this network's, or were carried by another one.
        """
        self.check(batch)
        rows = batch.steps if self._tables is None else self._embedded(batch.steps)
        frames = np.ascontiguousarray(rows, np.float32)
        before = batch.state.steps if batch.state else 0
        known = before + len(batch.steps)
        memory = batch.state.memory.copy() if batch.state else np.zeros(sum(self._sizes), np.float32)
        samples = np.empty(HOP * (self.hops(known, ended=batch.is_last) - self.hops(before, ended=False)), np.float32)
        call = _Call(
            seen=MEL_FRAMES_PER_STEP * before,
            count=MEL_FRAMES_PER_STEP * len(batch.steps),
            ended=batch.is_last,
            frames=frames.ctypes.data,
            memory=memory.ctypes.data,
            samples=samples.ctypes.data,
            threads=self._threads,
        )
        written = self._carry(ctypes.byref(self._network), ctypes.byref(call))
        assert written == len(samples), f"{written} samples where {len(samples)} were counted"
        return DecodedAudio(samples, None if batch.is_last else DecoderState(self._fingerprint, known, memory))

    def hops(self, known: int, *, ended: bool) -> int:
        """Hops of samples that are complete once so many steps are known: n steps of an utterance give 2n - 1."""
        frames = MEL_FRAMES_PER_STEP * known
        return max(0, frames - 1) if ended else max(0, frames - self.reach)

    def check(self, batch: StepBatch) -> None:
        """Return if the feed can be decoded: behind this line nothing checks an address.

        Raises:
            EngineFault: it cannot; says why.
        """
        if batch.steps.ndim != 2 or batch.steps.shape[1] != self.width:
            raise EngineFault(f"steps are {batch.steps.shape}; the vocoder takes {self.width} numbers per step")
        if batch.state is None:
            return
        given, memory = batch.state, batch.state.memory
        whole = given.steps >= 0 and memory.dtype == np.float32 and memory.shape == (sum(self._sizes),)
        if given.network != self._fingerprint or not whole:
            raise EngineFault("the steps before were decoded by a vocoder with another checkpoint or use_decoder")

    def _embedded(self, codes: NDArray[np.float32]) -> NDArray[np.float32]:
        """Codes (n, 4) to embeddings (n, 2 x channels): sums of rows of tables, each its own whatever n."""
        assert self._tables is not None
        indices = codes.astype(np.int64)
        rows = [table[indices[:, code] % len(table)] for code, table in enumerate(self._tables)]
        refinements = CODEBOOKS // VQ_GROUPS
        return np.concatenate(
            [sum(rows[at + 1 : at + refinements], rows[at]) for at in range(0, CODEBOOKS, refinements)], axis=1
        )

    def _mel_stages(self, tensors: Mapping[str, Tensor]) -> list[_Stage]:
        # No bias between the two, and zeros stay zeros: one convolution does the work of both.
        leave = tensors["decoder.conv_out.weight"].squeeze(2).double()
        to_bands = torch.einsum("omk,mi->oik", (tensors["out_conv.weight"] * tensors["coef"].view(-1, 1, 1)).double(), leave)
        return [
            self._convolution(CONVOLUTION_GELU, *_named(tensors, "decoder.conv_in.0")),
            self._convolution(CONVOLUTION, *_named(tensors, "decoder.conv_in.2")),
            *self._blocks(tensors, "decoder.decoder_block.", scale="weight", dilation=DILATION),
            self._convolution(CONVOLUTION, to_bands.float(), None),
        ]

    def _vocos_stages(self, tensors: Mapping[str, Tensor]) -> list[_Stage]:
        weight, bias = _named(tensors, "head.out")
        width = weight.shape[1]
        lanes = -(-BINS // LANES) * LANES

        def by_lanes(rows: Tensor) -> Tensor:  # (2 x bins, ...): sixteen of the first half, then their partners
            halves = _padded(rows.view(2, BINS, -1), 1, lanes)
            return halves.view(2, lanes // LANES, LANES, -1).transpose(0, 1).reshape(2 * lanes, -1)

        spectrum = _Stage(
            kind=SPECTRUM,
            channels=width,
            norm=self._norm(tensors, "backbone.final_layer_norm"),
            first=self._product(_Matrix(by_lanes(weight), by_lanes(bias[:, None]).flatten())),
            second=self._product(_Matrix(by_lanes(inverse_transform(tensors["head.istft.window"]).T).T)),
        )
        overlap = _Stage(kind=OVERLAP, channels=FFT_SIZE, before=OVERLAP_BEFORE, after=OVERLAP_AFTER)
        return [
            self._convolution(CONVOLUTION_NORM, *_named(tensors, "backbone.embed"), norm=self._norm(tensors, "backbone.norm")),
            *self._blocks(tensors, "backbone.convnext.", scale="gamma", dilation=1),
            spectrum,
            overlap,
        ]

    def _convolution(self, kind: int, weight: Tensor, bias: Tensor | None, *, norm: _Norm | None = None) -> _Stage:
        """A dense convolution: (outputs, inputs, kernel), as a product with the frames around one, which lie in a row."""
        _, inputs, kernel = weight.shape
        # What was padded on the way out of the stage before is zero; the first stage reads what comes, unpadded.
        channels = inputs if kind == CONVOLUTION_GELU else -(-inputs // PANEL) * PANEL
        rows = _padded(weight.transpose(1, 2), 2, channels).flatten(1)
        reach = kernel // 2
        return _Stage(
            kind=kind,
            channels=channels,
            before=reach,
            after=reach,
            norm=norm or _Norm(),
            first=self._product(_Matrix(rows, bias)),
        )

    def _blocks(self, tensors: Mapping[str, Tensor], prefix: str, *, scale: str, dilation: int) -> list[_Stage]:
        blocks: list[_Stage] = []
        while own := below(tensors, f"{prefix}{len(blocks)}."):
            channels, _, kernel = own["dwconv.weight"].shape
            if channels % LANES or own["pwconv1.weight"].shape[0] % LANES:
                raise NativeUnavailable(f"a width of {channels}: it takes multiples of {LANES}")
            reach = dilation * (kernel // 2)
            # The scale is folded into the layer before it.
            narrow = _Matrix(own["pwconv2.weight"] * own[scale][:, None], own["pwconv2.bias"] * own[scale])
            blocks.append(
                _Stage(
                    kind=CONVNEXT,
                    channels=channels,
                    before=reach,
                    after=reach,
                    kernel=kernel,
                    dilation=dilation,
                    taps=self._pointer(own["dwconv.weight"].squeeze(1).T.contiguous()),
                    taps_bias=self._pointer(own["dwconv.bias"]),
                    norm=self._norm(own, "norm"),
                    first=self._product(_Matrix(own["pwconv1.weight"], own["pwconv1.bias"])),
                    second=self._product(narrow),
                )
            )
        return blocks

    def _product(self, matrix: _Matrix) -> _Product:
        outputs, inputs = matrix.weight.shape
        panels = -(-outputs // PANEL)
        weight = _padded(matrix.weight, 0, panels * PANEL).contiguous()
        bias = torch.zeros(outputs) if matrix.bias is None else matrix.bias
        self._fingerprint = zlib.crc32(weight.numpy().data, self._fingerprint)
        in_tiles = self._tiles and inputs % TILE_DEPTH == 0
        packed = self._arena.keep(_pack_halves(weight) if in_tiles else pack(weight))
        return _Product(
            weights=packed.data_ptr(),
            bias=self._pointer(_padded(bias, 0, panels * PANEL)),
            inputs=inputs,
            outputs=-(-outputs // LANES) * LANES,
            in_tiles=in_tiles,
        )

    def _norm(self, tensors: Mapping[str, Tensor], name: str) -> _Norm:
        return _Norm(*map(self._pointer, _named(tensors, name)))

    def _pointer(self, tensor: Tensor) -> int:
        self._kept.append(tensor.contiguous())
        return self._kept[-1].data_ptr()

    def _scratch(self, *shape: int) -> int:
        return self._pointer(aligned(4 * math.prod(shape)))


def inverse_transform(window: Tensor) -> Tensor:
    """The inverse Fourier transform of a piece, and its window: (FFT_SIZE, real parts and then imaginary parts of the bins)."""
    place, frequency = torch.arange(FFT_SIZE).view(-1, 1), torch.arange(BINS)
    # place x frequency is a whole number: reduced before it becomes an angle, no digit is lost.
    angle = (place * frequency % FFT_SIZE).double() * (2 * math.pi / FFT_SIZE)
    inner = (frequency > 0) & (frequency < BINS - 1)  # stands for its mirror image too
    weight = (1 + inner.double()) / FFT_SIZE * window.double().view(-1, 1)
    return torch.cat([weight * angle.cos(), -weight * angle.sin() * inner], 1).float()


def _pack_halves(weight: Tensor) -> Tensor:
    """(out, in) float32 as pipeline/native/tiles.h reads it: nearest bfloat16 numbers, then what these lack, by turns."""
    nearest = weight.bfloat16()
    return torch.stack([pack_tiles(half) for half in (nearest, (weight - nearest.float()).bfloat16())], 2)


def _named(tensors: Mapping[str, Tensor], name: str) -> tuple[Tensor, Tensor]:
    return tensors[f"{name}.weight"], tensors[f"{name}.bias"]


def _padded(tensor: Tensor, axis: int, size: int) -> Tensor:
    """The tensor with zeros behind it along an axis."""
    missing = [0, 0] * (tensor.ndim - 1 - axis) + [0, size - tensor.shape[axis]]
    return F.pad(tensor, missing)
