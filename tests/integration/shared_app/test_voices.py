"""Voices on a real cluster: clones among them, sixteen at once, and nobody hears anybody else."""

import concurrent.futures
import io
import random
import time
from pathlib import Path

import pytest
import requests
import soundfile

from tests.support.cluster import FLAT, LONG, Cluster
from tests.support.recordings import spoken, written
from tests.support.waiting import wait_until

SAID = {
    "slt": "Good morning. This is the voice that I would like to hear from now on.",
    "rms": "The quick brown fox jumps over the lazy dog, and nobody asked why.",
}


def post(cluster: Cluster, path: str = "", **options: object) -> requests.Response:
    return requests.post(cluster.url(f"/v1/audio/voices{path}"), timeout=120, **options)


def recording(speaker: str, folder: Path) -> bytes:
    """Somebody who speaks for three to six seconds."""
    samples, rate = spoken(SAID[speaker], folder, speaker)
    return written(samples[: 6 * rate], rate, "FLAC")


@pytest.fixture(scope="module")
def made(started: Cluster, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Sixteen voices: made of seeds, a blend, an embedding, recordings; and names that say everything."""
    folder = tmp_path_factory.mktemp("recordings")
    cards = [
        post(started, json={"name": "from-seed", "seed": 4711}),
        post(started, "/blend", json={"name": "from-blend", "blend": "blend:alloy(0.3)+seed:8(0.7)"}),
    ]
    embedding = requests.get(started.url("/v1/audio/voices/seed:99"), timeout=20).json()["embedding"]
    cards.append(post(started, json={"name": "from-embedding", "embedding": embedding}))
    for speaker in SAID:
        fields = {"name": f"clone-{speaker}", "ref_text": SAID[speaker], "consent": "true"}
        cards.append(post(started, data=fields, files={"audio_sample": ("said.flac", recording(speaker, folder))}))
    for card in cards:
        assert card.status_code == 201, card.text
    named = [card.json()["id"] for card in cards]
    others = ["default", "alloy", "nova", "seed:1", "seed:2", "seed:3", "seed:4", "blend:alloy(1)+nova(2)", "from-seed@1"]
    return [*named, *others, f"emb:{embedding}", "onyx"]


def test_sixteen_voices_at_once_sound_as_each_does_alone(cluster: Cluster, made: list[str]):
    assert len(made) == 16

    def hear(index: int) -> bytes:
        while True:
            reply = cluster.speak(input=f"Number {index} speaks here. Twice.", seed=3000 + index, voice=made[index])
            if reply.status_code != 429:
                break
            time.sleep(float(reply.headers["Retry-After"]))  # more come here than there are places
        assert reply.status_code == 200, reply.text
        return reply.content

    def leave(index: int) -> None:
        """Somebody who asks for a long text and goes away in the middle."""
        body = {"input": LONG[:300], "response_format": "pcm", "voice": made[index], "seed": index, "cache": "no-store", **FLAT}
        with requests.post(cluster.url("/v1/audio/speech"), json=body, stream=True, timeout=60) as reply:
            for _ in zip(range(random.Random(index).randrange(1, 4)), reply.iter_content(4096), strict=False):
                pass

    alone = [hear(index) for index in range(16)]
    with concurrent.futures.ThreadPoolExecutor(24) as pool:
        leaving = [pool.submit(leave, index) for index in range(0, 16, 2)]
        together = list(pool.map(hear, range(16)))
        for each in leaving:
            each.result()
    assert [index for index in range(16) if together[index] != alone[index]] == []
    assert len(set(alone)) == 16
    wait_until(lambda: cluster.slots_used() == 0, 10.0)


def test_a_clone_says_what_its_recording_makes_of_it(cluster: Cluster, made: list[str]):
    """Same text, same seed: the recording alone makes the difference."""
    said = {voice: cluster.speak(seed=6, voice=voice).content for voice in ("clone-slt", "clone-rms", "default")}
    assert len(set(said.values())) == 3
    assert cluster.speak(seed=6, voice="clone-slt@1").content == said["clone-slt"]


def test_an_old_version_sounds_as_it_did(cluster: Cluster, made: list[str]):
    before = cluster.speak(seed=6, voice="from-blend@1").content
    gain_db = requests.get(cluster.url("/v1/audio/voices/from-blend"), timeout=20).json()["gain_db"]
    changed = requests.patch(cluster.url("/v1/audio/voices/from-blend"), json={"gain_db": gain_db - 6}, timeout=20)
    assert changed.json()["version"] == 2
    assert cluster.speak(seed=6, voice="from-blend@1").content == before
    assert cluster.speak(seed=6, voice="from-blend").content != before


def test_a_recording_that_leaves_no_room_is_refused(cluster: Cluster, tmp_path: Path):
    samples, rate = soundfile.read(io.BytesIO(recording("slt", tmp_path)), dtype="float32")
    out = io.BytesIO()
    soundfile.write(out, list(samples) * 3, rate, format="WAV")
    fields = {"name": "too-long", "ref_text": SAID["slt"] * 3, "consent": "true"}
    reply = post(cluster, data=fields, files={"audio_sample": ("said.wav", out.getvalue())})
    assert (reply.status_code, reply.json()["error"]["code"]) == (422, "reference_rejected")
    assert "max_prompt" in reply.json()["error"]["message"]


def test_a_preview_is_kept_and_a_score_given(cluster: Cluster, made: list[str]):
    heard = requests.get(cluster.url("/v1/audio/voices/from-seed/preview"), timeout=20)
    assert heard.headers["Content-Type"] == "audio/mpeg"
    assert len(soundfile.read(io.BytesIO(heard.content))[0]) > 0
    assert 0 <= post(cluster, "/from-seed/score").json()["stability"] <= 1
