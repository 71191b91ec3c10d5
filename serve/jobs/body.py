"""Job body: what a client asks for with a long text, checked once.

In:    a JSON object
Out:   JobBody
Never: a client's text in an error message; a field that is ignored without a note
"""

import json
import secrets
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import FailFast, Field

from pipeline.audio.formats import AudioFormat, audio_format
from pipeline.books.assemble import CONTAINERS, M4B
from pipeline.books.book import CHAPTER_MS, HEADING_MS, PARAGRAPH_MS, Pauses
from pipeline.books.question import Question
from pipeline.books.script import Part
from pipeline.errors import UnsupportedFormat
from pipeline.text.markup.ssml_elements import STYLES
from pipeline.types import MAX_SEED, SPEED
from pipeline.types.bounds import GAIN_DB
from serve.config.bounded import Seed, Speed
from serve.errors import bad_request
from serve.speech.schemas.base import Body
from serve.speech.schemas.dialogue_schemas import Cast, Silence, SpeakerBody, TurnBody, check_cast
from serve.speech.schemas.speech import TIDY, PostBody, SpeechBody

NOT_OF_A_JOB = ("stream", "stream_format", "output_format", "subtitles", "priority", "deadline_ms", "latency", "cache", "user")
"""fields of a request for speech that mean nothing for a job"""
NOT_OF_A_PART = (*NOT_OF_A_JOB, "input", "input_type", "turns", "cast", "response_format", "bitrate", "instructions")

File = tuple[str, bytes]
"""name and content"""

PART_CHARACTERS = 4096
MOST_TURNS = 10_000


class PausesBody(Body):
    """Silences between the parts of a text [ms]."""

    paragraph_ms: Silence = PARAGRAPH_MS
    chapter_ms: Silence = CHAPTER_MS
    heading_ms: Silence = Field(HEADING_MS, description="behind the title of a chapter")

    def of_book(self) -> Pauses:
        """Returns them as the domain knows them."""
        return Pauses(self.paragraph_ms, self.chapter_ms, self.heading_ms)


class WebhookBody(Body):
    """Who is told when the job ends, as Standard Webhooks says."""

    url: str = Field(min_length=1, max_length=2000, description="http(s)://host/path, of a host that the operator allows")
    secret: str = Field(min_length=1, max_length=200, description="whsec_ and 24 to 64 bytes in base64; signs the messages")


class JobBody(SpeechBody):
    """POST /v1/audio/jobs: the fields of POST /v1/audio/speech, and those of a document."""

    input: str = Field("", description="the text, the Markdown or the SSML document; required without turns")
    turns: Annotated[tuple[TurnBody, ...], Field(max_length=MOST_TURNS), FailFast()] = Field(
        (), description="a dialogue, in place of input"
    )
    input_type: Literal["text", "markdown", "ssml", "script"] = Field(  # type: ignore[assignment]  # more than speech has
        "text",
        description="markdown: its largest headings begin chapters; script: lines like `Name: text`, with a cast; an EPUB is "
        "sent as a file of a form",
    )
    cast: Cast | None = Field(None, description="name -> voice, or {voice, speed, seed, style}; of a script")
    response_format: str = Field("mp3", max_length=32, description=", ".join(CONTAINERS))
    title: str = Field("", max_length=300, description="of the whole; empty: that of the document")
    author: str = Field("", max_length=300)
    pauses: PausesBody = Field(default_factory=PausesBody)
    webhook: WebhookBody | None = None

    def check(self) -> None:
        """Checks that there is one text, and that no field is set that means nothing for a job.

        Raises:
            ApiError: 400
        """
        if bool(self.input) == bool(self.turns):
            raise bad_request("conflicting_fields", "give either input, which is not empty, or turns", param="input")
        if self.turns and self.input_type != "text":
            raise bad_request("conflicting_fields", "turns are plain text: leave input_type out", param="input_type")
        if bool(self.cast) != (self.input_type == "script"):
            raise bad_request("conflicting_fields", "input_type script and cast belong together", param="cast")
        field = next((name for name in NOT_OF_A_JOB if name in self.model_fields_set), None)
        if field is not None:
            raise bad_request("conflicting_fields", f"a job has no {field}: leave it out", param=field)

    def question(self, file: File | None, most_characters: int) -> Question:
        """Returns what is to be read. It takes a tenth of a second for many turns: call it in a thread.

        Args:
            file: in place of `input`.

        Raises:
            ApiError: 400
        """
        self.check()
        check_cast(self.cast or {})
        cast = {name: self.own_fields(speaker) for name, speaker in (self.cast or {}).items()}
        name, content = (None, self.input.encode()) if file is None else file
        kind, content = ("turns", self._turns_json()) if self.turns else (self.input_type, content)
        return Question(content, kind, most_characters, name, self.pauses.of_book(), cast)

    def _turns_json(self) -> bytes:
        """Returns the turns as pipeline/books/reader.py takes them."""
        fields = (
            {"text": turn.text, "own": self.own_fields(turn), "speaker": turn.speaker or "", "gap_ms": turn.gap_ms}
            for turn in self.turns
        )
        return f"[{','.join(map(json.dumps, fields))}]".encode()  # one by one: other threads get the interpreter in between

    def own_fields(self, turn: SpeakerBody) -> dict[str, Any]:
        """Returns the fields in which a turn, or all turns of a speaker, differ from the job."""
        own = turn.model_dump(include={"voice", "speed", "seed"}, exclude_none=True)
        if turn.style is None:
            return own
        style, post = STYLES[turn.style], TIDY if self.post is True else self.post or PostBody()
        gain_db = GAIN_DB.clamp(post.gain_db + style.gain_db)
        speed = SPEED.clamp((self.speed if turn.speed is None else turn.speed) * style.rate)
        return {**own, "speed": speed, "post": post.model_copy(update={"gain_db": gain_db}).model_dump()}

    def audio(self) -> AudioFormat:
        """Returns the format of the finished file.

        Raises:
            UnsupportedFormat
        """
        if self.response_format not in CONTAINERS:
            raise UnsupportedFormat(f"the format of a job must be one of {', '.join(CONTAINERS)}", param="response_format")
        if self.response_format == M4B:
            return replace(audio_format("aac", self.sample_rate, self.bitrate), container=M4B)
        return audio_format(self.response_format, self.sample_rate, self.bitrate)

    def shared_fields(self) -> dict[str, Any]:
        """Returns the fields that all parts have in common, with their defaults: a later default changes no part."""
        fields = self.model_dump(mode="json", by_alias=True, include=set(SpeechBody.model_fields) - set(NOT_OF_A_PART))
        return {**fields, "timestamps": "segment" if self.timestamps is None else "word"}


class PartBody(Body):
    """POST /v1/audio/jobs/{id}/parts/{number}. Without a field, another seed is drawn."""

    text: str | None = Field(
        None, min_length=1, max_length=PART_CHARACTERS, description="what is said in place of the part's text"
    )
    seed: Seed | None = Field(None, description="null: the part's own if there is a text, else one is drawn")
    speed: Speed | None = Field(None, description="null: the part's own")
    voice: str | None = Field(None, max_length=4096, description="null: the part's own")

    def changed(self, part: Part) -> Part:
        """Returns the part with the changes."""
        own = dict(part.own)
        if self.seed is not None:
            own["seed"] = self.seed
        elif self.text is None and self.speed is None and self.voice is None:
            own["seed"] = secrets.randbelow(MAX_SEED + 1)
        own |= {name: value for name, value in (("speed", self.speed), ("voice", self.voice)) if value is not None}
        return replace(part, own=own, text=part.text if self.text is None else self.text)
