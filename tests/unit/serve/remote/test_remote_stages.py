"""The adapters over handles: what is tried again and goes on at the exact sample, what is not, and what is cancelled."""

import asyncio
import contextlib
import pickle
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from itertools import count

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayActorError, RayTaskError
from ray.serve._private.common import DeploymentID
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError

from pipeline.errors import (
    AtCapacity,
    DeadlineUnmeetable,
    EngineDead,
    EngineFault,
    NonFiniteOutput,
    OtherBuild,
    RequestQuarantined,
    StageUnavailable,
    SynthesisError,
    WorkerDied,
)
from pipeline.types import (
    Admission,
    FinishReason,
    Followed,
    Lane,
    Position,
    Prompt,
    SamplingParams,
    SchedulingParams,
    StepBlock,
    SynthesisRequest,
)
from serve.observability.stage_timings import CURRENT_TIMINGS, StageTimings
from serve.remote.remote_handle import RemoteHandle, to_domain
from serve.resilience import circuit_breaker
from serve.resilience.circuit_breaker import Breaker
from serve.resilience.quarantine import CURRENT_REQUEST, Quarantine
from serve.stages import stage_clients
from serve.stages.replica_table import ReplicaTable, Route
from serve.stages.stage_clients import StageDecoder, StageFollower, StageFrontend, StageGenerator
from serve.stages.taken_over import MOST_FAIL_OVERS
from tests.support.factories import make_prompt, make_report

STEPS, WIDTH, SAMPLES_PER_STEP, DELAY = 24, 3, 5, 4
HIDDEN = np.random.default_rng(1).standard_normal((STEPS, WIDTH)).astype(np.float32)
CODES = np.random.default_rng(2).integers(0, 600, (STEPS, 4))
SAMPLES = np.random.default_rng(3).standard_normal(STEPS * SAMPLES_PER_STEP).astype(np.float32)

Items = list[object]


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch):
    monkeypatch.setattr(stage_clients, "BACK_OFF_S", 0.0)


def spoken(cuts: Sequence[int], *, samples: bool, build: str = "a") -> Items:
    """The sequence in blocks that end at these steps, as a replica sends them; samples lag behind their steps."""
    blocks: Items = []
    begin = sample = 0
    for stop in sorted({*cuts, STEPS}):
        ready = (STEPS if stop == STEPS else max(0, stop - DELAY)) * SAMPLES_PER_STEP
        blocks.append(
            StepBlock(
                HIDDEN[begin:stop],
                CODES[begin:stop],
                begin,
                FinishReason.EOS if stop == STEPS else None,
                Admission(0.1, 0.2) if begin == 0 else None,
                build if begin == 0 or stop == STEPS else "",
                SAMPLES[sample:ready] if samples else None,
                sample if samples else 0,
            )
        )
        begin, sample = stop, ready
    return blocks


class Replicas:
    """A deployment whose calls land on one replica after the other; an exception stands where one fails."""

    def __init__(self, *answers: Items) -> None:
        self.answers = list(answers)
        self.calls: list[tuple[Prompt, bool]] = []
        self.timeouts_s: list[float] = []
        self.routes: list[Route] = []
        self.cancelled = 0
        self.generate = self

    def options(self, **options: object) -> "Replicas":
        return self

    def remote(
        self, prompt: Prompt, sampling: object, timeout_s: float, admitted: bool, trace: str, route: Route
    ) -> "Replicas":
        self.calls.append((prompt, admitted))
        self.routes.append(route)
        self.timeouts_s.append(timeout_s)
        return self

    async def __aiter__(self) -> AsyncIterator[object]:
        for item in self.answers[len(self.calls) - 1]:
            await asyncio.sleep(0)
            if isinstance(item, asyncio.Event):
                await item.wait()
            elif isinstance(item, Exception) and not isinstance(item, SynthesisError):
                raise item
            else:
                yield item

    def cancel(self) -> None:
        self.cancelled += 1


class Unary:
    """A text stage or a vocoder whose calls land on one replica after the other."""

    def __init__(self, *answers: object) -> None:
        self.answers = list(answers)
        self.traits = self.ask = self.follow = self
        self.calls: list[tuple[object, ...]] = []

    def options(self, **options: object) -> "Unary":
        return self

    async def remote(self, *arguments: object, trace: str = "") -> object:
        self.calls.append(arguments)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception) and not isinstance(answer, SynthesisError):
            raise answer
        return answer


def gone(number: int) -> ActorUnavailableError:
    """What is heard first of a replica on a machine that has died."""
    return ActorUnavailableError("connection refused", bytes([number]) * 16)


def generate(
    replicas: Replicas, prompt: Prompt | None = None, timeout_s: float = 5.0, table: ReplicaTable | None = None
) -> AsyncGenerator[StepBlock, None]:
    generator = StageGenerator(RemoteHandle(replicas, table))
    return generator.generate(prompt or make_prompt(), SamplingParams(), timeout_s=timeout_s)


def listen(
    replicas: Replicas, prompt: Prompt | None = None, timings: StageTimings | None = None, table: ReplicaTable | None = None
) -> list[StepBlock]:
    async def collect() -> list[StepBlock]:
        with Quarantine().admit(b"digest") as tracked:
            CURRENT_REQUEST.set(tracked)
            CURRENT_TIMINGS.set(timings)
            async with aclosing(generate(replicas, prompt, table=table)) as blocks:
                return [block async for block in blocks]

    return asyncio.run(collect())


def is_whole(blocks: list[StepBlock], *, samples: bool) -> bool:
    """Every step and sample once and in order, and one end."""
    at = Position()
    for block in blocks:
        assert block.first_step == at.step
        assert not samples or block.first_sample == at.sample
        at = block.end
    assert [block.finish is not None for block in blocks] == [False] * (len(blocks) - 1) + [True]
    codes = np.concatenate([block.codes for block in blocks])
    hidden = np.concatenate([block.hidden for block in blocks])
    samples_read = np.concatenate([block.samples for block in blocks]) if samples else SAMPLES
    return np.array_equal(codes, CODES) and np.array_equal(hidden, HIDDEN) and np.array_equal(samples_read, SAMPLES)


def deaths(number: int) -> Iterator[Exception]:
    """Each of another replica."""
    for serial in range(number):
        yield (EngineDead("the loop died"), ActorUnavailableError("gone", bytes([serial]) * 16), ActorDiedError())[serial % 3]


cuts = st.lists(st.integers(1, STEPS - 1), min_size=1, max_size=8)
lives = st.lists(st.tuples(cuts, st.integers(0, 8)), min_size=1, max_size=MOST_FAIL_OVERS)


@given(lives=lives, last=cuts, samples=st.booleans())
def test_a_segment_goes_on_exactly_wherever_its_replicas_die(lives, last, samples):
    """Every replica but the last dies after any of its blocks, the first one after one at least."""
    answers: list[Items] = []
    for (ends, most), death in zip(lives, deaths(len(lives)), strict=True):
        blocks = spoken(ends, samples=samples)
        answers.append([*blocks[: min(max(most, not answers), len(blocks) - 1)], death])
    replicas = Replicas(*answers, spoken(last, samples=samples))
    assert is_whole(listen(replicas), samples=samples)
    assert replicas.cancelled == len(replicas.calls) == len(answers) + 1, "every call is closed"


def test_a_continued_segment_is_urgent_and_admitted():
    prompt = replace(make_prompt(), scheduling=SchedulingParams(Lane.STANDARD, first_audio_s=3.0))
    replicas = Replicas([*spoken([8], samples=False)[:1], ActorDiedError()], spoken([8], samples=False))
    listen(replicas, prompt)
    (first, admitted), (second, again) = replicas.calls
    assert (first, admitted) == (prompt, False)
    assert (second.scheduling.lane, second.scheduling.first_audio_s, again) == (Lane.INTERACTIVE, None, True)
    bulk = replace(make_prompt(), scheduling=SchedulingParams(Lane.BULK))
    replicas = Replicas([*spoken([8], samples=False)[:1], ActorDiedError()], spoken([8], samples=False))
    listen(replicas, bulk)
    assert replicas.calls[1][0].scheduling.lane is Lane.BULK


def test_another_build_does_not_go_on_with_it():
    begun = spoken([8, 16], samples=False)[:2]
    replicas = Replicas([*begun, ActorDiedError()], spoken([8], samples=False, build="b"), spoken([8], samples=False))
    with pytest.raises(EngineDead, match="another build"):
        listen(replicas)
    assert len(replicas.calls) == 2


def table_of(*names: str) -> ReplicaTable:
    table = ReplicaTable()
    table.set_replicas(names)
    return table


def refusal(replica: str, kind: type[AtCapacity] = AtCapacity) -> AtCapacity:
    error = kind("full", retry_after_s=2.0)
    error.replica = replica
    return error


@pytest.mark.parametrize("kind", [AtCapacity, DeadlineUnmeetable])
def test_a_refusal_is_followed_by_one_more_try_elsewhere(kind: type[AtCapacity]):
    table, whole = table_of("r1", "r2", "r3"), spoken([8], samples=False)
    replicas = Replicas([refusal("r1", kind)], whole)
    assert is_whole(listen(replicas, table=table), samples=False)
    assert replicas.routes == [Route(), Route(avoid=("r1",))]
    replicas = Replicas([refusal("r1", kind)], [refusal("r2", kind)], whole)
    with pytest.raises(kind):
        listen(replicas, table=table)
    assert len(replicas.calls) == 2
    alone = Replicas([refusal("r1", kind)], whole)
    with pytest.raises(kind):
        listen(alone, table=table_of("r1"))
    assert len(alone.calls) == 1
    last = table_of("r1")
    with contextlib.suppress(kind):
        listen(Replicas([refusal("r1", kind)]), table=last)
    assert (kind is AtCapacity) == is_full(last), "a promise that cannot be kept says nothing about others"


def is_full(table: ReplicaTable) -> bool:
    try:
        table.check_room(make_prompt().scheduling.lane)
    except AtCapacity:
        return True
    return False


def test_what_has_begun_goes_on_with_its_build_wherever_that_is():
    table, whole = table_of("r1", "r2", "r3", "r4"), spoken([8, 16], samples=False)
    other = [OtherBuild("of another build", replica=name, build="b") for name in ("r2", "r3")]
    replicas = Replicas([*whole[:1], ActorDiedError()], [other[0]], [other[1]], whole)
    assert is_whole(listen(replicas, table=table), samples=False)
    assert replicas.routes == [Route(), *[Route(build="a")] * 3]
    assert table.order(Lane.STANDARD, 1, lambda name: 0, Route(build="a")) in (["r1", "r4"], ["r4", "r1"])
    replicas = Replicas([*whole[:1], ActorDiedError()], *[[entry] for entry in other])
    with pytest.raises(OtherBuild):
        listen(replicas, table=table_of("r2", "r3"))
    assert len(replicas.calls) == 3


def test_a_report_reaches_the_table_of_the_replicas():
    table, whole = table_of("r1", "r2"), spoken([8], samples=False)
    listen(Replicas([replace(whole[0], report=make_report("r2")), *whole[1:]]), table=table)
    assert table.reports == [make_report("r2")]


def test_failing_over_ends_with_the_last_replica():
    begun = [*spoken([8], samples=False)[:1], ActorDiedError()]
    replicas = Replicas(*[begun] * (2 + MOST_FAIL_OVERS))
    with pytest.raises(EngineDead):
        listen(replicas)
    assert len(replicas.calls) == 1 + MOST_FAIL_OVERS


def test_what_it_took_is_measured():
    timings = StageTimings()
    begun = spoken([8, 12], samples=False)[:2]
    listen(Replicas([*begun, ActorDiedError()], spoken([6], samples=False)), timings=timings)
    assert (timings.fail_overs, timings.repeated_steps) == (1, 12)
    assert timings.interrupted_s >= 0
    assert timings.steps == STEPS, "no step counts twice"
    assert timings.summary()["fail_overs"] == 1
    quiet = StageTimings()
    listen(Replicas(spoken([8], samples=False)), timings=quiet)
    assert "fail_overs" not in quiet.summary()


@pytest.mark.parametrize("death", [ActorDiedError(), EngineDead("the loop died")], ids=["process", "engine"])
def test_a_replica_that_dies_before_its_first_block_is_replaced_in_the_time_left(death):
    replicas = Replicas([death], spoken([8], samples=False, build="b"))
    assert is_whole(listen(replicas), samples=False), "any build may speak"
    assert replicas.timeouts_s[1] <= replicas.timeouts_s[0] <= 5
    assert replicas.cancelled == 2


@pytest.mark.parametrize(
    ("answers", "timeout_s", "error"),
    [
        ([ActorDiedError()], 0.0, EngineDead),  # a second try needs time left
        ([ActorDiedError(), ActorDiedError()], 5.0, EngineDead),
        ([AtCapacity("full", retry_after_s=2)], 5.0, AtCapacity),
        ([NonFiniteOutput("NaN")], 5.0, NonFiniteOutput),
    ],
)
def test_before_the_first_block_a_death_is_tried_once_more_and_a_refusal_never(answers, timeout_s, error):
    replicas = Replicas(*([answer] for answer in answers), spoken([8], samples=False))
    with pytest.raises(error):
        asyncio.run(anext(generate(replicas, timeout_s=timeout_s)))
    assert len(replicas.calls) == len(answers)


def test_an_open_breaker_asks_no_replica(monkeypatch):
    monkeypatch.setattr(circuit_breaker, "MIN_FAILURES", 1)
    breaker, replicas = Breaker("acoustic"), Replicas()
    with pytest.raises(EngineDead), breaker.watch():
        raise EngineDead("dead")
    with pytest.raises(StageUnavailable):
        asyncio.run(
            anext(StageGenerator(RemoteHandle(replicas), breaker).generate(make_prompt(), SamplingParams(), timeout_s=5))
        )
    assert replicas.calls == []


async def test_a_reader_that_leaves_cancels_the_call():
    replicas = Replicas(spoken([8], samples=False))

    async with aclosing(generate(replicas)) as blocks:
        await anext(blocks)
    assert replicas.cancelled == 1


# Deaths on record.


class Stop(Exception):
    """A request that ends without having been spoken to its end: nothing clears it."""


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


def read_with(quarantine: Quarantine, frontend: StageFrontend) -> Callable[[SynthesisRequest], Awaitable[object]]:
    async def read(request: SynthesisRequest) -> object:
        with quarantine.track(request):
            return await frontend.read(request)

    return read


def generating(replicas: Replicas) -> Callable[[], Awaitable[object]]:
    async def collect() -> bool:
        async with aclosing(generate(replicas)) as blocks:
            return is_whole([block async for block in blocks], samples=False)

    return collect


def whole() -> Items:
    return spoken([8], samples=False)


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 20)), min_size=2, max_size=6))
def test_the_loss_of_a_machine_with_several_replicas_of_a_stage_quarantines_no_request(segments):
    """Segments in replicas of one machine; some are told of its end when others have long begun anew elsewhere."""
    events = [asyncio.Event() for _ in segments]

    async def tell() -> None:
        for event, (_, pause) in zip(events, segments, strict=True):
            event.set()
            for _ in range(pause):
                await asyncio.sleep(0)

    handles = [
        Replicas([whole()[0], event, gone(number)], whole()) for event, (number, _) in zip(events, segments, strict=True)
    ]
    quarantine, results = observe(*(generating(handle) for handle in handles), tell)
    assert results[:-1] == [True] * len(segments)
    assert quarantine.quarantined == 0


@pytest.mark.parametrize("first", ["generator", "decoder"])
def test_a_request_that_ended_two_replicas_of_a_stage_is_tried_no_more(first):
    handle, later = Replicas([gone(1)], [gone(2)]), Replicas([gone(3)], whole())
    answers = Unary(gone(1), gone(2), gone(3), "traits")

    async def work() -> None:
        for calls in (2, 3):
            with pytest.raises(EngineDead):
                await (
                    generating(handle if calls == 2 else later)()
                    if first == "generator"
                    else StageDecoder(RemoteHandle(answers)).traits()
                )
            assert len(handle.timeouts_s) + len(later.timeouts_s) + 4 - len(answers.answers) == calls

    quarantine, results = observe(work)
    assert results == [None]
    assert quarantine.quarantined == 1


def test_a_text_whose_worker_dies_is_read_once_more():
    texts = Unary(WorkerDied("ended", worker="a"), "script")
    frontend = StageFrontend(RemoteHandle(texts))

    async def work() -> object:
        return await frontend.read(SynthesisRequest("r", "hi", "v"))

    quarantine, results = observe(work)
    assert (results, quarantine.quarantined) == (["script"], 0)
    assert (frontend.breaker.retries, frontend.breaker.failures) == (1, 0)


async def test_a_text_that_ends_two_workers_is_a_503_and_read_by_no_third():
    texts = Unary(WorkerDied("ended", worker="a"), WorkerDied("ended", worker="b"), "script")
    frontend = StageFrontend(RemoteHandle(texts))
    read = read_with(Quarantine(), frontend)
    request = SynthesisRequest("r", "hi", "v")

    with pytest.raises(WorkerDied):
        await read(request)
    with pytest.raises(RequestQuarantined):
        await read(request)
    assert texts.answers == ["script"]
    assert await read(replace(request, text="hello")) == "script"


async def test_workers_that_cannot_be_started_count_against_no_text():
    frontend = StageFrontend(RemoteHandle(Unary(*[EngineDead("no text worker can be started")] * 4, "script")))
    read = read_with(Quarantine(), frontend)

    for _ in range(2):
        with pytest.raises(EngineDead):
            await read(SynthesisRequest("r", "hi", "v"))
    assert await read(SynthesisRequest("r", "hi", "v")) == "script"
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
                await StageDecoder(RemoteHandle(answers)).traits()

    quarantine, results = observe(work, clock=lambda: next(passing))
    assert (results, quarantine.quarantined) == ([None], 0)
    assert answers.answers == []


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
    follow = Unary(gone(1), followed, None, EngineFault("broken"))
    follower = StageFollower(RemoteHandle(follow))
    prompt, codes = make_prompt(), np.zeros((3, 4), np.int64)
    assert asyncio.run(follower.follow(prompt, codes, (1, 4), ended=True)) is followed
    assert follow.calls == 2 * [(prompt, codes, (1, 4), True)]
    assert asyncio.run(follower.follow(prompt, codes, (1, 4), ended=False)) is None
    with pytest.raises(EngineFault):
        asyncio.run(follower.follow(prompt, codes, (1, 4), ended=False))
