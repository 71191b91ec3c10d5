"""Load shedding: applies the active degradation steps to one request.

In:    a SpeechBody; the share of capacity in use and what was decoded, about once per second
Out:   the simplified body, and the names of the steps that were applied
Owns:  the ladder of one ingress replica
Never: a change to a request with a seed of its own; a change that the reply does not name
"""

import logging
import time
from collections.abc import Callable, Iterable

from pipeline.errors import AtCapacity
from pipeline.spec import CONTROL_TAGS, SPEED_TAGS
from pipeline.types import Lane
from serve.config.policies import EASING, REFUSALS, DegradationStep, DegradeConfig
from serve.speech.schemas.speech import TIDY, PostBody, RefineBody, SpeechBody

LOG = logging.getLogger("ray.serve.chattts")

SKIPPED_CHUNK_SIZES = 2  # of the vocoder's: the first chunk is the third size
ESCALATE_ABOVE = 0.8  # share of the capacity, or of the engine's queue, that adds a step: a burst still fits
RECOVER_BELOW = 0.5  # share at or below which a step is removed: far enough from the other that the level settles
SLOW_RTF = 0.8  # [s per second of audio] adds a step, never a refusal: streams are about to stop
FAST_RTF = 0.6  # at or below it, a step that was added for SLOW_RTF is removed
DOUBTS = 32  # times as long, in time and in audio, between the two: a peak must not lower a lone listener's quality for ever
ESCALATE_AFTER_S = 5.0  # how long the load must be high: more than one burst
RECOVER_AFTER_S = 30.0  # how long it must be low: a step back is heard
MOST_RECOVER_S = 960.0  # the same at most, after steps back that the machine could not keep
MEMORY_S = 10.0  # audio that the real-time factor is a mean of
LEAST_S = 1.0  # audio after a change from which on it counts: a short sentence
SETTLED_S = 30.0  # audio after which a step back counts as one that the machine keeps


class DegradationLadder:
    """Climbs one step when the load has been high for long enough, and descends one when it has been low.

    A step back to where the machine was too slow is a trial: it needs speech that was fast enough since the last change, so
    an idle service stays where it is. A trial that fails doubles the wait before the next one; one that lasts halves it.
    """

    def __init__(self, config: DegradeConfig, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.level = 0
        self.changes = 0
        self.rtf = 0.0
        """real-time factor of the last speeches [s per second of audio]; 0: nothing was spoken yet"""
        self._config = config
        self._clock = clock
        self._busy_since: float | None = None
        self._calm_since: float | None = None
        self._num_easing = sum(step not in REFUSALS for step in config.steps)
        self._audio_s = 0.0  # since the last change
        self._slow_level = -1  # up to it, steps back are trials
        self._on_trial = False
        self._recover_s = RECOVER_AFTER_S

    @property
    def active_steps(self) -> tuple[DegradationStep, ...]:
        """The simplifications in force now."""
        return self._config.steps[: self.level]

    def observe(self, fullness: float, took_s: float, audio_s: float) -> None:
        """Takes one measurement and changes the level if it is time to.

        Args:
            fullness: share of the capacity, or of the engine's queue, in use.
            took_s: time in which listeners were decoded since the last call [s].
            audio_s: audio that each of them got in it [s]; 0: nothing was spoken.
        """
        self._measure(took_s, audio_s)
        now, is_measured = self._clock(), self._audio_s >= LEAST_S
        slow = is_measured and self.rtf > SLOW_RTF and self.level <= self._num_easing
        easing = slow and self.level < self._num_easing
        busy = self.level < len(self._config.steps) and (fullness >= ESCALATE_ABOVE or easing)
        # A real-time factor that may not add a refusal may not keep one either.
        trial = self.level - 1 <= self._slow_level
        keeps_up = is_measured and (self.rtf <= FAST_RTF or self._keeps_up_for_long) if trial else not slow
        calm = self.level > 0 and fullness <= RECOVER_BELOW and keeps_up
        self._busy_since = (now if self._busy_since is None else self._busy_since) if busy else None
        self._calm_since = (now if self._calm_since is None else self._calm_since) if calm else None
        if self._busy_since is not None and now - self._busy_since >= ESCALATE_AFTER_S:
            self._slow_level = self.level if easing else self._slow_level
            if easing and self._on_trial:
                self._recover_s = min(2 * self._recover_s, MOST_RECOVER_S)
            self._move(1)
        elif self._calm_since is not None and now - self._calm_since >= self._wait_s(trial):
            self._move(-1, on_trial=trial)

    @property
    def _keeps_up_for_long(self) -> bool:
        return self.rtf <= SLOW_RTF and self._audio_s >= DOUBTS * LEAST_S

    def _wait_s(self, trial: bool) -> float:
        """Returns how long it must be calm before a step is removed."""
        if not trial:
            return RECOVER_AFTER_S
        return self._recover_s * (1 if self.rtf <= FAST_RTF else DOUBTS)

    def _measure(self, took_s: float, audio_s: float) -> None:
        if audio_s > 0:
            share = min(1.0, audio_s / min(self._audio_s + audio_s, MEMORY_S))
            self.rtf += share * (took_s / audio_s - self.rtf)
            self._audio_s += audio_s
        if self._on_trial and self._audio_s >= SETTLED_S:
            self._on_trial, self._recover_s = False, max(self._recover_s / 2, RECOVER_AFTER_S)

    def _move(self, by: int, *, on_trial: bool = False) -> None:
        self.level += by
        self.changes += 1
        self._slow_level = min(self._slow_level, self.level - 1) if by < 0 else self._slow_level
        self._on_trial, self._audio_s = on_trial, 0.0
        self._busy_since = self._calm_since = None


class Degrader:
    """Simplifies requests while the service is under load."""

    def __init__(
        self,
        config: DegradeConfig | None = None,
        ladder: DegradationLadder | None = None,
        *,
        tags_by_default: bool = False,
    ) -> None:
        """
        Args:
            tags_by_default: control tags of a plain text count without allow_control_tags (limits.control_tags).
        """
        self.config = config or DegradeConfig()
        self.ladder = ladder or DegradationLadder(self.config)
        self._tags_by_default = tags_by_default

    def observe(self, fullness: float, took_s: float, audio_s: float) -> None:
        """Passes the load to the ladder, and logs a change of the active steps."""
        before = self.ladder.level
        self.ladder.observe(fullness, took_s, audio_s)
        if self.ladder.level != before:
            steps, rtf = ", ".join(self.ladder.active_steps) or "none", self.ladder.rtf
            LOG.warning("degradation: active steps: %s (fullness %.2f, real-time factor %.2f)", steps, fullness, rtf)

    def check_admitted(self, lane: Lane) -> None:
        """Checks that a lane is not refused at this moment.

        Raises:
            AtCapacity: an active step refuses this lane.
        """
        steps = self.ladder.active_steps
        if DegradationStep.ALL in steps or (DegradationStep.BULK in steps and lane is Lane.BULK):
            raise AtCapacity("the service is at its limit and refuses requests that can wait", retry_after_s=RECOVER_AFTER_S)

    def apply_to_body(
        self, body: SpeechBody, *, seeded: bool = False, strict: bool = False
    ) -> tuple[SpeechBody, tuple[DegradationStep, ...]]:
        """Returns the body without what the active steps leave out, and the steps that apply to it.

        Steps that a body cannot express are only named; resolve_job sets them in the request.

        Args:
            seeded: the request has a seed of its own although its body names none.
            strict: the request is refused rather than spoken without its tags.
        """
        steps = [step for step in self.ladder.active_steps if step in EASING]
        steps = [step for step in steps if step is not DegradationStep.EXPRESSION] if strict else steps
        if not steps or seeded or body.seed is not None:
            return body, ()
        return self.without(body, steps)

    def without(self, body: SpeechBody, steps: Iterable[DegradationStep]) -> tuple[SpeechBody, tuple[DegradationStep, ...]]:
        """Returns the body without what the steps leave out, and those of them that apply to it."""
        applied = []
        for step in steps:
            change = CHANGES[step](self, body) if step in CHANGES else {}
            if change or step not in CHANGES or (step is DegradationStep.EXPRESSION and self.has_tags_by_default(body)):
                body = body.model_copy(update=change)
                applied.append(step)
        return body, tuple(applied)

    def _refine(self, body: SpeechBody) -> dict[str, object]:
        return {} if body.refine is False else {"refine": False}

    def _denoise(self, body: SpeechBody) -> dict[str, object]:
        post = TIDY if body.post is True else body.post
        noisy = isinstance(post, PostBody) and post.denoise != "off"
        return {"post": post.model_copy(update={"denoise": "off"})} if noisy and isinstance(post, PostBody) else {}

    def _expression(self, body: SpeechBody) -> dict[str, object]:
        refine = RefineBody() if body.refine is True else body.refine
        if not isinstance(refine, RefineBody) or not (refine.oral or refine.laugh or refine.pause):
            return {}
        return {"refine": refine.model_copy(update={"oral": 0, "laugh": 0, "pause": 0})}

    def has_tags_by_default(self, body: SpeechBody) -> bool:
        """True for a plain text with tags of expression that count only because limits.control_tags says so."""
        if not self._tags_by_default or body.allow_control_tags is not None or body.input_type != "text":
            return False
        return "[" in body.input and any(tag in body.input for tag in CONTROL_TAGS - SPEED_TAGS)

    def _version(self, body: SpeechBody) -> dict[str, object]:
        named = "@" in body.model or self.config.version is None
        return {} if named else {"model": self.config.version}


CHANGES: dict[DegradationStep, Callable[[Degrader, SpeechBody], dict[str, object]]] = {
    DegradationStep.REFINE: Degrader._refine,
    DegradationStep.DENOISE: Degrader._denoise,
    DegradationStep.EXPRESSION: Degrader._expression,
    DegradationStep.VERSION: Degrader._version,
}
"""step -> the fields it changes in a body; none if the body does not use what the step leaves out"""
