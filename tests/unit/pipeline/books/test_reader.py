"""The reader of documents: a process that answers with a script or a refusal, and whose limits are refusals too."""

import signal
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from pipeline.books import reader
from pipeline.books.book import Pauses
from pipeline.books.reader import Question, document_of, read_document
from pipeline.child import ChildFailed, WarmChild
from pipeline.errors import InvalidDocument, InvalidRequest, InvalidSsml, NoSpeakableText, TextTooLong
from tests.support.books import epub, picture

MOST = 100_000


@pytest.fixture(scope="module")
def process() -> Iterator[WarmChild]:
    child = WarmChild("pipeline.books.reader", timeout_s=60.0)
    yield child
    child.end()


def asked(content: str | bytes, kind: str = "text", **fields: object) -> Question:
    return Question(content if isinstance(content, bytes) else content.encode(), kind, MOST, **fields)  # type: ignore[arg-type]


QUESTIONS = {
    "text": asked("One.\n\nTwo.", pauses=Pauses(1, 2, 3)),
    "markdown": asked("# A\n\nOne.\n\n# B\n\nTwo.", "markdown"),
    "ssml": asked("<speak><p>One.</p><p>Two.</p></speak>", "ssml"),
    "script": asked("Ann: One.\nBob: Two.\nthree.", "script", cast={"Ann": {"voice": "calm"}, "Bob": {"seed": 1}}),
    "turns": asked('[{"text":"One.","own":{"seed":1},"speaker":"A"},{"text":"Two.","gap_ms":7}]', "turns"),
    "a file": asked("\ufeffOne.\r\n\r\nTwo.", file="a.txt"),
    "an EPUB": asked(epub(), file="a.epub"),
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_process_reads_what_the_module_reads(process: WarmChild, name: str) -> None:
    document = document_of(process.ask(QUESTIONS[name].to_bytes()))
    assert document == read_document(QUESTIONS[name])
    assert len(document.script.parts) >= 2
    assert (document.cover, document.is_book) == ((picture(), True) if name == "an EPUB" else (b"", False))


@pytest.mark.parametrize(
    ("question", "kind", "says"),
    [
        (asked("a" * (MOST + 1)), TextTooLong, "100001 characters; the limit of a job is 100000"),
        (asked('[{"text":"%s"}]' % ("a" * (MOST + 1)), "turns"), TextTooLong, "100001 characters"),
        (asked("a\n\n" * 26_000), TextTooLong, "26000 parts; the limit of a job is 25000"),
        (asked("# a\n\n" * 301, "markdown"), TextTooLong, "301 chapters; the limit of a job is 300"),
        (asked("<speak>" + "<p>" * 5_000 + "a" + "</p>" * 5_000 + "</speak>", "ssml"), InvalidSsml, "nested more than 10 deep"),
        (asked("<speak " + " ".join(f'a{n}="1"' for n in range(17)) + ">a</speak>", "ssml"), InvalidSsml, "17 attributes"),
        (asked("<speak>" + "<s/>" * 20_001 + "</speak>", "ssml"), InvalidSsml, "more than 20000 elements"),
        (asked("<speak><p>" + "a " * 40_000 + "</p></speak>", "ssml"), InvalidSsml, "the limit is 65536"),
        (
            asked(f'<speak><voice name="{"a" * 20_000}">{"<p>a</p>" * 1000}</voice></speak>', "ssml"),
            InvalidSsml,
            "more than 8 times its",
        ),
        (asked("Ann: a\nCarl: b", "script", cast={"Ann": {}}), InvalidRequest, "line 2"),
        (asked("Ann: ...", "script", cast={"Ann": {}}), NoSpeakableText, "turn 1"),
        (asked(epub(), "script", file="a.epub"), InvalidDocument, "has no cast"),
        (asked("no archive", file="a.EPUB"), InvalidDocument, "does not begin like an archive"),
        (asked(b"\xff\xfe", file="a.txt"), InvalidDocument, "neither an EPUB nor text in UTF-8"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_read_is_refused_in_words(
    monkeypatch: pytest.MonkeyPatch, question: Question, kind: type[Exception], says: str
) -> None:
    monkeypatch.setattr(reader, "MOST_PARTS", 25_000)
    monkeypatch.setattr(reader, "MOST_CHAPTERS", 300)
    monkeypatch.setattr("pipeline.books.ssml.MOST_ELEMENTS", 20_000)
    with pytest.raises(kind, match=says):
        read_document(question)


def test_a_process_refuses_in_the_same_words(process: WarmChild) -> None:
    with pytest.raises(InvalidSsml, match="10 deep") as refused:
        document_of(process.ask(asked("<speak>" + "<p>" * 99 + "</p>" * 99 + "</speak>", "ssml").to_bytes()))
    assert refused.value.param == "input"


def test_a_process_that_ends_is_started_again(process: WarmChild) -> None:
    question = QUESTIONS["text"].to_bytes()
    before = process.ask(question)
    assert process._process is not None
    process._process.send_signal(signal.SIGXCPU)  # as the kernel does at the limit of processor time
    process._process.wait()
    with pytest.raises(ChildFailed):
        process.ask(question)
    assert process.ask(question) == before


@pytest.mark.parametrize(
    ("kind", "head", "piece", "tail"),
    [
        ("markdown", "# a", " ", "b"),
        ("markdown", "# a", "# ", "b"),
        ("text", "a", "\n ", "b"),
        ("text", "a", "\t\n", "b"),
        ("ssml", "<speak>", "<p>.</p>", "</speak>"),
        ("ssml", "<speak>", "<p>a</p>", "</speak>"),
        ("script", "A: a\n", "a\n", ""),
        ("script", "A: a\na", " ", ": b"),
    ],
)
def test_reading_is_linear(kind: str, head: str, piece: str, tail: str) -> None:
    def text(count: int) -> Question:
        return asked(head + piece * count + tail, kind, cast={"A": {}})

    def least_s(count: int) -> float:
        question, found = text(count), []
        for _ in range(3):
            began = time.thread_time()
            with suppress(InvalidRequest):
                read_document(question)
            found.append(time.thread_time() - began)
        return min(found)

    assert least_s(8_000) < 12 * least_s(2_000) + 0.005
