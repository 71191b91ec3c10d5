"""One book fills all ingress replicas: runners with nothing else to do speak parts of a job that another one holds."""

import asyncio
import errno
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from pipeline.books.job_files import JobFiles, PartNotes
from pipeline.books.script import Script
from pipeline.store.open import open_store
from serve.access.caller import Caller
from serve.config.jobs import JobsConfig
from serve.errors import bad_request
from serve.jobs.active_job import ActiveJob, AssistedJob
from serve.jobs.body import JobBody, PartBody
from serve.jobs.record import JobRecord, JobStatus
from serve.jobs.records import Job
from serve.jobs.runner import JobRunner
from serve.jobs.service import JobService
from serve.speech.job import RequestContext
from tests.support.fakes import Speaker, make_speech_services
from tests.support.jobs import job_record
from tests.support.waiting import until

PARTS, PARALLEL = 60, 2
BOOK = "\n\n".join(f"# Chapter {number}\n\nParagraph {number} says something." for number in range(PARTS))

Interruption = Callable[[list["Replica"], str], Awaitable[None]]


class Replica:
    """A service and a runner, as one ingress replica has them."""

    def __init__(self, folder: Path, speaker: Speaker) -> None:
        self.speaker, speech = speaker, make_speech_services(speaker)
        config = JobsConfig.varied({"lease_s": 0.5, "parallel": PARALLEL})
        self.service = JobService(config, open_store(str(folder / "store.sqlite")), folder / "jobs", speech)
        self.runner = JobRunner(self.service, speech, look_s=0.02)
        self.running = asyncio.create_task(self.runner.run())

    async def end(self) -> None:
        self.running.cancel()
        await asyncio.gather(self.running, return_exceptions=True)

    async def die(self) -> None:
        """Ends without giving anything up."""
        self.runner._active, self.runner._assisted = {}, {}
        await self.end()


@asynccontextmanager
async def replicas(folder: Path, count: int, pause_s: float = 0.05) -> AsyncIterator[list[Replica]]:
    (folder / "jobs").mkdir(exist_ok=True)
    running = [Replica(folder, Speaker(chunks=2, pause_s=pause_s)) for _ in range(count)]
    try:
        yield running
    finally:
        for replica in running:
            await replica.end()


async def created(replica: Replica, **fields: str) -> str:
    body = JobBody.model_validate({"input": BOOK, "input_type": "markdown", "response_format": "wav", "seed": 1} | fields)
    job, _ = await replica.service.of(RequestContext("id", Caller("reader"))).create(body, b"{}")
    return job.id


def record_of(replica: Replica, job_id: str) -> JobRecord:
    job = replica.service.records.read(job_id)
    assert job is not None
    return job.record


async def ended(replica: Replica, job_id: str) -> JobRecord:
    await until(lambda: record_of(replica, job_id).status not in (JobStatus.QUEUED, JobStatus.RUNNING), 60.0)
    return record_of(replica, job_id)


def spoken(running: list[Replica]) -> Counter[str]:
    """How often each text was spoken."""
    return Counter(request.text for replica in running for request in replica.speaker.requests)


def test_one_book_is_spoken_by_all_replicas_and_no_part_twice(tmp_path: Path):
    async def scenario() -> None:
        async with replicas(tmp_path, 4) as running:
            job_id = await created(running[0])
            record = await ended(running[0], job_id)
            assert (record.status, record.done) == (JobStatus.SUCCEEDED, record.parts)
            shares = [len(replica.speaker.requests) for replica in running]
            assert min(shares) >= PARTS / 10, shares
            assert set(spoken(running).values()) == {1}
            assert not running[0].service.files(job_id).claims()

    asyncio.run(scenario())


def test_the_file_is_that_of_one_replica(tmp_path: Path):
    async def file_of(count: int) -> bytes:
        folder = tmp_path / str(count)
        folder.mkdir()
        async with replicas(folder, count) as running:
            job_id = await created(running[0], response_format="flac")
            record = await ended(running[0], job_id)
            return running[0].service.files(job_id).result_file(record.result).read_bytes()

    assert asyncio.run(file_of(1)) == asyncio.run(file_of(3))


@pytest.mark.parametrize("victim", ["holder", "assistant"])
def test_whoever_dies_the_book_ends_whole(tmp_path: Path, victim: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("serve.jobs.active_job.LONGEST_CLAIM_S", 0.5)

    async def scenario() -> None:
        async with replicas(tmp_path, 2) as running:
            job_id = await created(running[0])
            await until(lambda: all(len(replica.speaker.requests) > PARALLEL for replica in running))
            holder = next(replica for replica in running if record_of(replica, job_id).holder == replica.runner.name)
            dying = holder if victim == "holder" else next(replica for replica in running if replica is not holder)
            await dying.die()
            survivor = next(replica for replica in running if replica is not dying)
            record = await ended(survivor, job_id)
            assert (record.status, record.done) == (JobStatus.SUCCEEDED, record.parts)
            repeated = [text for text, times in spoken(running).items() if times > 1]
            assert len(repeated) <= 2 * PARALLEL, "what was in progress, and no more"

    asyncio.run(scenario())


def test_an_assistant_that_ends_gives_its_claims_up(tmp_path: Path):
    async def scenario() -> None:
        async with replicas(tmp_path, 2) as running:
            job_id = await created(running[0])
            await until(lambda: all(replica.speaker.requests for replica in running))
            for replica in sorted(running, key=lambda one: one.runner.name == record_of(one, job_id).holder):
                await replica.end()
            assert None not in running[0].service.files(job_id).claims().values()

    asyncio.run(scenario())


def test_a_job_that_is_cancelled_is_left_by_all(tmp_path: Path):
    async def scenario() -> None:
        async with replicas(tmp_path, 3) as running:
            job_id = await created(running[0])
            await until(lambda: all(replica.speaker.requests for replica in running))
            await running[0].service.of(RequestContext("id", Caller("reader"))).cancel(job_id)
            await until(lambda: not any(replica.runner._active or replica.runner._assisted for replica in running))
            await until(lambda: all(replica.speaker.opened == replica.speaker.closed for replica in running))
            before = [len(replica.speaker.requests) for replica in running]
            await asyncio.sleep(0.3)
            assert [len(replica.speaker.requests) for replica in running] == before
            assert None not in running[0].service.files(job_id).claims().values(), "nobody claims what nobody speaks"

    asyncio.run(scenario())


def test_a_part_that_cannot_be_spoken_fails_the_job_once(tmp_path: Path):
    class Refusing(Speaker):
        async def stream(self, request):  # type: ignore[no-untyped-def]
            if f"Paragraph {PARTS - 3} " in request.text:
                raise bad_request("wrong_text", "nobody can speak this")
            async for chunk in super().stream(request):
                yield chunk

    async def scenario() -> None:
        (tmp_path / "jobs").mkdir()
        running = [Replica(tmp_path, Refusing(chunks=2, pause_s=0.02)) for _ in range(3)]
        try:
            job_id = await created(running[0])
            record = await ended(running[0], job_id)
            assert record.status is JobStatus.FAILED
            assert record.error is not None
            assert record.error.code == "wrong_text"
        finally:
            for replica in running:
                await replica.end()

    asyncio.run(scenario())


async def paused_and_resumed(running: list[Replica], job_id: str) -> None:
    own = running[0].service.of(RequestContext("id", Caller("reader")))
    await own.pause(job_id)
    await asyncio.sleep(0.2)
    await own.resume(job_id)


async def changed(running: list[Replica], job_id: str) -> None:
    await running[0].service.of(RequestContext("id", Caller("reader"))).speak_again(job_id, 3, PartBody(text="Other words."))
    await asyncio.sleep(0.2)


@pytest.mark.parametrize("interruption", [paused_and_resumed, changed])
def test_a_job_that_goes_on_is_assisted_again(tmp_path: Path, interruption: Interruption):
    async def scenario() -> None:
        async with replicas(tmp_path, 3) as running:
            job_id = await created(running[0])
            await until(lambda: all(replica.speaker.requests for replica in running))
            await interruption(running, job_id)
            before = [len(replica.speaker.requests) for replica in running]
            await ended(running[0], job_id)
            more = [len(replica.speaker.requests) - count for replica, count in zip(running, before, strict=True)]
            assert min(more) > PARALLEL, more

    asyncio.run(scenario())


def test_a_job_that_cannot_be_read_here_is_tried_once_and_keeps_no_other_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    tried: Counter[str] = Counter()
    opened = JobRunner._opened

    def unreadable(self: JobRunner, kind: type[ActiveJob], job: Job) -> ActiveJob:
        if kind is AssistedJob:
            tried[job.id] += 1
            if job.record.parts > PARTS:
                raise ValueError("of another release")
        return opened(self, kind, job)

    monkeypatch.setattr(JobRunner, "_opened", unreadable)

    async def scenario() -> None:
        async with replicas(tmp_path, 2) as running:
            longer = await created(running[0], input=f"{BOOK}\n\n# The end\n\nOne more.")
            await until(lambda: tried[longer] > 0)
            shorter = await created(running[0])
            await ended(running[0], shorter)
            assert tried in ({longer: 1, shorter: 1}, {longer: 1}), "the other one is assisted, or held"

    asyncio.run(scenario())


def test_a_disk_that_takes_no_claims_ends_no_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(self: JobFiles, key: str) -> bool:
        raise OSError(errno.ENOSPC, "no space left on device")

    def unreadable(folder: Path) -> list[str]:
        raise OSError(errno.EIO, "the disk is not well")

    monkeypatch.setattr(JobFiles, "claim", full)
    files = JobFiles(tmp_path)
    assisted = AssistedJob("job", job_record(), files, Script(()), {})
    assisted._unclaimed = iter(["one", "two"])
    assert assisted.claim_more(2) == []
    assert assisted.is_left
    monkeypatch.setattr("os.listdir", unreadable)
    assert files.claims() == {}
    (tmp_path / "claims").touch()
    files.release(["one"])


def test_a_part_whose_claim_was_lost_is_not_spoken_again_once_it_is_finished(tmp_path: Path):
    files = JobFiles(tmp_path)
    files.keep("done", b"\0\0", PartNotes())
    assert not files.claim("done")
    assert files.claims(["done", "missing"]) == {"done": 1}


def test_claims_that_come_back_while_a_file_is_assembled_fail_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    files = JobFiles(tmp_path)
    monkeypatch.setattr("shutil.rmtree", lambda *_, **__: files.claim("late"))
    files.keep_only(frozenset(), "")
    assert files.claims() == {"late": None}
