"""Degrader: what the ladder means for one request.

In:    a SpeechBody, the rungs in force
Out:   the body and the request as they are spoken now, and what was given up
Owns:  the ladder of one ingress replica
Never: Ray; a request with a seed of its own, unless config says so; silence about what it did
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from pipeline.errors import AtCapacity
from pipeline.types import Lane, SynthesisRequest
from serve.resilience.degradation import EASING, DegradeConfig, Ladder, Rung
from serve.speech.schemas.speech import TIDY, PostBody, SpeechBody

LOG = logging.getLogger("ray.serve.chattts")

SKIPPED_CHUNK_SIZES = 2  # of vocoder.chunk_steps: the first chunk is the third size


@dataclass(frozen=True, slots=True)
class Eased:
    """A body as it is spoken now."""

    body: SpeechBody
    given_up: tuple[Rung, ...] = ()

    def fit(self, request: SynthesisRequest) -> SynthesisRequest:
        """The request, for what the body cannot say."""
        if Rung.SEGMENTS in self.given_up:
            request = replace(request, short_segments=True)
        if Rung.FIRST_CHUNK in self.given_up:
            request = replace(request, skipped_chunk_sizes=SKIPPED_CHUNK_SIZES)
        return request


class Degrader:
    """Of one ingress replica."""

    def __init__(self, config: DegradeConfig | None = None, ladder: Ladder | None = None) -> None:
        self.config = config or DegradeConfig()
        self.ladder = ladder or Ladder(self.config)

    def observe(self, fullness: float, rtf: float) -> None:
        """Look once; see Ladder."""
        before = self.ladder.level
        self.ladder.observe(fullness, rtf)
        if self.ladder.level != before:
            rungs = ", ".join(self.ladder.rungs) or "nothing"
            LOG.warning("degrade: given up now: %s (fullness %.2f, real-time factor %.2f)", rungs, fullness, rtf)

    def let_in(self, lane: Lane) -> None:
        """
        Raises:
            AtCapacity: a rung in force refuses this lane.
        """
        rungs = self.ladder.rungs
        if Rung.ALL in rungs or (Rung.BULK in rungs and lane is Lane.BULK):
            raise AtCapacity("the service is at its limit and refuses what can wait", retry_after_s=self.config.rest_s)

    def fit(self, body: SpeechBody, *, seeded: bool = False) -> Eased:
        """The body without what is given up at this moment.

        Args:
            seeded: the request has a seed of its own although its body names none.
        """
        rungs = [rung for rung in self.ladder.rungs if rung in EASING]
        if not rungs or ((seeded or body.seed is not None) and not self.config.seeded):
            return Eased(body)
        given_up = tuple(rung for rung in rungs if rung in (Rung.SEGMENTS, Rung.FIRST_CHUNK) or CHANGES[rung](self, body))
        for rung in given_up:
            if rung in CHANGES:
                body = body.model_copy(update=CHANGES[rung](self, body))
        return Eased(body, given_up)

    def _refine(self, body: SpeechBody) -> dict[str, object]:
        return {} if body.refine is False else {"refine": False}

    def _denoise(self, body: SpeechBody) -> dict[str, object]:
        post = TIDY if body.post is True else body.post
        noisy = isinstance(post, PostBody) and post.denoise != "off"
        return {"post": post.model_copy(update={"denoise": "off"})} if noisy and isinstance(post, PostBody) else {}

    def _version(self, body: SpeechBody) -> dict[str, object]:
        named = "@" in body.model or self.config.version is None
        return {} if named else {"model": self.config.version}


CHANGES: dict[Rung, Callable[[Degrader, SpeechBody], dict[str, object]]] = {
    Rung.REFINE: Degrader._refine,
    Rung.DENOISE: Degrader._denoise,
    Rung.VERSION: Degrader._version,
}
"""what a rung changes in a body; nothing where the body does not ask for it"""
