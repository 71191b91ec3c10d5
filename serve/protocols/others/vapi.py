"""Vapi: the request of Vapi's custom voice.

In:    bodies and queries
Out:   fields of POST /v1/audio/speech
Never: a field without effect that the reply does not name
"""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import ConfigDict, Field

from pipeline.text.markup.marked_text import TAGS, marked
from serve.http.ignored_fields import ignored_fields
from serve.speech.schemas.base import Body, read_body, read_values

PATH = "/vapi"
ABOUT_THE_CALL = frozenset({"timestamp", "call", "chat", "assistant", "customer", "phoneNumber", "artifact", "analysis"})
"""fields that tell something and ask for nothing"""


class VapiMessage(Body):
    """What is to be spoken. Unknown fields are kept, so that the reply can name them."""

    model_config = ConfigDict(extra="allow")

    type: Literal["voice-request"]
    text: str = Field(min_length=1)
    sample_rate: int = Field(alias="sampleRate", description="[Hz]")


class VapiBody(Body):
    """POST /vapi. Unknown fields are kept, so that the reply can name them."""

    model_config = ConfigDict(extra="allow")

    message: VapiMessage


class VapiQuery(Body):
    """What stands in the address that Vapi is given. Unknown fields are kept, so that the reply can name them."""

    model_config = ConfigDict(extra="allow")

    voice: str | None = Field(None, description="any name of a voice; left out: the operator's default")
    language: str | None = None
    speed: float | None = None
    seed: int | None = None
    priority: str | None = None
    latency: str | None = None
    strict: str | None = None  # read with the headers


def speech_values(raw: bytes, query: Mapping[str, str]) -> dict[str, Any]:
    """Returns the fields of POST /v1/audio/speech that asks for the same, as 16-bit samples without a header.

    Raises:
        ApiError: 400
    """
    body, options = read_body(VapiBody, raw), read_values(VapiQuery, dict(query))
    message = body.message
    fields: dict[str, Any] = options.model_dump(include=set(VapiQuery.model_fields) - {"strict"}, exclude_none=True)
    unknown = {**(body.model_extra or {}), **(message.model_extra or {})}
    return {
        **marked(message.text, {"<": TAGS}),
        "response_format": "pcm",
        "sample_rate": message.sample_rate,
        **fields,
        **ignored_fields({name: value for name, value in unknown.items() if name not in ABOUT_THE_CALL}),
        **ignored_fields(options.model_extra or {}, "query"),
    }
