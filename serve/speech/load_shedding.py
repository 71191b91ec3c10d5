"""Load shedding: applies the active degradation steps to one request.

In:    a SpeechBody; the share of capacity in use and the real-time factor, about once per second
Out:   the simplified body, and the names of the steps that were applied
Owns:  the ladder of one ingress replica
Never: a change to a request with a seed of its own; a change that the reply does not name
"""

import logging
import time
from collections.abc import Callable, Iterable

from pipeline.errors import AtCapacity
from pipeline.types import Lane
from serve.config.policies import EASING, REFUSALS, DegradationStep, DegradeConfig
from serve.speech.schemas.speech import TIDY, PostBody, SpeechBody

LOG = logging.getLogger("ray.serve.chattts")

SKIPPED_CHUNK_SIZES = 2  # of the vocoder's: the first chunk is the third size
ESCALATE_ABOVE = 0.8  # share of the capacity, or of the engine's queue, that adds a step: a burst still fits
RECOVER_BELOW = 0.5  # share at or below which a step is removed: far enough from the other that the level settles
SLOW_RTF = 0.8  # [s per second of audio] adds a step, never a refusal: streams are about to stop
ESCALATE_AFTER_S = 5.0  # how long the load must be high: more than one burst
RECOVER_AFTER_S = 30.0  # how long it must be low: a step back is heard


class DegradationLadder:
    """Climbs one step when the load has been high for long enough, and descends one when it has been low."""

    def __init__(self, config: DegradeConfig, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.level = 0
        self.changes = 0
        self._config = config
        self._clock = clock
        self._busy_since: float | None = None
        self._calm_since: float | None = None
        self._num_easing = sum(step not in REFUSALS for step in config.steps)

    @property
    def active_steps(self) -> tuple[DegradationStep, ...]:
        """The simplifications in force now."""
        return self._config.steps[: self.level]

    def observe(self, fullness: float, rtf: float) -> None:
        """Takes one measurement and changes the level if it is time to.

        Args:
            fullness: share of the capacity, or of the engine's queue, in use.
            rtf: real-time factor now [s per second of audio]; 0 while nothing is synthesised.
        """
        now, slow = self._clock(), rtf > SLOW_RTF
        busy = self.level < len(self._config.steps) and (fullness >= ESCALATE_ABOVE or (slow and self.level < self._num_easing))
        # A real-time factor that may not add a refusal may not keep one either.
        calm = self.level > 0 and fullness <= RECOVER_BELOW and not (slow and self.level <= self._num_easing)
        self._busy_since = (now if self._busy_since is None else self._busy_since) if busy else None
        self._calm_since = (now if self._calm_since is None else self._calm_since) if calm else None
        if self._busy_since is not None and now - self._busy_since >= ESCALATE_AFTER_S:
            self._move(1)
        elif self._calm_since is not None and now - self._calm_since >= RECOVER_AFTER_S:
            self._move(-1)

    def _move(self, by: int) -> None:
        self.level += by
        self.changes += 1
        self._busy_since = self._calm_since = None


class Degrader:
    """Simplifies requests while the service is under load."""

    def __init__(self, config: DegradeConfig | None = None, ladder: DegradationLadder | None = None) -> None:
        self.config = config or DegradeConfig()
        self.ladder = ladder or DegradationLadder(self.config)

    def observe(self, fullness: float, rtf: float) -> None:
        """Passes the load to the ladder, and logs a change of the active steps."""
        before = self.ladder.level
        self.ladder.observe(fullness, rtf)
        if self.ladder.level != before:
            steps = ", ".join(self.ladder.active_steps) or "none"
            LOG.warning("degradation: active steps: %s (fullness %.2f, real-time factor %.2f)", steps, fullness, rtf)

    def check_admitted(self, lane: Lane) -> None:
        """Checks that a lane is not refused at this moment.

        Raises:
            AtCapacity: an active step refuses this lane.
        """
        steps = self.ladder.active_steps
        if DegradationStep.ALL in steps or (DegradationStep.BULK in steps and lane is Lane.BULK):
            raise AtCapacity("the service is at its limit and refuses requests that can wait", retry_after_s=RECOVER_AFTER_S)

    def apply_to_body(self, body: SpeechBody, *, seeded: bool = False) -> tuple[SpeechBody, tuple[DegradationStep, ...]]:
        """Returns the body without what the active steps leave out, and the steps that apply to it.

        Steps that a body cannot express are only named; resolve_job sets them in the request.

        Args:
            seeded: the request has a seed of its own although its body names none.
        """
        steps = [step for step in self.ladder.active_steps if step in EASING]
        if not steps or seeded or body.seed is not None:
            return body, ()
        return self.without(body, steps)

    def without(self, body: SpeechBody, steps: Iterable[DegradationStep]) -> tuple[SpeechBody, tuple[DegradationStep, ...]]:
        """Returns the body without what the steps leave out, and those of them that apply to it."""
        applied = tuple(
            step
            for step in steps
            if step in (DegradationStep.SEGMENTS, DegradationStep.FIRST_CHUNK) or CHANGES[step](self, body)
        )
        for step in applied:
            if step in CHANGES:
                body = body.model_copy(update=CHANGES[step](self, body))
        return body, applied

    def _refine(self, body: SpeechBody) -> dict[str, object]:
        return {} if body.refine is False else {"refine": False}

    def _denoise(self, body: SpeechBody) -> dict[str, object]:
        post = TIDY if body.post is True else body.post
        noisy = isinstance(post, PostBody) and post.denoise != "off"
        return {"post": post.model_copy(update={"denoise": "off"})} if noisy and isinstance(post, PostBody) else {}

    def _version(self, body: SpeechBody) -> dict[str, object]:
        named = "@" in body.model or self.config.version is None
        return {} if named else {"model": self.config.version}


CHANGES: dict[DegradationStep, Callable[[Degrader, SpeechBody], dict[str, object]]] = {
    DegradationStep.REFINE: Degrader._refine,
    DegradationStep.DENOISE: Degrader._denoise,
    DegradationStep.VERSION: Degrader._version,
}
"""step -> the fields it changes in a body; none if the body does not use what the step leaves out"""
