"""Methods: the two ways to decode, behind one face for the worker.

In:    HiddenWindows, or StepBatches
Out:   samples, or DecodedAudio
Owns:  the network, in the form its way needs
Never: threads, queues

Carrying decodes every step once and is a CPU's way; windows are a GPU's, and that of a CPU where nothing can be built.
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
from pipeline.vocoder.incremental.network import IncrementalVocoder
from pipeline.vocoder.windowed.network import WindowCalls, build_window_calls
from pipeline.vocoder.windowed.windows import Schedule

logger = logging.getLogger(__name__)

Work = HiddenWindow | StepBatch


class DecodeStrategy(Protocol):
    """A way to decode. Call `run` from the thread that made it."""

    traits: DecoderTraits
    rows: int
    """most pieces of work in one call"""

    def check(self, work: Work) -> None:
        """Return if the work can be done: the worker must never fail on what it is given.

        Raises:
            EngineFault: one side is configured otherwise than the other.
        """
        ...

    def is_urgent(self, work: Work) -> bool:
        """Whether it goes before what has waited longer."""
        ...

    def may_join(self, work: Work, first: Work) -> bool:
        """Whether both can be done in one call."""
        ...

    def run(self, works: Sequence[Any]) -> Sequence[Any]:
        """Do what has been checked, at most `rows` pieces of it, in one call."""
        ...

    def blanks(self) -> list[list[Work]]:
        """Calls that touch everything there is to warm up."""
        ...


class IncrementalStrategy:
    """StepBatches, one at a time: a call fills the cores by itself."""

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
        """See DecodeStrategy."""
        if not isinstance(work, StepBatch):
            raise EngineFault("this vocoder carries what it has to know (vocoder.method); it takes no windows")
        self._network.check(work)

    def is_urgent(self, work: Work) -> bool:
        """The call that completes a stream's first chunk goes before those of streams that play: each has one such call."""
        assert isinstance(work, StepBatch)
        first = self.traits.look_ahead + self.traits.chunk_steps[0]
        before = work.state.steps if work.state else 0
        return before < first and (work.is_last or before + len(work.steps) >= first)

    def may_join(self, work: Work, first: Work) -> bool:
        """See DecodeStrategy."""
        return False

    def run(self, works: Sequence[StepBatch]) -> Sequence[DecodedAudio]:
        """See DecodeStrategy."""
        return [self._network(feed) for feed in works]

    def blanks(self) -> list[list[Work]]:
        """See DecodeStrategy."""
        steps = np.zeros((2 * self.traits.look_ahead, self._network.width), np.float32)
        return [[StepBatch(steps, None, is_last=True)]]


class WindowedStrategy:
    """Windows, several of one shape at a time."""

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
        """See DecodeStrategy."""
        if not isinstance(work, HiddenWindow):
            raise EngineFault("this vocoder decodes windows (vocoder.method); it carries nothing from call to call")
        steps, width = work.frames.shape
        body = range(self.traits.look_ahead, steps - self.traits.look_ahead + 1)
        if steps not in self._calls.by_steps or width != self._calls.width:
            raise EngineFault(
                f"a window is ({steps}, {width}); the vocoder takes {self._calls.width} numbers a step and windows of "
                f"{sorted(self._calls.by_steps)} steps: both sides need the same look_ahead, chunk_steps and use_decoder"
            )
        if work.body_start not in body or work.body_stop not in body or work.body_start > work.body_stop:
            raise EngineFault(
                f"a window's body is [{work.body_start}, {work.body_stop}); it must lie in [{body[0]}, {body[-1]})"
            )

    def is_urgent(self, work: Work) -> bool:
        """See DecodeStrategy."""
        return False

    def may_join(self, work: Work, first: Work) -> bool:
        """See DecodeStrategy."""
        assert isinstance(work, HiddenWindow)
        assert isinstance(first, HiddenWindow)
        return work.frames.shape == first.frames.shape

    def run(self, works: Sequence[HiddenWindow]) -> Sequence[Any]:
        """See DecodeStrategy."""
        return self._calls.by_steps[len(works[0].frames)](works)

    def blanks(self) -> list[list[Work]]:
        """Every shape once, on a GPU with every number of windows, so that nothing is recorded while somebody waits."""
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
    """The network, in the way the configuration asks for and this machine allows.

    Raises:
        ConfigError: carrying is asked for and this machine cannot do it.
    """
    if config.allows_incremental:
        try:
            return IncrementalStrategy(config, IncrementalVocoder(config, checkpoint))
        except NativeUnavailable as reason:
            if config.method == "incremental":
                raise ConfigError(
                    f"vocoder.method incremental is impossible here: {reason}; set it to auto or windows"
                ) from reason
            logger.warning("decoding speech in windows, which costs three times as much and more: %s (vocoder.method)", reason)
    return WindowedStrategy(config, build_window_calls(config, checkpoint))
