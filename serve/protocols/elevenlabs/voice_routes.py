"""ElevenLabs voices: adding, editing and deleting them, as translations of the routes under /v1/audio/voices.

In:    HTTP
Out:   JSON
Never: a voice of a recording without its transcript and a consent; a client's words in an error
"""

from collections.abc import Iterable
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import ConfigDict, Field, ValidationError
from starlette.datastructures import FormData, UploadFile

from serve.access.api_keys import Scope
from serve.errors import bad_request
from serve.http.dependencies import RequestServices
from serve.http.forms import FORM_ROOM, read_form
from serve.http.ignored_fields import ignored_header
from serve.http.middleware import caller_of
from serve.http.route_access import requires
from serve.protocols.elevenlabs.routes import REFUSED
from serve.protocols.openai.routes.voices import NO_CONSENT, check_cloning, from_recording, or_404
from serve.protocols.openai.schemas.voices import EditBody, FormBody
from serve.speech.schemas.base import Body, read_values
from serve.voices.voice_maker import VoiceMaker

router = APIRouter()

NO_FIELDS_FOR_IT = (
    "a form of this protocol has no field for it: write it into labels, a JSON object with ref_text, the exact transcript of "
    "the recording, and consent: true, or a statement of what the speaker has agreed to"
)


class Labels(Body):
    """What a form says about a voice beside its name. Others are kept, so that the reply can name them."""

    model_config = ConfigDict(extra="allow")

    language: str | None = Field(None, description="languages, separated by commas")
    ref_text: str | None = None
    consent: str | bool | None = None
    licence: str | None = None


def form_of(*required: str) -> dict[str, Any]:
    """Returns the description of a form about a voice."""
    fields = {
        "name": {"type": "string"},
        "files": {"type": "array", "items": {"type": "string", "format": "binary"}, "description": "one recording, 3 to 30 s"},
        "description": {"type": "string"},
        "labels": {"type": "string", "description": f"a JSON object with any of {', '.join(Labels.model_fields)}"},
    }
    schema = {"type": "object", "properties": fields, "required": list(required)}
    return {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": schema}}}}


@router.post("/v1/voices/add", openapi_extra=form_of("name", "files", "labels"), responses=REFUSED)
@requires(Scope.VOICES, stream=True)
async def add(request: Request, services: RequestServices) -> Response:
    maker = services.voices.maker
    check_cloning(services)
    limit = maker.config.max_upload_bytes
    form = await read_form(request, services, limit + FORM_ROOM)
    try:
        labels = labels_of(form)
        for name in ("ref_text", "consent"):
            if str(getattr(labels, name) or "").strip().lower() in NO_CONSENT:
                raise bad_request("missing_field", f"{name} is required, and {NO_FIELDS_FOR_IT}", param="labels")
        body = read_values(FormBody, {**metadata_of(form, labels), "ref_text": labels.ref_text})
        stored, _ = await from_recording(request, services, form, "files", body, str(labels.consent))
    finally:
        await form.close()
    return replied({"voice_id": stored.id, "requires_verification": False}, unused(form, labels))


@router.post("/v1/voices/{name}/edit", openapi_extra=form_of(), responses=REFUSED)
@requires(Scope.VOICES)
async def edit(name: str, request: Request, services: RequestServices) -> Response:
    maker: VoiceMaker = services.voices.maker
    form = await read_form(request, services, maker.config.max_upload_bytes + FORM_ROOM)
    try:
        if any(isinstance(value, UploadFile) for value in form.values()):
            raise bad_request("voice_sound_fixed", "the sound of a voice cannot change: add another voice", param="files")
        labels = labels_of(form)
        body = read_values(EditBody, metadata_of(form, labels))
        ignored = [*unused(form, labels), *(f"labels.{field}" for field in ("ref_text", "consent") if getattr(labels, field))]
    finally:
        await form.close()
    changes = {field: value for field, value in body.model_dump().items() if value is not None}
    if not changes:
        raise bad_request("missing_field", "give at least one of name, description, labels.language and labels.licence")
    if "name" in changes:
        changes["title"] = changes.pop("name")
    await or_404(maker.edit(name, changes, caller_of(request).writer))
    return replied({"status": "ok"}, ignored)


@router.delete("/v1/voices/{name}", responses=REFUSED)
@requires(Scope.VOICES)
async def delete(name: str, request: Request, services: RequestServices) -> dict[str, Any]:
    await or_404(services.voices.maker.delete(name, caller_of(request).writer))
    return {"status": "ok"}


@router.post("/v1/voices/{name}/settings/edit", responses=REFUSED)
@requires(Scope.VOICES)
async def edit_settings(name: str) -> Response:
    raise bad_request("settings_not_stored", "voices keep no settings here: send voice_settings with each text")


def labels_of(form: FormData) -> Labels:
    """Returns the labels of a form; without any, or `null`, empty ones.

    Raises:
        ApiError: 400
    """
    written = form.get("labels")
    if written in (None, "", "null"):
        return Labels()
    try:
        return Labels.model_validate_json(str(written))
    except (ValidationError, RecursionError):
        raise bad_request("invalid_type", "labels is a JSON object of texts", param="labels") from None


def metadata_of(form: FormData, labels: Labels) -> dict[str, Any]:
    """Returns the public metadata of a form, as far as it says any."""
    languages = None if labels.language is None else [word.strip() for word in labels.language.split(",") if word.strip()]
    metadata = {
        "name": form.get("name") or None,
        "description": form.get("description") or None,
        "languages": languages,
        "licence": labels.licence,
    }
    return {name: value for name, value in metadata.items() if value is not None}


def unused(form: FormData, labels: Labels) -> list[str]:
    """Returns the fields of a form that have no effect."""
    fields = [name for name in form if name not in ("name", "description", "labels", "files")]
    off = [name for name in fields if str(form[name]).lower() in NO_CONSENT]
    return [*(name for name in fields if name not in off), *(f"labels.{name}" for name in labels.model_extra or {})]


def replied(body: dict[str, Any], ignored: Iterable[str]) -> Response:
    """Returns a reply that names the fields without effect."""
    named = tuple(ignored)
    return JSONResponse(body, headers={"X-Ignored-Fields": ignored_header(named)} if named else {})
