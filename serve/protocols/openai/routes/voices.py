"""Voice API: the routes under /v1/audio/voices.

In:    HTTP
Out:   HTTP
Never: a client's words in an error; a recording kept longer than its request
"""

import asyncio
import hashlib
import secrets
from collections.abc import Awaitable
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

import numpy as np
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from numpy.typing import NDArray
from starlette.datastructures import FormData, UploadFile

from pipeline.errors import UnknownVoice
from pipeline.types import MAX_SEED
from pipeline.voices.catalogue import VoiceInfo
from pipeline.voices.library import VoiceLibrary
from pipeline.voices.records import MAX_NOTE_CHARS, StoredVoice
from pipeline.voices.reference import Report
from pipeline.voices.strings import decode_embedding, encode_embedding
from pipeline.voices.voice_names import INLINE
from serve.access.api_keys import Scope
from serve.errors import ApiError, ErrorSpec, bad_request
from serve.http.body_reader import FORM, media_type_of, too_large
from serve.http.dependencies import RequestServices
from serve.http.forms import FORM_ROOM, read_form
from serve.http.middleware import caller_of
from serve.http.openapi import answers, takes
from serve.http.route_access import any_key, listing, requires
from serve.http.services import Services
from serve.http.speech_writers import GENERATED
from serve.protocols.openai.ranged import ranged
from serve.protocols.openai.schemas.voices import (
    BlendBody,
    EditBody,
    FormBody,
    NewVoiceBody,
    RandomBody,
    blend_expression,
    takes_form,
)
from serve.speech.model_selection import ModelSelector
from serve.speech.schemas.base import read_body, read_values
from serve.speech.schemas.speech import MODELS

NO_CONSENT = ("", "0", "false", "no", "off")

R = TypeVar("R")

router = APIRouter()
CANDIDATES = 16  # embeddings compared per seed that is returned


def similar_seeds(
    library: VoiceLibrary, count: int, seed: int | None, like: str | None, unlike: str | None
) -> list[tuple[int, float | None]]:
    """Returns `count` seeds, each with the similarity of its speaker to `like` (or `unlike`), -1 .. 1.

    Without either the next `count` seeds of the counter; with one the best of CANDIDATES times as many.

    Args:
        seed: the first candidate; None: drawn.
    """
    first = secrets.randbelow(MAX_SEED + 1) if seed is None else seed
    reference = like or unlike
    seeds = [(first + index) % (MAX_SEED + 1) for index in range(count if reference is None else CANDIDATES * count)]
    if reference is None:
        return [(candidate, None) for candidate in seeds]
    direction = _direction(library.embedding_of(reference))
    compared = [(candidate, float(_direction(library.embedding_of(f"seed:{candidate}")) @ direction)) for candidate in seeds]
    best = sorted(compared, key=lambda pair: pair[1], reverse=like is not None)[:count]
    return [(candidate, round(similarity, 4)) for candidate, similarity in best]


def _direction(embedding: NDArray[np.float16]) -> NDArray[np.float64]:
    wide = embedding.astype(np.float64)
    direction: NDArray[np.float64] = wide / np.linalg.norm(wide)
    return direction


@router.get("/v1/audio/voices")
@listing
async def voices(services: RequestServices, legacy: str = "0") -> dict[str, Any]:
    entries = services.voices.library.list()
    if legacy in ("1", "true"):
        return {"voices": [entry.name for entry in entries]}
    cards = [voice_card(entry, services.speech.models) for entry in entries]
    return {"voices": cards, "languages": list(services.speech.models.languages())}


@router.post(
    "/v1/audio/voices",
    status_code=201,
    openapi_extra=takes_form(),
    responses=answers(400, 403, 408, 409, 413, 415, 422, 429, 503, 507),
)
@requires(Scope.VOICES, stream=True)
async def create(request: Request, services: RequestServices) -> Response:
    maker = services.voices.maker
    if media_type_of(request) == FORM:
        return await clone(request, services)
    body = await services.bodies.read_json(request, partial(read_body, NewVoiceBody))
    metadata = body.metadata(caller_of(request))
    sources = [body.seed is not None, body.embedding is not None, body.blend is not None]
    if sum(sources) != 1:
        raise bad_request("conflicting_fields", "give exactly one of seed, embedding and blend, or a form with audio_sample")
    with services.speech.admission.acquire():
        if body.seed is not None:
            return created(services, await maker.from_seed(metadata, body.seed))
        if body.blend is not None:
            return created(services, await maker.from_blend(metadata, blend_expression(body.blend)))
        assert body.embedding is not None
        try:
            embedding = decode_embedding(body.embedding.removeprefix(INLINE), services.voices.library.width)
        except ValueError as error:
            raise bad_request("invalid_embedding", f"embedding: {error}", param="embedding") from None
        return created(services, await maker.from_embedding(metadata, embedding))


@router.post("/v1/audio/voices/random", openapi_extra=takes(RandomBody), responses=answers(400, 408, 413, 415))
@requires(Scope.VOICES)
async def random(request: Request, services: RequestServices) -> dict[str, Any]:
    body = await services.bodies.read_json(request, partial(read_body, RandomBody))
    wish = body.filter
    if wish.like and wish.unlike:
        raise bad_request("conflicting_fields", "filter is like or unlike, not both", param="filter")
    matches = await asyncio.to_thread(similar_seeds, services.voices.library, body.count, body.seed, wish.like, wish.unlike)
    return {
        "voices": [
            {
                "id": f"seed:{seed}",
                "origin": "random",
                "seed": seed,
                **({} if similarity is None else {"similarity": similarity}),
                "preview_url": preview_url(f"seed:{seed}"),
            }
            for seed, similarity in matches
        ]
    }


@router.post(
    "/v1/audio/voices/blend",
    status_code=201,
    openapi_extra=takes(BlendBody),
    responses=answers(400, 408, 409, 413, 415, 429, 503, 507),
)
@requires(Scope.VOICES, stream=True)
async def blend(request: Request, services: RequestServices) -> Response:
    body = await services.bodies.read_json(request, partial(read_body, BlendBody))
    with services.speech.admission.acquire():
        return created(services, await services.voices.maker.from_blend(body.metadata(caller_of(request)), body.expression))


@router.get("/v1/audio/voices/{name}", responses=answers(400, 404))
@any_key
async def voice(name: str, services: RequestServices) -> dict[str, Any]:
    return await or_404(described(services, name))


@router.patch(
    "/v1/audio/voices/{name}", openapi_extra=takes(EditBody), responses=answers(400, 403, 404, 408, 409, 413, 415, 503, 507)
)
@requires(Scope.VOICES)
async def edit(name: str, request: Request, services: RequestServices) -> Response:
    body = await services.bodies.read_json(request, partial(read_body, EditBody))
    changes = {key: value for key, value in body.model_dump().items() if value is not None}
    if not changes:
        raise bad_request("missing_field", "give at least one of name, languages, description, licence and gain_db")
    if "name" in changes:
        changes["title"] = changes.pop("name")
    stored = await or_404(services.voices.maker.edit(name, changes, caller_of(request).writer))
    return JSONResponse(voice_card(services.voices.library.info(stored), services.speech.models))


@router.delete("/v1/audio/voices/{name}", responses=answers(400, 403, 404, 503))
@requires(Scope.VOICES)
async def delete(name: str, request: Request, services: RequestServices) -> dict[str, Any]:
    await or_404(services.voices.maker.delete(name, caller_of(request).writer))
    return {"id": name, "object": "audio.voice.deleted", "deleted": True}


@router.get(
    "/v1/audio/voices/{name}/preview",
    response_class=Response,
    responses={
        200: {"content": {"audio/mpeg": {"schema": {"type": "string", "format": "binary"}}}},
        **answers(400, 404, 429, 503, 504),
    },
)
@requires(Scope.VOICES, stream=True)
async def preview(name: str, request: Request, services: RequestServices) -> Response:
    with services.speech.admission.acquire():
        sound = await or_404(services.voices.sampler.preview(name, caller_of(request)))
    etag, read = hashlib.sha256(sound).hexdigest()[:32], lambda first, stop: iter([sound[first:stop]])
    return ranged(request.headers, read, len(sound), etag=etag, media_type="audio/mpeg", headers=GENERATED)


@router.post("/v1/audio/voices/{name}/score", responses=answers(400, 404, 429, 503, 504))
@requires(Scope.VOICES, stream=True)
async def score(name: str, request: Request, services: RequestServices) -> dict[str, Any]:
    with services.speech.admission.acquire():
        scores = await or_404(services.voices.sampler.score(name, caller_of(request)))
    return {"id": services.speech.voice_id(name), **scores}


async def clone(request: Request, services: Services) -> Response:
    """Creates a voice from a recording."""
    check_cloning(services)
    form = await read_form(request, services, services.voices.maker.config.max_upload_bytes + FORM_ROOM)
    try:
        consent = str(form.get("consent", "")).strip()
        if consent.lower() in NO_CONSENT:
            raise bad_request(
                "missing_field", "consent is required: true, or a statement of what the speaker has agreed to", param="consent"
            )
        fields = {key: value for key, value in form.items() if isinstance(value, str) and key != "consent"}
        body = read_values(FormBody, form_values(fields))
        stored, report = await from_recording(request, services, form, "audio_sample", body, consent)
    finally:
        await form.close()
    return created(
        services,
        stored,
        reference={
            "container": report.container,
            "seconds": report.seconds,
            "speech_s": report.speech_s,
            "snr_db": report.snr_db,
            "loudness_lufs": report.loudness_lufs,
        },
    )


def check_cloning(services: Services) -> None:
    """Checks that voices may be created from recordings, and that there is room for one more request.

    Raises:
        ApiError, AtCapacity, Draining
    """
    if not services.voices.maker.config.clone:
        raise ApiError(
            "this service creates no voices from recordings (voices.clone)",
            ErrorSpec(403, "permission_error", "clone_disabled", False),
        )
    services.speech.admission.check()


async def from_recording(
    request: Request, services: Services, form: FormData, field: str, body: FormBody, consent: str
) -> tuple[StoredVoice, Report]:
    """Stores the voice of the recording in a field of a form."""
    content = await recording(form, field, services.voices.maker.config.max_upload_bytes)
    with services.speech.admission.acquire():
        metadata = body.metadata(caller_of(request))
        return await services.voices.maker.from_recording(metadata, content, body.ref_text, consent[:MAX_NOTE_CHARS])


async def recording(form: FormData, field: str, limit: int) -> bytes:
    """Returns the bytes of the form's one file, which is in the given field."""
    upload = form.get(field)
    if not isinstance(upload, UploadFile):
        raise bad_request("missing_field", f"{field} is required: a WAV, FLAC, OGG or MP3 file", param=field)
    content = await upload.read()
    if len(content) > limit:
        raise too_large(limit)
    return content


def form_values(fields: dict[str, str]) -> dict[str, Any]:
    """Returns the fields of a form as values: its languages are separated by commas."""
    values: dict[str, Any] = dict(fields)
    if "languages" in values:
        values["languages"] = [word.strip() for word in fields["languages"].split(",") if word.strip()]
    return values


async def described(services: Services, name: str) -> dict[str, Any]:
    """Returns a voice with its embedding; the codes of a recording are never returned."""
    library = services.voices.library
    stored = library.find(name)
    canonical = library.canonical(name)
    voice = library.get(canonical)
    if stored is not None:
        info = library.info(stored)
    else:
        info = next((entry for entry in library.list() if entry.name == canonical), VoiceInfo(canonical, (), (), "", canonical))
    embedding = None if voice.embedding is None else encode_embedding(voice.embedding)
    return {**voice_card(info, services.speech.models), "embedding": embedding}


def voice_card(info: VoiceInfo, models: ModelSelector) -> dict[str, Any]:
    """Returns the public metadata of a voice; a voice without languages has those of the checkpoint."""
    return {
        "id": info.name,
        "object": "audio.voice",
        "type": "audio_sample" if info.origin == "upload" else info.origin,
        "name": info.title or info.name,
        "aliases": list(info.aliases),
        "languages": list(info.languages or models.languages()),
        "origin": info.origin,
        "description": info.description,
        "labels": dict(info.labels),
        "licence": info.licence,
        "model": MODELS[0],
        "version": info.version,
        "read_only": info.version is None,
        "consent": info.consent,
        "created_at": int(datetime.fromisoformat(info.created_at).timestamp()) if info.created_at else 0,
        "gain_db": info.gain_db,
        "loudness_lufs": info.loudness_lufs,
        "stability": info.stability,
        "preview_url": preview_url(info.name),
    }


def preview_url(name: str) -> str:
    """Returns the address of a voice's preview."""
    return f"/v1/audio/voices/{name}/preview"


def created(services: Services, stored: StoredVoice, **more: Any) -> Response:
    """Returns 201 with the new voice."""
    card = voice_card(services.voices.library.info(stored), services.speech.models)
    return JSONResponse({**card, **more}, 201, {"Location": f"/v1/audio/voices/{stored.id}"})


async def or_404(answer: Awaitable[R]) -> R:
    """Awaits `answer`; an unknown voice becomes a 404, as its name stands in the path (in a body it is a 400)."""
    try:
        return await answer
    except UnknownVoice as error:
        raise ApiError(error.message, ErrorSpec(404, "not_found_error", "voice_not_found", False), param="id") from None
