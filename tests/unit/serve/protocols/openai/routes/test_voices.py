"""The routes under /v1/audio/voices: a real server, a real store, recordings spoken by flite."""

import asyncio
import concurrent.futures
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from openai import OpenAI

from pipeline.store.poll import follow
from serve.voices.voice_maker import VoiceMetadata
from tests.support.live_server import Live, serving
from tests.support.recordings import SAID, spoken, written
from tests.support.services import RedisServer
from tests.support.voice_routes import refused, services_with, voice_server, voices
from tests.support.waiting import until


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    with voice_server(tmp_path) as server:
        yield server


def test_a_voice_is_made_listed_spoken_renamed_and_deleted(live: Live):
    made = voices(live, "POST", json={"name": "anna", "seed": 7, "languages": ["en"], "licence": "mine"})
    assert made.status_code == 201, made.text
    assert made.headers["Location"] == "/v1/audio/voices/anna"
    card = made.json()
    assert (card["id"], card["version"], card["origin"], card["read_only"]) == ("anna", 1, "seed", False)
    assert card["loudness_lufs"] == pytest.approx(-9, abs=3)
    assert card["gain_db"] == pytest.approx(-20 - card["loudness_lufs"], abs=0.01)
    assert "anna" in [voice["id"] for voice in voices(live).json()["voices"]]
    assert "anna" in voices(live, path="?legacy=1").json()["voices"]

    spoken = live.speak(voice="anna")
    assert spoken.headers["X-Voice-Id"] == "anna@1"

    renamed = voices(live, "PATCH", "/anna", json={"name": "Anna Berg", "gain_db": 1.5})
    assert renamed.status_code == 200, renamed.text
    assert (renamed.json()["id"], renamed.json()["version"], renamed.json()["name"]) == ("anna", 2, "Anna Berg")
    assert live.speak(voice="anna").headers["X-Voice-Id"] == "anna@2"
    assert live.speak(voice="anna@1").headers["X-Voice-Id"] == "anna@1"
    assert live.speak(voice="Anna Berg").headers["X-Voice-Id"] == "anna@2"
    assert voices(live, path="/anna@1").json()["name"] == "anna"

    assert voices(live, "DELETE", "/anna").status_code == 200
    refused(voices(live, path="/anna"), 404, "voice_not_found")
    refused(live.speak(voice="anna"), 400, "voice_not_found")
    refused(live.speak(voice="anna@1"), 400, "voice_not_found")


@pytest.mark.slow
def test_openais_package_makes_and_deletes_a_voice_of_a_recording(live: Live, tmp_path: Path):
    client = OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0)
    sample = ("me.wav", written(*spoken(SAID, tmp_path)), "audio/wav")
    made = client.audio.voices.create(name="mine", consent="true", audio_sample=sample, extra_body={"ref_text": SAID})
    assert (made.id, made.object, made.name, made.type) == ("mine", "audio.voice", "mine", "audio_sample")
    assert abs(made.created_at - time.time()) < 3600
    gone = client.audio.voices.delete("mine")
    assert (gone.id, gone.object, gone.deleted) == ("mine", "audio.voice.deleted", True)
    listed = {voice["id"]: voice for voice in voices(live).json()["voices"]}
    assert (listed["voice-287"]["object"], listed["voice-287"]["created_at"]) == ("audio.voice", 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["alloy", "voice-287", "default", "seed:5", "anna@1"])
@pytest.mark.parametrize("method", ["PATCH", "DELETE"])
def test_what_is_built_in_or_past_stays(live: Live, method: str, name: str):
    voices(live, "POST", json={"name": "anna", "seed": 7})
    refused(voices(live, method, f"/{name}", json={"description": "x"}), 403, "voice_read_only")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"name": "x"}, 400, "conflicting_fields"),
        ({"name": "x", "seed": 1, "blend": "blend:alloy(1)"}, 400, "conflicting_fields"),
        ({"seed": 1}, 400, "missing_field"),
        ({"name": "", "seed": 1}, 400, "out_of_range"),
        ({"name": "x", "seed": -1}, 400, "out_of_range"),
        ({"name": "x", "seed": "1"}, 400, "invalid_type"),
        ({"name": "x", "seed": 1, "gain_db": 99}, 400, "out_of_range"),
        ({"name": "x", "seed": 1, "languages": ["klingon!"]}, 400, "out_of_range"),
        ({"name": "x", "seed": 1, "id": "../etc"}, 400, "invalid_request"),
        ({"name": "x", "seed": 1, "id": "random"}, 400, "invalid_request"),
        ({"name": "x", "seed": 1, "secret-canary": 1}, 400, "unknown_field"),
        ({"name": "alloy", "seed": 1}, 409, "voice_exists"),
        ({"name": "x", "blend": "anna+bert"}, 400, "invalid_request"),
        ({"name": "x", "blend": "blend:nobody(1)"}, 400, "voice_not_found"),
        ([], 400, "invalid_type"),
    ],
)
def test_mistakes_are_named_and_nothing_is_repeated(live: Live, body: object, status: int, code: str):
    error = refused(voices(live, "POST", json=body), status, code)
    assert "canary" not in error["message"]
    assert "klingon" not in error["message"]
    refused(voices(live, "POST", data=b"{", headers={"Content-Type": "application/json"}), 400, "invalid_json")
    assert [voice["id"] for voice in voices(live).json()["voices"] if not voice["read_only"]] == []


@pytest.mark.slow
def test_sixteen_at_once_make_one_voice_of_a_name(live: Live):
    def make(seed: int) -> requests.Response:
        return voices(live, "POST", json={"name": "same", "seed": seed})

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        replies = list(pool.map(make, range(16)))
    assert sorted(reply.status_code for reply in replies) == [201] + [409] * 15


@pytest.mark.slow
def test_two_replicas_share_a_redis_and_outlive_it(tmp_path: Path):
    server = RedisServer(tmp_path)
    try:
        with serving(services_with(server.url)) as here, serving(services_with(server.url)) as there:
            assert voices(here, "POST", json={"name": "anna", "seed": 7}).status_code == 201
            there.services.voices.library.refresh()
            assert there.speak(voice="anna").headers["X-Voice-Id"] == "anna@1"
            server.kill()
            for live in (here, there):
                assert live.speak(voice="anna").status_code == 200, "known voices go on working"
                assert voices(live, path="/anna/preview").status_code == 200
                for reply in (
                    voices(live, "POST", json={"name": "bert", "seed": 8}),
                    voices(live, "PATCH", "/anna", json={"name": "Anna"}),
                    voices(live, "DELETE", "/anna"),
                ):
                    refused(reply, 503, "store_unavailable")
                    assert int(reply.headers["Retry-After"]) >= 1
            server.start()
            assert voices(there, "POST", json={"name": "bert", "seed": 8}).status_code == 201
            here.services.voices.library.refresh()
            assert here.speak(voice="bert").status_code == 200
    finally:
        server.kill()


@pytest.mark.slow
def test_a_replica_finds_a_new_voice_at_its_next_refresh_and_logs_an_outage_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    server = RedisServer(tmp_path)
    here, there = services_with(server.url), services_with(server.url)

    def known(name: str) -> bool:
        return there.voices.library.find(name) is not None

    looks, known_after = 0, None

    def refresh() -> bool:
        nonlocal looks, known_after
        looks += 1
        changed = look()
        known_after = known_after or (looks if known("first") else None)
        return changed

    look, there.voices.library.refresh = there.voices.library.refresh, refresh  # type: ignore[method-assign]

    def said(what: str) -> int:
        lines = [record.getMessage() for record in caplog.records]
        return len([line for line in lines if line.startswith("voices: ") and what in line])

    async def work() -> None:
        problems: dict[str, str] = {}
        following = asyncio.create_task(follow("voices", there.voices.library.refresh, 0.1, problems))
        await here.voices.maker.from_seed(VoiceMetadata("first"), 1)
        before = looks
        await until(lambda: known_after is not None)
        assert known_after <= before + 1, "the first look that began after it was written"
        await asyncio.to_thread(server.kill)
        await until(lambda: said("does not answer") > 0)
        assert "does not answer" in problems["voices"]
        before = looks
        await until(lambda: looks > before + 3)
        assert known("first")
        await asyncio.to_thread(server.start)
        await here.voices.maker.from_seed(VoiceMetadata("second"), 2)
        await until(lambda: known("second") and problems == {})
        following.cancel()

    try:
        with caplog.at_level("INFO"):
            asyncio.run(work())
    finally:
        server.kill()
    assert (said("does not answer"), said("the store is back")) == (1, 1)
