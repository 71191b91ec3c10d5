"""One way to speak: another kind of entry point gets admission, quotas, metrics, logs and the cache without code of its own."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import AtCapacity, DeadlineExceeded, Draining, EngineDead, NotCached, StageAsleep
from pipeline.types import AudioChunk, CacheMode, CacheResult, SynthesisRequest
from serve.access.api_keys import Quota
from serve.access.caller import Caller, PendingCharge
from serve.access.idempotency import Idempotency
from serve.access.quotas import LocalQuotas
from serve.access.resume_tokens import Resumption
from serve.config.app_config import LimitsConfig
from serve.errors import ApiError
from serve.observability.reply_stats import Outcome
from serve.observability.request_log import FIELDS
from serve.speech.events import Audio, Finished, Started
from serve.speech.job import RequestContext
from serve.speech.payment import Payment
from serve.speech.schemas.speech import SpeechBody
from serve.speech.speak import ClientLeft, open_speech
from serve.speech.speech_services import SpeechServices
from serve.speech.subtitles import Cue, lasting, written
from tests.support.effort import examples
from tests.support.fakes import CHUNK, RecordingObserver, Speaker, make_speech_services, sine
from tests.support.guarded import RemoteQuotas

SAMPLE_RATE = 24_000


async def say(services: SpeechServices, text: str, write: Callable[[bytes], None], caller: Caller, **fields: Any) -> None:
    """A whole entry point: what a socket, a batch or another protocol has to do."""
    with open_speech(services, RequestContext("say-1", caller, idempotency_key=fields.pop("key", None))) as speech:
        body = SpeechBody(input=text, response_format="pcm", **fields)
        job = await speech.accept(body, body.model_dump_json().encode())
        async with aclosing(speech.speak(job)) as events:
            async for event in events:
                match event:
                    case Started():
                        write(f"<{event.cache} {event.job.request.sampling.seed}>".encode())
                    case Audio():
                        write(event.data)
                    case Finished():
                        write(f"<{event.report.steps} {event.audio_s:g}>".encode())


class EntryPoint:
    """The entry point, with the observer of the service behind it."""

    def __init__(self, speaker: Speaker | None = None, limits: LimitsConfig | None = None, quota: Quota | None = None) -> None:
        self.speaker, self.observer = speaker or Speaker(), RecordingObserver()
        self.services = make_speech_services(self.speaker, limits, observer=self.observer)
        self.quotas = LocalQuotas()
        self.caller = Caller("some-key", quota=quota, quotas=self.quotas)
        self.written: list[bytes] = []

    def say(self, text: str = "Hello there.", **fields: Any) -> list[bytes]:
        self.written = []
        asyncio.run(say(self.services, text, self.written.append, self.caller, **fields))
        return self.written


def logged(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [getattr(record, FIELDS) for record in caplog.records if hasattr(record, FIELDS)]


@pytest.mark.parametrize("stream", [True, False])
def test_the_audio_is_the_same_and_so_are_metrics_and_log(stream: bool, caplog):
    caplog.set_level(logging.INFO)
    entry = EntryPoint(Speaker(first_pause_s=0.05))
    began, *pieces, ended = entry.say(seed=7, stream=stream)
    samples = np.frombuffer(b"".join(pieces), "<i2").astype(np.float32) / 32767
    assert (began, ended) == (b"<bypass 7>", b"<46 1>")
    assert np.abs(samples - sine(7, 0, 5 * CHUNK)).max() < 1e-3
    assert len(pieces) == (5 if stream else 1)
    (stats,) = entry.observer.replies
    assert (stats.outcome, stats.code, stats.streamed, stats.characters) == (Outcome.DONE, "", stream, 12)
    assert (stats.audio_s, stats.stalled_s) == (5 * CHUNK / SAMPLE_RATE, 0)
    assert 0.05 <= stats.first_audio_s <= stats.took_s
    assert entry.observer.in_flight == [1, 0]
    received, finished = logged(caplog)
    assert (received["event"], received["key"], received["characters"]) == ("received", "some-key", 12)
    assert (finished["event"], finished["request"], finished["outcome"]) == ("finished", "say-1", "done")
    assert finished["container"] == "pcm"


def test_a_full_or_closed_service_refuses_it(caplog):
    entry = EntryPoint(limits=LimitsConfig(max_in_flight=1))
    with entry.services.admission.acquire(), pytest.raises(AtCapacity):
        entry.say()
    entry.services.admission.close()
    with pytest.raises(Draining):
        entry.say()
    assert [(reply.outcome, reply.code) for reply in entry.observer.replies] == [
        (Outcome.REFUSED, "overloaded"), (Outcome.REFUSED, "draining"),
    ]  # fmt: skip
    assert entry.speaker.opened == 0


def test_characters_are_charged_and_audio_is_counted():
    quota = Quota(characters_a_day=20, audio_s_a_minute=0.9)
    entry = EntryPoint(quota=quota)
    entry.say()
    decision = asyncio.run(entry.quotas.acquire("some-key", quota, None))
    assert decision.refusal == "quota_exceeded", "a second of audio is more than the key may have"
    with pytest.raises(ApiError) as refused:
        entry.say()
    assert refused.value.spec.code == "quota_exceeded"
    assert [reply.code for reply in entry.observer.replies] == ["", "quota_exceeded"]
    assert entry.speaker.opened == 1
    assert entry.services.admission.in_flight == 0


def test_an_idempotency_key_is_charged_once_and_is_a_seed():
    entry = EntryPoint(quota=Quota(characters_a_day=20))
    first, again = entry.say(key="k"), entry.say(key="k")
    assert first == again
    with pytest.raises(ApiError) as other:
        entry.say("Something else.", key="k")
    assert other.value.spec.code == "idempotency_mismatch"


def test_two_equal_requests_at_once_are_charged_once_or_refused_both():
    async def both(entry: EntryPoint, key: str) -> list[Any]:
        outputs: list[list[bytes]] = [[], []]
        calls = (say(entry.services, "Hello there.", output.append, entry.caller, key=key) for output in outputs)
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        return [error or pieces for error, pieces in zip(outcomes, outputs, strict=True)]

    for limit, characters in ((11, 0), (24, 12)):
        entry = EntryPoint(quota=Quota(characters_a_day=limit))
        entry.quotas = RemoteQuotas()
        entry.caller = replace(entry.caller, quotas=entry.quotas)
        first, second = asyncio.run(both(entry, "k"))
        if characters:
            assert first == second != []
        else:
            assert [error.spec.code for error in (first, second)] == ["quota_exceeded"] * 2
        assert entry.speaker.opened == (2 if characters else 0)
        assert asyncio.run(entry.quotas.characters_today("some-key")) == characters
        if not characters:  # nothing was spoken, so the key is free for another text
            with pytest.raises(ApiError) as other:
                entry.say("Something else that is too long.", key="k")
            assert other.value.spec.code == "quota_exceeded"


@pytest.mark.parametrize(
    ("fails_at", "error", "paid"),
    [
        (0, AtCapacity("full", retry_after_s=1.0), 0),
        (0, NotCached("nothing"), 0),
        (0, EngineDead("gone"), 0),
        (2, EngineDead("gone"), 12),
    ],
)
def test_what_fails_before_its_audio_is_refunded_and_what_fails_behind_it_is_paid(fails_at: int, error: Exception, paid: int):
    entry = EntryPoint(Speaker(fails_at=fails_at, error=error), quota=Quota(characters_a_day=100))
    for count in range(1, 6):
        with pytest.raises(type(error)):
            entry.say()
        assert asyncio.run(entry.quotas.characters_today("some-key")) == count * paid


def test_a_client_that_leaves_before_the_first_audio_has_paid_nothing():
    entry = EntryPoint(quota=Quota(characters_a_day=20))

    async def leave() -> None:
        with open_speech(entry.services, RequestContext("left", entry.caller)) as speech:
            await speech.accept(SpeechBody(input="Hello there."))
            raise ClientLeft

    with pytest.raises(ClientLeft):
        asyncio.run(leave())
    assert asyncio.run(entry.quotas.characters_today("some-key")) == 0


def test_a_request_that_failed_is_paid_by_the_next_one_of_its_idempotency_key():
    entry = EntryPoint(Speaker(fails_at=0, error=AtCapacity("full", retry_after_s=1.0)), quota=Quota(characters_a_day=12))
    for _ in range(3):
        with pytest.raises(AtCapacity):
            entry.say(key="k")
    entry.speaker.fails_at = None
    assert entry.say(key="k")
    assert asyncio.run(entry.quotas.characters_today("some-key")) == 12


def test_a_key_that_was_revoked_meanwhile_is_spoken_to_no_more():
    entry = EntryPoint()
    revoked = [False]
    entry.caller = replace(entry.caller, is_revoked=lambda: revoked[0])
    assert entry.say()
    revoked[0] = True
    with pytest.raises(ApiError) as refusal:
        entry.say()
    assert (refusal.value.spec.status, refusal.value.spec.code) == (401, "invalid_api_key")
    assert entry.speaker.opened == 1


def test_cache_entries_belong_to_the_caller():
    entry = EntryPoint(Speaker(source=CacheResult.HIT))
    assert entry.say(seed=1)[0] == b"<hit 1>"
    cache = entry.speaker.requests[-1].cache
    assert (cache.mode, cache.tenant) == (CacheMode.DEFAULT, "some-key")


@pytest.mark.parametrize(
    ("speaker", "limit", "words"),
    [
        ({"first_pause_s": 3600}, {"first_audio_timeout_s": 0.05}, "no audio"),
        ({"pause_s": 3600}, {"chunk_timeout_s": 0.05}, "no further audio"),
        ({"pause_s": 3600}, {"total_timeout_s": 0.05}, "total_timeout_s"),
    ],
)
def test_time_limits_hold(speaker: dict[str, Any], limit: dict[str, float], words: str):
    entry = EntryPoint(Speaker(**speaker), LimitsConfig(**limit))
    with pytest.raises(DeadlineExceeded, match=words):
        entry.say()
    assert (entry.speaker.closed, entry.services.admission.in_flight) == (1, 0)


@pytest.mark.parametrize(
    ("speaker", "write_error", "outcome", "code", "chunks"),
    [
        ({"fails_at": 0, "error": EngineDead("dead")}, None, Outcome.REFUSED, "engine_dead", 0),
        ({"fails_at": 2, "error": EngineDead("dead")}, None, Outcome.CUT, "engine_dead", 2),
        ({"chunks": None}, ClientLeft(), Outcome.LEFT, "", 0),
        ({"chunks": None}, RuntimeError("canary"), Outcome.CUT, "internal_error", 0),
    ],
)
def test_every_end_is_measured_and_logged_once_and_closes_the_voice(
    speaker: dict[str, Any], write_error: Exception | None, outcome: Outcome, code: str, chunks: int, caplog
):
    caplog.set_level(logging.INFO)
    entry, written = EntryPoint(Speaker(**speaker)), list[bytes]()

    def write(data: bytes) -> None:
        if write_error is not None:
            raise write_error
        written.append(data)

    with pytest.raises(type(write_error or speaker["error"])):
        asyncio.run(say(entry.services, "Hello.", write, entry.caller))
    (stats,) = entry.observer.replies
    assert (stats.outcome, stats.code, len(written)) == (outcome, code, chunks and chunks + 1)
    if write_error is None:
        assert stats.audio_s == chunks * CHUNK / SAMPLE_RATE
    assert (entry.speaker.opened, entry.services.admission.in_flight) == (entry.speaker.closed, 0)
    line = logged(caplog)[-1]
    assert (line["event"], line["outcome"], line.get("code", "")) == ("finished", outcome, code)
    assert ("ttfb_s" in line) == (outcome is not Outcome.REFUSED)


@pytest.mark.slow
def test_a_pause_longer_than_the_audio_so_far_is_a_stall():
    entry = EntryPoint(Speaker(chunks=3, pause_s=0.4))
    entry.say()
    assert entry.observer.replies[0].stalled_s > 0.3


def test_a_refusal_during_waking_is_not_charged():
    entry = EntryPoint(quota=Quota(characters_a_day=12))

    async def asleep(request: SynthesisRequest) -> float:
        raise StageAsleep("asleep", retry_after_s=7.0)

    awake, entry.services = entry.services, replace(entry.services, awake=asleep)
    for _ in range(3):
        with pytest.raises(StageAsleep):
            entry.say()
    entry.services = awake
    assert entry.say()
    assert [reply.code for reply in entry.observer.replies] == 3 * ["waking"] + [""]


def test_what_it_waited_for_a_stage_is_taken_from_the_time_to_its_first_audio():
    entry = EntryPoint()

    async def waits(request: SynthesisRequest) -> float:
        return 40.0

    entry.services = replace(entry.services, awake=waits)
    entry.say(deadline_ms=60_000)
    (request,) = entry.speaker.requests
    assert request.scheduling.first_audio_s == 20.0


# Subtitles: every cue lasts, whatever the model swallowed.


TIMES = st.lists(st.sampled_from([0.0, 0.0, 0.0004, 0.5, 3.0]), min_size=1, max_size=12)


@given(TIMES, st.floats(0, 5000))
def test_every_cue_lasts_and_none_overlaps(lengths, begin):
    shown, start = [], begin
    for number, length in enumerate(lengths):
        shown.append(Cue(start, start + length, f"cue {number}"))
        start += length
    cues = lasting(shown)
    assert [cue.text for cue in cues] == [cue.text for cue in shown]
    for cue in cues:
        stamps = written([cue], "vtt").splitlines()[2].split(" --> ")
        assert stamps[0] < stamps[1], "in the file's own milliseconds"
    assert all(before.end <= after.start + 1e-6 for before, after in pairwise(cues))
    if any(length >= 0.5 for length in lengths):
        assert cues[0].start == begin
        assert cues[-1].end == pytest.approx(start, abs=1e-6)


def test_cues_that_last_keep_their_times():
    shown = [Cue(0.0, 0.1 + 0.2, "a"), Cue(0.7, 1.1, "b")]
    assert lasting(shown) == shown


# Payment: whatever is cancelled, wherever it waits, a caller has paid for what was spoken and for nothing else.


TEXT = "Hello there."
BODY = SpeechBody(input=TEXT, response_format="pcm")
RAW = BODY.model_dump_json().encode()


async def later() -> None:
    """As long as a store takes to ask or to answer."""
    for _ in range(2):
        await asyncio.sleep(0)


class RemoteClaims:
    """Claims of all replicas."""

    def __init__(self) -> None:
        self.contents: dict[str, bytes] = {}

    async def claim(self, name: str, content: bytes, ttl_s: float) -> bytes | None:
        return await self._answer(lambda: self.contents.setdefault(name, content))

    async def claimed(self, name: str) -> bytes | None:
        return await self._answer(lambda: self.contents.get(name))

    async def release(self, name: str) -> None:
        await self._answer(lambda: self.contents.pop(name, None))

    async def _answer(self, work: Callable[[], bytes | None]) -> bytes | None:
        await later()
        answer = work()
        await later()
        return answer


class Replicas:
    """Two replicas, and how often each key's text was spoken."""

    def __init__(self) -> None:
        claims, self.quotas = RemoteClaims(), RemoteQuotas()
        self.caller = Caller("anna", quota=Quota(characters_a_day=10_000, audio_s_a_minute=1e6), quotas=self.quotas)
        self.services = [make_speech_services(Speaker(chunks=1), idempotency=Idempotency(claims)) for _ in range(2)]
        self.spoken: dict[str | None, int] = {}
        self.token: str | None = None

    async def speak(self, replica: int, key: str | None, resumes: Resumption | None = None, cache_control: str = "") -> None:
        context = RequestContext("r", self.caller, cache_control=cache_control, idempotency_key=key, resumes=resumes)
        with open_speech(self.services[replica], context) as speech:
            job = await speech.accept(BODY, RAW)
            async with aclosing(speech.speak(job)) as events:
                async for event in events:
                    if isinstance(event, Started):
                        self.spoken[key] = self.spoken.get(key, 0) + 1
                        self.token = event.token

    async def cancelled(self, work: Awaitable[None], turns: int) -> None:
        task = asyncio.ensure_future(work)
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def used(self) -> int:
        """Characters, once everything is given back that will be."""
        while pending := [*Payment._ending, *PendingCharge._questions]:
            await asyncio.wait(pending)
        return await self.quotas.characters_today("anna")


requests = st.lists(st.tuples(st.integers(0, 1), st.sampled_from([None, "k", "l"]), st.integers(0, 90)), min_size=1, max_size=6)


@settings(max_examples=examples(40))
@given(requests)
async def test_what_is_cancelled_one_after_the_other_costs_what_was_spoken(calls: list[tuple[int, str | None, int]]):
    replicas = Replicas()
    for replica, key, turns in calls:
        await replicas.cancelled(replicas.speak(replica, key), turns)
        spoken = sum(count if name is None else 1 for name, count in replicas.spoken.items())
        assert await replicas.used() == len(TEXT) * spoken
    assert not replicas.quotas._used("anna").reserved


@settings(max_examples=examples(40))
@given(requests)
async def test_what_is_cancelled_side_by_side_is_never_spoken_unpaid_and_never_paid_twice(
    calls: list[tuple[int, str | None, int]],
):
    """Where nobody of a key has spoken, a charge may be left for its next request: of two that were cancelled at once."""

    replicas = Replicas()
    await asyncio.gather(*(replicas.cancelled(replicas.speak(replica, key), turns) for replica, key, turns in calls))
    keys, alone = {key for _, key, _ in calls} - {None}, replicas.spoken.get(None, 0)
    spoken = alone + sum(key in replicas.spoken for key in keys)
    assert len(TEXT) * spoken <= await replicas.used() <= len(TEXT) * (alone + len(keys))
    for key in keys:
        await replicas.speak(1, key)
    assert await replicas.used() == len(TEXT) * (alone + len(keys))


@settings(max_examples=examples(40))
@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 90)), max_size=5))
async def test_one_continuation_is_free_however_many_were_cancelled(calls: list[tuple[int, int]]):
    replicas = Replicas()
    await replicas.speak(0, None)
    token = replicas.token
    for replica, turns in calls:
        await replicas.cancelled(replicas.speak(replica, None, Resumption(1000, token)), turns)
        assert await replicas.used() == len(TEXT) * max(1, replicas.spoken[None] - 1)


@pytest.mark.parametrize("cache_control", ["no-store", "no-cache"])
async def test_a_repetition_that_the_cache_may_not_answer_is_paid(cache_control: str):
    replicas = Replicas()
    await replicas.speak(0, "k")
    for number in range(2, 5):
        await replicas.speak(number % 2, "k", cache_control=cache_control)
        assert await replicas.used() == number * len(TEXT)
    await asyncio.gather(*(replicas.speak(number % 2, "l", cache_control=cache_control) for number in range(4)))
    assert await replicas.used() == 8 * len(TEXT)


@pytest.mark.parametrize("first_made", [None, 0, 1, 2])
@pytest.mark.parametrize("has_room", [True, False])
def test_a_repetition_of_which_anything_is_made_again_is_paid_or_refused(first_made: int | None, has_room: bool):
    async def run() -> None:
        replicas = Replicas()
        await replicas.speak(0, "k")

        async def stream(request: SynthesisRequest) -> AsyncGenerator[AudioChunk, None]:
            index = 0
            async with aclosing(Speaker(chunks=3).stream(request)) as chunks:
                async for chunk in chunks:
                    yield replace(chunk, is_made=first_made is not None and index >= first_made)
                    index += 1

        replicas.services[1] = replace(replicas.services[1], stream=stream)
        if not has_room:
            replicas.caller = replace(replicas.caller, quota=Quota(characters_a_day=len(TEXT)))
        if has_room or first_made is None:
            await replicas.speak(1, "k")
        else:
            with pytest.raises(ApiError) as refusal:
                await replicas.speak(1, "k")
            assert refusal.value.spec.status == 429
            assert replicas.spoken["k"] == 1 + (first_made > 0)
        assert await replicas.used() == len(TEXT) * (2 if has_room and first_made is not None else 1)

    asyncio.run(run())


async def test_a_reply_on_the_charge_of_another_has_no_free_continuation_of_its_own():
    replicas = Replicas()
    for _ in range(2):
        await replicas.speak(0, "k")
    assert await replicas.used() == len(TEXT)
    await replicas.speak(1, None, Resumption(1000, replicas.token))
    assert await replicas.used() == 2 * len(TEXT)
    await replicas.speak(1, "k", Resumption(1000))
    assert await replicas.used() == 2 * len(TEXT)


async def test_a_charge_that_is_refused_leaves_nothing_reserved():
    quotas: Any = RemoteQuotas()
    caller = Caller("anna", quota=Quota(characters_a_day=100, audio_s_a_minute=1.0), quotas=quotas)
    quotas.record_audio("anna", caller.quota, 2.0)
    charge = PendingCharge(caller)
    with pytest.raises(ApiError):
        await charge.take(50, 1.0)
    assert await caller.characters_today() == 0
    assert not quotas._used("anna").reserved
