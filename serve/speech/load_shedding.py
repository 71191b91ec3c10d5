"""Load shedding: applies the active degradation steps to one request.

In:    a SpeechBody, the active steps
Out:   the simplified body, and the names of the steps that were applied
Owns:  the ladder of one ingress replica
Never: Ray; a change to a request with a seed of its own; a change that the reply does not name
"""

import logging
from collections.abc import Callable, Iterable

from pipeline.errors import AtCapacity
from pipeline.types import Lane
from serve.config.policies import EASING, DegradationStep, DegradeConfig
from serve.resilience.degradation import RECOVER_AFTER_S, DegradationLadder
from serve.speech.schemas.speech import TIDY, PostBody, SpeechBody

LOG = logging.getLogger("ray.serve.chattts")

SKIPPED_CHUNK_SIZES = 2  # of the vocoder's: the first chunk is the third size


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
