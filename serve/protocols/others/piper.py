"""Piper: the request of Piper's HTTP server.

In:    bodies
Out:   fields of POST /v1/audio/speech
Never: a field without effect that the reply does not name
"""

import re
from typing import Any

from pydantic import ConfigDict, Field

from pipeline.text.markup.marked_text import DROPPED, Table, marked
from serve.http.ignored_fields import ignored_fields
from serve.speech.schemas.base import Body, read_body

PATH = "/piper"
MARKUP: Table = {"[": ((re.compile(r"\[\[[^\[\]]{0,250}\]\]"), lambda mark: DROPPED),)}
"""[[ phonemes ]], which the model does not know"""


class PiperBody(Body):
    """POST /piper. Unknown fields are kept, so that the reply can name them."""

    model_config = ConfigDict(extra="allow")

    text: str = Field(min_length=1)
    voice: str | None = Field(None, description="any name of a voice; null: the operator's default")
    length_scale: float | None = Field(None, ge=0.25, le=4.0, description="how long the speech takes: 1 / speed")
    seed: int | None = Field(None, description="as of POST /v1/audio/speech; theirs has none")


def speech_values(raw: bytes) -> dict[str, Any]:
    """Returns the fields of POST /v1/audio/speech that asks for the same, as WAV.

    Raises:
        ApiError: 400
    """
    body = read_body(PiperBody, raw)
    fields = {
        **marked(body.text, MARKUP),
        "voice": body.voice,
        "response_format": "wav",
        "speed": None if body.length_scale is None else 1 / body.length_scale,
        "seed": body.seed,
        **ignored_fields(body.model_extra or {}),
    }
    return {name: value for name, value in fields.items() if value is not None}
