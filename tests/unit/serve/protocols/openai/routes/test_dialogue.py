"""Dialogues over HTTP with the demo voice: turns in order, to the sample, each with its speaker's voice, seed and loudness."""

import base64
import io
import json
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import requests
import soundfile

from pipeline.audio.loudness import integrated_loudness
from pipeline.store.open import open_store
from serve.config.app_config import LimitsConfig
from tests.support.demo_voice import demo_library, demo_speaker
from tests.support.fakes import make_services, make_voices
from tests.support.live_server import CANARY, Live, error_of, serving

pytestmark = pytest.mark.slow

SCRIPT = """Anna: That was great.
It was my sister.

Ben: The green answer.
Anna: Please sit down."""
CAST = {"Anna": "alloy", "Ben": {"voice": "seed:7", "speed": 1.2, "seed": 5}}
TURNS = [
    {"text": "That was great.", "voice": "alloy"},
    {"text": "The green answer.", "voice": "seed:7", "gap_ms": 600},
    {"text": "Please sit down.", "voice": "alloy", "speed": 1.25, "style": "sad"},
]


@pytest.fixture(scope="module")
def talking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    library = demo_library(open_store(str(tmp_path_factory.mktemp("voices") / "store.sqlite")))
    with demo_speaker(library=library) as speaker:
        speech = make_services(speaker, LimitsConfig(total_timeout_s=3000), voice_id=library.canonical)
        services = replace(speech, voices=make_voices(speaker.stream, library))
        with serving(services) as live:
            yield live


def talk(live: Live, query: str = "", **fields: Any) -> requests.Response:
    body = {"seed": 1, "response_format": "pcm", **fields}
    return requests.post(f"{live.url}/v1/audio/dialogue{query}", json=body, timeout=600)


def whole(live: Live, **fields: Any) -> dict[str, Any]:
    reply = talk(live, stream=False, **fields)
    assert reply.status_code == 200, reply.text
    reply_body: dict[str, Any] = reply.json()
    return reply_body


def samples_of(data: bytes) -> np.ndarray:
    return np.frombuffer(data, "<i2")


def test_a_stream_has_the_bytes_of_the_whole_and_of_its_repetition(talking):
    streamed = talk(talking, turns=TURNS)
    assert streamed.status_code == 200, streamed.text
    assert streamed.headers["X-Audio-Seed"] == "1"
    assert streamed.content == talk(talking, turns=TURNS, stream=False).content == talk(talking, turns=TURNS).content
    body = {"turns": TURNS, "seed": 1, "output_format": "pcm_24000"}
    assert requests.post(f"{talking.url}/v1/audio/dialogue", json=body, timeout=60).content == streamed.content
    reply_body = whole(talking, turns=TURNS, timestamps="word", subtitles="vtt")
    assert base64.b64decode(reply_body["audio"]) == streamed.content


@pytest.mark.parametrize("rate", [24_000, 22_050])
def test_turns_are_told_to_the_sample(talking, rate):
    reply_body = whole(talking, turns=TURNS, sample_rate=rate, timestamps="segment")
    turns, samples = reply_body["turns"], samples_of(base64.b64decode(reply_body["audio"]))
    assert [(turn["index"], turn["speaker"], turn["text"]) for turn in turns] == [
        (0, "alloy", "That was great."),
        (1, "seed:7", "The green answer."),
        (2, "alloy", "Please sit down."),
    ]
    edges = [at * rate for turn in turns for at in (turn["start"], turn["end"])]
    assert edges == pytest.approx([round(edge) for edge in edges], abs=0.02), "whole samples"
    assert (edges[0], round(edges[-1])) == (0, len(samples))
    gaps = [two["start"] - before["end"] for before, two in pairwise(turns)]
    assert gaps == pytest.approx([0.6, 0.25], abs=1 / rate)
    if rate == 24_000:
        assert not samples[round(edges[1]) : round(edges[2])].any()
    assert [(speaker["speaker"], speaker["turns"]) for speaker in reply_body["speakers"]] == [("alloy", 2), ("seed:7", 1)]
    assert reply_body["speakers"][1]["speaks_s"] == pytest.approx(turns[1]["end"] - turns[1]["start"], abs=1e-5)


def test_a_turn_has_its_own_voice_speed_style_and_seed(talking):
    def lengths(**changes: Any) -> list[float]:
        turns = [TURNS[0], {**TURNS[1], **changes}, TURNS[2]]
        reply_body = whole(talking, turns=turns, timestamps="segment")
        return [turn["end"] - turn["start"] for turn in reply_body["turns"]]

    plain = lengths()
    faster = lengths(speed=1.5)
    assert faster[1] == pytest.approx(plain[1] / 1.5, abs=1e-4)
    assert [faster[0], faster[2]] == pytest.approx([plain[0], plain[2]], abs=1e-5), "no other turn changes"
    assert lengths(style="newscast")[1] == pytest.approx(plain[1] / 1.1, abs=1e-4)
    others = [lengths(seed=9), lengths(voice="echo")]
    assert all(other[1] != plain[1] for other in others)
    assert all([other[0], other[2]] == pytest.approx([plain[0], plain[2]], abs=1e-5) for other in others)
    fast = lengths(speed=1.0)
    assert fast[1] == plain[1]


def test_a_turn_of_its_own_seed_is_drawn_by_it_alone(talking):
    turns = [{**turn, "seed": 3 + number} for number, turn in enumerate(TURNS)]
    body = {"turns": turns, "response_format": "pcm"}
    once, again = (requests.post(f"{talking.url}/v1/audio/dialogue", json=body, timeout=60) for _ in range(2))
    assert once.content == again.content, "no seed of the dialogue is drawn"
    alone = talking.speak(input=TURNS[0]["text"], voice="alloy", seed=3)
    level_off = requests.post(f"{talking.url}/v1/audio/dialogue", json={**body, "level": False}, timeout=60)
    assert level_off.content.startswith(alone.content)


def test_turns_come_from_the_cache_each_under_its_own_seed(talking):
    turns = [{**turn, "seed": 70 + number} for number, turn in enumerate(TURNS)]
    url, body = f"{talking.url}/v1/audio/dialogue", {"turns": turns, "response_format": "pcm", "cache": "only-if-cached"}
    assert requests.post(url, json=body, timeout=60).status_code == 504
    spoken = requests.post(url, json={**body, "cache": "default", "seed": None}, timeout=60)
    assert (spoken.status_code, spoken.headers["X-Audio-Seed"]) == (200, "70")
    cached = requests.post(url, json=body, timeout=60)
    assert (cached.status_code, cached.content) == (200, spoken.content)


def test_a_script_is_turns_and_subtitles_have_its_names(talking):
    reply_body = whole(talking, script=SCRIPT, cast=CAST, timestamps="word", subtitles="vtt")
    assert [(turn["speaker"], turn["text"]) for turn in reply_body["turns"]] == [
        ("Anna", "That was great.\nIt was my sister."),
        ("Ben", "The green answer."),
        ("Anna", "Please sit down."),
    ]
    lines = [line for line in reply_body["subtitles"].splitlines() if line and "-->" not in line][1:]
    assert lines == [
        "<v Anna>That was great.",
        "<v Anna>It was my sister.",
        "<v Ben>The green answer.",
        "<v Anna>Please sit down.",
    ]
    turns = [
        {"text": "That was great.\nIt was my sister.", "voice": "alloy"},
        {"text": "The green answer.", **CAST["Ben"]},
        {"text": "Please sit down.", "voice": "alloy"},
    ]
    assert base64.b64decode(reply_body["audio"]) == talk(talking, turns=turns).content
    named = [{**turn, "speaker": name} for turn, name in zip(turns, ("Anna", "Ben", "Anna"), strict=True)]
    same = whole(talking, turns=named, timestamps="word", subtitles="vtt")
    fields = ("audio", "turns", "subtitles")
    assert [same[field] for field in fields] == [reply_body[field] for field in fields]
    shown = whole(talking, script=SCRIPT, cast=CAST, subtitles="srt")["subtitles"]
    texts = [line for line in shown.splitlines() if line and "-->" not in line and not line.isdigit()]
    assert texts == ["Anna: That was great.", "It was my sister.", "Ben: The green answer.", "Anna: Please sit down."]


@pytest.mark.parametrize("container", ["wav", "flac", "mp3"])
def test_stems_are_in_time_and_add_up_to_the_mix(talking, container):
    body = {"script": SCRIPT, "cast": CAST, "response_format": container}
    reply = talk(talking, **body, stems=True, subtitles="srt", timestamps="word")
    assert reply.headers["Content-Type"] == "application/zip"
    with zipfile.ZipFile(io.BytesIO(reply.content)) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    names = [f"mix.{container}", f"01-Anna.{container}", f"02-Ben.{container}"]
    assert sorted(files) == sorted([*names, "summary.json", "subtitles.srt"])
    assert files[names[0]] == talk(talking, **body, stream=False).content
    summary = json.loads(files["summary.json"])
    assert [(speaker["speaker"], speaker["file"]) for speaker in summary["speakers"]] == [("Anna", names[1]), ("Ben", names[2])]
    assert [turn["speaker"] for turn in summary["turns"]] == ["Anna", "Ben", "Anna"]
    assert summary["words"]
    assert files["subtitles.srt"].decode().startswith("1\n00:00:00,000 --> ")
    if container == "mp3":
        return
    mix, anna, ben = (soundfile.read(io.BytesIO(files[name]), dtype="int16")[0] for name in names)
    assert len(mix) == len(anna) == len(ben) == summary["samples"]
    assert (anna.astype(int) + ben == mix).all()
    start, stop = (round(24_000 * summary["turns"][1][edge]) for edge in ("start", "end"))
    assert not anna[start:stop].any()
    assert (ben[start:stop] == mix[start:stop]).all()
    assert not ben[:start].any()


def test_voices_have_one_loudness_measured_once(talking):
    turns = [{"text": f"The answer of my sister was great. {voice}.", "voice": voice} for voice in ("alloy", "onyx", "verse")]

    def loudness(**how: Any) -> list[float]:
        reply_body = whole(talking, turns=turns, timestamps="segment", **how)
        samples = samples_of(base64.b64decode(reply_body["audio"])).astype(np.float32) / 32_767
        cuts = [(round(24_000 * turn["start"]), round(24_000 * turn["end"])) for turn in reply_body["turns"]]
        return [integrated_loudness(samples[start:stop]) for start, stop in cuts]

    plain, level = loudness(level=False), loudness()
    assert np.ptp(level) < 2.5
    assert np.mean(np.abs(np.array(level) + 20)) < np.mean(np.abs(np.array(plain) + 20)), "nearer to voices.loudness_lufs"
    spoken = len(talking.services.speech.stream.__self__.requests)
    loudness()
    assert len(talking.services.speech.stream.__self__.requests) == spoken + 1, "no voice is measured again"


def test_ten_speakers_two_hundred_turns_and_two_languages(talking):
    cast = {f"Speaker {number}": f"seed:{number}" for number in range(1, 11)}
    texts = ["Yes, my sister.", "No.", "你好。", "That was great.", "Please sit down."]
    script = "\n".join(f"Speaker {1 + turn * 7 % 10}: {texts[turn % 5]}" for turn in range(200))
    reply_body = whole(talking, script=script, cast=cast, timestamps="segment", gap_ms=100)
    turns = reply_body["turns"]
    assert [turn["index"] for turn in turns] == list(range(200))
    assert [turn["speaker"] for turn in turns] == [f"Speaker {1 + turn * 7 % 10}" for turn in range(200)]
    assert [turn["text"] for turn in turns] == [texts[turn % 5] for turn in range(200)]
    assert [two["start"] - before["end"] for before, two in pairwise(turns)] == pytest.approx([0.1] * 199, abs=1e-5)
    audio = samples_of(base64.b64decode(reply_body["audio"]))
    assert len(audio) == round(24_000 * turns[-1]["end"])
    assert {speaker["turns"] for speaker in reply_body["speakers"]} == {20}
    assert talk(talking, script=script, cast=cast, gap_ms=100).content == audio.tobytes()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "turns"),
        ({"turns": []}, "turns"),
        ({"turns": TURNS, "script": SCRIPT, "cast": CAST}, "turns"),
        ({"turns": TURNS, "cast": CAST}, "cast"),
        ({"script": SCRIPT}, "cast"),
        ({"script": SCRIPT, "cast": {"Anna": "alloy"}}, "script"),
        ({"script": SCRIPT, "cast": {"Anna": "alloy", "ANNA": "echo"}}, "cast"),
        ({"script": SCRIPT, "cast": {"Anna": "alloy", "Ben": {"voice": "echo", "gap_ms": 1}}}, "cast"),
        ({"script": SCRIPT, "cast": CAST | {"Ben": CANARY}}, "turns"),
        ({"turns": TURNS, "input": CANARY}, "input"),
        ({"turns": TURNS, "input_type": "ssml"}, "input_type"),
        ({"turns": TURNS, "voice": "echo"}, "voice"),
        ({"turns": [{**turn, "seed": 1} for turn in TURNS]}, "seed"),
        ({"turns": [{**turn, "gap_ms": 1} for turn in TURNS], "gap_ms": 5}, "gap_ms"),
        ({"turns": [{"text": "..."}]}, "turns"),
        ({"turns": [{"text": "Yes.", "style": CANARY}]}, "turns"),
        ({"turns": [{"text": "Yes.", CANARY: 1}]}, "turns"),
        ({"turns": [{"text": "Yes.", "speaker": f": {CANARY}"}]}, "turns"),
        ({"turns": [{"text": "Yes.", "voice": f"seed:{number}"} for number in range(21)]}, "turns"),
        ({"turns": [{"text": "Yes.", "speaker": "A", "voice": f"seed:{number}"} for number in range(21)]}, "turns"),
        ({"turns": TURNS, "stems": True, "stream": True}, "stream"),
        ({"turns": TURNS, "stems": True, "stream_format": "sse"}, "stream_format"),
        ({"turns": TURNS, "timestamps": "word"}, "timestamps"),
        ({"turns": TURNS, "level": True, "post": {"loudness_lufs": -20}}, "level"),
    ],
)
def test_what_has_no_effect_or_no_meaning_is_refused(talking, fields, param):
    reply = talk(talking, **fields)
    assert reply.status_code in (400, 404, 422), reply.text
    assert error_of(reply)["param"] == param


def test_speakers_who_say_nothing_are_named(talking):
    cast = CAST | {"Carl": "echo"}
    assert talk(talking, script=SCRIPT, cast=cast).headers["X-Ignored-Fields"] == "cast.Carl"
    assert error_of(talk(talking, "?strict=1", script=SCRIPT, cast=cast))["code"] == "unknown_field"


def test_a_voice_that_is_not_there_is_named_by_its_turn(talking):
    assert error_of(talk(talking, turns=[*TURNS, {"text": "Yes.", "voice": CANARY}]))["message"].startswith(
        "turn 4: there is no voice of this name"
    )
    assert error_of(talk(talking, turns=[{"text": "Yes.", "voice": CANARY}]))["code"] == "voice_not_found"


def test_a_dialogue_that_was_lost_goes_on_with_its_voices_levelled(talking: Live):
    reply = talk(talking, turns=TURNS)
    lost = {"X-Resume": reply.headers["X-Resume"], "Range": f"bytes={len(reply.content) // 2}-"}
    body = {"seed": 1, "response_format": "pcm", "turns": TURNS}
    rest = requests.post(f"{talking.url}/v1/audio/dialogue", json=body, headers=lost, timeout=600)
    assert (rest.status_code, rest.content) == (206, reply.content[len(reply.content) // 2 :])
    stems = requests.post(f"{talking.url}/v1/audio/dialogue", json=body | {"stems": True}, headers=lost, timeout=600)
    assert (stems.status_code, error_of(stems)["code"]) == (400, "not_resumable")
