"""Runner: speaks the jobs that it holds, some parts at once, and goes on with jobs whose runner is gone.

In:    the records of all jobs, their scripts
Out:   finished parts on the disk, finished files, records that say so
Owns:  the jobs it holds, and the parts that are spoken at this moment
Never: two parts with one key at once; an end of its own, whatever a job does

A job has at most one holder, which is written into its record and raises its `beat`. A runner that has seen the same beat for
`lease_s` takes the job over: no clocks are compared. The record is the truth: at each look a runner lets go of what it does not
give it any more, and takes up what it does, whichever answer was lost. Two that overlap for a moment write the same bytes.

A runner that has room and nothing else to speak assists another: it claims parts on the disk, from the end of the text, and the
holder leaves them to it for a while. So one book fills all ingress replicas.

Among keys, the one with the fewest parts in progress is next.
"""

import asyncio
import contextlib
import logging
import secrets
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Set
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from pipeline.errors import AtCapacity, NoSpeakableText, StoreUnavailable
from pipeline.store.threads import ask_store
from serve.errors import to_api_error
from serve.jobs.active_job import LONGEST_RETRY_S, ActiveJob, AssistedJob
from serve.jobs.disk import WAITING_FOR_DISK, is_full
from serve.jobs.finishing import finish
from serve.jobs.job_claims import Claims, keys_without_a_turn
from serve.jobs.part_room import PartRoom
from serve.jobs.part_speech import WITHOUT_WORDS, speak_part
from serve.jobs.record import JobError, JobRecord, JobStatus
from serve.jobs.records import Job
from serve.jobs.service import JobService
from serve.jobs.webhooks import Receiver, due, senders, tell
from serve.speech.speech_services import SpeechServices

T = TypeVar("T")
J = TypeVar("J", bound=ActiveJob)
Holding = tuple[str, JobStatus, str, str]
"""a job with its status, its holder and its script"""

LOG = logging.getLogger("ray.serve.chattts")

LOOK_S = 0.5
TIDY_S = 60.0
BEATS = 3  # per lease
HELD_PER_PART = 8  # jobs that are held for each part that is spoken at once, so that keys can take turns
TURN_S = 30.0  # a job is held at least so long, before it makes room for another key's
CLAIM_S = 600.0
"""a claim of an id that is older is one that a crash has left"""


async def tidy(service: JobService) -> None:
    """Removes what is too old, once. Several replicas may do so at the same time.

    Raises:
        StoreUnavailable
    """
    jobs, now = await ask_store(service.records.refresh), service.records.now()
    before = now - service.config.keep_s
    for job in jobs.values():
        record = job.record
        is_old = record.changed_at < before and record.status not in (JobStatus.QUEUED, JobStatus.RUNNING)
        is_claim = record.status is JobStatus.ACCEPTING and record.changed_at < now - CLAIM_S
        if is_old or is_claim or record.status is JobStatus.DELETED:
            await service.clear(job)
    await asyncio.to_thread(_remove_files, service, jobs.keys() | service.records.unreadable, before)


def _remove_files(service: JobService, known: Set[str], before: float) -> None:
    for folder in service.folders():
        if folder.name not in known and _changed_at(folder) < before:
            service.files(folder.name).remove()
    for upload in service.uploads():
        if _changed_at(upload) < before:
            upload.unlink(missing_ok=True)


def _changed_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return float("inf")


class JobRunner:
    """Speaks jobs in one ingress replica."""

    def __init__(self, service: JobService, speech: SpeechServices, *, look_s: float = LOOK_S) -> None:
        self.name = secrets.token_hex(6)
        self._service = service
        self._speech = speech
        self._config = service.config
        self._room = PartRoom(service.config.parallel, speech.load_reports, speech.limits.max_in_flight)
        self._is_leaving = service.is_leaving
        self._look_s = look_s
        self._claims = Claims(self.name, service.config.lease_s, service.build, service.has_files)
        self._active: dict[str, ActiveJob] = {}
        self._assisted: dict[str, AssistedJob] = {}  # held by others; at most one
        self._left: set[Holding] = set()  # of others, of which it has spoken what it could
        self._released: dict[str, ActiveJob] = {}  # let go, with a task that still ends
        self._tasks: set[asyncio.Task[Any]] = set()
        self._speaking: Counter[str] = Counter()  # tenant -> parts in progress
        self._telling: set[Receiver] = set()  # who is being told an end
        self._turn = 0
        self._last_turn: dict[str, int] = {}  # tenant -> when it had its last turn
        self._woken = asyncio.Event()
        self._is_away = False
        self._tidying: asyncio.Task[None] | None = None
        service.wake = self._woken.set

    async def run(self) -> None:
        """Speaks jobs until cancelled."""
        now = _now()
        next_look = next_tidy = now
        try:
            while True:
                if (now := _now()) >= next_look:
                    await self._guarded(self._look)
                    next_look = _now() + self._look_s
                if now >= next_tidy and (self._tidying is None or self._tidying.done()):
                    self._tidying = self._beside(self._guarded(lambda: tidy(self._service)))
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
            for job in (*self._active.values(), *self._assisted.values(), *self._released.values()):
                job.files.release(job.claimed)

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
        jobs, now = await ask_store(self._service.records.refresh), self._service.records.now()
        queued = (job.record.created_at for job in jobs.values() if job.record.status is JobStatus.QUEUED)
        self._service.queued_s = max(0.0, now - min(queued, default=now))
        for job_id, active_job in [*self._active.items(), *self._assisted.items()]:
            if job_id not in jobs or not self._may_speak(active_job, jobs[job_id].record):
                self._let_go(job_id)
        self._left &= {holding_of(job.id, job.record) for job in jobs.values()}
        await self._adopt(jobs.values())
        await self._share()
        for active_job in list(self._active.values()):
            if active_job.beat_at <= _now():
                await self._beat(active_job)
        ends = await asyncio.to_thread(due, jobs.values(), self._service.records.now(), self._telling)
        for receiver, job in ends.items():
            self._tell(receiver, job)
        if self._is_leaving() or self._speech.admission.closed:
            await self._leave()
        elif self._config.parallel:
            await self._claim(jobs)
            await self._assist(jobs)

    async def _adopt(self, jobs: Iterable[Job]) -> None:
        """Takes up the jobs that are this runner's by their records, and that nothing of it works on any more."""
        self._released = {job_id: active_job for job_id, active_job in self._released.items() if active_job.tasks}
        self._service.waiting_for_disk = sum(active_job.waiting_for == WAITING_FOR_DISK for active_job in self._active.values())
        for job in [
            job for job in jobs if self._holds(job.record) and job.id not in self._active and job.id not in self._released
        ]:
            current = await ask_store(self._service.records.read, job.id)  # its end may have been written since
            if current is not None and self._holds(current.record):
                await self._hold(current)

    async def _claim(self, jobs: Mapping[str, Job]) -> None:
        most = self._room.most * HELD_PER_PART
        chosen = await asyncio.to_thread(self._claims.choose, jobs, most, _now())
        if not chosen and len(self._active) >= most:
            idle = [
                active_job
                for active_job in self._active.values()
                if not active_job.tasks and active_job.began_at + TURN_S <= _now()
            ]
            for active_job in idle[: await asyncio.to_thread(keys_without_a_turn, jobs)]:
                await self._give_back(active_job)
        for job in [job for job in chosen if job.id in self._assisted]:
            self._let_go(job.id)  # its holder is dead; it is claimed once nothing of it is in progress
        for job in [job for job in chosen if job.id not in self._released]:
            known = job.record

            def claimed(record: JobRecord, known: JobRecord = known) -> JobRecord | None:
                if (record.status, record.holder, record.beat) != (known.status, known.holder, known.beat):
                    return None
                update = {"status": JobStatus.RUNNING, "holder": self.name, "build": self._service.build(record.model)}
                return record.model_copy(update={**update, "beat": record.beat + 1, "error": None, "waiting_for": ""})

            record = await ask_store(self._service.records.change, job.id, claimed)
            if record is not None:
                await self._hold(replace(job, record=record))

    async def _share(self) -> None:
        """Leaves parts of this runner's jobs to the runners that have claimed them."""
        jobs = [(job, tuple(job.elsewhere)) for job in self._active.values()]
        claims = await asyncio.to_thread(lambda: [job.files.claims(left) for job, left in jobs]) if jobs else []
        for (job, _), claimed in zip(jobs, claims, strict=True):
            if finished := job.share(claimed, _now()):
                await asyncio.to_thread(job.files.release, finished)

    async def _assist(self, jobs: Mapping[str, Job]) -> None:
        """Claims as many parts of another runner's job as there is room for."""
        waiting = sum(len(job.waiting) for job in (*self._active.values(), *self._assisted.values()))
        free = self._room.most - self._room.speaking - waiting
        if free <= 0:
            return
        if not self._assisted:
            is_left = {job.id for job in jobs.values() if holding_of(job.id, job.record) in self._left} | self._released.keys()
            others = {job_id: job for job_id, job in jobs.items() if job_id not in is_left}
            for job in (await asyncio.to_thread(self._claims.to_assist, others))[:1]:
                try:
                    self._assisted[job.id] = await asyncio.to_thread(self._opened, AssistedJob, job)
                except (OSError, ValueError):  # it has just been removed, or cannot be read here
                    self._left.add(holding_of(job.id, job.record))
        for assisted in list(self._assisted.values()):
            assisted.waiting.extend(await asyncio.to_thread(assisted.claim_more, free))
            if self._assisted.get(assisted.id) is not assisted:
                await asyncio.to_thread(assisted.files.release, assisted.claimed)
            elif assisted.is_left and not assisted.missing:
                self._let_go(assisted.id)

    async def _hold(self, job: Job) -> None:
        try:
            await asyncio.to_thread(lambda files: files.release(files.claims()), self._service.files(job.id))  # of the dead
            active_job = await asyncio.to_thread(self._opened, ActiveJob, job)
        except (OSError, ValueError) as error:
            LOG.error("jobs: the files of %s cannot be read: %s", job.id, error)
            lost = JobError(code="files_lost", message="the files of this job are lost; send it again")
            await self._fail(job.id, job.record.script, lost)
            return
        active_job.began_at, active_job.beat_at = _now(), _now() + self._config.lease_s / BEATS
        self._active[job.id] = active_job
        LOG.info("job %s: %d of %d parts are to be spoken", job.id, active_job.missing, job.record.parts)
        self._woken.set()

    def _opened(self, kind: type[J], job: Job) -> J:
        files = self._service.files(job.id)
        return kind(job.id, job.record, files, files.script(job.record.script), files.lengths())

    async def _beat(self, job: ActiveJob) -> None:
        rate, done, waiting_for = job.rate(_now()), job.done, job.waiting_for

        def beaten(record: JobRecord) -> JobRecord | None:
            if not self._holds(record):
                return None
            beat = {"beat": record.beat + 1, "done": done, "rate": rate, "waiting_for": waiting_for}
            return record.model_copy(update=beat)

        if await ask_store(self._service.records.change, job.id, beaten) is None:
            self._let_go(job.id)
        elif waiting_for == job.waiting_for:
            job.beat_at = _now() + self._config.lease_s / BEATS

    async def _leave(self) -> None:
        """Gives the jobs back of which no part is in progress: another replica goes on at once."""
        for job in [job for job in self._active.values() if not job.tasks]:
            await self._give_back(job)
        for assisted in [job for job in self._assisted.values() if not job.tasks]:
            self._let_go(assisted.id)

    async def _give_back(self, job: ActiveJob) -> None:
        self._let_go(job.id)

        def queued(record: JobRecord) -> JobRecord | None:
            free = {"status": JobStatus.QUEUED, "holder": "", "waiting_for": ""}
            return record.model_copy(update=free) if self._holds(record) else None

        await ask_store(self._service.records.change, job.id, queued)

    def _may_speak(self, job: ActiveJob, record: JobRecord) -> bool:
        """True if a job is still to be spoken as it is, by its holder or by who assists another holder."""
        is_as_it_was = record.status is JobStatus.RUNNING and record.script == job.record.script
        return is_as_it_was and (record.holder == self.name) == (job.id in self._active)

    def _holds(self, record: JobRecord) -> bool:
        return record.status is JobStatus.RUNNING and record.holder == self.name

    def _tell(self, receiver: Receiver, job: Job) -> None:
        """Has the end of a job told to its client's server, beside everything else."""
        self._telling.add(receiver)

        async def send() -> None:
            threads = senders(receiver[1])
            await asyncio.get_running_loop().run_in_executor(threads, tell, job, self._service.records, self._config)

        async def work() -> None:
            try:
                await self._guarded(send)
            finally:
                self._telling.discard(receiver)

        self._beside(work())

    def _let_go(self, job_id: str) -> None:
        """Stops working on a job; what is finished stays."""
        assisted = self._assisted.pop(job_id, None)
        job = assisted or self._active.pop(job_id, None)
        if assisted is not None:
            self._left.add(holding_of(job_id, assisted.record))
        if job is not None:
            self._released[job_id] = job
            for task in job.tasks - {asyncio.current_task()}:
                task.cancel()
            self._beside(_claims_released(job))

    def _begin_parts(self) -> None:
        """Begins as many parts as may be spoken at once, and finishes the jobs that miss none."""
        for active_job in list(self._active.values()):
            if not active_job.missing and not active_job.is_finishing and active_job.retry_at <= _now():
                active_job.is_finishing = True
                self._start(active_job, self._finish(active_job))
        if self._is_leaving():
            return
        while self._room.has_place:
            job = next(self._next_jobs(), None)
            if job is None:
                return
            self._begin_part(job)

    def _begin_part(self, job: ActiveJob) -> None:
        tenant, key, window = job.record.tenant, job.take(), self._room.begin()
        self._speaking[tenant] += 1
        self._turn += 1
        self._last_turn[tenant] = self._turn
        task = self._start(job, self._speak(job, key))
        task.add_done_callback(partial(self._end_part, job, key, window))

    def _end_part(self, job: ActiveJob, key: str, window: int, task: asyncio.Task[bool]) -> None:
        """Counts a part as no longer in progress, one that was cancelled before it began too."""
        is_refused = not task.cancelled() and task.exception() is None and task.result()
        if task.cancelled():
            job.give_back(key)
        self._room.end(window, is_refused=is_refused)
        self._speaking[job.record.tenant] -= 1
        self._woken.set()

    def _next_jobs(self) -> Iterator[ActiveJob]:
        """Yields the jobs with a part that can be spoken, that of the key which is served least first."""
        jobs = (*self._active.values(), *self._assisted.values())
        yield from sorted(
            [job for job in jobs if job.waiting and job.retry_at <= _now()],
            key=lambda job: (
                job.id in self._assisted,
                self._speaking[job.record.tenant],
                self._last_turn.get(job.record.tenant, 0),
                job.record.created_at,
            ),
        )

    def _start(self, job: ActiveJob, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = self._beside(work)
        job.tasks.add(task)
        task.add_done_callback(job.tasks.discard)
        return task

    def _beside(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _speak(self, job: ActiveJob, key: str) -> bool:
        """Speaks one part and keeps it; a failure that may pass is tried again later. Returns True if there was no room."""
        number = job.number_of(key)
        try:
            if not await asyncio.to_thread(job.claim, key):
                job.leave(key, _now())
                return False
            spoken = await speak_part(
                self._speech, job.record.tenant, f"{job.id}.{number}.{job.attempts}", job.script.body_of(number)
            )
            await asyncio.to_thread(job.write, key, spoken.pcm, spoken.notes)
            job.keep(key, spoken.seconds(job.record.output.sample_rate))
        except OSError as error:
            LOG.error("job %s: a part cannot be kept: %s", job.id, error)
            job.failed(_now(), waiting_for=WAITING_FOR_DISK if is_full(error) else "")
        except Exception as error:
            refusal = to_api_error(error)
            if refusal.spec.retry_helps:
                others = job.speaking - {key}
                job.failed(_now(), refusal.spec.retry_after_s or 0.0, waiting_for="" if others else refusal.spec.code)
            else:
                job.failed(_now(), LONGEST_RETRY_S)  # in case that the record cannot be changed now
                refused = JobError(code=refusal.spec.code, message=refusal.message, part=number)
                await self._guarded(lambda: self._fail(job.id, job.record.script, refused))
            return isinstance(error, AtCapacity)
        finally:
            job.give_back(key)
        return False

    async def _fail(self, job_id: str, script: str, error: JobError) -> None:
        """Ends a job, unless it has got another script than the one that failed."""
        LOG.warning("job %s failed: %s", job_id, error.code)

        def failed(record: JobRecord) -> JobRecord | None:
            if not self._holds(record) or record.script != script:
                return None
            update = {"status": JobStatus.FAILED, "holder": "", "error": error, "waiting_for": ""}
            return record.model_copy(update={**update, "changed_at": self._service.records.now()})

        await ask_store(self._service.records.change, job_id, failed)
        self._let_go(job_id)

    async def _finish(self, job: ActiveJob) -> None:
        """Assembles the file of a job, and says that it is there."""
        try:
            if await finish(job, self._service.records, self.name):
                self._active.pop(job.id, None)
                LOG.info("job %s is finished: %d parts", job.id, job.record.parts)
        except StoreUnavailable:
            job.failed(_now())  # the file is there; only its record is missing
        except NoSpeakableText as error:
            job.failed(_now(), LONGEST_RETRY_S)
            silent = JobError(code=WITHOUT_WORDS, message=error.message)
            await self._guarded(lambda: self._fail(job.id, job.record.script, silent))
        except Exception as error:
            if is_full(error):
                LOG.error("job %s: its file cannot be kept: %s", job.id, error)
                job.failed(_now(), waiting_for=WAITING_FOR_DISK)
                return
            job.failed(_now(), LONGEST_RETRY_S)
            LOG.exception("job %s: cannot be assembled", job.id)
            message = "the file could not be assembled; resume the job to try again"
            failed = JobError(code="assembly_failed", message=message)
            await self._guarded(lambda: self._fail(job.id, job.record.script, failed))
        finally:
            job.is_finishing = False
            self._woken.set()


def holding_of(job_id: str, record: JobRecord) -> Holding:
    """Returns what ends when a job is paused, given back, taken over or gets another script."""
    return job_id, record.status, record.holder, record.script


async def _claims_released(job: ActiveJob) -> None:
    """Gives up what was claimed of a job and is not spoken."""
    if job.tasks:
        await asyncio.wait(job.tasks)
    await asyncio.to_thread(job.files.release, job.claimed)


def _now() -> float:
    return asyncio.get_running_loop().time()
