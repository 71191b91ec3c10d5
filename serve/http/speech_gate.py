"""Speech gate: refuses speech while this replica is full, before the route is asked.

In:    headers and address of a request for speech
Out:   the error that the route would give; counted, as the route counts it
Owns:  nothing
Never: bodies; an answer to a request without access, which AuthMiddleware refuses
"""

from starlette.datastructures import Headers

from pipeline.errors import SynthesisError
from serve.errors import ApiError, to_api_error
from serve.http.route_access import SPEECH
from serve.http.services import Services
from serve.observability.reply_stats import Outcome, ReplyStats


class SpeechGate:
    """The early refusal of one ingress replica."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def refusal(self, headers: Headers, peer: str) -> SynthesisError | None:
        """Returns why speech is refused now; None: the route answers. A page is told by the route, with CORS headers."""
        speech = self._services.speech
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
