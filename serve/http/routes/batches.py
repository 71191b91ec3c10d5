"""Batches: the routes of files of many requests, in OpenAI's shape.

In:    HTTP
Out:   files and batches as JSON, their contents
Owns:  nothing
Never: Ray, torch; a file or a batch of another key
"""

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response, StreamingResponse
from starlette.datastructures import UploadFile

from serve.access.api_keys import Scope
from serve.errors import bad_request
from serve.http.dependencies import RequestServices
from serve.http.forms import FORM_ROOM, read_form
from serve.http.middleware import caller_of
from serve.http.openapi import answers, takes
from serve.http.request_context import context_of
from serve.http.route_access import requires
from serve.http.schemas.batches import (
    INPUT,
    OUTPUT,
    BatchBody,
    BatchList,
    BatchReply,
    FileDeleted,
    FileList,
    FileReply,
    batch_reply,
    file_reply,
)
from serve.jobs.batches import BatchDesk, BatchView, Kind, batch_id_of
from serve.speech.schemas.base import read_body

router = APIRouter()

FILES, BATCHES = "/v1/files", "/v1/batches"
FILE, BATCH = f"{FILES}/{{file_id}}", f"{BATCHES}/{{batch_id}}"
NAME_CHARACTERS = 255

UPLOAD: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "properties": {
                        "file": {"type": "string", "format": "binary", "description": "JSON lines"},
                        "purpose": {"type": "string", "enum": [INPUT]},
                    },
                    "required": ["file", "purpose"],
                }
            }
        },
    }
}
CONTENT: dict[int | str, dict[str, Any]] = {
    200: {"description": "the file", "content": {"application/jsonl": {"schema": {"type": "string"}}}}
}
ARCHIVE: dict[int | str, dict[str, Any]] = {
    200: {"description": "the audio", "content": {"application/zip": {"schema": {"type": "string", "format": "binary"}}}}
}
Limit = Annotated[int, Query(ge=1, le=1000)]

T = TypeVar("T")


@router.post(FILES, openapi_extra=UPLOAD, response_model=FileReply, responses=answers(400, 408, 413, 415, 429, 503, 507))
@requires(Scope.SPEECH)
async def upload(request: Request, services: RequestServices) -> FileReply:
    config = services.jobs.config
    form = await read_form(request, services, config.max_body_bytes + FORM_ROOM)
    try:
        sent, purpose = form.get("file"), form.get("purpose")
        if not isinstance(sent, UploadFile):
            raise bad_request("missing_field", "file is required: JSON lines", param="file")
        if purpose != INPUT:
            raise bad_request("out_of_range", f"purpose is {INPUT}", param="purpose")
        content, name = await sent.read(), (sent.filename or "batch.jsonl")[:NAME_CHARACTERS]
    finally:
        await form.close()
    desk, tenant = BatchDesk(services.jobs), caller_of(request).id
    file_id, record = await desk.add_file(tenant, name, content)
    return file_reply(file_id, record, config.keep_s)


@router.get(FILES, response_model=FileList, responses=answers(400, 503))
@requires(Scope.SPEECH)
async def files(
    request: Request, services: RequestServices, purpose: str = "", after: str = "", limit: Limit = 1000
) -> FileList:
    desk, tenant, keep_s = BatchDesk(services.jobs), caller_of(request).id, services.jobs.config.keep_s
    found: list[FileReply] = []
    if purpose in ("", INPUT):
        uploaded = await desk.files(tenant)
        found += [file_reply(file_id, record, keep_s) for file_id, record in uploaded.items()]
    if purpose in ("", OUTPUT):
        views = [await desk.view(job) for job in await desk.listed(tenant)]
        found += [await _made(desk, view, kind) for view in views for kind in _kinds(view)]
    page, has_more = _page([(file.id, file) for file in found], after, limit)
    first, last = (page[0].id, page[-1].id) if page else (None, None)
    return FileList(data=page, first_id=first, last_id=last, has_more=has_more)


@router.get(FILE, response_model=FileReply, responses=answers(404, 503))
@requires(Scope.SPEECH)
async def file(file_id: str, request: Request, services: RequestServices) -> FileReply:
    desk, tenant = BatchDesk(services.jobs), caller_of(request).id
    made = await desk.made_of(tenant, file_id)
    if made is not None:
        return await _made(desk, *made)
    record = await asyncio.to_thread(services.jobs.files.get, tenant, file_id)
    return file_reply(file_id, record, services.jobs.config.keep_s)


@router.get(f"{FILE}/content", response_class=Response, responses={**CONTENT, **answers(404, 503)})
@requires(Scope.SPEECH, stream=True)
async def content(file_id: str, request: Request, services: RequestServices) -> Response:
    pieces = await BatchDesk(services.jobs).content(caller_of(request).id, file_id)
    return StreamingResponse(pieces, headers={"X-AI-Generated": "true"}, media_type="application/jsonl")


@router.delete(FILE, response_model=FileDeleted, responses=answers(404, 503))
@requires(Scope.SPEECH)
async def delete(file_id: str, request: Request, services: RequestServices) -> FileDeleted:
    """Removes a file; with the output of a batch, the batch and all of its audio."""
    await BatchDesk(services.jobs).delete_file(caller_of(request).id, file_id)
    return FileDeleted(id=file_id)


@router.post(
    BATCHES,
    openapi_extra=takes(BatchBody),
    response_model=BatchReply,
    responses=answers(400, 403, 404, 408, 413, 415, 429, 503, 507),
)
@requires(Scope.SPEECH)
async def create(request: Request, services: RequestServices) -> BatchReply:
    body, context = read_body(BatchBody, await services.bodies.read_json(request)), context_of(request)
    if context.idempotency_key is not None:
        raise bad_request("conflicting_fields", "a batch has no Idempotency-Key: its custom_ids tell its lines apart")
    return batch_reply(await BatchDesk(services.jobs).create(context, body.note()))


@router.get(BATCHES, response_model=BatchList, responses=answers(400, 503))
@requires(Scope.SPEECH)
async def batches(request: Request, services: RequestServices, after: str = "", limit: Limit = 20) -> BatchList:
    desk = BatchDesk(services.jobs)
    jobs = [(batch_id_of(job), job) for job in await desk.listed(caller_of(request).id)]
    page, has_more = _page(jobs, after, limit)
    replies = [batch_reply(await desk.view(job)) for job in page]
    first, last = (replies[0].id, replies[-1].id) if replies else (None, None)
    return BatchList(data=replies, first_id=first, last_id=last, has_more=has_more)


@router.get(BATCH, response_model=BatchReply, responses=answers(404, 503))
@requires(Scope.SPEECH)
async def batch(batch_id: str, request: Request, services: RequestServices) -> BatchReply:
    return batch_reply(await BatchDesk(services.jobs).get(caller_of(request).id, batch_id))


@router.post(f"{BATCH}/cancel", response_model=BatchReply, responses=answers(404, 409, 503))
@requires(Scope.SPEECH)
async def cancel(batch_id: str, request: Request, services: RequestServices) -> BatchReply:
    return batch_reply(await BatchDesk(services.jobs).cancel(caller_of(request).id, batch_id))


@router.get(f"{BATCH}/audio", response_class=Response, responses={**ARCHIVE, **answers(404, 503)})
@requires(Scope.SPEECH, stream=True)
async def audio(batch_id: str, request: Request, services: RequestServices) -> Response:
    """The audio of a batch as a zip, as far as it is finished."""
    desk = BatchDesk(services.jobs)
    view = await desk.get(caller_of(request).id, batch_id)
    headers = {"Content-Disposition": f'attachment; filename="{view.id}.zip"', "X-AI-Generated": "true"}
    return StreamingResponse(desk.archive(view), headers=headers, media_type="application/zip")


def _kinds(view: BatchView) -> list[Kind]:
    kinds: tuple[Kind, ...] = ("output", "error")
    return [kind for kind in kinds if view.file_id(kind) is not None]


async def _made(desk: BatchDesk, view: BatchView, kind: Kind) -> FileReply:
    """Returns a file that is made of a batch. It is made to know its size."""
    size = await asyncio.to_thread(lambda: sum(map(len, desk.lines(view, kind))))
    created, file_id = int(view.job.record.changed_at), view.file_id(kind)
    assert file_id is not None
    return FileReply(id=file_id, bytes=size, created_at=created, filename=f"{view.id}_{kind}.jsonl", purpose=OUTPUT)


def _page(items: Sequence[tuple[str, T]], after: str, limit: int) -> tuple[list[T], bool]:
    """Returns the items behind one of an id, and whether there are more.

    Raises:
        ApiError: 400, there is none of that id.
    """
    ids = [one for one, _ in items]
    if after and after not in ids:
        raise bad_request("out_of_range", "after is the id of the last one of the page before", param="after")
    start = ids.index(after) + 1 if after else 0
    return [item for _, item in items[start : start + limit]], len(items) > start + limit
