"""Admission check: refuses speech while this replica is full, before the route is asked.

In:    headers and address of a request for speech
Out:   the error that the route would give; counted, as the route counts it
Owns:  the count of requests that have passed
Never: bodies; places for those whose body has not arrived; an answer to a request without access, which AuthMiddleware refuses

Between this check and its place a request waits for its body. Of a burst, all would pass in that time, and the route would
refuse them for three times the work. So no more pass than there are places, until those are taken.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from starlette.datastructures import Headers

from pipeline.errors import SynthesisError
from serve.errors import ApiError, to_api_error
from serve.http.route_access import SPEECH
from serve.http.services import Services
from serve.observability.reply_stats import Outcome, ReplyStats

SOON_S = 1.0  # who has no place by then has a slow body, and nobody waits for those


class AdmissionCheck:
    """The early refusal of one ingress replica."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._passed: set[object] = set()  # of late, admitted or not yet
        self._changed = asyncio.Event()
        services.speech.admission.when_full = self._changed.set

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Counts a request as passed until it is answered, or must have a place."""
        ticket = object()
        self._passed.add(ticket)
        slow = asyncio.get_running_loop().call_later(SOON_S, self._forget, ticket)
        try:
            yield
        finally:
            slow.cancel()
            self._forget(ticket)

    def _forget(self, ticket: object) -> None:
        self._passed.discard(ticket)
        self._changed.set()

    async def refusal(self, headers: Headers, peer: str) -> SynthesisError | None:
        """Returns why speech is refused now; None: the route answers. A page is told by the route, with CORS headers."""
        speech = self._services.speech
        await self._others_are_admitted()
        if not speech.admission.is_full or "origin" in headers:
            return None
        try:
            self._services.authenticator.authenticate(headers, peer, SPEECH.scopes, opens_page=False)
            speech.admission.check()
        except ApiError:
            return None
        except SynthesisError as error:
            code = to_api_error(error).spec.code
            speech.observer.finished(ReplyStats(Outcome.REFUSED, code))
            speech.refusals.add(code)
            return error
        return None

    async def _others_are_admitted(self) -> None:
        """Waits, but not for long, while those that have passed may still take every place."""
        admission = self._services.speech.admission
        with suppress(TimeoutError):
            async with asyncio.timeout(SOON_S):
                while len(self._passed) >= admission.capacity and not admission.is_full:
                    self._changed.clear()
                    await self._changed.wait()
