"""What gets into the queue: once, charged once, within the limits, or not at all; whichever request, at whichever moment."""

import asyncio
import errno
import threading
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from pipeline.books.job_files import JobFiles
from pipeline.errors import AtCapacity, Conflict, ShareUsedUp, StoreFull, StoreUnavailable, SynthesisError
from pipeline.store.open import open_store
from serve.access.api_keys import Quota
from serve.access.caller import Caller
from serve.access.quotas import Charge, LocalQuotas, QuotaDecision, today
from serve.config.jobs import JobsConfig
from serve.errors import ApiError
from serve.jobs import intake, service
from serve.jobs.body import JobBody, PartBody
from serve.jobs.document import MOST_IN_HAND
from serve.jobs.record import JobStatus
from serve.jobs.records import Job
from serve.jobs.runner import tidy
from serve.jobs.service import JobService, JobsOf
from serve.speech.job import RequestContext
from tests.support.fakes import Speaker, make_speech_services

TEXT = "The first words.\n\nMore words follow."


class Clients:
    """Two replicas with one store, and one key."""

    def __init__(self, folder: Path, quota: int = 1000, **config: int) -> None:
        self.quotas = LocalQuotas()
        self.caller = Caller("anna", quota=Quota(requests_per_s=None, streams=None, characters_a_day=quota), quotas=self.quotas)
        self.folder = folder / "jobs"
        self.services = [
            JobService(
                JobsConfig(**config), open_store(str(folder / "store.sqlite")), self.folder, make_speech_services(Speaker())
            )
            for _ in range(2)
        ]

    async def create(self, place: int = 0, key: str | None = None, text: str = TEXT) -> Job:
        body = JobBody(input=text, seed=1, voice="default")
        context = RequestContext("id", self.caller, idempotency_key=key)
        return (await self.services[place % 2].of(context).create(body, text.encode()))[0]

    async def speak_again(self, job: Job, seed: int = 2) -> Job:
        return await self.jobs_of(0).speak_again(job.id, 0, PartBody(seed=seed))

    def jobs_of(self, place: int) -> JobsOf:
        return self.services[place].of(RequestContext("id", self.caller))

    async def charged(self) -> int:
        return await self.quotas.characters_today("anna")

    def jobs(self) -> dict[str, Job]:
        return self.services[0].records.refresh()


async def test_equal_requests_at_once_are_one_job_one_charge_and_equal_answers(tmp_path: Path):
    clients = Clients(tmp_path)
    answers = await asyncio.gather(*(clients.create(place, "book") for place in range(6)))
    assert len({job.id for job in answers}) == 1
    assert await clients.charged() == answers[0].record.characters
    with pytest.raises(ApiError, match="another body"):
        await clients.create(0, "book", "Other words.")


def refuses(error: Exception) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise error

    return refuse


@pytest.mark.parametrize("step", ["claim", "disk", "quota of the disk", "queued", "charge"])
async def test_what_is_refused_leaves_nothing_and_costs_nothing(tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch):
    clients = Clients(tmp_path, quota=len(TEXT) if step != "charge" else 5)
    records = clients.services[0].records
    broken = {
        "claim": (records, "create", StoreFull("full")),
        "disk": (JobFiles, "keep_script", OSError(errno.ENOSPC, "No space left on device")),
        "quota of the disk": (JobFiles, "keep_script", OSError(errno.EDQUOT, "Disk quota exceeded")),
        "queued": (records, "change", StoreUnavailable("away")),
    }
    with monkeypatch.context() as patched:
        if step in broken:
            place, name, error = broken[step]
            patched.setattr(place, name, refuses(error))
        for key in (None, "once", None):
            with pytest.raises((SynthesisError, ApiError)) as refusal:
                await clients.create(key=key)
            assert isinstance(refusal.value, StoreFull) == (step in ("claim", "disk", "quota of the disk"))
    assert await clients.charged() == 0
    assert clients.jobs() == {}
    assert clients.services[0].folders() == []
    if step != "charge":
        await clients.create(key="once")


async def test_texts_that_wait_to_be_planned_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    clients, may_plan = Clients(tmp_path), threading.Event()

    def plan(body: JobBody, *_: Any) -> str:
        assert may_plan.wait(60)
        return body.input

    async def read(question: Any) -> None:
        pass

    async def planned(number: int) -> Any:
        return await clients.jobs_of(0).plan(JobBody(input=f"{number}"))

    monkeypatch.setattr(service, "plan_job", plan)
    monkeypatch.setattr(clients.services[0].documents, "read", read)
    tasks = [asyncio.create_task(planned(number)) for number in range(MOST_IN_HAND + 8)]
    refused, waiting = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    assert all(isinstance(task.exception(), AtCapacity) for task in refused)
    assert not set(tasks[:MOST_IN_HAND]) & refused, "who came first is planned"
    may_plan.set()
    await asyncio.wait(waiting)
    assert sum(task.exception() is None for task in tasks) == MOST_IN_HAND
    assert await planned(7) == "7"


@pytest.mark.parametrize(
    ("way", "lost"),
    [
        *(("create", lost) for lost in ({0}, {1}, {0, 1})),
        *((way, {0}) for way in ("pause", "cancel", "resume", "again", "delete")),
    ],
)
async def test_a_write_whose_answer_is_lost_is_looked_up_before_anybody_hears_503(tmp_path: Path, way: str, lost: set[int]):
    clients = Clients(tmp_path)
    own, store = clients.jobs_of(0), clients.services[0].records._store
    job = None if way == "create" else await clients.create()
    if way == "resume":
        await own.cancel(job.id)
    before = await clients.charged()

    def losing(call: Callable[..., Any]) -> Callable[..., Any]:
        numbers = count()

        def lose(*args: Any, **names: Any) -> Any:
            answer = call(*args, **names)
            if next(numbers) in lost:
                raise StoreUnavailable("no answer", outcome_unknown=True)
            return answer

        return lose

    store.put, store.delete = losing(store.put), losing(store.delete)  # type: ignore[method-assign]
    if job is None:
        job = await clients.create()
    elif way == "again":
        job = await clients.speak_again(job)
    else:
        await getattr(own, way)(job.id)
    jobs = clients.jobs()
    status = {"pause": "paused", "cancel": "cancelled"}.get(way, "queued")
    assert {job_id: entry.record.status for job_id, entry in jobs.items()} == ({} if way == "delete" else {job.id: status})
    assert way == "delete" or jobs[job.id].record.script == job.record.script
    charge = {"create": job.record.characters, "again": len("The first words.")}
    assert await clients.charged() - before == charge.get(way, 0)


async def test_a_store_that_stays_silent_is_a_503_and_the_job_is_settled_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(intake, "ANSWER_S", 0.3)
    monkeypatch.setattr(intake, "ASK_AGAIN_S", 0.05)
    clients = Clients(tmp_path)
    store = clients.services[0].records._store
    put, get, is_silent = store.put, store.get, []

    def silent_put(*args: Any, **names: Any) -> int:
        version = put(*args, **names)
        if names["replaces"] and not is_silent:
            is_silent.append(True)
            raise StoreUnavailable("no answer", outcome_unknown=True)
        return version

    def silent_get(*args: Any) -> Any:
        if is_silent == [True]:
            raise StoreUnavailable("away")
        return get(*args)

    store.put, store.get = silent_put, silent_get  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailable, match="GET /v1/audio/jobs"):
        await clients.create()
    is_silent.append(False)
    await asyncio.gather(*clients.services[0].intake._tasks)
    (job,) = clients.jobs().values()
    assert job.record.status is JobStatus.QUEUED
    assert await clients.charged() == job.record.characters


@pytest.mark.parametrize("config", [{"max_jobs_per_key": 2}, {"max_jobs": 2}, {"disk_mib": 1}])
@pytest.mark.parametrize("way", ["create", "resume", "again"])
async def test_no_way_into_the_queue_passes_a_limit(tmp_path: Path, config: dict[str, int], way: str):
    text = "A sentence that is long enough to be a part. " * 60 if "disk_mib" in config else TEXT
    clients = Clients(tmp_path, quota=100_000)
    if way == "create":
        calls = [clients.create(place, text=f"{text} {place}") for place in range(8)]
    else:
        jobs = [await clients.create(place, text=f"{text} {place}") for place in range(4)]
        for job in jobs:
            await clients.jobs_of(0).cancel(job.id)
        calls = [clients.jobs_of(place % 2).resume(job.id) for place, job in enumerate(jobs)]
        if way == "again":
            for coroutine in calls:
                coroutine.close()
            calls = [clients.speak_again(job) for job in jobs]
    for replica in clients.services:
        replica.intake._config = JobsConfig(**config)
    before = await clients.charged()
    answers = await asyncio.gather(*calls, return_exceptions=True)
    refused = [answer for answer in answers if isinstance(answer, BaseException)]
    assert refused
    assert all(isinstance(answer, AtCapacity | StoreFull) for answer in refused), refused
    waiting = [job.record for job in clients.jobs().values() if not job.record.is_finished]
    if "disk_mib" in config:
        assert sum(job.record.size for job in clients.jobs().values()) <= 1 << 20 or way != "create"
    else:
        assert len(waiting) <= 2
    spoken = [answer for answer in answers if isinstance(answer, Job)]
    charge = {
        "create": sum(job.record.characters for job in spoken),
        "resume": 0,
        "again": len(spoken) * len(TEXT.split("\n")[0]),
    }
    if "disk_mib" not in config:
        assert await clients.charged() - before == charge[way]


@pytest.mark.parametrize("most", [{"MOST_KEPT": 3}, {}])
async def test_a_key_fills_no_more_than_its_share_of_the_queue(tmp_path: Path, most: dict[str, int]):
    clients = Clients(tmp_path, quota=100_000)
    first = await clients.create()
    for replica in clients.services:
        replica.intake._config = JobsConfig(disk_mib=4)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in most.items():
            patch.setattr(intake, name, value)
        answers = await asyncio.gather(*(clients.create(place) for place in range(8)), return_exceptions=True)
        assert {type(answer) for answer in answers} <= {Job, ShareUsedUp}
        answers = [(await asyncio.gather(clients.create(), return_exceptions=True))[0] for _ in range(8)]
        assert isinstance(answers[-1], ShareUsedUp)
        own = list(clients.jobs().values())
        assert len(own) == (3 if most else (1 << 20) // first.record.size)
        anna, clients.caller = clients.caller, replace(clients.caller, id="bert")
        await clients.create()
        clients.caller = replace(anna, is_operator=True)
        await clients.create()
        clients.caller = anna
        for job in own[:2]:
            await clients.jobs_of(0).delete(job.id)
        await clients.create()


class Settling(LocalQuotas):
    """Quotas of another process than the one that charged."""

    def __init__(self) -> None:
        super().__init__()
        self.charges: list[str] = []
        self.settled: list[str] = []

    async def charge_characters(self, key: str, quota: Quota, characters: int, token: str = "") -> QuotaDecision:
        self.charges.append(token)
        return await super().charge_characters(key, quota, characters, token)

    def settle_characters(self, key: str, quota: Quota, charge: Charge) -> None:
        assert (charge.characters, charge.day) == (len(TEXT.replace("\n", "")), today())
        self.settled.append(charge.token)


@pytest.mark.parametrize("died_at", ["text", "queued", "removal"])
@pytest.mark.parametrize("cleared_by", ["upkeep", "an equal request"])
async def test_removing_a_dead_claim_refunds_its_charge(tmp_path: Path, died_at: str, cleared_by: str):
    clients = Clients(tmp_path)
    quotas = Settling()
    clients.caller = replace(clients.caller, quotas=quotas)
    for replica in clients.services:
        replica.speech = replace(replica.speech, owner=lambda tenant: clients.caller)
    dead, alive = clients.services
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dead.intake, "_keep_text" if died_at == "text" else "_queued", refuses(RuntimeError("died")))
        patch.setattr(dead.intake, "_withdraw", lambda *args: None)
        with pytest.raises(RuntimeError):
            await clients.create(key="once")
    (claim,) = clients.jobs().values()
    if died_at == "removal":
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(dead.records, "remove", refuses(RuntimeError("died")))
            with pytest.raises(RuntimeError):
                await dead.clear(claim)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(alive.records, "now", lambda: claim.record.changed_at + 700.0)
        if cleared_by == "upkeep":
            await tidy(alive)
            await tidy(alive)
            assert clients.jobs() == {}
        else:
            job = await clients.create(1, key="once")
            assert job.record.status is JobStatus.QUEUED
    assert quotas.settled == quotas.charges[:1]
    assert quotas.charges[0]


async def test_of_two_changes_of_a_job_one_is_done_and_charged(tmp_path: Path):
    clients = Clients(tmp_path)
    job = await clients.create()
    answers = await asyncio.gather(*(clients.speak_again(job, seed) for seed in range(2, 7)), return_exceptions=True)
    done = [answer for answer in answers if isinstance(answer, Job)]
    assert len(done) == 1
    assert all(isinstance(answer, Conflict) for answer in answers if answer not in done)
    assert await clients.charged() == job.record.characters + len("The first words.")
    scripts = [path.name for path in clients.services[0].files(job.id).folder.glob("script-*")]
    assert scripts == [f"script-{done[0].record.script}.json"], "no other script is kept"


async def test_a_part_that_is_there_already_is_not_charged_again(tmp_path: Path):
    clients = Clients(tmp_path)
    job = await clients.create()
    first = await clients.speak_again(job, seed=2)
    before = await clients.charged()
    assert before == job.record.characters + len("The first words.")
    assert (await clients.speak_again(first, seed=2)).record.status is JobStatus.QUEUED
    assert await clients.charged() == before


@pytest.mark.parametrize("status", [JobStatus.DELETED, JobStatus.ACCEPTING])
async def test_removing_what_a_crash_left_spares_a_new_job(tmp_path: Path, status: JobStatus):
    """Another replica removes it too, and accepts an equal request, between the look and the removal of this one."""
    clients = Clients(tmp_path)
    job, (here, there) = await clients.create(key="once"), clients.services
    here.records.change(job.id, lambda record: record.model_copy(update={"status": status, "changed_at": 1.0}))
    stale = there.records.read(job.id)
    again = await clients.create(0, "once")
    looks, read = [stale], there.records.read
    there.records.read = lambda job_id: looks.pop() if looks else read(job_id)  # type: ignore[method-assign]
    assert (await clients.create(1, "once")).record == again.record
    assert clients.jobs()[job.id].record == again.record
    assert here.has_files(again)


async def test_a_slow_removal_takes_nothing_of_what_began_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    clients = Clients(tmp_path)
    job, (_, there), begun = await clients.create(key="once"), clients.services, []
    remove = JobFiles.remove

    def slow(files: JobFiles) -> None:
        remove(files)
        if not begun:
            begun.append(None)
            begun[0] = asyncio.run_coroutine_threadsafe(clients.create(1, "once"), loop).result(30)

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(JobFiles, "remove", slow)
    await clients.jobs_of(0).delete(job.id)
    assert clients.jobs()[job.id].record == begun[0].record
    assert there.has_files(begun[0])


async def test_a_plan_leaves_the_threads_of_the_loop_to_others(tmp_path: Path):
    """A plan of 30,000 parts takes seconds, in which other replies are read and written in those threads."""
    clients, threads = Clients(tmp_path), set[str]()
    service = clients.services[0]
    voice_id = service.speech.voice_id

    def noting(name: str | None) -> str:
        threads.add(threading.current_thread().name)
        return voice_id(name)

    service.speech = replace(service.speech, voice_id=noting)
    body = JobBody(input="<speak><p>One.</p><p>Two.</p></speak>", input_type="ssml")
    await asyncio.gather(*(clients.jobs_of(0).plan(body) for _ in range(4)))
    assert {name.partition("_")[0] for name in threads} == {"plans"}
