"""Piper: the requests of Piper's HTTP server, of all its releases.

In:    bodies, queries, VoiceInfos
Out:   fields of POST /v1/audio/speech; the list of voices
Never: a field without effect that the reply does not name
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ConfigDict, Field

from pipeline.spec import SAMPLE_RATE
from pipeline.text.markup.marked_text import DROPPED, Table, marked
from pipeline.voices.catalogue import VoiceInfo
from serve.http.ignored_fields import ignored_fields
from serve.speech.model_selection import ModelSelector
from serve.speech.schemas.base import Body, read_body, read_values

PATH = "/piper"
MARKUP: Table = {"[": ((re.compile(r"\[\[[^\[\]]{0,250}\]\]"), lambda mark: DROPPED),)}
"""[[ phonemes ]], which the model does not know"""


class PiperBody(Body):
    """POST /piper, and the query of GET /piper. Unknown fields are kept, so that the reply can name them."""

    model_config = ConfigDict(extra="allow")

    text: str = Field(min_length=1)
    voice: str | None = Field(None, description="any name of a voice; null: the operator's default")
    length_scale: float | None = Field(None, ge=0.25, le=4.0, description="how long the speech takes: 1 / speed")
    seed: int | None = Field(None, description="as of POST /v1/audio/speech; theirs has none")


def speech_values(raw: bytes, query: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Returns the fields of POST /v1/audio/speech that asks for the same, as WAV.

    Args:
        query: read in place of the body, unless it is None.

    Raises:
        ApiError: 400
    """
    if query is None:
        body, place = read_body(PiperBody, raw), "body"
    else:  # strict is read with the headers
        body, place = read_values(PiperBody, {name: value for name, value in query.items() if name != "strict"}), "query"
    fields = {
        **marked(body.text, MARKUP),
        "voice": body.voice,
        "response_format": "wav",
        "speed": None if body.length_scale is None else 1 / body.length_scale,
        "seed": body.seed,
        **ignored_fields(body.model_extra or {}, place),
    }
    return {name: value for name, value in fields.items() if value is not None}


def voice_configs(infos: Iterable[VoiceInfo], models: ModelSelector) -> dict[str, Any]:
    """Returns what GET /voices says: name -> what Piper's file about a voice says of it that is true here."""
    return {
        info.name: {
            "dataset": info.title or info.name,
            "language": {"code": next(iter(info.languages or models.languages()))},
            "audio": {"sample_rate": SAMPLE_RATE},
            "num_speakers": 1,
            "speaker_id_map": {},
        }
        for info in infos
    }
