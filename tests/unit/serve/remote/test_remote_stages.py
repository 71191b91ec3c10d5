"""The adapters over handles: what is tried twice, what is not, and what always gets its cancel."""

import asyncio
import pickle
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from itertools import count, pairwise, starmap

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayActorError, RayTaskError
from ray.serve._private.common import DeploymentID
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError

from pipeline.errors import (
    AtCapacity,
    EngineDead,
    EngineFault,
    NonFiniteOutput,
    RequestQuarantined,
    StageUnavailable,
    SynthesisError,
    WorkerDied,
)
from pipeline.types import FinishReason, Followed, Position, Prompt, SamplingParams, StepBlock, SynthesisRequest
from serve.remote.remote_stages import RemoteDecoder, RemoteFollower, RemoteFrontend, RemoteGenerator, to_domain
from serve.resilience import circuit_breaker
from serve.resilience.circuit_breaker import Breaker
from serve.resilience.quarantine import CURRENT_REQUEST, Quarantine
from tests.support.factories import make_prompt
from tests.support.handles import local_handle


def block(first_step: int, finish: FinishReason | None = None) -> StepBlock:
    return StepBlock(np.zeros((1, 8), np.float32), np.zeros((1, 4), np.int64), first_step, finish)


class Replica:
    """What a handle's streaming call gives: items in order, an exception in the place where the replica fails."""

    def __init__(self, items: list[object]) -> None:
        self.items = items
        self.cancelled = False

    async def __aiter__(self) -> AsyncIterator[object]:
        for item in self.items:
            if isinstance(item, asyncio.Event):
                await item.wait()
            elif isinstance(item, Exception) and not isinstance(item, SynthesisError):
                raise item
            else:
                yield item

    def cancel(self) -> None:
        self.cancelled = True


class Handle:
    """A deployment whose calls land on one replica after the other."""

    def __init__(self, *replicas: list[object]) -> None:
        self.replicas = [Replica(items) for items in replicas]
        self.timeouts_s: list[float] = []
        self.asked: list[tuple[Prompt, bool]] = []
        self.generate = self

    def options(self, *, stream: bool) -> "Handle":
        assert stream
        return self

    def remote(self, prompt: Prompt, sampling: object, timeout_s: float, admitted: bool, trace: str) -> Replica:
        self.timeouts_s.append(timeout_s)
        self.asked.append((prompt, admitted))
        return self.replicas[len(self.timeouts_s) - 1]


class Unary:
    """A vocoder whose calls land on one replica after the other."""

    def __init__(self, *answers: object) -> None:
        self.answers = list(answers)
        self.traits = self

    async def remote(self) -> object:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def gone(number: int) -> ActorUnavailableError:
    """What is heard first of a replica on a machine that has died."""
    return ActorUnavailableError("connection refused", bytes([number]) * 16)


def listen(handle: Handle) -> list[StepBlock]:
    async def collect() -> list[StepBlock]:
        stream = RemoteGenerator(handle).generate(make_prompt(), SamplingParams(), timeout_s=5)
        async with aclosing(stream) as blocks:
            return [one async for one in blocks]

    return asyncio.run(collect())


DEATHS = [ActorDiedError(), EngineDead("the loop died")]


@pytest.mark.parametrize("death", DEATHS, ids=["process", "engine"])
def test_a_replica_that_dies_before_its_first_block_is_replaced_by_another(death):
    handle = Handle([death], [block(0), block(1, FinishReason.EOS)])
    assert [one.first_step for one in listen(handle)] == [0, 1]
    assert handle.timeouts_s[1] <= handle.timeouts_s[0] <= 5, "the time left goes on running"
    assert all(replica.cancelled for replica in handle.replicas)


def test_a_second_try_needs_time_left():
    handle = Handle([ActorDiedError()], [block(0, FinishReason.EOS)])

    async def collect() -> None:
        async with aclosing(RemoteGenerator(handle).generate(make_prompt(), SamplingParams(), timeout_s=0)) as blocks:
            await anext(blocks)

    with pytest.raises(EngineDead):
        asyncio.run(collect())
    assert len(handle.timeouts_s) == 1


def test_an_open_breaker_asks_no_replica(monkeypatch):
    monkeypatch.setattr(circuit_breaker, "MIN_FAILURES", 1)
    handle = Handle([block(0, FinishReason.EOS)])
    breaker = Breaker("acoustic")
    with pytest.raises(EngineDead), breaker.watch():
        raise EngineDead("dead")

    async def collect() -> None:
        await anext(RemoteGenerator(handle, breaker).generate(make_prompt(), SamplingParams(), timeout_s=5))

    with pytest.raises(StageUnavailable):
        asyncio.run(collect())
    assert handle.timeouts_s == []


def test_two_deaths_are_enough():
    handle = Handle([ActorDiedError()], [ActorDiedError()])
    with pytest.raises(EngineDead):
        listen(handle)


@pytest.mark.parametrize("refusal", [AtCapacity("full", retry_after_s=2), NonFiniteOutput("NaN")])
def test_refusals_and_broken_rows_are_not_tried_again(refusal):
    handle = Handle([refusal], [block(0, FinishReason.EOS)])
    with pytest.raises(type(refusal)):
        listen(handle)
    assert len(handle.timeouts_s) == 1


def test_a_reader_that_leaves_cancels_the_call():
    handle = Handle([block(0), block(1, FinishReason.EOS)])

    async def leave() -> None:
        async with aclosing(RemoteGenerator(handle).generate(make_prompt(), SamplingParams(), timeout_s=5)) as blocks:
            await anext(blocks)

    asyncio.run(leave())
    assert handle.replicas[0].cancelled


# Deaths on record.


def read_with(quarantine: Quarantine, frontend: RemoteFrontend) -> Callable[[SynthesisRequest], Awaitable[object]]:
    async def read(request: SynthesisRequest) -> object:
        with quarantine.track(request):
            return await frontend.read(request)

    return read


def observe(
    *works: Callable[[], Awaitable[object]], clock: Callable[[], float] = time.monotonic
) -> tuple[Quarantine, list[object]]:
    """Works of one request, all at once, and what came of each."""
    quarantine = Quarantine(clock=clock)

    async def run() -> list[object]:
        with quarantine.admit(b"digest") as tracked:
            CURRENT_REQUEST.set(tracked)
            results = await asyncio.gather(*(work() for work in works), return_exceptions=True)
            raise Stop(results)

    with pytest.raises(Stop) as stopped:
        asyncio.run(run())
    return quarantine, stopped.value.args[0]


class Stop(Exception):
    """A request that ends without having been spoken to its end: nothing clears it."""


def generating(handle: Handle) -> Callable[[], Awaitable[object]]:
    async def generate() -> list[int]:
        stream = RemoteGenerator(handle).generate(make_prompt(), SamplingParams(), timeout_s=5)
        async with aclosing(stream) as blocks:
            return [one.first_step async for one in blocks]

    return generate


def whole() -> list[object]:
    return [block(0), block(1, FinishReason.EOS)]


def test_the_loss_of_a_machine_with_replicas_of_two_stages_quarantines_no_request():
    decoder = RemoteDecoder(Unary(gone(2), "traits"))
    quarantine, results = observe(generating(Handle([block(0), gone(1)], whole())), decoder.traits)
    assert results == [[0, 1], "traits"]
    assert quarantine.quarantined == 0


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 20)), min_size=2, max_size=6))
def test_the_loss_of_a_machine_with_several_replicas_of_a_stage_quarantines_no_request(segments):
    """Segments in replicas of one machine; some are told of its end when others have long begun anew elsewhere."""
    told = [asyncio.Event() for _ in segments]

    async def tell() -> None:
        for event, (_, pause) in zip(told, segments, strict=True):
            event.set()
            for _ in range(pause):
                await asyncio.sleep(0)

    handles = [Handle([block(0), event, gone(number)], whole()) for event, (number, _) in zip(told, segments, strict=True)]
    quarantine, results = observe(*(generating(handle) for handle in handles), tell)
    assert results[:-1] == [[0, 1]] * len(segments)
    assert quarantine.quarantined == 0


@pytest.mark.parametrize("first", ["generator", "decoder"])
def test_a_request_that_ended_two_replicas_of_a_stage_is_tried_no_more(first):
    handle, later = Handle([gone(1)], [gone(2)]), Handle([gone(3)], whole())
    answers = Unary(gone(1), gone(2), gone(3), "traits")

    async def work() -> None:
        for calls in (2, 3):
            with pytest.raises(EngineDead):
                await (
                    generating(handle if calls == 2 else later)() if first == "generator" else RemoteDecoder(answers).traits()
                )
            assert len(handle.timeouts_s) + len(later.timeouts_s) + 4 - len(answers.answers) == calls

    quarantine, results = observe(work)
    assert results == [None]
    assert quarantine.quarantined == 1


class Texts:
    """A text deployment whose readings end like this, one after the other."""

    def __init__(self, *answers: object) -> None:
        self.answers = list(answers)
        self.ask = self

    async def remote(self, version: str, operation: str, request: object, *, trace: str) -> object:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception) and not isinstance(answer, SynthesisError):
            raise answer
        return answer


def test_a_text_whose_worker_dies_is_read_once_more():
    texts = Texts(WorkerDied("ended", worker="a"), "script")
    frontend = RemoteFrontend(texts)

    async def work() -> object:
        return await frontend.read(SynthesisRequest("r", "hi", "v"))

    quarantine, results = observe(work)
    assert (results, quarantine.quarantined) == (["script"], 0)
    assert (frontend.breaker.retries, frontend.breaker.failures) == (1, 0)


def test_a_text_that_ends_two_workers_is_a_503_and_read_by_no_third():
    texts = Texts(WorkerDied("ended", worker="a"), WorkerDied("ended", worker="b"), "script")
    frontend = RemoteFrontend(texts)
    read = read_with(Quarantine(), frontend)
    request = SynthesisRequest("r", "hi", "v")

    async def run() -> None:
        with pytest.raises(WorkerDied):
            await read(request)
        with pytest.raises(RequestQuarantined):
            await read(request)
        assert texts.answers == ["script"]
        assert await read(replace(request, text="hello")) == "script"

    asyncio.run(run())


def test_workers_that_cannot_be_started_count_against_no_text():
    frontend = RemoteFrontend(Texts(*[EngineDead("no text worker can be started")] * 4, "script"))
    read = read_with(Quarantine(), frontend)

    async def run() -> None:
        for _ in range(2):
            with pytest.raises(EngineDead):
                await read(SynthesisRequest("r", "hi", "v"))
        assert await read(SynthesisRequest("r", "hi", "v")) == "script"

    asyncio.run(run())
    assert frontend.breaker.failures == 2


@pytest.mark.parametrize(
    "error",
    [DeploymentUnavailableError(DeploymentID("Vocoder")), ActorDiedError(), RayActorError()],
    ids=["no replica", "died without a name", "failed without a name"],
)
def test_only_the_death_of_a_replica_with_a_known_id_counts_against_a_request(error):
    passing = count(0.0, 10.0)
    answers = Unary(*[error] * 6)

    async def work() -> None:
        for _ in range(3):
            with pytest.raises(EngineDead):
                await RemoteDecoder(answers).traits()

    quarantine, results = observe(work, clock=lambda: next(passing))
    assert (results, quarantine.quarantined) == ([None], 0)
    assert answers.answers == []


def sequence(cuts: list[Position]) -> list[StepBlock]:
    """Returns a sequence cut at these positions; the value of each step and of each sample is its place."""
    blocks = []
    for begin, end in pairwise((Position(), *cuts)):
        hidden = np.arange(begin.step, end.step, dtype=np.float32)[:, None]
        samples = np.arange(begin.sample, end.sample, dtype=np.float32)
        finish = FinishReason.EOS if end is cuts[-1] else None
        blocks.append(
            StepBlock(hidden, hidden.astype(np.int64), begin.step, finish, samples=samples, first_sample=begin.sample)
        )
    return blocks


def cuts_of(steps: list[int], samples: list[int]) -> list[Position]:
    return [*starmap(Position, zip(sorted(steps), sorted(samples), strict=False)), Position(20, 30)]


cut = st.builds(cuts_of, st.lists(st.integers(0, 20), max_size=6), st.lists(st.integers(0, 30), max_size=6))


@given(cut, cut, st.data())
def test_two_tries_make_one_sequence(first, second, data):
    """The second try makes the same steps and samples in other pieces; what the first one delivered is left out."""
    heard = data.draw(st.integers(0, len(first) - 1))
    delivered = sequence(first)[:heard]
    position = delivered[-1].end if delivered else Position()
    rest = [block.after(position) for block in sequence(second)]
    kept = [*delivered, *(block for block in rest if not block.is_empty)]
    assert np.concatenate([block.hidden[:, 0] for block in kept]).tolist() == list(range(20))
    assert np.concatenate([block.samples for block in kept]).tolist() == list(range(30))
    for block in kept:
        assert len(block.hidden) == len(block.codes)
        assert not len(block.hidden) or block.first_step == block.hidden[0, 0]
        assert not len(block.samples) or block.first_sample == block.samples[0]
    assert [block.finish is FinishReason.EOS for block in kept] == [False] * (len(kept) - 1) + [True]


@pytest.mark.parametrize("error", [NonFiniteOutput("nan"), AtCapacity("full", retry_after_s=7.5), EngineDead("dead")])
def test_errors_cross_processes_as_they_were(error):
    wrapped = RayTaskError("f", "traceback", error).as_instanceof_cause()
    back = to_domain(wrapped)
    assert type(back) is type(error)
    assert back.message == error.message
    assert type(pickle.loads(pickle.dumps(error))) is type(error)  # noqa: S301 - our own bytes
    if isinstance(error, AtCapacity):
        assert back.retry_after_s == 7.5


def test_serves_own_errors_become_the_domains():
    full = to_domain(BackPressureError(3, 2, 429, 4.0))
    assert isinstance(full, AtCapacity)
    assert full.retry_after_s == 4.0
    assert type(to_domain(RayActorError())) is EngineDead
    assert type(to_domain(RuntimeError("x"))) is EngineFault
    assert "x" not in to_domain(RuntimeError("x")).message.split()


def test_another_replica_follows_the_text_where_one_died_and_a_refusal_is_raised():
    followed = Followed(np.zeros(1, np.int64), np.zeros(1, np.int64))
    answers: list[object] = [gone(1), followed, None, EngineFault("broken")]
    asked: list[tuple[object, ...]] = []

    async def follow(*arguments: object) -> object:
        asked.append(arguments)
        answer = answers.pop(0)
        if isinstance(answer, ActorUnavailableError):
            raise answer
        return answer

    follower = RemoteFollower(local_handle(follow=follow))
    prompt, codes = make_prompt(), np.zeros((3, 4), np.int64)
    assert asyncio.run(follower.follow(prompt, codes, (1, 4), ended=True)) is followed
    assert asked == 2 * [(prompt, codes, (1, 4), True)]
    assert asyncio.run(follower.follow(prompt, codes, (1, 4), ended=False)) is None
    with pytest.raises(EngineFault):
        asyncio.run(follower.follow(prompt, codes, (1, 4), ended=False))
