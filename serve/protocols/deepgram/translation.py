"""Translation: what Deepgram's clients ask for, as fields of POST /v1/audio/speech.

In:    bodies and queries
Out:   fields of SpeechBody; ApiError
Never: a field without effect that the reply does not name; a client's text in an error message
"""

import uuid
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import ConfigDict, Field

from pipeline.text.markup.marked_text import marked
from serve.errors import ApiError, bad_request
from serve.http.bounded_fields import bounded
from serve.http.ignored_fields import ignored_fields
from serve.protocols.deepgram.markup import TABLE
from serve.speech.schemas.base import Body, read_body, read_values

CONTAINERS: Mapping[str, Mapping[str, str]] = {
    # encoding -> container -> response_format. The first container is meant where none is named.
    "linear16": {"wav": "wav", "none": "pcm"},
    "mulaw": {"wav": "ulaw_wav", "none": "ulaw"},
    "alaw": {"wav": "alaw_wav", "none": "alaw"},
    "mp3": {"none": "mp3"},
    "opus": {"ogg": "opus"},
    "flac": {"none": "flac"},
    "aac": {"none": "aac"},
}
SOCKET_ENCODINGS = ("linear16", "mulaw", "alaw")
PLACE = "query"
"""of ignored fields"""


class SpeakBody(Body):
    """POST /v1/speak. Unknown fields are kept, so that the reply can name them."""

    model_config = ConfigDict(extra="allow")

    text: str = Field(min_length=1)


class GrantBody(Body):
    """POST /v1/auth/grant."""

    model_config = ConfigDict(extra="ignore")

    ttl_seconds: float | None = Field(None, gt=0, le=3600, description="null: 30 [s]")


class SpeakQuery(Body):
    """What the addresses say. Unknown fields are kept, so that the reply can name them."""

    model_config = ConfigDict(extra="allow")

    model: str | None = Field(None, description="a voice; null: the operator's default")
    encoding: Literal["linear16", "mulaw", "alaw", "mp3", "opus", "flac", "aac"] = "linear16"
    container: Literal["none", "wav", "ogg"] | None = None
    sample_rate: int | None = Field(None, description="[Hz]; null: 24000, 8000 for mulaw and alaw")
    bit_rate: int | None = Field(None, description="[bit/s]")
    speed: float | None = None
    seed: int | None = Field(None, description="as of POST /v1/audio/speech; Deepgram has none")
    callback: str | None = None
    mip_opt_out: bool = True  # no model is trained on texts, whatever it says
    strict: str | None = None  # read with the headers


def speech_values(raw: bytes, query: Mapping[str, str]) -> dict[str, Any]:
    """Returns the fields of POST /v1/audio/speech that asks for the same.

    Raises:
        ApiError: 400
    """
    body, options = read_body(SpeakBody, raw), read_values(SpeakQuery, dict(query))
    if options.callback is not None:
        raise bad_request("callback_not_supported", "the audio is the reply: leave callback out", param="callback")
    return {**marked(body.text, TABLE), **speech_fields(options), **ignored_fields(body.model_extra or {}, PLACE)}


def socket_fields(query: Mapping[str, str]) -> dict[str, Any]:
    """Returns the fields of everything that a socket speaks.

    Raises:
        ApiError: 400
    """
    options = read_values(SpeakQuery, bounded({"container": "none", **query}, SpeakQuery))
    if options.encoding not in SOCKET_ENCODINGS or options.container != "none":
        raise bad_request(
            "unsupported_format",
            f"over a WebSocket the encodings are {', '.join(SOCKET_ENCODINGS)}, with container=none",
            param="encoding",
        )
    if options.callback is not None:
        raise bad_request("callback_not_supported", "the audio comes over this socket: leave callback out", param="callback")
    return speech_fields(options)


def speech_fields(options: SpeakQuery) -> dict[str, Any]:
    """Returns the fields of a query.

    Raises:
        ApiError: 400, there is no such format.
    """
    containers = CONTAINERS[options.encoding]
    if options.container is not None and options.container not in containers:
        raise _unsupported(options.encoding, f"container={' or '.join(containers)}", "container")
    if options.bit_rate is not None and options.bit_rate % 1000:
        raise bad_request("out_of_range", "bit_rate is a multiple of 1000 [bit/s]", param="bit_rate")
    fields = {
        "voice": options.model,
        "response_format": next(iter(containers.values())) if options.container is None else containers[options.container],
        "sample_rate": options.sample_rate,
        "bitrate": None if options.bit_rate is None else options.bit_rate // 1000,
        "speed": options.speed,
        "seed": options.seed,
    }
    return {name: value for name, value in fields.items() if value is not None} | ignored_fields(
        options.model_extra or {}, PLACE
    )


def model_uuid(voice: str, model: str) -> str:
    """Returns the UUID of a voice of a version of the model: the same name has the same one."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"{model}/{voice}"))


def _unsupported(encoding: str, allowed: str, param: str) -> ApiError:
    return bad_request("unsupported_format", f"{encoding} has {allowed} here", param=param)
