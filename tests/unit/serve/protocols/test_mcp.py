"""MCP: the protocol's own client calls the tools, over HTTP and over stdio, with the access of every other route."""

import asyncio
import base64
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline.store.store import Store
from serve.access.api_keys import Scope
from serve.access.authentication import Authenticator
from tests.support.fakes import Speaker, make_services
from tests.support.guarded import FREE, add, guarded, ring_of
from tests.support.jobs import living
from tests.support.live_server import Live, serving
from tests.support.waiting import wait_until

mcp = pytest.importorskip("mcp")
import httpx2  # noqa: E402
from mcp.client.streamable_http import streamable_http_client  # noqa: E402

TOOLS = {"speak", "list_voices", "make_audiobook", "get_job", "fetch_job"}


def called(target: Any, *calls: tuple[str, dict[str, Any]]) -> list[Any]:
    """The results of tools, after their names were looked at."""

    async def run() -> list[Any]:
        async with mcp.Client(target) as client:
            assert {tool.name for tool in (await client.list_tools()).tools} == TOOLS
            return [await client.call_tool(name, arguments) for name, arguments in calls]

    return asyncio.run(run())


def over_http(live: Live, key: str, *calls: tuple[str, dict[str, Any]]) -> list[Any]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return called(
        streamable_http_client(f"{live.url}/mcp", http_client=httpx2.AsyncClient(headers=headers, timeout=30)), *calls
    )


def test_tools_over_http_speak_on_the_key_of_the_request(store: Store) -> None:
    quota = FREE.model_copy(update={"characters_a_day": 12})
    key, _ = add(store, quota=quota)
    text, _ = add(store, scopes=(Scope.TEXT,))
    speak = ("speak", {"text": "Hello there.", "voice": "alloy"})
    with guarded(Authenticator(ring_of(store))) as live:
        voices, spoken, again = over_http(live, key, ("list_voices", {}), speak, speak)
        (refused,) = over_http(live, text, speak)
        for wrong in ("", "ck-wrong"):
            with pytest.raises(Exception, match=r"401|Unauthorized|unhandled") as refusal:
                over_http(live, wrong, speak)
            assert refusal
    assert "alloy" in voices.content[0].text
    assert base64.b64decode(spoken.content[0].data)[:3] in (b"ID3", b"\xff\xf3", b"\xff\xfb")
    assert again.is_error
    assert "429" in again.content[0].text
    assert "scope" in refused.content[0].text


def test_arguments_are_bounded_and_errors_are_the_services_own() -> None:
    with serving(make_services(Speaker())) as live:
        results = over_http(
            live,
            "",
            ("speak", {"text": "x" * 2001}),
            ("speak", {"text": "Hello.", "voice": "nobody-knows"}),
            ("get_job", {"job_id": "../../admin/keys"}),
            ("get_job", {"job_id": "job-1"}),
        )
    assert all(result.is_error for result in results)
    assert "voice" in results[1].content[0].text
    assert "404" in results[3].content[0].text


def command_of(live: Live, folder: Path) -> Any:
    """The command as an agent starts it."""
    words = ["-m", "serve.commands", "mcp", "--url", live.url, "--folder", str(folder)]
    return mcp.StdioServerParameters(command=sys.executable, args=words, cwd=Path(__file__).resolve().parents[4])


def test_an_audiobook_is_made_looked_at_and_fetched(tmp_path: Path) -> None:
    jobs, files = tmp_path / "jobs", tmp_path / "files"
    files.mkdir()
    with living(jobs) as live:
        (begun,) = called(command_of(live, files), ("make_audiobook", {"text": "# One\n\nHello there.", "title": "A book"}))
        job_id = json.loads(begun.content[0].text)["id"]

        def has_succeeded() -> bool:
            (job,) = over_http(live, "", ("get_job", {"job_id": job_id}))
            return bool(json.loads(job.content[0].text)["status"] == "succeeded")

        wait_until(has_succeeded)
        fetch = ("fetch_job", {"job_id": job_id})
        (fetched,), (linked,) = called(command_of(live, files), fetch), over_http(live, "", fetch)
        assert f"/v1/audio/jobs/{job_id}/audio" in linked.content[0].text
    path = Path(fetched.content[0].text)
    assert path.suffix == ".mp3"
    assert path.stat().st_size > 500


def test_the_command_speaks_into_a_file(tmp_path: Path) -> None:
    with serving(make_services(Speaker())) as live:
        command = command_of(live, tmp_path)
        spoken, refused = called(
            command, ("speak", {"text": "Hello there.", "format": "wav"}), ("get_job", {"job_id": "job-1"})
        )
    path = Path(spoken.content[0].text)
    assert path.parent == tmp_path
    assert path.read_bytes()[:4] == b"RIFF"
    assert list(tmp_path.iterdir()) == [path]
    assert refused.is_error
