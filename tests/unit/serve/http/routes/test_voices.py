"""The routes under /v1/audio/voices: a real server, a real store, recordings spoken by flite."""

import asyncio
import concurrent.futures
import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import requests
import soundfile

from pipeline.store.open import open_store
from pipeline.store.poll import follow
from pipeline.voices.catalogue import VoiceCatalogue
from pipeline.voices.library import VoiceLibrary
from pipeline.voices.seeds import draw_embedding
from pipeline.voices.strings import decode_embedding, encode_embedding
from serve.config.app_config import VoicesConfig
from serve.http.services import Services
from serve.voices.voice_maker import VoiceMetadata
from tests.support.fakes import WIDTH as FAKE_WIDTH
from tests.support.fakes import Speaker, make_services, make_voices
from tests.support.live_server import Live, serving
from tests.support.recordings import SAID, spoken, written
from tests.support.services import RedisServer
from tests.support.waiting import until

WIDTH = 256
CATALOGUE = Path(__file__).resolve().parents[5] / "configs" / "voices.yaml"

assert FAKE_WIDTH != WIDTH, "these tests have a library of their own"


def services_with(url: str, **config: Any) -> Services:
    speaker = Speaker(chunks=4)
    settings = VoicesConfig(store=url, **config)
    library = VoiceLibrary(
        VoiceCatalogue.load(CATALOGUE, WIDTH), open_store(url), max_voices=settings.max_voices, allow_inline=settings.inline
    )
    return replace(make_services(speaker, voice_id=library.canonical), voices=make_voices(speaker.stream, library, settings))


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    with serving(services_with(str(tmp_path / "store.sqlite"), clone=True, inline=True, max_voices=20)) as server:
        yield server


def voices(live: Live, method: str = "GET", path: str = "", **options: Any) -> requests.Response:
    return requests.request(method, f"{live.url}/v1/audio/voices{path}", timeout=20, **options)


def refused(reply: requests.Response, status: int, code: str) -> dict[str, Any]:
    assert reply.status_code == status, reply.text
    error: dict[str, Any] = reply.json()["error"]
    assert error["code"] == code
    assert error["request_id"]
    return error


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

    assert voices(live, "DELETE", "/anna").status_code == 204
    refused(voices(live, path="/anna"), 404, "voice_not_found")
    refused(live.speak(voice="anna"), 400, "voice_not_found")
    refused(live.speak(voice="anna@1"), 400, "voice_not_found")


def test_embeddings_go_in_and_out_as_chattts_writes_them(live: Live):
    string = encode_embedding(draw_embedding(5, WIDTH))
    made = voices(live, "POST", json={"name": "mine", "embedding": string})
    assert made.status_code == 201, made.text
    assert voices(live, path="/mine").json()["embedding"] == string
    assert voices(live, path="/seed:5").json()["embedding"] == string
    inline = live.speak(voice=f"emb:{string}")
    assert inline.status_code == 200
    assert inline.headers["X-Voice-Id"].startswith("emb:")
    assert len(inline.headers["X-Voice-Id"]) == 20
    refused(voices(live, "POST", json={"name": "other", "embedding": "一二三"}), 400, "invalid_embedding")


def test_blends_are_frozen_when_they_are_made(live: Live):
    voices(live, "POST", json={"name": "anna", "seed": 7})
    made = voices(
        live,
        "POST",
        "/blend",
        json={"name": "both", "blend": [{"voice": "anna", "weight": 3}, {"voice": "alloy", "weight": 1}]},
    )
    assert made.status_code == 201, made.text
    embedding = decode_embedding(voices(live, path="/both").json()["embedding"], WIDTH).astype(np.float64)
    exact = 0.75 * draw_embedding(7, WIDTH).astype(np.float64) + 0.25 * draw_embedding(2, WIDTH).astype(np.float64)
    assert np.abs(embedding - exact).max() < 1e-2
    assert live.speak(voice="blend:anna(0.75)+alloy(0.25)").headers["X-Voice-Id"] == "blend:anna@1(0.75)+voice-2(0.25)"
    voices(live, "DELETE", "/anna")
    assert live.speak(voice="both").status_code == 200
    refused(live.speak(voice="blend:anna(1)+alloy(1)"), 400, "voice_not_found")
    refused(live.speak(voice="blend:default(1)"), 400, "invalid_request")


def test_random_voices_are_seeds_and_follow_wishes(live: Live):
    plain = voices(live, "POST", "/random", json={"count": 3, "seed": 100}).json()["voices"]
    assert [voice["id"] for voice in plain] == ["seed:100", "seed:101", "seed:102"]
    near = voices(live, "POST", "/random", json={"count": 4, "seed": 5, "filter": {"like": "alloy"}}).json()["voices"]
    far = voices(live, "POST", "/random", json={"count": 4, "seed": 5, "filter": {"unlike": "alloy"}}).json()["voices"]
    assert min(voice["similarity"] for voice in near) > max(voice["similarity"] for voice in far)
    assert voices(live, "POST", "/random", json={"count": 4, "seed": 5, "filter": {"like": "alloy"}}).json()["voices"] == near
    assert live.speak(voice=near[0]["id"]).status_code == 200
    refused(voices(live, "POST", "/random", json={"count": 51}), 400, "out_of_range")
    refused(voices(live, "POST", "/random", json={"filter": {"like": "alloy", "unlike": "ash"}}), 400, "conflicting_fields")


@pytest.mark.parametrize("name", ["anna", "anna@1", "alloy", "seed:3", "default", "blend:alloy(1)+ash(1)"])
def test_every_voice_has_a_preview_and_a_score(live: Live, name: str):
    voices(live, "POST", json={"name": "anna", "seed": 7})
    heard = voices(live, path=f"/{name}/preview")
    assert heard.headers["Content-Type"] == "audio/mpeg"
    samples, rate = soundfile.read(io.BytesIO(heard.content))
    assert rate == 24_000
    assert np.abs(samples).max() > 0.01
    score = voices(live, "POST", f"/{name}/score").json()
    assert 0 <= score["stability"] <= 1
    if name.startswith("anna"):
        assert voices(live, path="/anna").json()["stability"] == score["stability"]


@pytest.mark.parametrize("name", ["alloy", "voice-2", "default", "seed:5", "anna@1"])
@pytest.mark.parametrize("method", ["PATCH", "DELETE"])
def test_what_is_built_in_or_past_stays(live: Live, method: str, name: str):
    voices(live, "POST", json={"name": "anna", "seed": 7})
    refused(voices(live, method, f"/{name}", json={"description": "x"}), 403, "voice_read_only")


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


@pytest.fixture(scope="module")
def speech(tmp_path_factory: pytest.TempPathFactory) -> tuple[np.ndarray, int]:
    return spoken(SAID, tmp_path_factory.mktemp("flite"))


def clone(live: Live, content: bytes, **fields: str) -> requests.Response:
    data = {"name": "me", "ref_text": SAID, "consent": "true", **fields}
    return voices(live, "POST", data=data, files={"audio_sample": ("a.bin", content)})


@pytest.mark.slow
@pytest.mark.parametrize("container", ["WAV", "FLAC", "OGG", "MP3"])
def test_a_recording_becomes_a_voice(live: Live, speech: tuple[np.ndarray, int], container: str):
    made = clone(live, written(*speech, container), languages="en, zh", ref_text=SAID.replace("from now on", "100 %"))
    assert made.status_code == 201, made.text
    card = made.json()
    assert (card["origin"], card["consent"], card["languages"]) == ("upload", True, ["en", "zh"])
    assert card["reference"]["seconds"] == pytest.approx(len(speech[0]) / speech[1], abs=0.1)
    assert live.speak(voice="me").headers["X-Voice-Id"] == "me@1"
    assert voices(live, path="/me").json()["embedding"] is None
    stored = live.services.voices.library.find("me")
    assert stored is not None
    assert "one hundred percent" in stored.voice.sample_text, "as the text front end writes it"
    assert stored.voice.sample_codes is not None
    assert len(stored.voice.sample_codes) == pytest.approx(card["reference"]["seconds"] * 46.875, abs=2)


@pytest.mark.slow
def test_recordings_that_cannot_be_a_voice_are_refused(live: Live, speech: tuple[np.ndarray, int]):
    samples, rate = speech
    error = refused(clone(live, written(0 * samples, rate)), 422, "reference_rejected")
    assert "0.0 s of speech found" in error["message"]
    assert "too quiet" in error["message"], "every reason at once"
    refused(clone(live, b"ffconcat version 1.0\nfile 'secret.wav'"), 400, "unsupported_format")
    error = refused(clone(live, written(samples, rate), ref_text="x" * 999), 422, "reference_rejected")
    assert error["param"] == "ref_text"
    refused(clone(live, written(samples, rate), ref_text="..."), 422, "reference_rejected")


def test_a_form_has_what_it_needs(live: Live, speech: tuple[np.ndarray, int]):
    content = written(*speech)
    assert refused(clone(live, content, consent="no"), 400, "missing_field")["param"] == "consent"
    assert refused(clone(live, content, ref_text=""), 400, "out_of_range")["param"] == "ref_text"
    data = {"name": "me", "ref_text": SAID, "consent": "true"}
    error = refused(voices(live, "POST", data=data, files={"wrong": ("a", content)}), 400, "missing_field")
    assert error["param"] == "audio_sample"
    refused(clone(live, content, unheard="of"), 400, "unknown_field")
    refused(clone(live, content, name="alloy"), 409, "voice_exists")
    head = {"Content-Type": "multipart/form-data"}
    refused(voices(live, "POST", data=b"nonsense", headers=head), 400, "invalid_form")
    refused(
        voices(live, "POST", data=b"--x\r\n", headers={"Content-Type": "multipart/form-data; boundary=x"}), 400, "missing_field"
    )


def test_uploads_are_counted_while_they_arrive(tmp_path: Path):
    with serving(services_with(str(tmp_path / "store.sqlite"), clone=True, max_upload_bytes=100_000)) as live:
        refused(clone(live, bytes(120_000)), 413, "body_too_large")
        refused(clone(live, bytes(1_000_000)), 413, "body_too_large")


def test_cloning_is_off_unless_it_is_switched_on(tmp_path: Path):
    with serving(services_with(str(tmp_path / "store.sqlite"))) as live:
        refused(clone(live, b"RIFF"), 403, "clone_disabled")
        refused(live.speak(voice="emb:一"), 400, "invalid_request")


def test_sixteen_at_once_make_one_voice_of_a_name(live: Live):
    def make(seed: int) -> requests.Response:
        return voices(live, "POST", json={"name": "same", "seed": seed})

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        replies = list(pool.map(make, range(16)))
    assert sorted(reply.status_code for reply in replies) == [201] + [409] * 15


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
        await until(lambda: known("second"))
        assert problems == {}
        following.cancel()

    try:
        with caplog.at_level("INFO"):
            asyncio.run(work())
    finally:
        server.kill()
    assert (said("does not answer"), said("the store is back")) == (1, 1)
