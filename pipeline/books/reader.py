"""Reader: a document of a client as a script, read in a process of its own.

In:    Questions: what the document is, and its bytes
Out:   Documents, or a refusal that says what the file is and what to do; both as question.document_of() takes them
Owns:  which forms are read, and which are refused, by what a file is; how many chapters and parts a document may have
Never: a document of a client in the process that asks

`python -m pipeline.books.reader` answers questions as a WarmChild (pipeline/child.py) asks them.
"""

import base64
import json
import re
from dataclasses import replace

from pipeline.books.book import Book, Pauses, has_cues, read_cues, read_plain, script_of
from pipeline.books.dialogue_parts import PartsOfTurn, dialogue_parts
from pipeline.books.epub import read_epub
from pipeline.books.markdown import read_html, read_markdown
from pipeline.books.page import decoded
from pipeline.books.question import CPU_LIMIT_S, MEMORY_LIMIT, Document, Question
from pipeline.books.script import Script
from pipeline.books.ssml_cutting import ssml_parts
from pipeline.child import answer_questions
from pipeline.errors import InvalidDocument, InvalidRequest, NoSpeakableText, TextTooLong
from pipeline.text.markup.dialogue import read_script as read_lines

MOST_PARTS = 30_000
MOST_CHAPTERS = 10_000
MOST_TITLE = 300
"""characters of a title that are kept; a chapter's is spoken whole"""
EPUB = ".epub"
_PAGES = (".html", ".htm", ".xhtml")
_PAGE = re.compile(
    rb"\s*(?:<\?xml[^>]{0,200}>\s*)?(?:<!--.{0,500}?-->\s*)?<(?:!DOCTYPE html|html)[\s>]", re.IGNORECASE | re.DOTALL
)
_OTHERS = (
    (re.compile(rb"\s*\{\\rtf"), "a document in RTF"),
    (re.compile(rb"\s*%PDF-"), "a PDF"),
    (re.compile(rb"\s*(?:<\?xml.{0,300}?)?<FictionBook", re.DOTALL), "a book in FB2"),
    (re.compile(rb"\xd0\xcf\x11\xe0"), "a document of an old Word (.doc)"),
    (re.compile(rb".{60}BOOKMOBI", re.DOTALL), "a book for Kindle"),
)

_BINARY = re.compile("[\x00-\x08\x0e-\x1a\x1c-\x1f\x80-\x9f\ufffd]")
_ZIP = b"PK\x03\x04"


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
    content = question.content.removeprefix(b"\xef\xbb\xbf")
    for beginning, kind in _OTHERS:
        if question.file is not None and beginning.match(content):
            message = (
                f"the file is {kind}: save it as EPUB, HTML or plain text (LibreOffice, Calibre and pandoc do), and send that"
            )
            raise InvalidDocument(message, param="file")
    name = (question.file or "").lower()
    if question.kind in ("text", "markdown") and (name.endswith(_PAGES) or _PAGE.match(content)):
        return replace(_of_book(read_html(question.content), question), is_book=True)
    try:
        text = content.decode()
    except UnicodeDecodeError:
        text = decoded(content)
        if question.file is None or not text or _BINARY.search(text):
            raise InvalidDocument("the file is neither an EPUB, nor HTML, nor text in UTF-8", param="file") from None
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
    if has_cues(text):
        return _of_book(read_cues(text), question)
    return _of_book(read_markdown(text) if question.kind == "markdown" else read_plain(text), question)


def _of_book(book: Book, question: Question) -> Document:
    _check_length(book.characters, question)
    script = _checked(script_of(book, {}, question.pauses))
    labels = {name: getattr(script, name)[:MOST_TITLE] for name in ("title", "author", "language")}
    return Document(
        replace(script, chapters=tuple(title[:MOST_TITLE] for title in script.chapters), **labels), book.cover, book.missing
    )


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
    about["missing"] = document.missing
    return json.dumps(about).encode() + b"\n" + document.script.to_json()


if __name__ == "__main__":
    answer_questions(_answer, memory=MEMORY_LIMIT, cpu_s=CPU_LIMIT_S)
