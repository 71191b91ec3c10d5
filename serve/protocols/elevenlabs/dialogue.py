"""Dialogue: texts of several voices, as one SSML document.

In:    bodies, queries
Out:   fields of SpeechBody; ApiError
Never: a voice that is not the one asked for; a client's text in an error message
"""

from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, Any, Literal
from xml.sax.saxutils import quoteattr

from pydantic import ConfigDict, Field

from pipeline.text.markup.marked_text import NO_XML, fragment, words
from pipeline.text.markup.ssml_reader import MAX_TURNS
from serve.errors import bad_request
from serve.http.ignored_fields import ignored_fields
from serve.protocols.elevenlabs.markup import EXPRESSIVE
from serve.protocols.elevenlabs.translation import Dictionaries, HttpQuery, common_fields, settings_fields
from serve.protocols.elevenlabs.turns import mark_of
from serve.speech.schemas.base import Body, read_body, read_values

MOST_VOICES = 10  # ElevenLabs' limit


class Turn(Body):
    """What one voice says."""

    model_config = ConfigDict(extra="allow")

    text: str = Field(min_length=1)
    voice_id: str = Field(min_length=1)


class DialogueBody(Body):
    """POST /v1/text-to-dialogue. Unknown fields are kept, so that the reply can name them."""

    model_config = ConfigDict(extra="allow")

    inputs: Annotated[list[Turn], Field(min_length=1, max_length=MAX_TURNS)] = Field(description="what is said, in this order")
    model_id: str | None = Field(None, description="one of GET /v1/models; ids that begin with eleven_ mean the first")
    language_code: str | None = Field(None, description="as language of POST /v1/audio/speech")
    settings: dict[str, Any] | None = Field(None, description="nothing of it has an effect")
    pronunciation_dictionary_locators: Dictionaries | None = Field(None, description="ids of stored lexicons")
    seed: int | None = None
    apply_text_normalization: Literal["auto", "on", "off"] | None = None


def dialogue_values(raw: bytes, query: Mapping[str, str], *, stream: bool, timed: bool = False) -> dict[str, Any]:
    """Returns the fields of POST /v1/audio/speech that asks for the same, with the times of words if it is `timed`.

    Raises:
        ApiError: 400
    """
    body, options = read_body(DialogueBody, raw), read_values(HttpQuery, dict(query))
    voices = {turn.voice_id for turn in body.inputs}
    if len(voices) > MOST_VOICES:
        raise bad_request("out_of_range", f"inputs have {len(voices)} voices; the limit is {MOST_VOICES}", param="inputs")
    unused = {name for turn in body.inputs for name, value in (turn.model_extra or {}).items() if value is not None}
    return {
        "input": document_of(body.inputs),
        "input_type": "ssml",
        "voice": body.inputs[0].voice_id,
        "stream": stream,
        **({"timestamps": "word"} if timed else {}),
        **common_fields(body, options.output_format),
        **settings_fields(None, body.pronunciation_dictionary_locators),
        **ignored_fields({f"settings.{name}": value for name, value in (body.settings or {}).items()}),
        **ignored_fields({f"inputs.{name}": True for name in sorted(unused)}),
        **ignored_fields(body.model_extra or {}),
        **ignored_fields(options.model_extra or {}),
    }


def document_of(turns: list[Turn]) -> str:
    """Returns turns as SSML; each line of a turn is a sentence of its own, as in a text without markup."""
    markup = [_voiced(number, turn) for number, turn in enumerate(turns)]
    for number, (before, turn) in enumerate(pairwise(turns)):
        if before.voice_id == turn.voice_id:
            markup[number] += " "  # one voice goes on: its words stay apart
    return f"<speak>{''.join(markup)}</speak>"


def _voiced(number: int, turn: Turn) -> str:
    """Returns a turn, with a mark that names it before it."""
    lines = [fragment(line, EXPRESSIVE) or words(line) for line in turn.text.splitlines() if line.strip()]
    markup = lines[0] if len(lines) == 1 else "".join(f"<s>{line}</s>" for line in lines)
    voice = turn.voice_id.translate(NO_XML)
    return f"<mark name={quoteattr(mark_of(number, voice))}/><voice name={quoteattr(voice)}>{markup}</voice>"
