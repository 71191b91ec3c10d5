"""Voices, jobs, calls by handle and metrics of the service."""

import asyncio
import concurrent.futures
import io
import random
import re
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import requests
import soundfile
from ray import serve

from pipeline.errors import EngineFault, TextTooLong
from pipeline.spec import HOP
from pipeline.types import FinishReason, Prompt, SamplingParams, StepBlock
from pipeline.vocoder.stream import StreamDecoder
from scripts.generate.monitoring import RAY_METRICS
from serve.observability.metrics.definitions import METRICS, MetricType
from serve.remote.remote_handle import RemoteHandle
from serve.stages.acoustic_stage import warm_up_prompt
from serve.stages.stage_clients import StageDecoder, StageGenerator, ask_speakers
from tests.support.cluster import EXPORT_TIMEOUT_S, Cluster, Samples, scrape, total
from tests.support.recordings import spoken, written
from tests.support.service import FLAT, LONG, LONG_SPEECH, Service
from tests.support.waiting import wait_until

SAID = {
    "slt": "Good morning. This is the voice that I would like to hear from now on.",
    "rms": "The quick brown fox jumps over the lazy dog, and nobody asked why.",
}


def post(service: Service, path: str = "", **options: object) -> requests.Response:
    return requests.post(service.url(f"/v1/audio/voices{path}"), timeout=120, **options)


def recording(speaker: str, folder: Path) -> bytes:
    """Somebody who speaks for three to six seconds."""
    samples, rate = spoken(SAID[speaker], folder, speaker)
    return written(samples[: 6 * rate], rate, "FLAC")


@pytest.fixture(scope="module")
def voice_names(running: Service, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Sixteen voices: made of seeds, a blend, an embedding, recordings; and names that say everything."""
    folder = tmp_path_factory.mktemp("recordings")
    cards = [
        post(running, json={"name": "from-seed", "seed": 4711}),
        post(running, "/blend", json={"name": "from-blend", "blend": "blend:alloy(0.3)+seed:8(0.7)"}),
    ]
    embedding = requests.get(running.url("/v1/audio/voices/seed:99"), timeout=20).json()["embedding"]
    cards.append(post(running, json={"name": "from-embedding", "embedding": embedding}))
    for speaker in SAID:
        fields = {"name": f"clone-{speaker}", "ref_text": SAID[speaker], "consent": "true"}
        cards.append(post(running, data=fields, files={"audio_sample": ("said.flac", recording(speaker, folder))}))
    for card in cards:
        assert card.status_code == 201, card.text
    named = [card.json()["id"] for card in cards]
    others = ["default", "alloy", "nova", "seed:1", "seed:2", "seed:3", "seed:4", "blend:alloy(1)+nova(2)", "from-seed@1"]
    return [*named, *others, f"emb:{embedding}", "onyx"]


@pytest.mark.on_ray
def test_sixteen_voices_at_once_sound_as_each_does_alone(service: Service, voice_names: list[str]):
    assert len(voice_names) == 16

    def hear(index: int) -> bytes:
        while True:
            reply = service.speak(input=f"Number {index} speaks here. Twice.", seed=3000 + index, voice=voice_names[index])
            if reply.status_code != 429:
                break
            time.sleep(float(reply.headers["Retry-After"]))  # more come here than there are places
        assert reply.status_code == 200, reply.text
        return reply.content

    def leave(index: int) -> None:
        """Somebody who asks for a long text and goes away in the middle."""
        body = {
            "input": LONG[:300],
            "response_format": "pcm",
            "voice": voice_names[index],
            "seed": index,
            "cache": "no-store",
            **FLAT,
        }
        with requests.post(service.url("/v1/audio/speech"), json=body, stream=True, timeout=60) as reply:
            for _ in zip(range(random.Random(index).randrange(1, 4)), reply.iter_content(4096), strict=False):
                pass

    alone = [hear(index) for index in range(16)]
    with concurrent.futures.ThreadPoolExecutor(24) as pool:
        leaving = [pool.submit(leave, index) for index in range(0, 16, 2)]
        together = list(pool.map(hear, range(16)))
        for future in leaving:
            future.result()
    assert [index for index in range(16) if together[index] != alone[index]] == []
    assert len(set(alone)) == 16
    wait_until(lambda: service.slots_used() == 0, 10.0)


def test_a_clone_says_what_its_recording_makes_of_it(service: Service, voice_names: list[str]):
    """Same text, same seed: the recording alone makes the difference."""
    audio = {voice: service.speak(seed=6, voice=voice).content for voice in ("clone-slt", "clone-rms", "default")}
    assert len(set(audio.values())) == 3
    assert service.speak(seed=6, voice="clone-slt@1").content == audio["clone-slt"]


def test_an_old_version_sounds_as_it_did(service: Service, voice_names: list[str]):
    before = service.speak(seed=6, voice="from-blend@1").content
    gain_db = requests.get(service.url("/v1/audio/voices/from-blend"), timeout=20).json()["gain_db"]
    changed = requests.patch(service.url("/v1/audio/voices/from-blend"), json={"gain_db": gain_db - 6}, timeout=20)
    assert changed.json()["version"] == 2
    assert service.speak(seed=6, voice="from-blend@1").content == before
    assert service.speak(seed=6, voice="from-blend").content != before


def test_a_recording_that_leaves_no_room_is_refused(service: Service, tmp_path: Path):
    samples, rate = soundfile.read(io.BytesIO(recording("slt", tmp_path)), dtype="float32")
    out = io.BytesIO()
    soundfile.write(out, list(samples) * 3, rate, format="WAV")
    fields = {"name": "too-long", "ref_text": SAID["slt"] * 3, "consent": "true"}
    reply = post(service, data=fields, files={"audio_sample": ("said.wav", out.getvalue())})
    assert (reply.status_code, reply.json()["error"]["code"]) == (422, "reference_rejected")
    assert "max_prompt" in reply.json()["error"]["message"]


def test_a_preview_is_kept_and_a_score_given(service: Service, voice_names: list[str]):
    preview = requests.get(service.url("/v1/audio/voices/from-seed/preview"), timeout=20)
    assert preview.headers["Content-Type"] == "audio/mpeg"
    assert len(soundfile.read(io.BytesIO(preview.content))[0]) > 0
    assert 0 <= post(service, "/from-seed/score").json()["stability"] <= 1


# A long text on the running service: in parts, in the background, with the bytes of requests for them.

BOOK = "# One\n\nThe first words of a short book.\n\nMore of them.\n\n# Two\n\nThe end."


@pytest.mark.on_ray
def test_a_job_is_spoken_beside_requests_and_has_their_bytes(service: Service):
    jobs = service.url("/v1/audio/jobs")
    body = {"input": BOOK, "input_type": "markdown", "seed": 3, "response_format": "flac"}
    created = requests.post(jobs, json=body, timeout=30)
    assert created.status_code == 202, created.text
    url = f"{jobs}/{created.json()['id']}"
    wait_until(lambda: requests.get(url, timeout=30).json()["status"] == "succeeded", 120.0)
    document = requests.get(url, timeout=30).json()
    assert document["progress"]["done"] == document["parts"] == 5
    pcm = requests.get(f"{url}/audio?format=pcm", timeout=30).content
    for part in requests.get(f"{url}/parts", timeout=30).json()["data"]:
        first = round(part["start_s"] * 24_000) * 2
        spoken = service.speak(input=part["text"], seed=3, response_format="pcm").content
        assert pcm[first : first + len(spoken)] == spoken
    shown = requests.get(f"{url}/subtitles?format=vtt", timeout=30).text
    assert [line for line in shown.splitlines() if line.startswith(("The", "More", "One", "Two"))] == [
        *("One", "The first words of a short book.", "More of them.", "Two", "The end.")
    ]
    assert requests.get(f"{url}/events", timeout=30).text.count("event: job.part\n") == 5
    piece = requests.get(f"{url}/audio", headers={"Range": "bytes=0-3"}, timeout=30)
    assert (piece.status_code, piece.content) == (206, b"fLaC")
    assert requests.delete(url, timeout=30).status_code == 204
    assert requests.get(url, timeout=30).status_code == 404


# The adapters over real handles, in both of Serve's transports: by reference (actor calls) and by value (gRPC).


@pytest.fixture(params=[True, False], ids=["by reference", "by value"])
def transport(request: pytest.FixtureRequest, cluster: Cluster) -> dict[str, bool]:
    return {"_by_reference": request.param}


def test_an_utterance_is_the_same_in_one_call_and_in_many_and_a_bad_one_fails_alone(transport: dict[str, bool]):
    """Whatever this machine's vocoder takes."""

    async def hear(decoder: StageDecoder, rows: np.ndarray, size: int) -> np.ndarray:
        async def steps() -> AsyncIterator[StepBlock]:
            for first in range(0, len(rows), size):
                ends = first + size >= len(rows)
                block = rows[first : first + size]
                yield StepBlock(block, np.zeros((len(block), 4), np.int64), first, FinishReason.EOS if ends else None)

        async with aclosing(StreamDecoder(decoder).decode(steps())) as chunks:
            return np.concatenate([chunk.samples async for chunk in chunks])

    async def run() -> list[object]:
        decoder = StageDecoder(RemoteHandle(serve.get_deployment_handle("Vocoder", "chattts").options(**transport)))
        width, _, _ = await ask_speakers(RemoteHandle(serve.get_deployment_handle("AcousticModel", "chattts")))
        rows = np.random.default_rng(0).standard_normal((150, width), np.float32)
        return await asyncio.gather(
            *(hear(decoder, row, size) for row, size in ((rows, 4), (rows[:, 1:], 4), (rows[::-1].copy(), 7), (rows, 150))),
            return_exceptions=True,
        )

    first, bad, other, again = asyncio.run(run())
    assert isinstance(bad, EngineFault)
    assert isinstance(first, np.ndarray)
    assert isinstance(other, np.ndarray)
    assert np.array_equal(first, again)
    assert len(first) == len(other) == 299 * HOP
    assert not np.array_equal(first, other)


def test_steps_arrive_in_order_and_errors_as_they_were(transport: dict[str, bool]):
    async def run() -> tuple[list[int], np.ndarray]:
        generator = StageGenerator(RemoteHandle(serve.get_deployment_handle("AcousticModel", "chattts").options(**transport)))
        firsts, hidden = [], []
        async with aclosing(generator.generate(warm_up_prompt(), SamplingParams(seed=4), timeout_s=30)) as blocks:
            async for block in blocks:
                firsts.append((block.first_step, len(block.hidden)))
                hidden.append(block.hidden)
        long = warm_up_prompt()
        long = Prompt(np.zeros((4000, 4), np.int64), np.ones(4000, np.bool_), long.head, long.segment, max_steps=4)
        with pytest.raises(TextTooLong):
            await anext(generator.generate(long, SamplingParams(), timeout_s=30))
        return firsts, np.concatenate(hidden)

    firsts, hidden = asyncio.run(run())
    expected = 0
    for first, count in firsts:
        assert first == expected
        expected += count
    assert expected == len(hidden) > 0


# Metrics as Prometheus sees them, from a service that has spoken, refused and been left.


@pytest.fixture
def before(cluster: Cluster) -> Samples:
    """What is exported once everything that earlier tests did has been exported: a refusal sent last has arrived."""
    refusals = partial(total, name="ray_chattts_rejects_total", code="out_of_range")
    earlier = refusals(scrape(cluster))
    assert cluster.speak(speed=9).status_code == 400
    wait_until(lambda: refusals(scrape(cluster)) > earlier, EXPORT_TIMEOUT_S)
    return scrape(cluster)


def test_what_happened_is_what_is_exported(cluster: Cluster, before: Samples):
    reply = cluster.speak(input="Numbers follow: one, two, three.")
    assert reply.status_code == 200
    assert cluster.speak(speed=9).status_code == 400
    leaving = cluster.connect(LONG_SPEECH)
    leaving.recv(2000)
    leaving.close()
    expected = {
        ("ray_chattts_requests_total", "outcome", "done"): 1,
        ("ray_chattts_requests_total", "outcome", "refused"): 1,
        ("ray_chattts_requests_total", "outcome", "left"): 1,
        ("ray_chattts_rejects_total", "code", "out_of_range"): 1,
        ("ray_chattts_ttfa_seconds_count", "streamed", "true"): 2,
    }

    def gained(samples: Samples) -> dict[tuple[str, str, str], float]:
        return {
            (name, tag, value): total(samples, name, **{tag: value}) - total(before, name, **{tag: value})
            for name, tag, value in expected
        }

    wait_until(lambda: gained(scrape(cluster)) == expected, EXPORT_TIMEOUT_S)
    after = scrape(cluster)
    seconds = (len(reply.content) // 2) / 24_000
    assert total(after, "ray_chattts_audio_seconds_total") - total(before, "ray_chattts_audio_seconds_total") >= seconds - 1e-6
    wait_until(lambda: total(scrape(cluster), "ray_chattts_wasted_steps_total", reason="cancelled") > 0, EXPORT_TIMEOUT_S)


def test_every_metric_of_the_list_is_exported_with_its_tags(cluster: Cluster):
    suffix = {MetricType.HISTOGRAM: "_count"}

    def missing() -> list[str]:
        samples = scrape(cluster)
        return [
            metric.name
            for metric in METRICS
            # Nothing in this suite's texts is dropped, no replica dies, nothing is interrupted and no cache is full before this
            # test may run alone.
            if metric.name
            not in (
                "chattts_text_restarts_total",
                "chattts_text_warnings_total",
                "chattts_retries_total",
                "chattts_cache_evictions_total",
                "chattts_rollbacks_total",
                "chattts_preempted_total",
                "chattts_interruptions_total",
                "chattts_unheard_steps_total",
                "chattts_resumed_replies_total",  # tests/unit/serve/http/test_resume.py
                "chattts_fail_overs_total",  # these three are in tests/integration/disruptive/test_failures.py
                "chattts_repeated_steps_total",
                "chattts_fail_over_seconds",
            )
            and not any(
                set(metric.tags) <= set(tags) for tags, _ in samples.get(metric.exported + suffix.get(metric.type, ""), [])
            )
        ]

    cluster.speak(cache="default")
    cluster.speak(cache="default")
    cluster.speak(speed=9)
    leaving = cluster.connect(LONG_SPEECH)
    leaving.recv(2000)
    leaving.close()
    deadline = time.monotonic() + EXPORT_TIMEOUT_S
    while missing() and time.monotonic() < deadline:
        time.sleep(0.5)
    assert missing() == []


def test_no_word_of_a_text_and_no_id_is_in_the_metrics(cluster: Cluster, before: Samples):
    assert (
        cluster.speak(input="Canarybird sings.", user="canary-user", headers={"X-Request-ID": "canary-id"}).status_code == 200
    )
    spoken = ("ray_chattts_requests_total", "ray_chattts_characters_total", "ray_chattts_audio_seconds_total")
    wait_until(lambda: all(total(scrape(cluster), name) > total(before, name) for name in spoken), EXPORT_TIMEOUT_S)
    exposition = requests.get(f"http://127.0.0.1:{cluster.metrics_port}/metrics", timeout=10).text.lower()
    assert "ray_chattts" in exposition
    assert "canary" not in exposition


def test_the_metrics_of_ray_that_the_board_names_are_exported(cluster: Cluster):
    cluster.speak()
    # Exported only where a deployment scales by itself.
    missing = set(RAY_METRICS - {"ray_serve_autoscaling_target_replicas"})
    # Read again and again: a node's gauge is in the first read after each of its reports, and in no other.
    deadline = time.monotonic() + EXPORT_TIMEOUT_S
    while missing and time.monotonic() < deadline:
        text = requests.get(f"http://127.0.0.1:{cluster.metrics_port}/metrics", timeout=10).text
        missing.difference_update(re.findall(r"^(ray_\w+)\{", text, re.MULTILINE))
        time.sleep(0.5)
    assert not missing
