"""Question: a document of a client, as the process that reads it is asked for it and answers.

In:    what the document is, and its bytes; the answer of pipeline.books.reader
Out:   Question; Document, or the refusal
Owns:  how much processor time and memory reading it may take
Never: a parser; unpickling what that process says
"""

import base64
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from pipeline.books.book import Pauses
from pipeline.books.script import Script, read_script
from pipeline.errors import InvalidDocument, InvalidRequest, InvalidSsml, NoSpeakableText, TextTooLong

MEMORY_LIMIT = 1 << 30
CPU_LIMIT_S = 30

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
    missing: tuple[str, ...] = ()
    """files of a book that it names and does not contain"""
    is_book: bool = False
    """its parts are plain text, whatever the request says"""


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
    picture = cover if cover is None else base64.b64decode(cover)
    return Document(read_script(script), picture, tuple(about["missing"]), about["is_book"])
