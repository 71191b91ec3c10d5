"""ElevenLabs account: the key, its quota and its single-use tokens, as ElevenLabs' clients read them.

In:    HTTP
Out:   JSON
Never: the secret of a key; a bill: nothing is sold here
"""

from typing import Any

from fastapi import APIRouter, Request

from serve.access.api_keys import Scope
from serve.access.quotas import day_ends_at
from serve.errors import bad_request
from serve.http.dependencies import RequestServices
from serve.http.middleware import caller_of
from serve.http.route_access import any_key, requires
from serve.http.services import Services
from serve.protocols.elevenlabs.routes import REFUSED

router = APIRouter()

TOKEN_KIND = "tts_websocket"
NO_LIMIT = (1 << 31) - 1
"""characters of a key whose characters are not limited"""


@router.get("/v1/user", responses=REFUSED)
@any_key
async def user(request: Request, services: RequestServices) -> dict[str, Any]:
    return {
        "user_id": caller_of(request).id,
        "workspace_id": caller_of(request).id,
        "subscription": await subscription_of(request, services),
        "is_new_user": False,
        "is_onboarding_completed": True,
        "is_onboarding_checklist_completed": True,
        "can_use_delayed_payment_methods": False,
        "is_api_key_hashed": True,
        "created_at": 0,
        "seat_type": "workspace_member",
    }


@router.get("/v1/user/subscription", responses=REFUSED)
@any_key
async def subscription(request: Request, services: RequestServices) -> dict[str, Any]:
    return await subscription_of(request, services)


@router.post("/v1/single-use-token/{token_type}", responses=REFUSED)
@requires(Scope.SPEECH)
async def single_use_token(token_type: str, request: Request, services: RequestServices) -> dict[str, str]:
    if token_type != TOKEN_KIND:
        raise bad_request("invalid_type", f"a token is for {TOKEN_KIND}: this service hears nothing", param="token_type")
    return {"token": services.authenticator.token_of(caller_of(request).id)}


async def subscription_of(request: Request, services: Services) -> dict[str, Any]:
    """Returns the quota of the caller's key; characters without a limit are not counted. Clients check that all are numbers."""
    caller, voices = caller_of(request), services.voices
    used = await caller.characters_today()
    return {
        "tier": "self_hosted",
        "status": "active",
        "character_count": used or 0,
        "character_limit": NO_LIMIT if used is None or caller.quota is None else caller.quota.characters_a_day or NO_LIMIT,
        "max_credit_limit_extension": 0,
        "next_character_count_reset_unix": None if used is None else day_ends_at(),
        "can_extend_character_limit": False,
        "allowed_to_extend_character_limit": False,
        "voice_slots_used": sum(info.version is not None for info in voices.library.list()),
        "voice_add_edit_counter": 0,
        "voice_limit": voices.maker.config.max_voices,
        "can_extend_voice_limit": False,
        "can_use_instant_voice_cloning": voices.maker.config.clone,
        "professional_voice_limit": 0,
        "professional_voice_slots_used": 0,
        "professional_voice_slots_used_in_workspace": 0,
        "can_use_professional_voice_cloning": False,
        "currency": None,
        "current_overage": {"amount": "0", "currency": "usd"},
        "billing_period": None,
        "next_invoice": None,
        "open_invoices": [],
        "has_open_invoices": False,
    }
