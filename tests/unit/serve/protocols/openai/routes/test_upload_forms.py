"""Forms that are no recording: refused as a form, never a 500, and nothing of them is decoded."""

from collections.abc import Iterator

import pytest
import requests
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.voices.reference import Reference
from tests.support.effort import examples
from tests.support.fakes import Speaker, make_services
from tests.support.live_server import Live, serving

FORM = "multipart/form-data; boundary=x"
END = b"--x--\r\n"


class NoReader:
    """Stands where recordings are decoded; no form here gets as far."""

    async def read(self, content: bytes) -> Reference:
        raise AssertionError("it was decoded")


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    services = make_services(Speaker())
    object.__setattr__(services.voices.maker.config, "clone", True)
    services.voices.maker._uploads = NoReader()  # type: ignore[assignment]
    with serving(services) as server:
        yield server


def part(name: str, content: bytes = b"x", file: str | None = None, headers: bytes = b"") -> bytes:
    said = f'Content-Disposition: form-data; name="{name}"' + ("" if file is None else f'; filename="{file}"')
    return b"--x\r\n" + said.encode() + b"\r\n" + headers + b"\r\n" + content + b"\r\n"


WHOLE = part("name", b"me") + part("ref_text", b"!") + part("consent", b"true") + part("audio_sample", b"RIFF", "a") + END


def send(live: Live, body: bytes, content_type: str = FORM) -> tuple[int, str]:
    headers = {"Content-Type": content_type}
    reply = requests.post(f"{live.url}/v1/audio/voices", data=body, headers=headers, timeout=60)
    return reply.status_code, reply.json()["error"]["code"]


FORMS = {
    "ten thousand fields": (b"".join(part(f"f{number}") for number in range(10_000)) + END, "invalid_form"),
    "ten thousand files": (b"".join(part("audio_sample", file="a") for _ in range(10_000)) + END, "invalid_form"),
    "ten thousand beginnings": (b"--x\r\n" * 10_000, "invalid_form"),
    "a header without end": (b"--x\r\nA: " + b"b" * 9_000_000, "invalid_form"),
    "a name without end": (b"--x\r\n" + b"a" * 9_000_000, "invalid_form"),
    "a million headers": (b"--x\r\n" + b"a: b\r\n" * 1_000_000, "invalid_form"),
    "a field of 100 kB": (part("name", b"n" * 100_000) + END, "invalid_form"),
    "carriage returns": (part("audio_sample", b"\r" * 9_000_000, "a") + END, "missing_field"),
    "half boundaries": (part("audio_sample", b"\r\n--" * 2_000_000, "a") + END, "missing_field"),
    "a form in a form": (
        part("consent", WHOLE, headers=b"Content-Type: multipart/mixed; boundary=x\r\n") + END,
        "missing_field",
    ),
    "a part without a name": (b"--x\r\nContent-Disposition: form-data\r\n\r\nx\r\n" + END, "invalid_form"),
    "a part without headers": (b"--x\r\n\r\nx\r\n" + END, "invalid_form"),
    "text before the form": (b"hello" * 1_000_000 + WHOLE, "invalid_form"),
    "an end that never comes": (part("consent", b"true") + part("audio_sample", b"RIFF", "a")[:-2], "missing_field"),
    "the recording as a field": (part("consent", b"true") + part("audio_sample", b"RIFF") + END, "missing_field"),
    "a path for a name": (part("consent", b"true") + part("audio_sample", b"RIFF", "../../etc/passwd") + END, "missing_field"),
    "nothing": (b"", "missing_field"),
}


@pytest.mark.parametrize("name", FORMS)
def test_a_form_that_is_none_is_a_400(live: Live, name: str):
    body, code = FORMS[name]
    assert send(live, body) == (400, code)
    assert live.services.bodies.arriving == 0


def test_a_form_names_a_boundary_of_sensible_length(live: Live):
    for content_type in ("multipart/form-data", f"{FORM[:-1]}{'y' * 20_000}", f"{FORM}; boundary=z"):
        assert send(live, WHOLE, content_type) == (400, "invalid_form")


@pytest.mark.parametrize("charset", ["undefined", "idna", "punycode", "utf-16", "utf-7", "zlib", "nonsense", "unicode_escape"])
def test_no_charset_breaks_a_form(live: Live, charset: str):
    for content in (b"\x80-\xff", b"xn--\xff", b"\\N{x", b"\x00\xd8", b"a-"):
        status, _ = send(live, part("name", content) + part("consent", content) + END, f"{FORM}; charset={charset}")
        assert status == 400


TOKENS = [b"--x", b"--", b"\r\n", b"\r", b"\n", b":", b";", b'"', b'filename="a"', b'name="name"', b"\0", b"\xff", b"form-data"]
edits = st.lists(st.tuples(st.floats(0, 1), st.one_of(st.sampled_from(TOKENS), st.integers(1, 6))), min_size=1, max_size=6)


@given(edits)
@settings(max_examples=examples(200))
def test_a_damaged_form_is_read_or_refused(live: Live, changes: list[tuple[float, bytes | int]]):
    body = bytearray(WHOLE)
    for where, change in changes:
        at = int(where * len(body))
        if isinstance(change, bytes):
            body[at:at] = change
        else:
            del body[at : at + change]
    status, _ = send(live, bytes(body))
    assert status in (400, 503)  # 503: a form in order, and these voices have no store


@pytest.mark.parametrize("charset", ["punycode", "utf-7", "utf-16", "idna", "latin-1", "no such", '"utf-7"', ""])
def test_a_form_in_another_charset_is_refused(live: Live, charset: str):
    assert send(live, WHOLE, f"{FORM}; charset={charset}") == (400, "invalid_form")


@pytest.mark.parametrize("charset", ["utf-8", "UTF-8", '"utf-8"', "us-ascii"])
def test_a_form_may_say_that_it_is_utf_8(live: Live, charset: str):
    assert send(live, part("name", b"me") + END, f"{FORM}; charset={charset}") == (400, "missing_field")
