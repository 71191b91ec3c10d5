"""Other protocols: those of one route each, and the envelope of errors that clients of Kokoro-FastAPI read.

In:    an error, as the service knows it
Out:   KOKORO; the form of the reply
"""

from serve.errors import ApiError
from serve.http.protocol import ErrorForm, Protocol

CAPTIONED = "/dev/captioned_speech"


def kokoro_form(refusal: ApiError, request_id: str) -> ErrorForm:
    """Returns the reply: our status, code and type in their envelope."""
    detail = {"error": refusal.spec.code, "message": refusal.message, "type": refusal.spec.type}
    return ErrorForm(refusal.spec.status, {"detail": detail}, {})


KOKORO = Protocol(paths=(CAPTIONED,), routers=("serve.protocols.others.routes",), error=kokoro_form)
