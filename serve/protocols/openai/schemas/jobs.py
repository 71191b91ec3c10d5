"""Job replies: the bodies of replies of the routes of jobs, and how they are filled.

In:    jobs, plans, views
Out:   models of the replies' JSON
Never: the text of a job that is not asked for
"""

from pydantic import BaseModel, Field

from pipeline.books.script import Script
from serve.http.ignored_fields import named_fields
from serve.jobs.planning import JobPlan
from serve.jobs.record import JobError, JobStatus
from serve.jobs.records import Job
from serve.jobs.views import JobLoad, JobView


class ChapterReply(BaseModel):
    """A chapter of a job."""

    title: str
    parts: int
    predicted_s: float = Field(description="of audio")
    start_s: float | None = Field(None, description="where it begins in the audio; null: not known yet")


class PlanReply(BaseModel):
    """POST /v1/audio/jobs/plan."""

    title: str
    author: str
    model: str
    voice: str
    characters: int = Field(description="charged when the job is accepted")
    parts: int
    predicted_s: float = Field(description="of audio")
    size: int = Field(description="disk space that it needs, at most [bytes]")
    chapters: list[ChapterReply]
    jobs_ahead: int = Field(description="jobs of all keys that are not finished")
    finishes_in_s: float | None = Field(description="at the present load; null: nothing is spoken at this moment")
    ignored_fields: list[str]


class ProgressReply(BaseModel):
    """How far a job is."""

    parts: int
    done: int = Field(description="finished parts")
    audio_s: float = Field(description="of the finished parts")
    predicted_s: float = Field(description="of the whole")
    playable_s: float = Field(description="of audio from the beginning on, before the first missing part")
    eta_s: float | None = Field(description="until it is finished; null: not known")
    waiting_for: str | None = Field(None, description="disk, or the code of what refuses its next part now; null: nothing")


class JobReply(BaseModel):
    """A job."""

    id: str
    object: str = "audio.job"
    status: JobStatus
    title: str
    model: str
    voice: str
    seed: int
    response_format: str
    sample_rate: int
    characters: int
    parts: int
    created_at: int
    changed_at: int
    expires_at: int | None = Field(description="when it is removed; null: not before it has finished")
    error: JobError | None
    progress: ProgressReply | None = Field(None, description="of one job")
    chapters: list[ChapterReply] | None = Field(None, description="of one job")
    ignored_fields: list[str] | None = Field(None, description="of a new job: fields without effect")


class JobList(BaseModel):
    """GET /v1/audio/jobs."""

    object: str = "list"
    data: list[JobReply]
    has_more: bool


class PartReply(BaseModel):
    """A part of a job."""

    index: int
    chapter: int
    text: str
    seed: int
    voice: str
    state: str = Field(description="finished or missing")
    start_s: float | None = Field(description="where it begins in the audio; null: a part before it is missing")
    duration_s: float | None = Field(description="null: it is missing")
    warnings: dict[str, int]


class PartList(BaseModel):
    """GET /v1/audio/jobs/{id}/parts."""

    object: str = "list"
    data: list[PartReply]
    has_more: bool


def plan_reply(plan: JobPlan, load: JobLoad) -> PlanReply:
    """Returns what a job would do."""
    script = plan.script
    return PlanReply(
        title=script.title,
        author=script.author,
        model=script.speech["model"],
        voice=script.speech["voice"],
        characters=script.characters,
        parts=len(script.parts),
        predicted_s=round(plan.predicted_s, 1),
        size=plan.size,
        chapters=chapters_of(script, []),
        jobs_ahead=load.jobs,
        finishes_in_s=None if load.rate is None else round((load.backlog_s + plan.predicted_s) / load.rate, 1),
        ignored_fields=named_fields(plan.ignored),
    )


def job_reply(job: Job, keep_s: float) -> JobReply:
    """Returns a job as its record knows it."""
    record = job.record
    waits = record.status in (JobStatus.QUEUED, JobStatus.RUNNING)
    return JobReply(
        id=job.id,
        status=record.status,
        title=record.title,
        model=record.model,
        voice=record.voice,
        seed=record.seed,
        response_format=record.output.container,
        sample_rate=record.output.sample_rate,
        characters=record.characters,
        parts=record.parts,
        created_at=int(record.created_at),
        changed_at=int(record.changed_at),
        expires_at=None if waits else int(record.changed_at + keep_s),
        error=record.error,
    )


def view_reply(view: JobView, keep_s: float) -> JobReply:
    """Returns a job with what is finished of it."""
    script, track = view.script, view.track
    starts = [start / track.sample_rate for start in track.chapter_starts(script)]
    update = {"progress": progress_of(view), "chapters": chapters_of(script, starts)}
    return job_reply(view.job, keep_s).model_copy(update=update)


def progress_of(view: JobView) -> ProgressReply:
    """Returns how far a job is; the parts that are finished say how good the prediction of the others is."""
    record, script, track = view.job.record, view.script, view.track
    expected_s = [of_part for key, of_part in zip(script.keys, script.predicted_s, strict=True) if key in view.finished]
    missing_s = sum(script.predicted_s) - sum(expected_s)
    if expected_s:
        missing_s *= view.audio_s / sum(expected_s)
    is_running = record.status is JobStatus.RUNNING and record.rate
    return ProgressReply(
        parts=record.parts,
        done=len(expected_s),
        audio_s=round(view.audio_s, 3),
        predicted_s=round(view.audio_s + missing_s, 1),
        playable_s=round(track.samples / track.sample_rate, 3),
        eta_s=round(missing_s / record.rate, 1) if is_running and record.rate and not record.waiting_for else None,
        waiting_for=record.waiting_for or None,
    )


def chapters_of(script: Script, starts: list[float]) -> list[ChapterReply]:
    """Returns the chapters of a script.

    Args:
        starts: of the first of them, as far as they are known [s].
    """
    parts, lengths_s = [0] * len(script.chapters), [0.0] * len(script.chapters)
    for part, of_part in zip(script.parts, script.predicted_s, strict=True):
        parts[part.chapter] += 1
        lengths_s[part.chapter] += of_part
    known = [round(start, 3) for start in starts]
    rows = zip(script.chapters, parts, lengths_s, [*known, *[None] * (len(parts) - len(known))], strict=True)
    return [ChapterReply(title=title, parts=count, predicted_s=round(s, 1), start_s=start) for title, count, s, start in rows]


def part_reply(view: JobView, number: int, warnings: dict[str, int]) -> PartReply:
    """Returns one part."""
    script, track = view.script, view.track
    part, key, fields = script.parts[number], script.keys[number], script.body_of(number)
    samples = view.finished.get(key)
    return PartReply(
        index=number,
        chapter=part.chapter,
        text=part.text,
        seed=fields["seed"],
        voice=fields["voice"],
        state="missing" if samples is None else "finished",
        start_s=round(track.starts[number] / track.sample_rate, 6) if number < track.parts else None,
        duration_s=None if samples is None else round(samples / track.sample_rate, 6),
        warnings=warnings,
    )
