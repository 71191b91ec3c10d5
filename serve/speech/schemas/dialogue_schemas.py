"""Dialogue schemas: what several speakers say, as turns or as a script with a cast, checked once.

In:    a JSON object
Out:   DialogueBody; the lines of a dialogue, and its passages in the domain
Owns:  how long a dialogue may be, and the silence between two turns
Never: a client's text in an error message; a field without effect that is neither refused nor named
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BeforeValidator, ConfigDict, FailFast, Field

from pipeline.books.dialogue_parts import TURN_MS
from pipeline.errors import NoSpeakableText
from pipeline.text.markup.dialogue import MOST_NAME, NAME, read_script
from pipeline.text.markup.ssml import Document
from pipeline.text.markup.ssml_elements import STYLES
from pipeline.types import Passage, Prosody, Turn
from pipeline.voices.voice_names import display_name
from serve.config.bounded import Seed, Speed
from serve.errors import bad_request
from serve.speech.schemas.base import Body
from serve.speech.schemas.speech import SpeechBody

MOST_TURNS = 500
MOST_SPEAKERS = 20
MOST_VOICES = 20  # each may have to be measured first, and one speaker may have many
TURN_CHARACTERS = 20_000
SCRIPT_CHARACTERS = 200_000

NOT_OF_A_DIALOGUE = ("input", "input_type")
"""fields of a request for speech that mean nothing for a dialogue"""


def _known_style(name: str) -> str:
    if name not in STYLES:
        raise ValueError(f"must be one of {', '.join(STYLES)}")
    return name


def _speaker_name(name: str) -> str:
    if not re.fullmatch(NAME, name):
        raise ValueError(f"a name begins with a letter or digit, and has up to {MOST_NAME} letters, digits, spaces and . ' - _")
    return name


def _speaker(speaker: Any) -> Any:
    return {"voice": speaker} if isinstance(speaker, str) else speaker


Silence = Annotated[int, Field(ge=0, le=10_000)]
Style = Annotated[str, AfterValidator(_known_style)]
VoiceName = Annotated[str, Field(min_length=1, max_length=4096)]
Name = Annotated[str, AfterValidator(_speaker_name)]


class SpeakerBody(Body):
    """How a speaker of a script speaks."""

    voice: VoiceName | None = Field(None, description="null: the dialogue's")
    speed: Speed | None = Field(None, description="null: the dialogue's")
    seed: Seed | None = Field(None, description="null: the dialogue's")
    style: Style | None = Field(None, description="one of GET /v1/styles")


class TurnBody(SpeakerBody):
    """What one speaker of a dialogue says at a time."""

    text: str = Field(min_length=1, max_length=TURN_CHARACTERS)
    speaker: Name | None = Field(None, description="in times, subtitles and the names of stems; null: the voice")
    gap_ms: Silence | None = Field(None, description="silence before it; null: the dialogue's, none before the first [ms]")


Speaker = Annotated[SpeakerBody, BeforeValidator(_speaker, json_schema_input_type=VoiceName | SpeakerBody)]
Cast = Annotated[dict[Name, Speaker], Field(max_length=MOST_SPEAKERS)]


@dataclass(frozen=True, slots=True)
class SpokenTurn:
    """A turn with the name of its speaker."""

    speaker: str | None
    """None: its voice"""
    body: TurnBody


def check_cast(cast: Collection[str]) -> None:
    """Checks that the names of a cast differ in more than their case.

    Raises:
        ApiError: 400
    """
    if len({name.casefold() for name in cast}) < len(cast):
        raise bad_request("conflicting_fields", "two names of cast differ only in their case: change one", param="cast")


def cast_turns(script: str, cast: Mapping[str, SpeakerBody]) -> list[SpokenTurn]:
    """Returns the turns of a script.

    Raises:
        InvalidRequest: a line of an unknown speaker.
        ApiError: two names differ in their case alone.
    """
    check_cast(cast)
    lines = read_script(script, cast, most=MOST_TURNS + 1)
    return [SpokenTurn(line.speaker, TurnBody.model_construct(text=line.text, **dict(cast[line.speaker]))) for line in lines]


class DialogueBody(SpeechBody):
    """POST /v1/audio/dialogue: turns, or a script with a cast, and the fields of POST /v1/audio/speech."""

    model_config = ConfigDict(json_schema_extra=lambda schema: _without(schema, NOT_OF_A_DIALOGUE))

    input: str = ""
    turns: Annotated[tuple[TurnBody, ...], Field(max_length=MOST_TURNS), FailFast()] = Field(
        (), description="what is said, in this order"
    )
    script: str = Field("", max_length=SCRIPT_CHARACTERS, description="in place of turns: lines like `Name: text`; needs cast")
    cast: Cast | None = Field(None, description="name -> voice, or {voice, speed, seed, style}; of a script")
    gap_ms: Silence = Field(TURN_MS, description="silence before each turn but the first [ms]")
    level: bool = Field(True, description="bring voices that nobody has levelled to the loudness of the others")
    stems: bool = Field(False, description="a zip with a file for each speaker, each as long as the whole")

    @property
    def voice_name(self) -> str | None:
        """The voice of the first turn, as the client names it."""
        return self.spoken_turns[0].body.voice or super().voice_name

    @property
    def ignored(self) -> list[str]:
        """Fields without effect: unknown ones, and speakers who say nothing."""
        speaking = {turn.speaker for turn in self.spoken_turns}
        return [*super().ignored, *(f"cast.{name}" for name in self.cast or {} if name not in speaking)]

    def marked_up(self, *, control_tags: bool, strict: bool) -> Document:
        """Returns the turns as passages, each with its voice as the client names it."""
        passages: list[Passage] = []
        turns: list[Turn] = []
        place, spoken = 0, self.spoken_turns
        for number, turn in enumerate(spoken):
            body = turn.body
            # A line end is a space between two words, and no sound.
            text = body.text.strip() + ("\n" if number + 1 < len(spoken) else "")
            voice = body.voice or super().voice_name
            gap_ms = (self.gap_ms if number else 0) if body.gap_ms is None else body.gap_ms
            passages.append(Passage(text, control_tags=control_tags, prosody=self._prosody(body, voice), silence_ms=gap_ms))
            speaker = turn.speaker or display_name(voice or "default")
            turns.append(Turn(speaker, voice or "", (place, place + len(text.rstrip("\n")))))
            place += len(text)
        if len({turn.speaker for turn in turns}) > MOST_SPEAKERS:
            raise bad_request("out_of_range", f"a dialogue has at most {MOST_SPEAKERS} speakers", param="turns")
        if len({turn.voice for turn in turns}) > MOST_VOICES:
            raise bad_request("out_of_range", f"a dialogue has at most {MOST_VOICES} voices", param="turns")
        return Document(tuple(passages), (), (), tuple(turns))

    def settled(self) -> Self:
        """Returns the dialogue as it is spoken: if every turn has its own seed, that of the first one is the dialogue's.

        Raises:
            ApiError, InvalidRequest: 400, a field excludes another one, has no effect or no meaning.
        """
        names = self.model_fields_set
        field = next((name for name in NOT_OF_A_DIALOGUE if name in names), None)
        if field is not None:
            raise bad_request("conflicting_fields", f"a dialogue has no {field}: leave it out", param=field)
        if bool(self.turns) == bool(self.script):
            raise bad_request("conflicting_fields", "give either turns or script, which are not empty", param="turns")
        if bool(self.cast) != bool(self.script) or (self.turns and self.cast is not None):
            raise bad_request("conflicting_fields", "script and cast belong together; a turn names its voice", param="cast")
        turns = self.spoken_turns
        if len(turns) > MOST_TURNS:
            message = f"script has more than {MOST_TURNS} turns: send it as a job (POST /v1/audio/jobs)"
            raise bad_request("out_of_range", message, param="script")
        check_turns(turns)
        self._check_effect([turn.body for turn in turns])
        has_seeds = all(turn.body.seed is not None for turn in turns)
        return self.model_copy(update={"seed": turns[0].body.seed}) if has_seeds else self

    @cached_property
    def spoken_turns(self) -> list[SpokenTurn]:
        """The turns, of a script too.

        Raises:
            ApiError, InvalidRequest: 400, the script has a line of nobody.
        """
        return cast_turns(self.script, self.cast) if self.cast else [SpokenTurn(turn.speaker, turn) for turn in self.turns]

    def _check_effect(self, bodies: Sequence[TurnBody]) -> None:
        """Checks that no field is set in which every turn has its own."""
        without = [name for name in ("voice", "speed", "seed") if all(getattr(turn, name) is not None for turn in bodies)]
        if all(turn.gap_ms is not None for turn in bodies[1:]):
            without.append("gap_ms")
        field = next((name for name in without if name in self.model_fields_set and getattr(self, name) is not None), None)
        if field is not None:
            message = f"every turn has its own {field}, so that of the dialogue has no effect: leave it out"
            raise bad_request("conflicting_fields", message, param=field)

    def _prosody(self, body: TurnBody, voice: str | None) -> Prosody:
        style = STYLES[body.style] if body.style else Prosody()
        rate = 1.0 if body.speed is None else body.speed / self.speed
        return Prosody(voice, rate * style.rate, style.gain_db, body.seed)


def check_turns(turns: Sequence[SpokenTurn]) -> None:
    """Checks that every turn has something to say.

    Raises:
        NoSpeakableText
    """
    for number, turn in enumerate(turns, start=1):
        if not any(map(str.isalnum, turn.body.text)):
            raise NoSpeakableText(f"turn {number} has no letter and no digit: leave it out, or give it words", param="turns")


def _without(schema: dict[str, Any], names: Sequence[str]) -> None:
    for name in names:
        schema["properties"].pop(name, None)
