"""Two replicas, clients and a store that fails at any call: every job ends, is charged once, and has its record's files.

A driver draws from a seed, which a failure prints: what clients do, which call of the store fails before or after its work,
when a replica dies, when the disk is full, and, on a real Redis, when it is killed. Then the trouble ends, and all is counted.
"""

import asyncio
import contextlib
import errno
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import pytest

from pipeline.books import job_files
from pipeline.errors import StoreUnavailable, SynthesisError
from pipeline.store.open import open_store
from pipeline.store.store import Store
from serve.access.api_keys import Quota
from serve.access.caller import Caller
from serve.access.quotas import LocalQuotas
from serve.config.jobs import JobsConfig
from serve.errors import ApiError
from serve.jobs import intake, runner
from serve.jobs.body import JobBody, PartBody
from serve.jobs.record import JobStatus
from serve.jobs.runner import JobRunner, tidy
from serve.jobs.service import JobService
from serve.speech.job import RequestContext
from tests.support.effort import examples
from tests.support.fakes import Speaker, make_speech_services
from tests.support.services import RedisServer
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

T = TypeVar("T")

TEXT = "The first words.\n\nMore words follow.\n\nThe last words."
STEPS = 24
QUOTA = Quota(requests_per_s=None, streams=None, characters_a_day=1_000_000)
REFUSALS = (SynthesisError, ApiError)


class Died(Exception):
    """Stands for the end of a process: nothing of it reaches the store any more."""


@dataclass
class Trouble:
    """What goes wrong at the calls of all replicas, while it is on."""

    chance: random.Random
    redis: RedisServer | None = None
    is_on: bool = True
    calls_away: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def drawn(self, share: float) -> bool:
        return self.is_on and self.chance.random() < share

    def passes(self) -> None:
        """Kills Redis before a call, or starts it again."""
        if self.redis is None:
            return
        with self.lock:
            if self.calls_away:
                self.calls_away -= 1
                if not self.calls_away:
                    self.redis.start()
            elif self.drawn(0.01):
                self.redis.kill()
                self.calls_away = self.chance.randint(1, 5)

    def ends(self) -> None:
        self.is_on = False
        with self.lock:
            if self.redis is not None and self.calls_away:
                self.calls_away = 0
                self.redis.start()


class TroubledStore:
    """The store of one replica."""

    def __init__(self, store: Store, trouble: Trouble) -> None:
        self.place = store.place
        self.is_dead = False
        self._store = store
        self._trouble = trouble

    def put(self, *args: Any, **names: Any) -> int:
        return self._call(lambda: self._store.put(*args, **names), is_write=True)

    def delete(self, *args: Any) -> bool:
        return self._call(lambda: self._store.delete(*args), is_write=True)

    def get(self, *args: Any) -> Any:
        return self._call(lambda: self._store.get(*args))

    def changes(self, *args: Any) -> Any:
        return self._call(lambda: self._store.changes(*args))

    def close(self) -> None:
        self._store.close()

    def _call(self, call: Callable[[], T], *, is_write: bool = False) -> T:
        trouble = self._trouble
        trouble.passes()
        self.is_dead = self.is_dead or trouble.drawn(0.01)
        if self.is_dead:
            raise Died
        if trouble.drawn(0.05):
            raise StoreUnavailable("away")
        answer = call()
        self.is_dead = self.is_dead or trouble.drawn(0.01)
        if self.is_dead:
            raise Died
        if is_write and trouble.drawn(0.1):
            raise StoreUnavailable("its answer is lost", outcome_unknown=True)
        return answer


class Replica:
    """A service and a runner, as one process has them."""

    def __init__(self, url: str, folder: Path, trouble: Trouble) -> None:
        speech = make_speech_services(Speaker(chunks=1))
        self.store = TroubledStore(open_store(url), trouble)
        self.service = JobService(JobsConfig.varied({"lease_s": 0.5, "max_jobs_per_key": 2}), self.store, folder, speech)
        self._running = asyncio.create_task(JobRunner(self.service, speech, look_s=0.02).run())

    async def end(self) -> None:
        self.store.is_dead = True
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)
        self.store.close()


@dataclass
class Known:
    """What a client knows of its job."""

    caller: Caller
    id: str = ""
    charged: int = 0
    unsure: int = 0
    """more or fewer that may be charged: a replica died meanwhile"""
    is_deleted: bool = False


class Clients:
    """What the clients do, and what they have been told."""

    def __init__(self, url: str, folder: Path, trouble: Trouble) -> None:
        self.quotas = LocalQuotas()
        self.jobs: list[Known] = []
        self._make = lambda: Replica(url, folder, trouble)
        self.replicas = [self._make(), self._make()]
        self._chance = trouble.chance

    async def step(self) -> None:
        """One thing that one client does, beside everything that goes on."""
        for place, replica in enumerate(self.replicas):
            if replica.store.is_dead:
                await replica.end()
                self.replicas[place] = self._make()
        done = [known for known in self.jobs if known.id and not known.is_deleted]
        action = self._chance.choice((self.create, self.create, self.speak_again, self.move, self.move, self.delete))
        if action == self.create or not done:
            await self.create()
        else:
            await action(self._chance.choice(done))  # type: ignore[call-arg, arg-type]
        await asyncio.sleep(self._chance.random() * 0.05)

    async def create(self) -> None:
        """One request, or two equal ones at once at two replicas."""
        known = Known(Caller(f"key-{len(self.jobs)}", quota=QUOTA, quotas=self.quotas))
        self.jobs.append(known)
        text = f"{TEXT} This is job {len(self.jobs)}."
        body = JobBody(input=text, response_format=self._chance.choice(("wav", "flac")), seed=1, voice="default")
        key = self._chance.choice((None, "once"))
        context = RequestContext("id", known.caller, idempotency_key=key)
        services = (
            [self._chance.choice(self.replicas).service] if key is None else [replica.service for replica in self.replicas]
        )
        calls = [service.of(context).create(body, text.encode()) for service in services]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        jobs = {answer[0].id: answer[0] for answer in answers if not isinstance(answer, BaseException)}
        others = [
            answer for answer in answers if isinstance(answer, BaseException) and not isinstance(answer, (*REFUSALS, Died))
        ]
        assert not others, others
        assert len(jobs) <= 1, "equal requests make one job"
        for job in jobs.values():
            known.id, known.charged = job.id, job.record.characters
        if any(isinstance(answer, Died) for answer in answers):
            known.unsure = len(text)

    async def speak_again(self, known: Known) -> None:
        service, context = self._chance.choice(self.replicas).service, RequestContext("id", known.caller)
        text = f"Words of {self._chance.randrange(10**9)} letters."  # equal words cost nothing
        with self._noted(known, len(text)):
            await service.of(context).speak_again(known.id, self._chance.randrange(3), PartBody(text=text))
            known.charged += len(text)

    async def move(self, known: Known) -> None:
        own = self._chance.choice(self.replicas).service.of(RequestContext("id", known.caller))
        move = self._chance.choice((own.pause, own.resume, own.resume, own.cancel))
        with self._noted(known):
            await move(known.id)

    async def delete(self, known: Known) -> None:
        service = self._chance.choice(self.replicas).service
        known.is_deleted = True  # a refusal leaves it or not
        with self._noted(known):
            await service.of(RequestContext("id", known.caller)).delete(known.id)

    @contextlib.contextmanager
    def _noted(self, known: Known, characters: int = 0) -> Iterator[None]:
        try:
            yield
        except REFUSALS:
            pass
        except Died:
            known.unsure += characters


async def drive(url: str, folder: Path, trouble: Trouble) -> None:
    clients = Clients(url, folder, trouble)
    for _ in range(STEPS):
        await clients.step()
    trouble.ends()
    for replica in clients.replicas:
        await replica.end()
    clients.replicas = [Replica(url, folder, trouble) for _ in range(2)]
    await ended(clients.replicas[0].service)
    for replica in clients.replicas:
        await replica.end()
    fresh = JobService(JobsConfig(), open_store(url), folder, make_speech_services(Speaker()))
    with mock.patch.object(runner, "CLAIM_S", 0.0):  # the dead have left claims
        await tidy(fresh)
    check(clients, fresh)
    for known in clients.jobs:
        charged = await clients.quotas.characters_today(known.caller.id)
        assert abs(charged - known.charged) <= known.unsure, (known, charged)


async def ended(service: JobService) -> None:
    """Returns once each job has an end; what is paused goes on."""

    def is_over() -> bool:
        try:
            jobs = service.records.refresh().values()
            for job in jobs:
                if job.record.status is JobStatus.PAUSED:
                    service.records.move(job.id, JobStatus.QUEUED, among=(JobStatus.PAUSED,))
        except StoreUnavailable:  # the machine is slow
            return False
        return all(job.record.is_finished or job.record.status is JobStatus.ACCEPTING for job in jobs)

    try:
        await until(is_over, 60.0)
    except AssertionError:
        raise AssertionError([job for job in service.records.refresh().values() if not job.record.is_finished]) from None


def check(clients: Clients, fresh: JobService) -> None:
    jobs = fresh.records.refresh()
    ids = {known.id for known in clients.jobs if known.id and not known.is_deleted}
    assert ids <= jobs.keys(), "no job is lost"
    unsure = {known.caller.id for known in clients.jobs if known.unsure or known.is_deleted}
    assert all(job.id in ids or job.record.tenant in unsure for job in jobs.values()), "no job is made for a refusal"
    for job in jobs.values():
        record, files = job.record, fresh.files(job.id)
        assert record.status in (JobStatus.SUCCEEDED, JobStatus.CANCELLED), record
        script = files.script(record.script)
        if record.status is JobStatus.SUCCEEDED:
            assert files.lengths().keys() >= set(script.keys), "its samples are there"
            assert not record.result or files.result_file(record.result).exists(), "its file is there"
    assert {path.name for path in fresh.folders()} <= jobs.keys(), "nothing is kept without a record"


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> list[Trouble]:
    """Writes of files fail now and then while a trouble is on."""
    troubles: list[Trouble] = []
    write = job_files.write_durably

    def write_or_not(*args: Any, **names: Any) -> None:
        if troubles and troubles[-1].drawn(0.03):
            raise OSError(errno.ENOSPC, "No space left on device")
        write(*args, **names)

    monkeypatch.setattr(job_files, "write_durably", write_or_not)
    monkeypatch.setattr(runner.LOG, "disabled", True)
    monkeypatch.setattr(intake, "ASK_AGAIN_S", 0.01)
    monkeypatch.setattr(intake, "ANSWER_S", 60.0)
    monkeypatch.setattr(runner, "LONGEST_RETRY_S", 0.1)
    monkeypatch.setattr("serve.jobs.active_job.FIRST_RETRY_S", 0.01)
    monkeypatch.setattr("serve.jobs.active_job.LONGEST_RETRY_S", 0.1)
    return troubles


@pytest.mark.parametrize(("kind", "usual"), [("sqlite", 6), ("redis", 2)])
def test_whatever_fails_every_job_ends_once(
    tmp_path: Path, kind: str, usual: int, full_disk: list[Trouble], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("serve.jobs.job_claims.LEAST_SHARED", 1)
    monkeypatch.setattr("serve.jobs.active_job.LONGEST_CLAIM_S", 0.3)
    for seed in range(examples(usual)):
        folder = tmp_path / f"{seed}"
        folder.mkdir()
        redis = RedisServer(folder) if kind == "redis" else None
        trouble = Trouble(random.Random(seed), redis)
        full_disk.append(trouble)
        try:
            asyncio.run(drive(redis.url if redis else str(folder / "store.sqlite"), folder / "jobs", trouble))
        except BaseException:
            print(f"seed {seed}, {kind}")
            raise
        finally:
            if redis is not None:
                redis.kill()
