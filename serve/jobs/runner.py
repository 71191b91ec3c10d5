"""Runner: speaks the jobs that it holds, some parts at once, and goes on with jobs whose runner is gone.

In:    the records of all jobs, their scripts
Out:   finished parts on the shelf, finished files, records that say so
Owns:  the jobs it holds, and the parts that are spoken at this moment
Never: two parts with one key at once; an end of its own, whatever a job does

A job has at most one holder, which is written into its record and raises its `beat`. A runner that has seen the same beat for
`lease_s` takes the job over: no clocks are compared. A runner that was only slow notices it in the record and lets go. Two that
overlap for a moment write the same files with the same bytes.

Among keys, the one with the fewest parts in progress is next.
"""

import asyncio
import contextlib
import logging
import secrets
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import replace
from typing import Any

from pipeline.errors import StoreUnavailable
from serve.errors import ApiError, to_api_error
from serve.jobs.claims import Claims, keys_without_a_turn
from serve.jobs.desk import JobDesk
from serve.jobs.finishing import finish
from serve.jobs.held import LONGEST_RETRY_S, HeldJob
from serve.jobs.part_speech import speak_part
from serve.jobs.record import JobError, JobRecord, JobStatus
from serve.jobs.records import Job
from serve.jobs.upkeep import tidy
from serve.jobs.webhooks import due, tell
from serve.speech.services import SpeechServices

LOG = logging.getLogger("ray.serve.chattts")

LOOK_S = 0.5
TIDY_S = 60.0
BEATS = 3  # per lease
HELD_PER_PART = 8  # jobs that are held for each part that is spoken at once, so that keys can take turns
TURN_S = 30.0  # a job is held at least so long, before it makes room for another key's


class JobRunner:
    """Speaks jobs in one ingress replica."""

    def __init__(self, desk: JobDesk, speech: SpeechServices, *, look_s: float = LOOK_S) -> None:
        self.name = secrets.token_hex(6)
        self._desk = desk
        self._speech = speech
        self._config = desk.config
        self._is_leaving = desk.is_leaving
        self._look_s = look_s
        self._claims = Claims(self.name, desk.config.lease_s)
        self._held: dict[str, HeldJob] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._speaking: Counter[str] = Counter()  # tenant -> parts in progress
        self._telling: set[str] = set()  # jobs whose end is being told
        self._turn = 0
        self._last_turn: dict[str, int] = {}  # tenant -> when it had its last turn
        self._woken = asyncio.Event()
        self._is_away = False
        desk.wake = self._woken.set

    async def run(self) -> None:
        """Speaks jobs until cancelled."""
        now = _now()
        next_look = next_tidy = now
        try:
            while True:
                if (now := _now()) >= next_look:
                    await self._guarded(self._look)
                    next_look = _now() + self._look_s
                if now >= next_tidy:
                    await self._guarded(self._tidy)
                    next_tidy = _now() + TIDY_S
                self._begin_parts()
                self._woken.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(next_look):
                        await self._woken.wait()
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _guarded(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Does one piece of work, whose failure ends nothing; an unavailable store is logged once."""
        try:
            await work()
            if self._is_away:
                LOG.info("jobs: the store is back")
            self._is_away = False
        except StoreUnavailable as error:
            if not self._is_away:
                LOG.warning("jobs: %s; parts in progress are finished, nothing new begins", error)
            self._is_away = True
        except Exception:
            LOG.exception("jobs: a defect; the jobs go on")

    async def _look(self) -> None:
        """Compares with the store what is held, and claims what can be spoken besides."""
        jobs = await asyncio.to_thread(self._desk.records.refresh)
        for job_id, held in list(self._held.items()):
            record = jobs[job_id].record if job_id in jobs else None
            if record is None or not self._holds(record):
                self._let_go(job_id)
            elif record.script != held.record.script:
                self._let_go(job_id)
                await self._hold(Job(job_id, jobs[job_id].version, record))
        for held in list(self._held.values()):
            if held.beat_at <= _now():
                await self._beat(held)
        for job in await asyncio.to_thread(due, jobs.values(), self._desk.records.now()):
            self._tell(job)
        if self._is_leaving() or self._speech.admission.closed:
            await self._leave()
        elif self._config.parallel:
            await self._claim(jobs)

    async def _claim(self, jobs: Mapping[str, Job]) -> None:
        most = self._config.parallel * HELD_PER_PART
        chosen = await asyncio.to_thread(self._claims.choose, jobs, most, _now())
        if not chosen and len(self._held) >= most:
            idle = [held for held in self._held.values() if not held.tasks and held.began_at + TURN_S <= _now()]
            for held in idle[: await asyncio.to_thread(keys_without_a_turn, jobs)]:
                await self._give_back(held)
        for job in chosen:
            seen = job.record

            def taken(record: JobRecord, seen: JobRecord = seen) -> JobRecord | None:
                if (record.status, record.holder, record.beat) != (seen.status, seen.holder, seen.beat):
                    return None
                return record.model_copy(
                    update={"status": JobStatus.RUNNING, "holder": self.name, "beat": record.beat + 1, "error": None}
                )

            record = await asyncio.to_thread(self._desk.records.change, job.id, taken)
            if record is not None:
                await self._hold(replace(job, record=record))

    async def _hold(self, job: Job) -> None:
        shelf = self._desk.shelf(job.id)

        def read() -> HeldJob:
            return HeldJob(job.id, job.record, shelf, shelf.script(job.record.script), shelf.lengths())

        try:
            held = await asyncio.to_thread(read)
        except (OSError, ValueError) as error:
            LOG.error("jobs: the files of %s cannot be read: %s", job.id, error)
            await self._fail(job.id, JobError(code="files_lost", message="the files of this job are lost; send it again"))
            return
        held.began_at, held.beat_at = _now(), _now() + self._config.lease_s / BEATS
        self._held[job.id] = held
        LOG.info("job %s: %d of %d parts are to be spoken", job.id, held.missing, job.record.parts)
        self._woken.set()

    async def _beat(self, held: HeldJob) -> None:
        held.beat_at = _now() + self._config.lease_s / BEATS
        rate, done = held.rate(_now()), held.done

        def beaten(record: JobRecord) -> JobRecord | None:
            if not self._holds(record):
                return None
            return record.model_copy(update={"beat": record.beat + 1, "done": done, "rate": rate})

        if await asyncio.to_thread(self._desk.records.change, held.id, beaten) is None:
            self._let_go(held.id)

    async def _leave(self) -> None:
        """Gives the jobs back of which no part is in progress: another replica goes on at once."""
        for held in [held for held in self._held.values() if not held.tasks]:
            await self._give_back(held)

    async def _give_back(self, held: HeldJob) -> None:
        self._let_go(held.id)

        def queued(record: JobRecord) -> JobRecord | None:
            return record.model_copy(update={"status": JobStatus.QUEUED, "holder": ""}) if self._holds(record) else None

        await asyncio.to_thread(self._desk.records.change, held.id, queued)

    def _holds(self, record: JobRecord) -> bool:
        return record.status is JobStatus.RUNNING and record.holder == self.name

    def _tell(self, job: Job) -> None:
        """Has the end of a job told to its client's server, beside everything else."""
        if job.id in self._telling:
            return
        self._telling.add(job.id)

        async def work() -> None:
            try:
                await self._guarded(lambda: asyncio.to_thread(tell, job, self._desk.records))
            finally:
                self._telling.discard(job.id)

        task = asyncio.create_task(work())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _let_go(self, job_id: str) -> None:
        """Stops working on a job; what is finished stays."""
        held = self._held.pop(job_id, None)
        if held is not None:
            for task in held.tasks:
                task.cancel()

    def _begin_parts(self) -> None:
        """Begins as many parts as may be spoken at once, and finishes the jobs that miss none."""
        for held in list(self._held.values()):
            if not held.missing and not held.speaking and not held.is_finishing:
                held.is_finishing = True
                self._start(held, self._finish(held))
        if self._is_leaving():
            return
        while self._speaking.total() < self._config.parallel:
            job = next(self._next_jobs(), None)
            if job is None:
                return
            self._begin_part(job)

    def _begin_part(self, held: HeldJob) -> None:
        tenant, key = held.record.tenant, held.take()
        self._speaking[tenant] += 1
        self._turn += 1
        self._last_turn[tenant] = self._turn
        self._start(held, self._speak(held, key))

    def _next_jobs(self) -> Iterator[HeldJob]:
        """Yields the jobs with a part that can be spoken, that of the key which is served least first."""
        ready = [held for held in self._held.values() if held.waiting and held.retry_at <= _now()]
        yield from sorted(
            ready,
            key=lambda held: (
                self._speaking[held.record.tenant],
                self._last_turn.get(held.record.tenant, 0),
                held.record.created_at,
            ),
        )

    def _start(self, held: HeldJob, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        for tasks in (self._tasks, held.tasks):
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    async def _speak(self, held: HeldJob, key: str) -> None:
        """Speaks one part and keeps it; a failure that may pass is tried again later."""
        number = held.number_of(key)
        try:
            spoken = await speak_part(
                self._speech, held.record.tenant, f"{held.id}.{number}.{held.attempts}", held.script.body_of(number)
            )
            await asyncio.to_thread(held.shelf.keep, key, spoken.pcm, spoken.notes)
            held.keep(key, spoken.seconds(held.record.output.sample_rate))
        except asyncio.CancelledError:
            held.give_back(key)
            raise
        except OSError as error:
            LOG.error("job %s: a part cannot be kept: %s", held.id, error)
            held.failed(key, _now())
        except Exception as error:
            refusal = to_api_error(error)
            held.failed(key, _now(), (refusal.spec.retry_after_s or 0.0) if refusal.spec.retry_helps else 0.0)
            if not refusal.spec.retry_helps:
                await self._guarded(lambda: self._refused(held, number, refusal))
        finally:
            self._speaking[held.record.tenant] -= 1
            self._woken.set()

    async def _refused(self, held: HeldJob, number: int, refusal: ApiError) -> None:
        held.retry_at = _now() + LONGEST_RETRY_S  # in case that the record cannot be changed now
        await self._fail(held.id, JobError(code=refusal.spec.code, message=refusal.message, part=number))

    async def _fail(self, job_id: str, error: JobError) -> None:
        LOG.warning("job %s failed: %s", job_id, error.code)

        def failed(record: JobRecord) -> JobRecord | None:
            if not self._holds(record):
                return None
            update = {"status": JobStatus.FAILED, "holder": "", "error": error, "changed_at": self._desk.records.now()}
            return record.model_copy(update=update)

        await asyncio.to_thread(self._desk.records.change, job_id, failed)
        held = self._held.pop(job_id, None)
        if held is not None:
            for task in held.tasks - {asyncio.current_task()}:
                task.cancel()

    async def _finish(self, held: HeldJob) -> None:
        """Assembles the file of a job, and says that it is there."""
        try:
            await finish(held, self._desk.records, self.name)
            self._held.pop(held.id, None)
            LOG.info("job %s is finished: %d parts", held.id, held.record.parts)
        except StoreUnavailable:
            held.is_finishing = False
            await asyncio.sleep(self._look_s)  # the file is there; only its record is missing
        except Exception:
            LOG.exception("job %s: cannot be assembled", held.id)
            message = "the file could not be assembled; resume the job to try again"
            await self._guarded(lambda: self._fail(held.id, JobError(code="assembly_failed", message=message)))
        finally:
            self._woken.set()

    async def _tidy(self) -> None:
        await asyncio.to_thread(tidy, self._desk)


def _now() -> float:
    return asyncio.get_running_loop().time()
