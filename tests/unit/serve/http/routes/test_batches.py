"""Batches with OpenAI's own client: a file of requests goes in, files of answers come out, whatever happens in between."""

import base64
import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest
import requests

from pipeline.errors import TextTooHard
from tests.support.fakes import Speaker
from tests.support.guarded import keys_of
from tests.support.jobs import living
from tests.support.live_server import CANARY, Live, error_of
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow


def line(custom_id: str, **body: Any) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/audio/speech", "body": {"model": "tts-1", **body}}


LINES = [
    line("one", input="The first.", voice="alloy", response_format="wav", seed=1),
    line("two", input="The second.", voice="nobody"),
    line("three", input="The third.", voice="calm", response_format="mp3", speed=1.5, seed=3, sample_rate=44_100),
    line("four", input="", voice="calm"),
    line("five", input="The fifth.", voice="alloy", stream_format="sse"),
]


def client_of(live: Live, key: str = "none") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{live.url}/v1", api_key=key, max_retries=0)


def jsonl(lines: list[dict[str, Any]]) -> bytes:
    return "\n".join(map(json.dumps, lines)).encode() + b"\n"


def submit(client: openai.OpenAI, lines: list[dict[str, Any]], **fields: Any) -> Any:
    file = client.files.create(file=("requests.jsonl", jsonl(lines)), purpose="batch")
    return client.batches.create(input_file_id=file.id, endpoint="/v1/audio/speech", completion_window="24h", **fields)


def ended(client: openai.OpenAI, batch_id: str, status: str = "completed") -> Any:
    wait_until(lambda: client.batches.retrieve(batch_id).status == status)
    return client.batches.retrieve(batch_id)


def answers(client: openai.OpenAI, file_id: str) -> dict[str, dict[str, Any]]:
    lines = [json.loads(raw) for raw in client.files.content(file_id).text.splitlines()]
    return {one["custom_id"]: one for one in lines}


def test_a_batch_from_the_upload_to_its_files(tmp_path: Path):
    with living(tmp_path) as live:
        client = client_of(live)
        file = client.files.create(file=("requests.jsonl", jsonl(LINES)), purpose="batch")
        assert (file.filename, file.purpose, file.bytes) == ("requests.jsonl", "batch", len(jsonl(LINES)))
        assert client.files.retrieve(file.id).id == file.id
        assert client.files.content(file.id).content == jsonl(LINES)
        batch = client.batches.create(
            input_file_id=file.id, endpoint="/v1/audio/speech", completion_window="24h", metadata={"for": "test"}
        )
        assert (batch.object, batch.metadata, batch.request_counts.total) == ("batch", {"for": "test"}, 5)
        batch = ended(client, batch.id)
        assert (batch.request_counts.completed, batch.request_counts.failed) == (2, 3)
        assert batch.completed_at >= batch.created_at
        spoken = answers(client, batch.output_file_id)
        assert list(spoken) == ["one", "three"]
        for custom_id in spoken:
            asked = next(one["body"] for one in LINES if one["custom_id"] == custom_id)
            answer = spoken[custom_id]["response"]
            assert answer["status_code"] == 200
            body = answer["body"]
            assert base64.b64decode(body["audio"]) == live.speak(**asked, stream=False).content, (
                "the bytes of the request alone"
            )
            assert (body["seed"], body["sample_rate"]) == (asked["seed"], asked.get("sample_rate", 24_000))
        wrong = answers(client, batch.error_file_id)
        assert {
            one: (told["response"]["status_code"], told["response"]["body"]["error"]["param"]) for one, told in wrong.items()
        } == {
            "two": (400, "voice"),
            "four": (400, "input"),
            "five": (400, "stream_format"),
        }
        output = client.files.retrieve(batch.output_file_id)
        assert (output.purpose, output.bytes) == ("batch_output", len(client.files.content(output.id).content))
        assert {one.id for one in client.files.list()} == {file.id, batch.output_file_id, batch.error_file_id}
        assert [one.id for one in client.files.list(purpose="batch")] == [file.id]
        with zipfile.ZipFile(
            io.BytesIO(requests.get(f"{live.url}/v1/batches/{batch.id}/audio", timeout=60).content)
        ) as archive:
            assert archive.namelist() == ["0001-one.wav", "0003-three.mp3", "summary.json"]
            assert archive.read("0001-one.wav") == base64.b64decode(spoken["one"]["response"]["body"]["audio"])
        assert requests.get(f"{live.url}/v1/audio/jobs", timeout=60).json()["data"] == [], "a batch is no job"
        assert client.files.delete(batch.output_file_id).deleted
        assert not list(tmp_path.glob("job-*")), "deleted with its audio"
        client.files.delete(file.id)
        assert list(client.files.list()) == []
        with pytest.raises(openai.NotFoundError):
            client.batches.retrieve(batch.id)


def test_batches_are_listed_in_pages_the_newest_first(tmp_path: Path):
    with living(tmp_path) as live:
        client = client_of(live)
        made = [submit(client, LINES[:1]).id for _ in range(3)]
        assert [one.id for one in client.batches.list(limit=2)] == made[::-1], "the client turns the pages"
        page = client.batches.list(limit=2)
        assert (len(page.data), page.has_more, page.last_id) == (2, True, made[1])


def test_a_cancelled_batch_keeps_what_is_spoken(tmp_path: Path):
    speaker = Speaker(chunks=2, first_pause_s=0.05)
    with living(tmp_path, speaker, parallel=1) as live:
        client = client_of(live)
        lines = [line(str(number), input=f"Number {number}.", voice="alloy", seed=1) for number in range(40)]
        batch = submit(client, lines)
        wait_until(lambda: client.batches.retrieve(batch.id).request_counts.completed >= 2)
        assert client.batches.cancel(batch.id).status == "cancelled"
        wait_until(lambda: speaker.opened == speaker.closed)
        batch = client.batches.retrieve(batch.id)
        spoken, missing = answers(client, batch.output_file_id), answers(client, batch.error_file_id)
        assert sorted([*spoken, *missing], key=int) == [one["custom_id"] for one in lines]
        assert 2 <= len(spoken) < 40
        assert {told["error"]["code"] for told in missing.values()} == {"batch_cancelled"}
        done = ended(client, submit(client, LINES[:1]).id)
        with pytest.raises(openai.ConflictError):
            client.batches.cancel(done.id)


def test_a_line_that_cannot_be_spoken_fails_no_other(tmp_path: Path):
    hard = Speaker(chunks=2, fails_at=0, error=TextTooHard("it took more than its share", param="input"))
    with living(tmp_path, hard) as live:
        client = client_of(live)
        batch = ended(client, submit(client, [LINES[0], LINES[2]]).id)
        assert (batch.request_counts.completed, batch.request_counts.failed, batch.output_file_id) == (0, 2, None)
        told = answers(client, batch.error_file_id)["one"]["response"]
        assert told["body"]["error"]["code"] == "text_too_hard"


def test_a_batch_goes_on_after_a_restart_with_the_same_answers(tmp_path: Path):
    lines = [line(str(number), input=f"Number {number}.", voice="alloy", seed=1, response_format="pcm") for number in range(20)]
    with living(tmp_path / "whole") as live:
        client = client_of(live)
        whole = client.files.content(ended(client, submit(client, lines).id).output_file_id).content
    slow = Speaker(chunks=2, first_pause_s=0.05)
    with living(tmp_path / "killed", slow, parallel=1) as live:
        client = client_of(live)
        batch = submit(client, lines)
        wait_until(lambda: client.batches.retrieve(batch.id).request_counts.completed >= 3)
    spoken = slow.closed
    quick = Speaker(chunks=2)
    with living(tmp_path / "killed", quick) as live:
        client = client_of(live)
        batch = ended(client, batch.id)
        assert client.files.content(batch.output_file_id).content == whole
    assert spoken + quick.opened <= 21, "at most the part in progress is spoken again"


def test_no_key_sees_what_is_another_ones(tmp_path: Path):
    with living(tmp_path) as live, keys_of(live, tmp_path, 2) as (ann, bob):
        mine, other = client_of(live, ann), client_of(live, bob)
        batch = ended(mine, submit(mine, LINES[:2]).id)
        own = (batch.input_file_id, batch.output_file_id, batch.error_file_id)
        calls: list[Callable[[str], Any]] = [other.files.retrieve, other.files.content, other.files.delete]
        for call in calls:
            for file_id in own:
                with pytest.raises(openai.NotFoundError):
                    call(file_id)
        for call in (other.batches.retrieve, other.batches.cancel):
            with pytest.raises(openai.NotFoundError):
                call(batch.id)
        with pytest.raises(openai.NotFoundError):
            other.batches.create(input_file_id=own[0], endpoint="/v1/audio/speech", completion_window="24h")
        assert list(other.files.list()) == list(other.batches.list()) == []
        assert len(list(mine.files.list())) == 3


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "0 lines"),
        (b"\n\n", "0 lines"),
        (jsonl([LINES[0]]) + CANARY.encode(), "line 2 of the file: the body is not valid JSON"),
        (jsonl([LINES[0], LINES[0]]), "line 2 of the file: its custom_id"),
        (
            jsonl([{**LINES[0], "url": "/v1/chat/completions"}]),
            "line 1 of the file: method is POST, and url is /v1/audio/speech",
        ),
        (jsonl([{**LINES[0], "custom_id": ""}]), "line 1 of the file: custom_id"),
        (b"\xff\xfe\n", "line 1 of the file"),
    ],
)
def test_files_that_are_no_batches_are_refused_by_their_line(tmp_path: Path, content: bytes, said: str):
    with living(tmp_path, speaks=False) as live:
        client = client_of(live)
        file = client.files.create(file=("a.jsonl", content), purpose="batch")
        with pytest.raises(openai.BadRequestError, match=said) as refused:
            client.batches.create(input_file_id=file.id, endpoint="/v1/audio/speech", completion_window="24h")
        assert CANARY not in str(refused.value)
        assert refused.value.param == "input_file_id"


def test_limits_and_wrong_requests_are_said(tmp_path: Path):
    with living(tmp_path, speaks=False, max_jobs_per_key=2, max_chars=100, max_body_bytes=4096) as live:
        client = client_of(live)
        with pytest.raises(openai.APIStatusError, match="characters"):
            submit(client, [line("long", input="x " * 60, voice="alloy")])
        submit(client, LINES[:1])
        with pytest.raises(openai.RateLimitError, match="max_jobs_per_key"):
            client.files.create(file=("a.jsonl", b"x"), purpose="batch")
        with pytest.raises(openai.APIStatusError, match="bytes") as refused:
            client.files.create(file=("a.jsonl", b"x" * 100_000), purpose="batch")
        assert refused.value.status_code == 413
        with pytest.raises(openai.BadRequestError, match="purpose"):
            client.files.create(file=("a.jsonl", b"x"), purpose="assistants")
        file = next(iter(client.files.list()))
        for fields in ({"endpoint": "/v1/embeddings"}, {"completion_window": "1h"}, {"output_expires_after": {"seconds": 1}}):
            body = {"input_file_id": file.id, "endpoint": "/v1/audio/speech", "completion_window": "24h", **fields}
            reply = requests.post(f"{live.url}/v1/batches", json=body, timeout=60)
            assert reply.status_code == 400
            error_of(reply)
        for path in ("/v1/files/nothing", "/v1/batches/nothing", "/v1/files/file-output-" + 24 * "0"):
            assert requests.get(f"{live.url}{path}", timeout=60).status_code == 404
