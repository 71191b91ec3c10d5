"""Reader: a document of a client as a script, read in a process of its own.

In:    Questions: what the document is, and its bytes
Out:   Answers: a script without the fields of its speech, a cover; or the refusal
Owns:  how many chapters and parts a document may have, and how much processor time and memory reading it may take
Never: a document of a client in the process that asks; unpickling what this process says

`python -m pipeline.books.reader` answers questions as a WarmChild (pipeline/child.py) asks them.
"""

import base64
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from pipeline.books.book import Book, Pauses, read_markdown, read_plain, script_of
from pipeline.books.dialogue_parts import PartsOfTurn, dialogue_parts
from pipeline.books.epub import read_epub
from pipeline.books.script import Script, read_script
from pipeline.books.ssml_cutting import ssml_parts
from pipeline.child import answer_questions
from pipeline.errors import InvalidDocument, InvalidRequest, InvalidSsml, NoSpeakableText, TextTooLong
from pipeline.text.markup.dialogue import read_script as read_lines

MOST_PARTS = 30_000
MOST_CHAPTERS = 10_000
MOST_TITLE = 300
"""characters of a title that are kept; a chapter's is spoken whole"""
MEMORY_LIMIT = 1 << 30
CPU_LIMIT_S = 30
EPUB = ".epub"

_ZIP = b"PK\x03\x04"
_REFUSALS = {kind.__name__: kind for kind in (InvalidDocument, InvalidRequest, InvalidSsml, NoSpeakableText, TextTooLong)}


@dataclass(frozen=True, slots=True)
class Question:
    """What is to be read, and as what."""

    content: bytes
    """UTF-8; an EPUB; for turns JSON, a list of objects with the fields of PartsOfTurn"""
    kind: str
    """text, markdown, ssml, script, turns"""
    most_characters: int
    file: str | None = None
    """its name, which may be empty; None: it is no file, but a field of a request"""
    pauses: Pauses = field(default_factory=Pauses)
    cast: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """of a script: the names of its speakers, and the fields of a request in which each differs"""

    def to_bytes(self) -> bytes:
        """Returns it as a line of JSON, with the content behind it."""
        about = {"kind": self.kind, "most_characters": self.most_characters, "file": self.file, "cast": self.cast}
        return json.dumps({**about, "pauses": asdict(self.pauses)}).encode() + b"\n" + self.content


@dataclass(frozen=True, slots=True)
class Document:
    """What a document says."""

    script: Script
    cover: bytes | None = b""
    """a JPEG or PNG picture; empty: it has none; None: it has one that no file can show"""
    is_book: bool = False
    """its parts are plain text, whatever the request says"""


def read_document(question: Question) -> Document:
    """Reads a document.

    Raises:
        InvalidRequest: it is not what it is said to be, or beyond the limits.
    """
    if question.content.startswith(_ZIP) and question.file is not None:
        if question.kind == "script":
            raise InvalidDocument("an EPUB has no cast: leave input_type and cast out", param="input_type")
        return replace(_of_book(read_epub(question.content), question), is_book=True)
    if (question.file or "").lower().endswith(EPUB):
        message = "not an EPUB: the file does not begin like an archive; a text has a name that ends otherwise"
        raise InvalidDocument(message, param="file")
    try:
        text = question.content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InvalidDocument("the file is neither an EPUB nor text in UTF-8", param="file") from None
    if question.kind == "turns":
        return _of_turns([PartsOfTurn(**turn) for turn in json.loads(text)], question, "turns")
    _check_length(len(text), question)
    if question.kind == "script":
        turns = read_lines(text, question.cast, param="input")
        return _of_turns(
            [PartsOfTurn(turn.text, question.cast[turn.speaker], turn.speaker) for turn in turns], question, "input"
        )
    if question.kind == "ssml":
        return Document(_checked(Script(ssml_parts(text, question.pauses))))
    return _of_book(read_markdown(text) if question.kind == "markdown" else read_plain(text), question)


def _of_book(book: Book, question: Question) -> Document:
    _check_length(book.characters, question)
    script = _checked(script_of(book, {}, question.pauses))
    labels = {name: getattr(script, name)[:MOST_TITLE] for name in ("title", "author", "language")}
    return Document(replace(script, chapters=tuple(title[:MOST_TITLE] for title in script.chapters), **labels), book.cover)


def _of_turns(turns: list[PartsOfTurn], question: Question, param: str) -> Document:
    _check_length(sum(len(turn.text) for turn in turns), question)
    for number, turn in enumerate(turns, start=1):
        if not any(map(str.isalnum, turn.text)):
            message = f"turn {number} has no letter and no digit: leave it out, or give it words"
            raise NoSpeakableText(message, param=param)
    return Document(_checked(Script(tuple(dialogue_parts(turns)))))


def _check_length(characters: int, question: Question) -> None:
    if characters > (most := question.most_characters):
        message = f"the text has {characters} characters; the limit of a job is {most} (jobs.max_chars)"
        raise TextTooLong(message, param="input")


def _checked(script: Script) -> Script:
    for unit, count, most in (("chapters", len(script.chapters), MOST_CHAPTERS), ("parts", len(script.parts), MOST_PARTS)):
        if count > most:
            message = f"the text has {count} {unit}; the limit of a job is {most}: send it as several jobs"
            raise TextTooLong(message, param="input")
    return script


def document_of(answer: bytes) -> Document:
    """Returns the document that this module as a process has read.

    Raises:
        InvalidRequest: its refusal.
    """
    line, _, script = answer.partition(b"\n")
    about = json.loads(line)
    if "refused" in about:
        raise _REFUSALS[about["refused"]](about["message"], param=about["param"])
    cover = about["cover"]
    return Document(read_script(script), cover if cover is None else base64.b64decode(cover), about["is_book"])


def _answer(question: bytes) -> bytes:
    line, _, content = question.partition(b"\n")
    about = json.loads(line)
    try:
        document = read_document(Question(content, **{**about, "pauses": Pauses(**about["pauses"])}))
    except InvalidRequest as error:
        kind = type(error).__name__
        return json.dumps({"refused": kind, "message": error.message, "param": error.param}).encode()
    cover = document.cover
    about = {"cover": cover if cover is None else base64.b64encode(cover).decode(), "is_book": document.is_book}
    return json.dumps(about).encode() + b"\n" + document.script.to_json()


if __name__ == "__main__":
    answer_questions(_answer, memory=MEMORY_LIMIT, cpu_s=CPU_LIMIT_S)
