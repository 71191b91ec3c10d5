"""The client of the API page speaks with a service, as it stands there."""

import re
from pathlib import Path

import pytest

from tests.support.fakes import Speaker, make_services
from tests.support.live_server import serving
from tests.support.pages import section

(EXAMPLE,) = re.findall(r"```python\n(.*?)```", section("docs/api.md", "Conversations"), re.DOTALL)


def test_the_client_of_the_page_writes_what_it_hears(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    speaker = Speaker(chunks=2)
    monkeypatch.chdir(tmp_path)
    with serving(make_services(speaker)) as live:
        exec(compile(EXAMPLE.replace("localhost:8000", f"127.0.0.1:{live.port}"), "docs/api.md", "exec"), {})
    assert [request.text for request in speaker.requests] == [
        "Hello there, how are you today? ",
        "This is spoken while it is written.",
    ]
    assert {request.voice for request in speaker.requests} == {"default"}, "whose other name is alloy"
    assert (tmp_path / "hello.pcm").stat().st_size == 2 * 2 * 4800 * 2
    assert len(EXAMPLE.splitlines()) <= 20
