"""Strategies: the two methods of decoding, incremental and windowed, behind one interface for the worker.

In:    HiddenWindows, or StepBatches
Out:   samples, or DecodedAudio
Owns:  the network, in the form its method needs
Never: threads, queues; torch, unless it decodes in windows

The incremental method decodes every step once, on a CPU with AVX2 or AVX-512 and a C++ compiler. Windows serve GPUs and other
CPUs.
"""

import logging
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from pipeline.checkpoint.weights import Checkpoint
from pipeline.config import VocoderConfig
from pipeline.errors import ConfigError, EngineFault
from pipeline.native.compiler import NativeUnavailable
from pipeline.types import DecodedAudio, DecoderTraits, HiddenWindow, StepBatch
from pipeline.vocoder.incremental.incremental_network import IncrementalVocoder
from pipeline.vocoder.windowed.calls import WindowCalls
from pipeline.vocoder.windowed.windows import Schedule
from pipeline.with_torch import torch_part

logger = logging.getLogger(__name__)

Work = HiddenWindow | StepBatch


class DecodeStrategy(Protocol):
    """A method of decoding. Call `run` from the thread that created it."""

    traits: DecoderTraits
    rows: int
    """largest number of windows or step batches per call"""

    def check(self, work: Work) -> None:
        """Checks the shape and state of a window or step batch, so that the worker never fails on its input.

        Raises:
            EngineFault: caller and vocoder are configured differently.
        """
        ...

    def is_urgent(self, work: Work) -> bool:
        """True if it overtakes work that has waited longer."""
        ...

    def may_join(self, work: Work, first: Work) -> bool:
        """True if both can be decoded in one call."""
        ...

    def run(self, works: Sequence[Any]) -> Sequence[Any]:
        """Decodes up to `rows` checked windows or step batches in one call. Returns one result for each, in order."""
        ...

    def blanks(self) -> list[list[Work]]:
        """Returns inputs of zeros, one list per call, that together warm up every part of the network."""
        ...


class IncrementalStrategy:
    """Decodes StepBatches, one per call: one fills all cores."""

    rows = 1

    def __init__(self, config: VocoderConfig, network: IncrementalVocoder) -> None:
        self._network = network
        self.traits = DecoderTraits(
            is_stateful=True,
            use_decoder=config.use_decoder,
            look_ahead=network.reach_steps,
            chunk_steps=config.chunks(incremental=True),
        )

    def check(self, work: Work) -> None:
        """Checks a step batch: its width, and that its state comes from this network."""
        if not isinstance(work, StepBatch):
            raise EngineFault("this vocoder is incremental (vocoder.method): it takes step batches, not windows")
        self._network.check(work)

    def is_urgent(self, work: Work) -> bool:
        """True if the call completes a first chunk. An exact stream has one such call, one of low latency some more."""
        assert isinstance(work, StepBatch)
        first = self.traits.look_ahead + self.traits.chunk_steps[0]
        before = work.state.steps if work.state else 0
        return before < first and (work.is_last or before + len(work.steps) >= first)

    def may_join(self, work: Work, first: Work) -> bool:
        """Returns False: a call decodes one step batch."""
        return False

    def run(self, works: Sequence[StepBatch]) -> Sequence[DecodedAudio]:
        """Decodes the step batches one after another."""
        return [self._network(batch) for batch in works]

    def blanks(self) -> list[list[Work]]:
        """Returns one utterance of zeros, long enough for every layer to reach its full context."""
        steps = np.zeros((2 * self.traits.look_ahead, self._network.width), np.float32)
        return [[StepBatch(steps, None, is_last=True)]]


class WindowedStrategy:
    """Decodes windows, up to `rows` of one shape per call."""

    def __init__(self, config: VocoderConfig, calls: WindowCalls) -> None:
        self._calls = calls
        self._on_a_gpu = config.device == "cuda"
        self.rows = config.rows
        self.traits = DecoderTraits(
            is_stateful=False,
            use_decoder=config.use_decoder,
            look_ahead=config.look_ahead,
            chunk_steps=config.chunks(incremental=False),
        )

    def check(self, work: Work) -> None:
        """Checks a window: its shape, and the position of its body."""
        if not isinstance(work, HiddenWindow):
            raise EngineFault("this vocoder decodes windows (vocoder.method): it keeps no state and takes no step batches")
        steps, width = work.frames.shape
        body = range(self.traits.look_ahead, steps - self.traits.look_ahead + 1)
        if steps not in self._calls.by_steps or width != self._calls.width:
            raise EngineFault(
                f"a window is ({steps}, {width}); the vocoder takes {self._calls.width} numbers per step and windows of "
                f"{sorted(self._calls.by_steps)} steps: both sides need the same look_ahead, chunk_steps and use_decoder"
            )
        if work.body_start not in body or work.body_stop not in body or work.body_start > work.body_stop:
            raise EngineFault(
                f"a window's body is [{work.body_start}, {work.body_stop}); it must lie in [{body[0]}, {body[-1]})"
            )

    def is_urgent(self, work: Work) -> bool:
        """True if the window is a stream's first chunk: nothing comes before its body. Each stream has one."""
        assert isinstance(work, HiddenWindow)
        return self.traits.look_ahead > 0 and work.valid_start == work.body_start

    def may_join(self, work: Work, first: Work) -> bool:
        """True if both windows have the same shape."""
        assert isinstance(work, HiddenWindow)
        assert isinstance(first, HiddenWindow)
        return work.frames.shape == first.frames.shape

    def run(self, works: Sequence[HiddenWindow]) -> Sequence[Any]:
        """Decodes up to `rows` windows of one shape."""
        return self._calls.by_steps[len(works[0].frames)](works)

    def blanks(self) -> list[list[Work]]:
        """Returns windows of every shape; for a GPU in every number that has a CUDA graph, so that none is recorded later."""
        powers = range(self.rows.bit_length() + 1) if self._on_a_gpu else range(1)
        counts = sorted({min(1 << power, self.rows) for power in powers})
        shapes = Schedule(self.traits.chunk_steps, self.traits.look_ahead).shapes
        return [[self._blank(steps, body)] * count for count in counts for steps, body in shapes]

    def _blank(self, steps: int, body: int) -> HiddenWindow:
        start = self.traits.look_ahead
        return HiddenWindow(
            frames=np.zeros((steps, self._calls.width), np.float32),
            valid_start=0,
            valid_stop=steps,
            body_start=start,
            body_stop=start + body,
            is_last=False,
        )


def make_strategy(config: VocoderConfig, checkpoint: Checkpoint) -> DecodeStrategy:
    """Builds the strategy that the configuration names and this machine supports.

    Raises:
        ConfigError: vocoder.method is incremental, which this machine does not support, or windows need torch, which is not
            installed.
    """
    why = ""
    if config.allows_incremental:
        try:
            return IncrementalStrategy(config, IncrementalVocoder(config, checkpoint))
        except NativeUnavailable as reason:
            if config.method == "incremental":
                raise ConfigError(
                    f"vocoder.method incremental is not possible here: {reason}; set it to auto or windows"
                ) from reason
            why = str(reason)
    network = torch_part("pipeline.vocoder.windowed.network", wanted_for="a vocoder that decodes in windows (vocoder.method)")
    if why:
        logger.warning("the vocoder decodes in windows, at three times the cost or more: %s (vocoder.method)", why)
    return WindowedStrategy(config, network.build_window_calls(config, checkpoint))
