"""Load shedding: what the degradation ladder means for one request.

In:    a SpeechBody, the steps in force
Out:   the body without what is given up, and the names of what was
Owns:  the ladder of one ingress replica
Never: Ray; a change to a request with a seed of its own, unless config says so; a change the reply does not name
"""

import logging
from collections.abc import Callable

from pipeline.errors import AtCapacity
from pipeline.types import Lane
from serve.config.policies import EASING, DegradationStep, DegradeConfig
from serve.resilience.degradation import DegradationLadder
from serve.speech.schemas.speech import TIDY, PostBody, SpeechBody

LOG = logging.getLogger("ray.serve.chattts")

SKIPPED_CHUNK_SIZES = 2  # of vocoder.chunk_steps: the first chunk is the third size


class Degrader:
    """Leaves out of requests what the service gives up under load."""

    def __init__(self, config: DegradeConfig | None = None, ladder: DegradationLadder | None = None) -> None:
        self.config = config or DegradeConfig()
        self.ladder = ladder or DegradationLadder(self.config)

    def observe(self, fullness: float, rtf: float) -> None:
        """Let the ladder look at the load once, and log a change; see DegradationLadder.observe."""
        before = self.ladder.level
        self.ladder.observe(fullness, rtf)
        if self.ladder.level != before:
            steps = ", ".join(self.ladder.active_steps) or "none"
            LOG.warning("degradation: active steps: %s (fullness %.2f, real-time factor %.2f)", steps, fullness, rtf)

    def check_admitted(self, lane: Lane) -> None:
        """Check that a lane is not refused at this moment.

        Raises:
            AtCapacity: an active step refuses this lane.
        """
        steps = self.ladder.active_steps
        if DegradationStep.ALL in steps or (DegradationStep.BULK in steps and lane is Lane.BULK):
            raise AtCapacity("the service is at its limit and refuses what can wait", retry_after_s=self.config.recover_after_s)

    def apply_to_body(self, body: SpeechBody, *, seeded: bool = False) -> tuple[SpeechBody, tuple[DegradationStep, ...]]:
        """The body without what is given up at this moment, and what that is.

        Steps that a body cannot express are only named; the request carries them.

        Args:
            seeded: the request has a seed of its own although its body names none.
        """
        steps = [step for step in self.ladder.active_steps if step in EASING]
        if not steps or ((seeded or body.seed is not None) and not self.config.seeded):
            return body, ()
        given_up = tuple(
            step
            for step in steps
            if step in (DegradationStep.SEGMENTS, DegradationStep.FIRST_CHUNK) or CHANGES[step](self, body)
        )
        for step in given_up:
            if step in CHANGES:
                body = body.model_copy(update=CHANGES[step](self, body))
        return body, given_up

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
"""what a step changes in a body; nothing where the body does not ask for it"""
