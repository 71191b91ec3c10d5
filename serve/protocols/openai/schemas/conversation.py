"""Conversation schemas: what a client says in the service's own protocol over a WebSocket.

In:    the text of a frame
Out:   Said; ApiError
Never: a client's text in an error message; a field that is ignored
"""

import json
import re
from typing import Annotated, Any, Literal

from pydantic import Field

from serve.access.resume_tokens import Resumption
from serve.errors import bad_request
from serve.http.bounded_fields import bounded, object_in, parse_object
from serve.speech.conversation.context import ContextSettings
from serve.speech.schemas.base import B, Body, read_body
from serve.speech.schemas.speech import SpeechBody

_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
ContextId = Annotated[str, Field(pattern=f"^(?:{_ID.pattern})$")]
MOST_TYPE_CHARS = 16
MAIN = "main"
"""context of messages that name none"""


class ResumeBody(Body):
    """Where the first part of a context goes on."""

    token: str = Field(min_length=1, max_length=2048, description="of the message `started` of the part")
    bytes: int = Field(ge=0, lt=1 << 50, description="bytes of the part's audio that were received")
    sha256: str = Field("", pattern=r"^(?:[0-9a-f]{64})?$", description="of these bytes, in hexadecimal; empty: not checked")


class OpenMessage(Body):
    """Opens a context."""

    type: Literal["open"]
    context: ContextId = MAIN
    speech: dict[str, Any] = Field(default_factory=dict, description="fields of POST /v1/audio/speech but input")
    sentences: bool = False
    pause_ms: int | None = Field(None, ge=50, le=60_000)
    lead_s: float | None = Field(None, ge=0)
    resume: ResumeBody | None = None

    def settings(self, lead_s: float) -> ContextSettings:
        """Returns the settings of the context; `lead_s` is that of a message that names none.

        Raises:
            ApiError
        """
        if "input" in self.speech:
            raise bad_request("unknown_field", "speech has no input here: text comes in messages of its own", param="speech")
        pause_s = None if self.pause_ms is None else self.pause_ms / 1000
        lead_s = lead_s if self.lead_s is None else self.lead_s
        known = self.resume
        resumes = None if known is None else Resumption(known.bytes, known.token, known.sha256)
        return ContextSettings(self.speech, lead_s, self.sentences, pause_s, resumes)


class TextMessage(Body):
    """Appends text to a context."""

    type: Literal["text"]
    context: ContextId = MAIN
    text: str = Field(description="may end inside a character that UTF-16 writes in two halves")


class FlushMessage(Body):
    """Ends the present part of a context."""

    type: Literal["flush"]
    context: ContextId = MAIN


class CloseMessage(Body):
    """Ends the text of a context."""

    type: Literal["close"]
    context: ContextId = MAIN


class CancelMessage(Body):
    """Interrupts a context."""

    type: Literal["cancel"]
    context: ContextId = MAIN
    played_ms: float | None = Field(None, ge=0)


Said = OpenMessage | TextMessage | FlushMessage | CloseMessage | CancelMessage
_KINDS: dict[str, type[Said]] = {
    "open": OpenMessage,
    "text": TextMessage,
    "flush": FlushMessage,
    "close": CloseMessage,
    "cancel": CancelMessage,
}


def read_message(frame: str) -> Said:
    """Parses and checks a message.

    Raises:
        ApiError: 400
    """
    fields = parse_object(frame)
    kind = _KINDS.get(str(fields.get("type"))[:MOST_TYPE_CHARS])
    if kind is None:
        raise bad_request("invalid_type", f"a message is a JSON object with a type: {', '.join(_KINDS)}", param="type")
    if kind is OpenMessage and isinstance(fields.get("speech"), dict):
        fields["speech"] = bounded(fields["speech"], SpeechBody)
    return read_fields(kind, fields)


def read_fields(kind: type[B], fields: dict[str, Any]) -> B:
    """Checks the fields of a message. Its `text` may hold half a character, which is no valid JSON text for pydantic.

    Raises:
        ApiError: 400
    """
    fields = bounded(fields, kind)
    text = fields.get("text")
    if not isinstance(text, str):
        return read_body(kind, json.dumps(fields).encode())
    return read_body(kind, json.dumps({**fields, "text": ""}).encode()).model_copy(update={"text": text})


def context_in(frame: str) -> str | None:
    """Returns the context that a refused message names, if it can be read."""
    fields = object_in(frame)
    named = fields.get("context", MAIN) if fields else None
    return named if isinstance(named, str) and _ID.fullmatch(named) else None
