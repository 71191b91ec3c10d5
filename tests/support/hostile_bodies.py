"""Hostile bodies: requests that were made to keep a server from answering others, by the route that takes them.

Each is tried with 1 kB, 32 kB and the largest size that its route takes. A row is a name, a path and what makes its body.
"""

import json
from collections.abc import Callable
from typing import Any

import requests

from tests.support.stalls import Attack, StallServer

JSON_LIMIT = (1 << 20) - 2_000
JOB_LIMIT = (8 << 20) - 20_000
FILE_LIMIT = (16 << 20) - 20_000
TEXT_LIMIT = 990_000
FIELDS_LIMIT = 12_500
"""size of a body with as many fields as there may be; VALUES_LIMIT with as many values"""
VALUES_LIMIT = 125_000
TIMEOUT_S = 240.0

Make = Callable[[int], bytes]


def posted(name: str, path: str, make: Make, largest: int = JSON_LIMIT, *, method: str = "POST") -> Attack:
    """An attack of one JSON body."""

    def strike(server: StallServer, size: int) -> None:
        kind = {"Content-Type": "application/json"}
        reply = requests.request(method, server.url + path, data=make(size), headers=kind, timeout=TIMEOUT_S)
        assert reply.status_code < 500 or reply.status_code == 503, (reply.status_code, reply.text[:200])

    return Attack(f"{name} -> {path}", strike, largest)


def as_file(name: str, make: Make, largest: int = FILE_LIMIT, *, file: str = "book.md", **job: Any) -> Attack:
    """An attack of one file, sent as a job."""

    def strike(server: StallServer, size: int) -> None:
        form, fields = {"file": (file, make(size))}, {"job": json.dumps(job)}
        reply = requests.post(f"{server.url}/v1/audio/jobs/plan", files=form, data=fields, timeout=TIMEOUT_S)
        assert reply.status_code < 500 or reply.status_code == 503, (reply.status_code, reply.text[:200])

    return Attack(f"{name} -> a file", strike, largest)


def looked_at(name: str, make: Make, largest: int = JOB_LIMIT) -> Attack:
    """An attack of one job, and of every view of it."""

    def strike(server: StallServer, size: int) -> None:
        jobs, kind = f"{server.url}/v1/audio/jobs", {"Content-Type": "application/json"}
        reply = requests.post(jobs, data=make(size), headers=kind, timeout=TIMEOUT_S)
        assert reply.status_code in (202, 400, 413), (reply.status_code, reply.text[:200])
        if reply.status_code == 202:
            job = f"{jobs}/{reply.json()['id']}"
            for view in ("", "/parts?limit=1000", "/subtitles"):
                assert requests.get(job + view, timeout=TIMEOUT_S).status_code == 200
            with requests.get(f"{job}/events", stream=True, timeout=TIMEOUT_S) as events:
                next(events.iter_lines())
            assert requests.delete(job, timeout=TIMEOUT_S).status_code == 204

    return Attack(f"{name} -> a job and its views", strike, largest)


def body(field: str, text: Callable[[int], str], **fields: Any) -> Make:
    """A JSON object whose field is a text of about the size, with others beside it."""
    return lambda size: json.dumps({**fields, field: text(size)}, ensure_ascii=False).encode()


def again(piece: str, head: str = "", tail: str = "") -> Callable[[int], str]:
    """A text of about the size that repeats a piece."""
    return lambda size: head + piece * max(1, (size - len(head) - len(tail)) // len(piece.encode())) + tail


def raw(piece: str, head: str, tail: str) -> Make:
    """A body of about the size that repeats a piece."""
    return lambda size: again(piece, head, tail)(size).encode()


def unknown_fields(field: str, head: str = "", tail: str = "}", value: str = "0") -> Make:
    """An object with as many unknown fields as the size allows."""

    def make(size: int) -> bytes:
        width = len(value) + 12
        named = ",".join(f'"u{number:07d}":{value}' for number in range(max(1, (size - 100) // width)))
        return f"{head}{{{field}{',' if field else ''}{named}{tail}".encode()

    return make


def deep(field: str) -> Make:
    """A value as deep as the size allows."""
    return lambda size: f'{{"{field}":{"[" * (size // 2)}{"]" * (size // 2)}}}'.encode()


SSML = "ssml"
PLAN, BATCH = "/v1/audio/jobs/plan", "/v1/audio/speech/batch"
SPEECH, DIALOGUE = "/v1/audio/speech", "/v1/audio/dialogue"
MARKDOWN = {"input_type": "markdown"}
SCRIPT = {"input_type": "script", "cast": {"A": "alloy"}}


def _documents() -> tuple[Attack, ...]:
    """Texts of jobs."""
    markdown = {
        "blanks in a heading": again(" ", "# a", "b"),
        "signs in a heading": again("# ", "# a", "b"),
        "headings": again("# a\n\n"),
        "deeper headings": again("# a\n## b\n"),
        "fences": again("```\na\n"),
        "blanks and line ends": again("\n ", "a", "b"),
    }
    ssml = {
        "paragraphs without words": again("<p>.</p>", "<speak>", "</speak>"),
        "paragraphs": again("<p>a</p>", "<speak>", "</speak>"),
        "paragraphs in a long voice": lambda size: again(
            "<p>a</p>", f'<speak><voice name="{"a" * (size // 2)}">', "</voice></speak>"
        )(size),
        "depth": lambda size: "<speak>" + "<p>" * (size // 7) + "a" + "</p>" * (size // 7) + "</speak>",
        "attributes": lambda size: "<speak " + " ".join(f'a{n}="1"' for n in range(size // 11)) + ">a</speak>",
        "one long paragraph": again("a ", "<speak><p>", "</p></speak>"),
    }
    plain = {
        "line ends": again("\n", "a", "b"),
        "returns": again("\r\n", "a", "b"),
        "short lines": again("a\n\n"),
        "blanks": again(" ", "Hello", "world"),
        "tabs and line ends": again("\t\n", "a", "b"),
        "dots in doubt": again("1. B", "a" * 800),
        "one word": again("a"),
        "quotes": again('"'),
        "no word": again("."),
        "brackets": again("<", "a"),
        "Chinese": again("中。"),
        "emoji": again("\U0001f600"),
    }
    script = {
        "short lines": again("a\n", "A: a\n"),
        "turns": again("A: a\n"),
        "blanks before a colon": again(" ", "A: a\na", ": b"),
        "names": again("b c d e f g ", "A: a\n"),
        "indented lines": again("   a\n", "A: a\n"),
    }
    return (
        *(posted(f"Markdown, {name}", PLAN, body("input", text, **MARKDOWN), TEXT_LIMIT) for name, text in markdown.items()),
        *(posted(f"SSML, {name}", PLAN, body("input", text, input_type=SSML), TEXT_LIMIT) for name, text in ssml.items()),
        *(posted(f"text, {name}", PLAN, body("input", text), TEXT_LIMIT) for name, text in plain.items()),
        *(posted(f"script, {name}", PLAN, body("input", text, **SCRIPT), TEXT_LIMIT) for name, text in script.items()),
        *(as_file(f"Markdown, {name}", _file(text), TEXT_LIMIT, input_type="markdown") for name, text in markdown.items()),
        *(
            as_file(f"text, {name}", _file(text), TEXT_LIMIT, file="book.txt")
            for name, text in plain.items()
            if name != "no word"
        ),
        as_file("line ends alone", raw("\n", "", ""), file="book.txt"),
        as_file("returns alone", raw("\r", "", ""), file="book.txt"),
        as_file("beginnings of a boundary", raw("\r\n-", "", ""), file="book.txt"),
        as_file("an archive that is none", lambda size: b"PK\x03\x04" * (size // 4), file="book.epub"),
        looked_at("chapters", body("input", again("# a\n\n"), **MARKDOWN), TEXT_LIMIT),
        looked_at("parts", body("input", again("a\n\n")), TEXT_LIMIT),
        looked_at("as many parts as there may be", body("input", again("a\n\n")), 89_000),
        looked_at("SSML", body("input", again("<p>a</p>", "<speak>", "</speak>"), input_type=SSML), TEXT_LIMIT),
        looked_at("turns", raw('{"text":"a"},', '{"turns":[', '{"text":"b"}]}')),
        looked_at(
            "turns of many fields",
            raw('{"text":"a","speed":1.5,"seed":1,"speaker":"A","gap_ms":0},', '{"turns":[', '{"text":"b"}]}'),
        ),
    )


def _file(text: Callable[[int], str]) -> Make:
    return lambda size: text(size).encode()


def _objects() -> tuple[Attack, ...]:
    """JSON whose number of things is the attack."""
    turn = '{"text":"a","speaker":"A","x":1},'
    return (
        posted("unknown fields", PLAN, unknown_fields('"input":"Hello there."'), JOB_LIMIT),
        posted("turns with mistakes", PLAN, raw(turn, '{"turns":[', '{"text":"b"}]}'), JOB_LIMIT),
        posted("empty turns", PLAN, raw("{},", '{"turns":[', "{}]}"), JOB_LIMIT),
        posted("numbers as turns", PLAN, raw("1,", '{"turns":[', "1]}"), JOB_LIMIT),
        posted("texts as turns", PLAN, raw('"",', '{"turns":[', '""]}'), JOB_LIMIT),
        posted(
            "members of a cast",
            PLAN,
            unknown_fields("", '{"input":"A: a","input_type":"script","cast":', "}}", '"alloy"'),
            JOB_LIMIT,
        ),
        posted("depth", PLAN, deep("turns"), JOB_LIMIT),
        posted("escapes", PLAN, raw("\\ud83d\\ude00", '{"input":"Hello.', '"}'), JOB_LIMIT),
        posted("blanks around", PLAN, raw(" ", '{"input":"Hello there."', "}"), JOB_LIMIT),
        posted("the same field", PLAN, raw('"input":"a",', "{", '"input":"a"}'), JOB_LIMIT),
        posted("not JSON", PLAN, raw("[{", '{"input":', ""), JOB_LIMIT),
        *(
            posted("unknown fields", path, unknown_fields(field), FIELDS_LIMIT)
            for path, field in {
                SPEECH: '"input":"Hello there."',
                "/v1/text/normalize": '"input":"Hello there."',
                "/v1/text/plan": '"input":"Hello there."',
                DIALOGUE: '"turns":[{"text":"Hello there."}]',
                BATCH: '"items":[{"input":"Hello there."}]',
                "/v1/text-to-speech/alloy": '"text":"Hello there."',
                "/v1/text-to-dialogue": '"inputs":[{"text":"Hello there.","voice_id":"alloy"}]',
                "/dev/captioned_speech": '"input":"Hello there."',
                "/piper": '"text":"Hello there."',
                "/vapi": '"message":{"type":"voice-request","text":"Hello there.","sampleRate":24000}',
                "/v1/speak": '"text":"Hello there."',
                "/v1/audio/voices": '"name":"a","seed":1',
                "/v1/audio/voices/random": '"count":1',
            }.items()
        ),
        posted("unknown fields of each item", BATCH, unknown_fields(f'"items":[{",".join(["{}"] * 32)}]'), FIELDS_LIMIT),
        posted(
            "unknown settings",
            "/v1/text-to-speech/alloy",
            unknown_fields("", '{"text":"Hello.","voice_settings":', "}}"),
            VALUES_LIMIT,
        ),
        posted("unknown fields of turns", DIALOGUE, raw(turn, '{"turns":[', '{"text":"b"}]}')),
        posted("turns", DIALOGUE, raw('{"text":"a"},', '{"turns":[', '{"text":"b"}]}')),
        posted("empty items", BATCH, raw("{},", '{"items":[', "{}]}")),
        posted("entries", "/v1/lexicons/a", unknown_fields("", '{"entries":', "}}", '"b"'), method="PUT"),
        posted("wrong entries", "/v1/lexicons/a", unknown_fields("", '{"entries":', "}}", '{"c":1}'), method="PUT"),
        posted("words", SPEECH, unknown_fields("", '{"input":"Hello.","lexicon":', "}}", '{"c":1}')),
        posted(
            "parts of a blend",
            "/v1/audio/voices",
            raw('{"voice":"a","weight":1},', '{"name":"a","blend":[', '{"voice":"b","weight":1}]}'),
        ),
        posted("languages", "/v1/audio/voices", raw('"e",', '{"name":"a","seed":1,"languages":[', '"en"]}')),
        posted("depth", SPEECH, deep("input")),
    )


def _texts() -> tuple[Attack, ...]:
    """Texts of the other routes."""
    markup = {
        "elements": again("<s>a</s>", "<speak>", "</speak>"),
        "depth": lambda size: "<speak>" + "<p>" * (size // 7) + "a" + "</p>" * (size // 7) + "</speak>",
        "attributes": lambda size: "<speak " + " ".join(f'a{n}="1"' for n in range(size // 11)) + ">a</speak>",
        "amounts": again("1 ", '<speak><say-as interpret-as="currency">', "x</say-as></speak>"),
        "digits": again("1", '<speak><say-as interpret-as="ordinal">', "</say-as></speak>"),
        "a long duration": again("1", '<speak>a<break time="', 'x"/></speak>'),
    }
    text = {"blanks": again(" ", "Hello", "world"), "brackets": again("[", "a"), "one word": again("a")}
    lines = {"short lines": again("a\n", "A: a\n"), "turns": again("A: a\n"), "a name": again(" ", "A: a\na", ": b")}
    paths = {
        SPEECH: "input",
        "/v1/text-to-speech/alloy": "text",
        "/dev/captioned_speech": "input",
        "/piper": "text",
        "/v1/speak": "text",
        "/v1/text/normalize": "input",
        "/v1/text/plan": "input",
    }
    return (
        *(posted(f"SSML, {name}", SPEECH, body("input", content, input_type=SSML)) for name, content in markup.items()),
        *(
            posted(f"SSML, {name}", "/v1/text/ssml", body("input", content, input_type=SSML))
            for name, content in markup.items()
        ),
        *(posted(f"script, {name}", DIALOGUE, body("script", content, cast={"A": "alloy"})) for name, content in lines.items()),
        *(posted(name, path, body(field, content)) for path, field in paths.items() for name, content in text.items()),
        posted("a blend", "/v1/audio/voices", body("blend", again("alloy(1)+", "blend:"), name="a")),
        posted("an embedding", "/v1/audio/voices", body("embedding", again("蘁"), name="a")),
        posted("a voice", SPEECH, body("voice", again("a(1)+", "blend:"), input="Hello there.")),
    )


ATTACKS = (*_documents(), *_objects(), *_texts())
