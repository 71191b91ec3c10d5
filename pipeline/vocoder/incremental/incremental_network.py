"""Incremental network: the vocoder on a CPU as one call into machine code (incremental.cpp) that decodes every frame once.

In:    StepBatches: the next steps of an utterance, and the state that the previous call returned
Out:   DecodedAudio: the samples that no later step can change, and the state for the next call
Owns:  the packed weights (vocoder_packing.py), the scratch memory
Never: streams, queues; anything of an utterance between two calls

Every layer keeps the frames that its next ones will see, some 400 kB per utterance in all. This state travels with the
utterance, so a call is a pure function: any replica can continue another one's utterance. A frame's bits do not depend on how
the utterance was cut into calls.

    codes -> [embedding] -> mel decoder's convolutions, ConvNeXt, to mel -> Vocos' convolution, ConvNeXt -> spectrum -> overlap
"""

import ctypes
import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.checkpoint.layout import VQ_GROUPS
from pipeline.checkpoint.weights import Checkpoint
from pipeline.config import VocoderConfig
from pipeline.errors import EngineFault
from pipeline.native.compiler import best_instructions, library
from pipeline.native.instructions import Instructions
from pipeline.native.memory import ALIGNMENT, PANEL, address, aligned
from pipeline.native.thread_count import default_threads
from pipeline.spec import CODEBOOKS, CONV_NORM_EPS, HOP, MEL_FRAMES_PER_STEP
from pipeline.types import DecodedAudio, DecoderState, StepBatch
from pipeline.vocoder.incremental.vocoder_packing import Stage, pack_weights

SOURCE = Path(__file__).with_name("incremental.cpp")

# As in incremental.cpp.
PASS, PHASES, SKEW = 96, 6, PANEL
TILE_ROWS = 16


class _Network(ctypes.Structure):
    _fields_ = (
        ("count", ctypes.c_int64),
        ("tiles", ctypes.c_int64),
        ("stages", ctypes.POINTER(Stage)),
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


class IncrementalVocoder:
    """One vocoder's weights, packed for incremental.cpp, and its scratch memory. Call it from the thread that created it."""

    def __init__(self, config: VocoderConfig, checkpoint: Checkpoint, *, instructions: Instructions | None = None) -> None:
        """
        Args:
            instructions: those to compute with; None: the best of this machine.

        Raises:
            NativeUnavailable: this machine, or a model of these dimensions, cannot use it.
        """
        instructions = instructions or best_instructions()
        self._decode = library(SOURCE, instructions=instructions).decode
        self._decode.argtypes, self._decode.restype = (ctypes.POINTER(_Network), ctypes.POINTER(_Call)), ctypes.c_int64
        self._threads = config.threads or default_threads()
        in_tiles = instructions is Instructions.AMX
        self._weights = pack_weights(config, checkpoint, tiles=in_tiles)
        stages = list(self._weights.stages)
        self._memory_size = sum((stage.before + stage.after) * stage.channels for stage in stages)
        self.reach = sum(stage.after for stage in stages)
        """number of later frames that a frame's samples depend on"""
        self.reach_steps = -(-self.reach // MEL_FRAMES_PER_STEP)
        """the same in steps"""
        self.width = CODEBOOKS if self._weights.tables else MEL_FRAMES_PER_STEP * stages[0].channels
        """numbers per step: 4 codes, or the size of a hidden state"""
        self._scratch: list[NDArray[np.uint8]] = []
        self._network = self._make_network(stages, in_tiles=in_tiles)

    def __call__(self, batch: StepBatch) -> DecodedAudio:
        """Decodes the next steps of an utterance.

        Raises:
            EngineFault: the steps do not fit this network, or their state is another network's.
        """
        self.check(batch)
        rows = self._embedded(batch.steps) if self._weights.tables else batch.steps
        frames = np.ascontiguousarray(rows, np.float32)
        before = batch.state.steps if batch.state else 0
        known = before + len(batch.steps)
        memory = batch.state.memory.copy() if batch.state else np.zeros(self._memory_size, np.float32)
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
        written = self._decode(ctypes.byref(self._network), ctypes.byref(call))
        assert written == len(samples), f"{written} samples where {len(samples)} were counted"
        return DecodedAudio(samples, None if batch.is_last else DecoderState(self._weights.fingerprint, known, memory))

    def hops(self, known: int, *, ended: bool) -> int:
        """Returns how many hops of samples are complete when `known` steps are: a whole utterance of n steps has 2n - 1."""
        frames = MEL_FRAMES_PER_STEP * known
        return max(0, frames - 1) if ended else max(0, frames - self.reach)

    def check(self, batch: StepBatch) -> None:
        """Checks that a batch can be decoded: the C++ code checks no address.

        Raises:
            EngineFault: it cannot, with the reason.
        """
        if batch.steps.ndim != 2 or batch.steps.shape[1] != self.width:
            raise EngineFault(f"steps are {batch.steps.shape}; the vocoder takes {self.width} numbers per step")
        if batch.state is None:
            return
        state, memory = batch.state, batch.state.memory
        whole = state.steps >= 0 and memory.dtype == np.float32 and memory.shape == (self._memory_size,)
        if state.network != self._weights.fingerprint or not whole:
            raise EngineFault("the steps before were decoded by a vocoder with another checkpoint or use_decoder")

    def _embedded(self, codes: NDArray[np.float32]) -> NDArray[np.float32]:
        """Returns the embeddings (n, 2 x channels) of codes (n, 4): sums of table rows, independent of n."""
        indices = codes.astype(np.int64)
        rows = [table[indices[:, code] % len(table)] for code, table in enumerate(self._weights.tables)]
        refinements = CODEBOOKS // VQ_GROUPS
        return np.concatenate(
            [sum(rows[at + 1 : at + refinements], rows[at]) for at in range(0, CODEBOOKS, refinements)], axis=1
        )

    def _make_network(self, stages: list[Stage], *, in_tiles: bool) -> _Network:
        """Allocates the scratch memory, and returns the structure that incremental.cpp takes."""

        def scratch(size: int) -> int:
            self._scratch.append(aligned(size))
            return address(self._scratch[-1])

        def floats(*shape: int) -> int:
            return scratch(4 * math.prod(shape))

        rows = PASS + self.reach
        widest = max(stage.channels for stage in stages)
        room = max(stage.before + 2 * stage.after for stage in stages)
        wide = max(stage.first.outputs for stage in stages) + SKEW
        numbers = (rows + room + TILE_ROWS) * max(widest + SKEW, wide)
        return _Network(
            count=len(stages),
            tiles=in_tiles,
            stages=self._weights.stages,
            eps=CONV_NORM_EPS,
            squares=address(self._weights.squares),
            frames=(ctypes.c_void_p * 2)(*(floats(rows + room, widest) for _ in range(2))),
            normed=floats(rows, widest + SKEW),
            hidden=floats(rows, wide),
            normed_stride=widest + SKEW,
            hidden_stride=wide,
            planes=(ctypes.c_void_p * 2)(*(scratch(2 * numbers) for _ in range(2))),
            counts=scratch(ALIGNMENT * PHASES * (len(stages) + 1) * (self._threads + 1)),
        )
