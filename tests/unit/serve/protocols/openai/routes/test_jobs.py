"""Jobs over HTTP: planned, spoken in the background, listened to, stopped, and gone when they are deleted."""

import asyncio
import gc
import io
import itertools
import json
import uuid
import warnings
import wave
import zipfile
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import requests
from starlette.datastructures import Headers

from pipeline.audio.encode import encode_whole
from pipeline.audio.formats import audio_format
from pipeline.errors import EngineDead, NoSpeakableText, TextTooHard
from pipeline.store.open import open_store
from pipeline.types import AudioChunk, SynthesisRequest
from serve.access.api_keys import NAMESPACE
from serve.access.authentication import Authenticator
from serve.errors import ApiError
from serve.protocols.openai.ranged import BLOCK, file_reader, ranged
from tests.support.books import epub, picture
from tests.support.fakes import CHUNK, Speaker
from tests.support.guarded import add, ring_of
from tests.support.jobs import living
from tests.support.live_server import CANARY, Live, error_of
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

BOOK = "# One\n\nThe first words.\n\nMore words follow here.\n\n# Two\n\nThe last words."


def create(live: Live, status: int = 202, headers: dict[str, str] | None = None, **fields: Any) -> dict[str, Any]:
    body = {"input": BOOK, "input_type": "markdown", "seed": 7, **fields}
    reply = requests.post(f"{live.url}/v1/audio/jobs", json=body, headers=headers, timeout=60)
    assert reply.status_code == status, reply.text
    if status != 202:
        return error_of(reply)
    job_body: dict[str, Any] = reply.json()
    assert reply.headers["Location"] == f"/v1/audio/jobs/{job_body['id']}"
    return job_body


def get(live: Live, job_id: str, below: str = "", **headers: str) -> requests.Response:
    return requests.get(f"{live.url}/v1/audio/jobs/{job_id}{below}", headers=headers, timeout=60)


def post(live: Live, job_id: str, below: str) -> requests.Response:
    return requests.post(f"{live.url}/v1/audio/jobs/{job_id}{below}", timeout=60)


def finished(live: Live, job_id: str, status: str = "succeeded") -> dict[str, Any]:
    wait_until(lambda: get(live, job_id).json()["status"] == status)
    job_body: dict[str, Any] = get(live, job_id).json()
    return job_body


def test_a_book_is_planned_spoken_and_listened_to(tmp_path: Path):
    body = {"input": BOOK, "input_type": "markdown"}
    with living(tmp_path) as live:
        planned = requests.post(f"{live.url}/v1/audio/jobs/plan", json=body, timeout=60).json()
        assert [(chapter["title"], chapter["parts"]) for chapter in planned["chapters"]] == [("One", 3), ("Two", 2)]
        assert (planned["parts"], planned["finishes_in_s"]) == (5, None)
        job = create(live, response_format="wav", pauses={"paragraph_ms": 100, "heading_ms": 200, "chapter_ms": 1000})
        assert (job["status"], job["characters"]) == ("queued", planned["characters"])
        job_body = finished(live, job["id"])
        part_s = 2 * CHUNK / 24_000
        assert job_body["progress"]["done"] == 5
        assert job_body["progress"]["playable_s"] == pytest.approx(5 * part_s + 0.2 + 0.1 + 1.0 + 0.2)
        assert [chapter["start_s"] for chapter in job_body["chapters"]] == [0.0, pytest.approx(3 * part_s + 0.3 + 1.0)]
        whole = get(live, job["id"], "/audio")
        assert (whole.headers["Content-Type"], whole.headers["X-Audio-Complete"]) == ("audio/wav", "true")
        with wave.open(io.BytesIO(whole.content)) as file:
            assert file.getnframes() == round(24_000 * job_body["progress"]["playable_s"])
        parts = get(live, job["id"], "/parts?first=1&limit=2").json()
        assert [part["text"] for part in parts["data"]] == ["The first words.", "More words follow here."]
        assert parts["has_more"]
        assert parts["data"][0]["start_s"] == pytest.approx(part_s + 0.2)


def test_a_part_has_the_bytes_of_a_request_for_its_text(tmp_path: Path):
    with living(tmp_path) as live:
        job = create(live, response_format="pcm", input="The only words.", input_type="text")
        finished(live, job["id"])
        assert get(live, job["id"], "/audio").content == live.speak(input="The only words.", seed=7).content


@pytest.mark.parametrize("container", ["mp3", "flac", "opus", "aac"])
def test_a_finished_file_is_the_samples_in_its_format_and_has_ranges(tmp_path: Path, container: str):
    with living(tmp_path) as live:
        job = create(live, response_format=container, input_type="text")
        finished(live, job["id"])
        whole = get(live, job["id"], "/audio")
        samples = np.frombuffer(get(live, job["id"], "/audio?format=pcm").content, "<i2")
        assert whole.content == encode_whole(samples.astype(np.float32) / 32_767, audio_format(container))
        size = len(whole.content)
        assert whole.headers["Content-Length"] == str(size)
        piece = get(live, job["id"], "/audio", Range=f"bytes=10-{size - 11}")
        assert (piece.status_code, piece.content) == (206, whole.content[10:-10])
        assert piece.headers["Content-Range"] == f"bytes 10-{size - 11}/{size}"
        assert get(live, job["id"], "/audio", Range="bytes=-5").content == whole.content[-5:]
        behind = get(live, job["id"], "/audio", Range=f"bytes={size}-")
        assert (behind.status_code, behind.json()["error"]["code"]) == (416, "range_not_satisfiable")
        assert behind.headers["Content-Range"] == f"bytes */{size}"
        assert behind.headers["ETag"] == whole.headers["ETag"]
        assert get(live, job["id"], "/audio", Range=f"bytes={'9' * 5000}-").status_code == 416
        assert get(live, job["id"], "/audio", Range=f"bytes={'0' * 5000}1-").content == whole.content[1:]
        assert get(live, job["id"], "/audio", Range=f"bytes=-{'9' * 5000}").content == whole.content
        again = get(live, job["id"], "/audio", Range="bytes=0-1", **{"If-Range": '"another"'})
        assert (again.status_code, again.content) == (200, whole.content)


@pytest.mark.parametrize("reading", ["all of it", "a piece", "nothing", "a range behind it"])
async def test_no_reader_leaves_a_file_open(tmp_path: Path, reading: str):
    content = bytes(range(256)) * (BLOCK // 128)
    path = tmp_path / f"{uuid.uuid4()}.mp3"
    path.write_bytes(content)
    with warnings.catch_warnings(record=True) as recorded:
        warnings.simplefilter("always")
        read = partial(ranged, read=file_reader(path), size=len(content), etag="e", media_type="audio/mpeg", headers={})
        if reading == "a range behind it":
            with pytest.raises(ApiError, match="bytes"):
                read(Headers({"range": f"bytes={len(content)}-"}))
        else:
            pieces = aiter(read(Headers()).body_iterator)  # type: ignore[attr-defined]
            path.unlink()
            if reading == "all of it":
                assert b"".join([piece async for piece in pieces]) == content
            elif reading == "a piece":
                assert await anext(pieces) == content[:BLOCK]
            del pieces
        del read
        await asyncio.sleep(0)
        gc.collect()
    assert [str(warning.message) for warning in recorded if path.name in str(warning.message)] == []


def test_what_is_finished_is_heard_before_the_rest(tmp_path: Path):
    speaker = Speaker(chunks=2, first_pause_s=0.05)
    with living(tmp_path, speaker, parallel=1) as live:
        job = create(live, response_format="mp3", input="\n\n".join(["Some words."] * 3 + [f"Part {n}." for n in range(30)]))
        wait_until(lambda: get(live, job["id"]).json()["progress"]["done"] >= 5)
        assert post(live, job["id"], "/pause").json()["status"] == "paused"
        wait_until(lambda: speaker.opened == speaker.closed)
        paused = get(live, job["id"]).json()
        assert paused["progress"]["done"] < 33
        early = get(live, job["id"], "/audio?format=wav")
        assert (early.headers["X-Audio-Complete"], early.headers["Cache-Control"]) == ("false", "no-store")
        assert get(live, job["id"], "/audio?format=wav", Range="bytes=100-199").content == early.content[100:200]
        streamed = get(live, job["id"], "/audio")
        assert (streamed.headers["Content-Type"], "Content-Length" in streamed.headers) == ("audio/mpeg", False)
        assert len(streamed.content) > 1000
        assert post(live, job["id"], "/resume").json()["status"] in ("queued", "running")
        assert finished(live, job["id"])["progress"]["done"] == 33
        assert 31 <= speaker.opened <= 32, "equal parts are spoken once, and the one that was stopped again"
        whole = get(live, job["id"], "/audio?format=wav").content
        spoken = early.content[: early.content.rindex(b"LIST")]  # behind it stands what made the file
        assert len(spoken) > 1000
        assert whole[44 : len(spoken)] == spoken[44:]


def test_jobs_that_a_runner_leaves_are_taken_over(tmp_path: Path):
    speaker = Speaker(chunks=2, first_pause_s=0.02)
    with living(tmp_path, speaker, runners=3, lease_s=60.0) as live:  # no lease ends, however busy the machine is
        jobs = [create(live, seed=seed) for seed in range(6)]
        for job in jobs:
            finished(live, job["id"])
        assert speaker.opened == 30, "nothing was spoken twice"


def test_a_cancelled_job_stops_and_a_deleted_one_is_gone(tmp_path: Path):
    speaker = Speaker(chunks=None, pause_s=0.01)
    with living(tmp_path, speaker) as live:
        job = create(live)
        wait_until(lambda: speaker.opened > 0)
        assert post(live, job["id"], "/cancel").json()["status"] == "cancelled"
        wait_until(lambda: speaker.opened == speaker.closed)
        assert error_of(post(live, job["id"], "/pause"))["code"] == "conflict"
        assert error_of(get(live, job["id"], "/audio"))["code"] == "not_ready"
        assert requests.delete(f"{live.url}/v1/audio/jobs/{job['id']}", timeout=60).status_code == 204
        assert error_of(get(live, job["id"]))["code"] == "job_not_found"
        assert not [path for path in tmp_path.iterdir() if "job-" in path.name]
        assert requests.get(f"{live.url}/v1/audio/jobs", timeout=60).json()["data"] == []


def test_a_part_that_is_refused_fails_the_job_and_names_itself(tmp_path: Path):
    speaker = Speaker(chunks=2, fails_at=0, error=TextTooHard("too hard"))
    with living(tmp_path, speaker, parallel=1) as live:
        job = create(live)
        job_body = finished(live, job["id"], "failed")
        assert job_body["error"] == {"code": "text_too_hard", "message": "too hard", "part": 0}
        speaker.fails_at = None
        post(live, job["id"], "/resume")
        assert finished(live, job["id"])["error"] is None


class Englishman(Speaker):
    """Speaks texts of ASCII alone."""

    async def stream(self, request: SynthesisRequest) -> AsyncGenerator[AudioChunk, None]:
        if not request.text.isascii():
            raise NoSpeakableText("nothing to say", param="input")
        async with aclosing(super().stream(request)) as chunks:
            async for chunk in chunks:
                yield chunk


def test_a_part_without_words_is_skipped_and_counted(tmp_path: Path):
    with living(tmp_path, Englishman(chunks=2)) as live:
        job = create(live, input="The boat was red.\n\nこんにちは。\n\nThe sea was calm.")
        assert finished(live, job["id"])["error"] is None
        parts = get(live, job["id"], "/parts").json()["data"]
        assert [part["warnings"] for part in parts] == [{}, {"no_speakable_text": 1}, {}]
        assert [part["duration_s"] > 0 for part in parts] == [True, False, True]
        silent = create(live, input="こんにちは。\n\nさようなら。")
        assert finished(live, silent["id"], "failed")["error"]["code"] == "no_speakable_text"


def test_a_failure_that_passes_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("serve.jobs.active_job.FIRST_RETRY_S", 0.01)
    speaker = Speaker(chunks=2, fails_at=1, error=EngineDead("gone"))
    with living(tmp_path, speaker) as live:
        job = create(live)
        wait_until(lambda: speaker.opened > 3)
        assert get(live, job["id"]).json()["status"] == "running"
        wait_until(lambda: get(live, job["id"]).json()["progress"]["waiting_for"] == "engine_dead")
        speaker.fails_at = None
        assert finished(live, job["id"])["progress"]["waiting_for"] is None


def test_wrong_jobs_are_refused_in_words(tmp_path: Path):
    with living(tmp_path, speaks=False, max_chars=500, max_jobs_per_key=2, disk_mib=4) as live:
        assert create(live, 400, stream=True)["param"] == "stream"
        assert create(live, 400, response_format="ulaw")["code"] == "unsupported_format"
        assert create(live, 400, voice="nobody")["code"] == "voice_not_found"
        assert create(live, 404, model="nothing")["code"] == "model_not_found"
        assert create(live, 400, input=" ... ")["code"] == "no_speakable_text"
        assert create(live, 400, input="a" * 501)["code"] == "input_too_long"
        assert create(live, 400, input=f"<speak>{CANARY}", input_type="ssml")["code"] == "invalid_ssml"
        assert create(live, 400, input_type="html")["param"] == "input_type"
        assert create(live, 400, pauses={"paragraph_ms": -1})["param"] == "pauses"
        first = create(live, wrong=CANARY, instructions="cheerfully")
        assert first["ignored_fields"] == ["instructions", "wrong"]
        assert create(live, 507, input="words " * 80, speed=0.25)["code"] == "store_full"
        create(live)
        assert create(live, 429)["code"] == "overloaded"
        listed = requests.get(f"{live.url}/v1/audio/jobs?limit=1&status=queued", timeout=60).json()
        assert (len(listed["data"]), listed["has_more"]) == (1, True)
        rest = requests.get(f"{live.url}/v1/audio/jobs?after={listed['data'][0]['id']}", timeout=60).json()
        assert [job["id"] for job in rest["data"]] == [first["id"]]


def test_odd_ids_numbers_and_titles_are_no_defects(tmp_path: Path):
    with living(tmp_path) as live:
        for odd in ("x", "%20", "job-", "job-" + "a" * 24, "..%2f..", "%00", "job-" + "A" * 24, "ä" * 90):
            for below in ("", "/parts", "/audio", "/events", "/subtitles"):
                reply = get(live, odd, below)
                assert reply.status_code == 404, (odd, below)
            assert post(live, odd, "/resume").status_code == 404
        job = create(live, response_format="mp3", title='a\x00b/\n\u202e"', input="# x\x00y\n\nText.\n\n# \x07z\n\nMore.")
        finished(live, job["id"])
        assert get(live, job["id"], "/audio").status_code == 200
        assert get(live, job["id"], "/audio", Range="bytes=" + "9" * 40 + "-").status_code == 416
        assert get(live, job["id"], "/audio", Range="bytes=5-2").status_code == 200
        assert get(live, job["id"], "/events", **{"Last-Event-ID": "x-²"}).status_code == 200
        assert post(live, job["id"], "/parts/99999999999999999999").status_code == 415
        assert error_of(get(live, job["id"], "/audio?format=exe"))["param"] == "format"


def test_an_idempotency_key_makes_one_job(tmp_path: Path):
    with living(tmp_path, speaks=False) as live:
        headers = {"Idempotency-Key": "once"}
        assert create(live, headers=headers)["id"] == create(live, headers=headers)["id"]
        assert create(live, 409, headers=headers, seed=8)["code"] == "idempotency_mismatch"


def test_ssml_is_cut_between_its_paragraphs(tmp_path: Path):
    document = '<speak><voice name="calm"><p>One &amp; two.</p><p>Three.</p></voice><p>Four.</p></speak>'
    speaker = Speaker(chunks=1)
    with living(tmp_path, speaker) as live:
        job = create(live, input=document, input_type="ssml")
        assert (job["parts"], job["characters"]) == (3, len("One & two.Three.Four."))
        finished(live, job["id"])
        voices = {request.text.strip(): request.passages[0].prosody.voice for request in speaker.requests}
        assert {text: voice is None for text, voice in voices.items()} == {"One & two.": False, "Three.": False, "Four.": True}


def events_of(live: Live, job_id: str, last: str = "", most: int = 1000) -> list[dict[str, Any]]:
    """The events of a job until its end, or the first ones."""
    headers = {"Last-Event-ID": last} if last else {}
    with requests.get(f"{live.url}/v1/audio/jobs/{job_id}/events", headers=headers, stream=True, timeout=60) as reply:
        assert reply.status_code in (200, 204)
        return list(itertools.islice(events_in(reply), most))


def events_in(reply: requests.Response) -> Iterator[dict[str, Any]]:
    event: dict[str, Any] = {}
    for line in reply.iter_lines(decode_unicode=True):
        if line:
            name, _, value = line.partition(": ")
            event[name] = json.loads(value) if name == "data" else value
        elif event:
            yield event
            event = {}


def test_events_tell_each_part_once_and_go_on_where_a_client_stopped(tmp_path: Path):
    with living(tmp_path, Speaker(chunks=2, first_pause_s=0.1), parallel=1) as live:
        job = create(live)
        early = events_of(live, job["id"], most=4)
        last = [event["id"] for event in early if "id" in event][-1]
        rest = events_of(live, job["id"], last)
        parts = [event["data"]["index"] for event in early + rest if event["event"] == "job.part"]
        assert parts == [0, 1, 2, 3, 4]
        assert (rest[-1]["event"], rest[-1]["data"]["status"]) == ("job.status", "succeeded")
        assert events_of(live, job["id"], rest[-1]["id"]) == []
        script = rest[-1]["id"].partition("-")[0]
        assert len(events_of(live, job["id"], f"{script}-{'9' * 5000}")) >= 5, "an id that is none is of no event"
        again = events_of(live, job["id"])
        assert [event["data"]["index"] for event in again if event["event"] == "job.part"] == [0, 1, 2, 3, 4]
        assert again[0]["data"]["start_s"] == 0.0


def test_the_events_of_a_deleted_job_end_with_an_error(tmp_path: Path):
    with living(tmp_path, speaks=False) as live:
        url = f"{live.url}/v1/audio/jobs/{create(live)['id']}"
        with requests.get(f"{url}/events", stream=True, timeout=60) as reply:
            assert reply.status_code == 200
            assert requests.delete(url, timeout=60).status_code == 204
            *_, last = events_in(reply)
    assert (last["event"], last["data"]["status"], last["data"]["error"]["code"]) == ("error", 404, "job_not_found")


def test_a_revoked_key_ends_the_events_of_its_jobs(tmp_path: Path):
    store = open_store(str(tmp_path / "keys.sqlite"))
    key, key_id = add(store)
    add(store)
    ring = ring_of(store)
    with living(tmp_path, speaks=False) as live:
        object.__setattr__(live.services, "authenticator", Authenticator(ring))
        url, mine = f"{live.url}/v1/audio/jobs", {"x-api-key": key}
        job = requests.post(url, json={"input": "One."}, headers=mine, timeout=60).json()["id"]
        with requests.get(f"{url}/{job}/events", headers=mine, stream=True, timeout=60) as events:
            lines = events.iter_lines()
            next(lines)
            store.delete(NAMESPACE, key_id)
            ring.refresh()
            assert b"invalid_api_key" in b"".join(lines)


@pytest.mark.slow
def test_a_revoked_key_ends_a_download(tmp_path: Path):
    store = open_store(str(tmp_path / "keys.sqlite"))
    key, key_id = add(store)
    add(store)
    ring = ring_of(store)
    with living(tmp_path, Speaker(chunks=40, chunk_samples=240_000)) as live:  # more than sockets hold
        object.__setattr__(live.services, "authenticator", Authenticator(ring))
        url, mine = f"{live.url}/v1/audio/jobs", {"x-api-key": key}
        body = {"input": "One.", "response_format": "wav"}
        job = requests.post(url, json=body, headers=mine, timeout=60).json()["id"]
        wait_until(lambda: requests.get(f"{url}/{job}", headers=mine, timeout=60).json()["status"] == "succeeded")
        with requests.get(f"{url}/{job}/audio", headers=mine, stream=True, timeout=60) as audio:
            pieces = audio.iter_content(1000)
            next(pieces)
            store.delete(NAMESPACE, key_id)
            ring.refresh()
            with pytest.raises(requests.exceptions.ChunkedEncodingError):
                list(pieces)


def test_one_part_is_spoken_again_and_only_that_one(tmp_path: Path):
    speaker = Speaker(chunks=2)
    with living(tmp_path, speaker) as live:
        job = create(live, response_format="flac")
        finished(live, job["id"])
        before = get(live, job["id"], "/audio?format=pcm").content
        place = get(live, job["id"], "/parts").json()["data"][2]
        changed = requests.post(f"{live.url}/v1/audio/jobs/{job['id']}/parts/2", json={"seed": 8}, timeout=60)
        assert (changed.status_code, changed.json()["status"]) == (202, "queued")
        finished(live, job["id"])
        assert speaker.opened == 6
        after = get(live, job["id"], "/audio?format=pcm").content
        first = round(place["start_s"] * 24_000) * 2
        stop = first + round(place["duration_s"] * 24_000) * 2
        assert after[:first] == before[:first]
        assert after[stop:] == before[stop:]
        assert after[first:stop] != before[first:stop]
        requests.post(f"{live.url}/v1/audio/jobs/{job['id']}/parts/2", json={"text": "Other words."}, timeout=60)
        finished(live, job["id"])
        parts = get(live, job["id"], "/parts").json()["data"]
        assert [(part["text"], part["seed"]) for part in parts][2] == ("Other words.", 8)
        requests.post(f"{live.url}/v1/audio/jobs/{job['id']}/parts/2", json={}, timeout=60)
        finished(live, job["id"])
        assert get(live, job["id"], "/parts").json()["data"][2]["seed"] != 8
        assert len([path for path in (tmp_path / job["id"]).iterdir() if path.suffix == ".pcm"]) == 5, "the old audio is gone"
        wrong = requests.post(f"{live.url}/v1/audio/jobs/{job['id']}/parts/5", json={}, timeout=60)
        assert (wrong.status_code, error_of(wrong)["code"]) == (404, "out_of_range")
        wrong = requests.post(f"{live.url}/v1/audio/jobs/{job['id']}/parts/0", json={"voice": "nobody"}, timeout=60)
        assert error_of(wrong)["code"] == "voice_not_found"


def test_a_part_can_be_changed_while_the_job_is_spoken(tmp_path: Path):
    with living(tmp_path, Speaker(chunks=2, first_pause_s=0.05), parallel=1) as live:
        job = create(live)
        wait_until(lambda: get(live, job["id"]).json()["progress"]["done"] >= 2)
        requests.post(f"{live.url}/v1/audio/jobs/{job['id']}/parts/0", json={"seed": 99}, timeout=60).raise_for_status()
        finished(live, job["id"])
        assert [part["seed"] for part in get(live, job["id"], "/parts").json()["data"]] == [99, 7, 7, 7, 7]


def test_the_parts_come_in_a_zip_with_their_places(tmp_path: Path):
    with living(tmp_path) as live:
        job = create(live)
        finished(live, job["id"])
        packed = get(live, job["id"], "/audio?format=zip")
        assert packed.headers["Content-Type"] == "application/zip"
        assert packed.content == get(live, job["id"], "/audio?format=zip").content
        whole = get(live, job["id"], "/audio?format=pcm").content
        with zipfile.ZipFile(io.BytesIO(packed.content)) as file:
            assert file.testzip() is None
            summary = json.loads(file.read("summary.json"))
            assert [part["text"] for part in summary["parts"]][::4] == ["One", "The last words."]
            for part in summary["parts"]:
                with wave.open(io.BytesIO(file.read(part["file"]))) as wav_file:
                    first = 2 * round(24_000 * part["start_s"])
                    assert wav_file.readframes(wav_file.getnframes()) == whole[first : first + 2 * wav_file.getnframes()]
            assert file.read("subtitles.vtt").decode().startswith("WEBVTT")


def test_an_epub_becomes_an_m4b_with_chapters_and_cover(tmp_path: Path):
    with living(tmp_path) as live:
        form = {"files": {"file": ("book.epub", epub())}, "data": {"job": '{"response_format": "m4b", "seed": 1}'}}
        reply = requests.post(f"{live.url}/v1/audio/jobs", timeout=60, **form)
        assert reply.status_code == 202, reply.text
        job = reply.json()
        assert job["title"] == "A Book"
        job_body = finished(live, job["id"])
        whole = get(live, job["id"], "/audio")
        assert whole.headers["Content-Type"] == "audio/mp4"
        assert "A%20Book.m4b" in whole.headers["Content-Disposition"]
        with av.open(io.BytesIO(whole.content)) as file:
            starts = [
                (chapter["metadata"]["title"], float(chapter["start"] * chapter["time_base"])) for chapter in file.chapters()
            ]
            assert starts == [
                (chapter["title"], pytest.approx(chapter["start_s"], abs=0.001)) for chapter in job_body["chapters"]
            ]
            assert (file.metadata["title"], file.metadata["artist"]) == ("A Book", "Ann Author")
            (shown,) = [stream for stream in file.streams if stream.type == "video"]
            assert bytes(next(file.demux(shown))) == picture()
        assert whole.content.index(b"moov") < whole.content.index(b"mdat")
        assert error_of(get(live, create(live)["id"], "/audio?format=m4b"))["code"] in ("unsupported_format", "not_ready")


def test_files_that_are_no_books_are_refused(tmp_path: Path):
    def sent(content: bytes, job: str = "{}") -> dict[str, Any]:
        reply = requests.post(f"{live.url}/v1/audio/jobs/plan", files={"file": ("x", content)}, data={"job": job}, timeout=60)
        return reply.json() if reply.ok else error_of(reply)

    with living(tmp_path, speaks=False) as live:
        assert sent(b"PK\x03\x04nothing")["code"] == "invalid_document"
        for binary in (b"\x89PNG\r\n\x1a\n" + bytes(40), b"\x7fELF\x02\x01\x01" + bytes(range(200)), bytes(range(256)) * 4):
            assert sent(binary)["code"] == "invalid_document"
        assert sent(epub(pic_png=b""))["ignored_fields"] == ["cover"], "a cover that cannot be shown costs the cover alone"
        assert sent(b"text", "[]")["code"] == "invalid_form"
        assert sent(b"text", '{"input": "x"}')["code"] == "invalid_form"
        assert sent(b"# One\n\ntext", '{"input_type": "markdown"}')["chapters"][0]["title"] == "One"
        wrong = requests.post(f"{live.url}/v1/audio/jobs", files={"other": ("x", b"y")}, timeout=60)
        assert error_of(wrong)["param"] == "file"


def test_a_dialogue_has_a_voice_for_each_turn(tmp_path: Path):
    speaker = Speaker(chunks=2)
    turns = [
        {"text": "Who is there?", "voice": "calm"},
        {"text": "It is me.", "voice": "nova", "gap_ms": 600, "speed": 2.0, "seed": 5, "speaker": "Ben"},
        {"text": "Come in."},
    ]
    with living(tmp_path, speaker) as live:
        body = {"turns": turns, "seed": 1, "response_format": "wav"}
        job = requests.post(f"{live.url}/v1/audio/jobs", json=body, timeout=60).json()
        finished(live, job["id"])
        spoken = {request.text: (request.voice, request.sampling.seed, request.speed) for request in speaker.requests}
        assert spoken["Come in."][1:] == (1, 1.0)
        assert spoken["It is me."] == (spoken["Come in."][0], 5, 2.0), "nova is a name of the default voice"
        assert spoken["Who is there?"][0] != spoken["Come in."][0]
        parts = get(live, job["id"], "/parts").json()["data"]
        part_s = parts[0]["duration_s"]
        assert [part["start_s"] for part in parts] == pytest.approx([0, part_s + 0.6, 2 * part_s + 0.6 + 0.25])
        known = live.services.jobs.records.read(job["id"])
        assert known is not None
        script = live.services.jobs.files(job["id"]).script(known.record.script)
        assert [part.speaker for part in script.parts] == ["", "Ben", ""]
        for wrong in (
            {"turns": turns, "input": "x"},
            {"turns": []},
            {"turns": turns, "input_type": "markdown"},
            {"turns": [{"text": "x", "voice": "nobody"}]},
            {"turns": [{"text": ""}]},
        ):
            reply = requests.post(f"{live.url}/v1/audio/jobs/plan", json=wrong, timeout=60)
            assert reply.status_code == 400, wrong
            error_of(reply)


def test_a_script_is_a_dialogue_of_its_cast(tmp_path: Path):
    speaker = Speaker(chunks=2)
    script = "Anna: Who is there?\nBen: It is me.\nIt is late."
    cast = {"Anna": "calm", "Ben": {"voice": "nova", "speed": 2.0, "seed": 5, "style": "calm"}}
    with living(tmp_path, speaker) as live:
        job = create(live, input=script, input_type="script", cast=cast, response_format="wav", timestamps="segment")
        finished(live, job["id"])
        spoken = {request.text: request for request in speaker.requests}
        assert list(spoken) == ["Who is there?", "It is me.\nIt is late."]
        ben = spoken["It is me.\nIt is late."]
        assert (ben.voice, ben.sampling.seed, ben.speed, ben.audio.gain_db) == ("default", 5, 2.0 * 0.9, -2.0)
        with zipfile.ZipFile(io.BytesIO(get(live, job["id"], "/audio?format=zip").content)) as archive:
            assert [part["speaker"] for part in json.loads(archive.read("summary.json"))["parts"]] == ["Anna", "Ben"]
        for wrong, param in (
            ({"input": script, "input_type": "script"}, "cast"),
            ({"input": script, "cast": cast}, "cast"),
            ({"input": script, "input_type": "script", "cast": {"Anna": "calm"}}, "input"),
            ({"input": "Anna: ...", "input_type": "script", "cast": cast}, "input"),
        ):
            assert error_of(requests.post(f"{live.url}/v1/audio/jobs/plan", json=wrong, timeout=60))["param"] == param


@pytest.mark.parametrize("path", ["files", "files/file-1/content", "batches", "batches/batch_1/cancel"])
def test_files_and_batches_say_what_takes_their_place(tmp_path: Path, path: str):
    with living(tmp_path, speaks=False) as live:
        for method in ("GET", "POST", "DELETE"):
            reply = requests.request(method, f"{live.url}/v1/{path}", timeout=60)
            error = reply.json()["error"]
            assert (reply.status_code, error["type"], error["code"]) == (404, "not_found_error", "not_found")
            assert "POST /v1/audio/jobs " in error["message"]
            assert "POST /v1/audio/speech/batch " in error["message"]
        assert "lists them all" in error_of(requests.get(f"{live.url}/v1/filesystem", timeout=60))["message"]
