"""Jobs: the routes of long texts that are spoken in the background.

In:    HTTP
Out:   jobs as JSON, their audio
Never: a job of another key
"""

import asyncio
import hashlib
import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Query, Request
from fastapi import Path as PathParameter
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import BaseModel
from starlette.datastructures import UploadFile

from pipeline.audio.formats import AudioFormat, audio_format
from pipeline.books.archive import archive
from pipeline.books.assemble import CONTAINERS, M4B, RAW_CONTAINERS, encoded, raw, raw_size
from pipeline.books.job_files import JobFiles
from pipeline.errors import UnsupportedFormat
from serve.access.api_keys import Scope
from serve.errors import ApiError, ErrorSpec, bad_request
from serve.http.body_reader import FORM, MOST_VALUES, media_type_of
from serve.http.dependencies import OwnJobs, RequestServices
from serve.http.forms import FORM_ROOM, read_form
from serve.http.ignored_fields import named_fields
from serve.http.openapi import AUDIO_TYPES, answers, takes
from serve.http.request_context import context_of
from serve.http.route_access import requires
from serve.http.services import Services
from serve.jobs.body import File, JobBody, PartBody
from serve.jobs.record import JobStatus
from serve.jobs.views import JobView
from serve.protocols.openai.job_events import has_seen_the_end, job_events
from serve.protocols.openai.ranged import file_reader, ranged
from serve.protocols.openai.schemas.jobs import (
    JobList,
    JobReply,
    PartList,
    PlanReply,
    job_reply,
    part_reply,
    plan_reply,
    view_reply,
)
from serve.speech.job import SubtitlesIn
from serve.speech.schemas.base import read_body
from serve.speech.schemas.json_size import check_json
from serve.speech.subtitles import Cue, written

router = APIRouter()

PATH = "/v1/audio/jobs"
ONE = f"{PATH}/{{job_id}}"

JSON_BYTES = 8 << 20
"""of a body of JSON: a million characters, each as an escape; a file may have jobs.max_body_bytes"""
JSON_VALUES = 100_000
"""fields and elements of a body: 10,000 turns with all of their fields"""

ZIP = "zip"
"""format of a download: each part as a file of its own"""
SUBTITLE_TYPES: dict[SubtitlesIn, str] = {"srt": "application/x-subrip", "vtt": "text/vtt"}
SUBTITLES: dict[int | str, dict[str, Any]] = {
    200: {"description": "the subtitles", "content": {kind: {"schema": {"type": "string"}} for kind in SUBTITLE_TYPES.values()}}
}
EVENTS: dict[int | str, dict[str, Any]] = {
    200: {"description": "events; docs/jobs.md names them", "content": {"text/event-stream": {}}},
    204: {"description": "there is nothing more to tell"},
}


def job_subtitles(view: JobView, files: JobFiles, kind: SubtitlesIn) -> str:
    """Returns the subtitles of all parts before the first missing one."""
    return written(_cues(view, files), kind)


def _cues(view: JobView, files: JobFiles) -> Iterator[Cue]:
    script, track, rate = view.script, view.track, view.track.sample_rate
    for number, start in enumerate(track.starts):
        part = script.parts[number]
        speaker = part.speaker or part.own.get("voice")
        for cue in files.notes(script.keys[number]).cues:
            yield Cue((start + cue.start) / rate, (start + cue.stop) / rate, cue.text, cue.voice or speaker)


def takes_document() -> dict[str, Any]:
    """Returns the description of the two bodies of a job."""
    described = takes(JobBody)
    file = {"type": "string", "format": "binary", "description": "an EPUB, Markdown, text or SSML"}
    job = {"type": "string", "description": "the fields of the JSON body but input, as JSON"}
    form = {"type": "object", "properties": {"file": file, "job": job}, "required": ["file"]}
    described["requestBody"]["content"]["multipart/form-data"] = {"schema": form}
    return described


Limit = Annotated[int, Query(ge=1, le=1000)]
DOWNLOADS = (*AUDIO_TYPES, "audio/mp4", "application/zip")
AUDIO: dict[int | str, dict[str, Any]] = {
    status: {
        "description": description,
        "content": {kind: {"schema": {"type": "string", "format": "binary"}} for kind in DOWNLOADS},
    }
    for status, description in {200: "the audio", 206: "the range of it that was asked for"}.items()
}


@router.post(
    "/v1/audio/jobs/plan",
    openapi_extra=takes_document(),
    response_model=PlanReply,
    responses=answers(400, 403, 404, 408, 413, 415, 429, 503),
)
@requires(Scope.SPEECH)
async def plan(request: Request, services: RequestServices, jobs: OwnJobs) -> Response:
    body, file, _ = await _document(request, services, jobs.max_body_bytes)
    planned = await jobs.plan(body, file)
    load = await services.jobs.load()
    return await _reply(lambda: plan_reply(planned, load))


@router.post(
    PATH,
    status_code=202,
    openapi_extra=takes_document(),
    response_model=JobReply,
    responses=answers(400, 403, 404, 408, 409, 413, 415, 429, 503, 507),
)
@requires(Scope.SPEECH)
async def create(request: Request, services: RequestServices, jobs: OwnJobs) -> Response:
    body, file, raw_body = await _document(request, services, jobs.max_body_bytes)
    job, planned = await jobs.create(body, raw_body, file)
    reply = job_reply(job, jobs.keep_s)
    if planned is not None:
        reply = reply.model_copy(update={"ignored_fields": named_fields(planned.ignored)})
    headers = {"Location": f"{request.scope.get('root_path', '')}{PATH}/{job.id}"}
    if context_of(request).idempotency_key is not None:
        headers["Idempotency-Replayed"] = str(planned is None).lower()
    return JSONResponse(reply.model_dump(mode="json"), 202, headers)


@router.get(PATH, response_model=JobList, responses=answers(400, 503))
@requires(Scope.SPEECH)
async def jobs(own: OwnJobs, status: JobStatus | None = None, after: str = "", limit: Limit = 100) -> JobList:
    listed = await own.listed()
    if after:
        places = [place for place, job in enumerate(listed, start=1) if job.id == after]
        listed = listed[places[0] if places else len(listed) :]
    matches = [job for job in listed if status in (None, job.record.status)]
    data = [job_reply(job, own.keep_s) for job in matches[:limit]]
    return JobList(data=data, has_more=len(matches) > limit)


@router.get(ONE, response_model=JobReply, responses=answers(404, 503))
@requires(Scope.SPEECH)
async def job(job_id: str, jobs: OwnJobs) -> Response:
    view = await jobs.view(job_id)
    return await _reply(lambda: view_reply(view, jobs.keep_s))


@router.get(f"{ONE}/parts", response_model=PartList, responses=answers(400, 404, 503))
@requires(Scope.SPEECH)
async def parts(job_id: str, jobs: OwnJobs, first: Annotated[int, Query(ge=0)] = 0, limit: Limit = 100) -> Response:
    view = await jobs.view(job_id)
    files, keys = view.files, view.script.keys

    def read() -> PartList:
        numbers = range(len(keys))[first : first + limit]
        warned = {number: files.notes(keys[number]).warnings or {} for number in numbers if keys[number] in view.finished}
        data = [part_reply(view, number, dict(warned.get(number, {}))) for number in numbers]
        return PartList(data=data, has_more=len(keys) > first + limit)

    return await _reply(read)


@router.post(
    f"{ONE}/parts/{{number}}",
    status_code=202,
    openapi_extra=takes(PartBody),
    response_model=JobReply,
    responses=answers(400, 404, 408, 409, 413, 415, 429, 503, 507),
)
@requires(Scope.SPEECH)
async def speak_again(
    job_id: str, number: Annotated[int, PathParameter(ge=0)], request: Request, services: RequestServices, jobs: OwnJobs
) -> JobReply:
    """Has one part spoken with another seed or text."""
    body = await services.bodies.read_json(request, partial(read_body, PartBody))
    changed = await jobs.speak_again(job_id, number, body)
    return job_reply(changed, jobs.keep_s)


@router.get(f"{ONE}/events", response_class=Response, responses={**EVENTS, **answers(404, 503)})
@requires(Scope.SPEECH, stream=True)
async def events(job_id: str, request: Request, services: RequestServices, jobs: OwnJobs) -> Response:
    """Progress as server-sent events; 204 once there is nothing more to tell."""
    last = request.headers.get("last-event-id", "")
    view = await jobs.view(job_id)
    if has_seen_the_end(view, last):
        return Response(status_code=204)
    stream = job_events(jobs, context_of(request), services.jobs.is_leaving, view, last)
    return StreamingResponse(stream, media_type="text/event-stream")


@router.get(f"{ONE}/subtitles", response_class=Response, responses={**SUBTITLES, **answers(400, 404, 503)})
@requires(Scope.SPEECH)
async def subtitles(
    job_id: str,
    jobs: OwnJobs,
    format: SubtitlesIn = "srt",  # the API's name
) -> Response:
    """Subtitles of what is finished from the beginning on."""
    view = await jobs.view(job_id)
    text = await asyncio.to_thread(job_subtitles, view, view.files, format)
    return Response(text, headers=_headers(view, format), media_type=SUBTITLE_TYPES[format])


@router.post(f"{ONE}/pause", response_model=JobReply, responses=answers(404, 409, 503))
@requires(Scope.SPEECH)
async def pause(job_id: str, jobs: OwnJobs) -> JobReply:
    return job_reply(await jobs.pause(job_id), jobs.keep_s)


@router.post(f"{ONE}/resume", response_model=JobReply, responses=answers(404, 409, 429, 503, 507))
@requires(Scope.SPEECH)
async def resume(job_id: str, jobs: OwnJobs) -> JobReply:
    return job_reply(await jobs.resume(job_id), jobs.keep_s)


@router.post(f"{ONE}/cancel", response_model=JobReply, responses=answers(404, 409, 503))
@requires(Scope.SPEECH)
async def cancel(job_id: str, jobs: OwnJobs) -> JobReply:
    return job_reply(await jobs.cancel(job_id), jobs.keep_s)


@router.delete(ONE, status_code=204, response_class=Response, responses=answers(404, 503))
@requires(Scope.SPEECH)
async def delete(job_id: str, jobs: OwnJobs) -> Response:
    await jobs.delete(job_id)
    return Response(status_code=204)


@router.get(f"{ONE}/audio", response_class=Response, responses={**AUDIO, **answers(400, 404, 409, 416, 503)})
@requires(Scope.SPEECH, stream=True)
async def audio(job_id: str, request: Request, jobs: OwnJobs, format: str = "") -> Response:  # the API's name
    """The finished file, or what is finished from the beginning on."""
    view = await jobs.view(job_id)
    if not view.track.parts:
        message = "nothing of this job is finished yet; progress.playable_s of the job says how much is"
        raise ApiError(message, ErrorSpec(409, "conflict_error", "not_ready", True))
    return await asyncio.to_thread(_audio, request, view, format)


def _audio(request: Request, view: JobView, container: str) -> Response:
    record, files, track = view.job.record, view.files, view.track
    is_done = record.status is JobStatus.SUCCEEDED and record.result != "" and files.result_file(record.result).exists()
    if container == ZIP:
        beside = {f"subtitles.{kind}": job_subtitles(view, files, kind).encode() for kind in SUBTITLE_TYPES}
        return StreamingResponse(
            archive(files, view.script, track, beside), headers=_headers(view, ZIP), media_type="application/zip"
        )
    chosen = _chosen(view, container, is_done=is_done)
    headers = _headers(view, chosen.container)
    kind = chosen.content_type
    if chosen.container in RAW_CONTAINERS:
        etag = f"{record.script}-{track.parts}"
        size = raw_size(track, chosen)
        return ranged(
            request.headers, lambda a, b: raw(files, track, chosen, a, b), size, etag=etag, media_type=kind, headers=headers
        )
    if is_done and chosen == record.output.audio:
        path = files.result_file(record.result)
        read, size = file_reader(path), path.stat().st_size
        return ranged(request.headers, read, size, etag=record.result, media_type=kind, headers=headers)
    return StreamingResponse(encoded(files, track, chosen), headers=headers, media_type=kind)


def _headers(view: JobView, extension: str) -> dict[str, str]:
    name = quote(view.job.record.title or view.job.id, safe="")
    return {
        "Content-Disposition": f"attachment; filename*=UTF-8''{name}.{extension}",
        "X-Audio-Complete": str(view.track.is_whole).lower(),
        "X-AI-Generated": "true",
    }


def _chosen(view: JobView, container: str, *, is_done: bool) -> AudioFormat:
    """Returns the format of a download, at the rate of the job.

    Raises:
        UnsupportedFormat
    """
    output = view.job.record.output
    if container in ("", output.container) and (is_done or output.container != M4B):
        return output.audio
    known = [name for name in (*CONTAINERS, ZIP) if name != M4B]
    if container not in ("", *known):
        message = f"the format must be one of {', '.join(known)}; m4b is only made as the finished file of a job"
        raise UnsupportedFormat(message, param="format")
    return audio_format(container or "aac", output.sample_rate)


async def _document(request: Request, services: Services, most: int) -> tuple[JobBody, File | None, bytes]:
    """Returns a body, the file in place of its input if it is a form, and bytes that stand for both.

    Args:
        most: bytes of both.

    Raises:
        ApiError
    """
    if media_type_of(request) != FORM:
        body, raw_body = await services.bodies.read_json(
            request, lambda raw: (read_body(JobBody, raw), raw), most_bytes=min(most, JSON_BYTES), most_values=JSON_VALUES
        )
        return body, None, raw_body
    form = await read_form(request, services, most + FORM_ROOM)
    try:
        upload, fields = form.get("file"), str(form.get("job", "{}"))
        if not isinstance(upload, UploadFile):
            raise bad_request("missing_field", "file is required: an EPUB, Markdown, text or SSML", param="file")
        content, name = await upload.read(), upload.filename or ""
    finally:
        await form.close()
    raw_body = _with_input(fields.encode())
    digest = await asyncio.to_thread(lambda: hashlib.sha256(content).digest())
    return read_body(JobBody, raw_body), (name, content), raw_body + digest


def _with_input(fields: bytes) -> bytes:
    """Returns the fields beside a file as a whole body."""
    check_json(fields, MOST_VALUES)
    try:
        body = json.loads(fields)
    except ValueError:
        body = None
    if not isinstance(body, dict) or "input" in body:
        raise bad_request("invalid_form", "job is a JSON object with the fields of a job but input", param="job")
    return json.dumps({**body, "input": "a file"}).encode()


async def _reply(build: Callable[[], BaseModel], status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Returns a reply that is built and written in a thread: it has a line for each chapter, or each part."""
    content = await asyncio.to_thread(lambda: build().model_dump_json().encode())
    return Response(content, status, headers, media_type="application/json")
