"""Models: the routes that list the models and what may be done with them.

In:    HTTP
Out:   JSON in OpenAI's shape
"""

from typing import Any

from fastapi import APIRouter

from serve.http.dependencies import RequestServices
from serve.http.route_access import any_key, listing
from serve.speech.model_selection import ModelSelector

router = APIRouter()


@router.get("/v1/models")
@any_key
async def models(services: RequestServices) -> dict[str, Any]:
    return {"object": "list", "data": [model_card(name, services.speech.models) for name in services.speech.models.ids]}


@router.get("/v1/audio/models")
@listing
async def audio_models(services: RequestServices) -> dict[str, Any]:
    return {"models": [{"id": name, "name": name} for name in services.speech.models.ids]}


@router.get("/v1/models/{name}")
@any_key
async def model(name: str, services: RequestServices) -> dict[str, Any]:
    return {**model_card(services.speech.models.meant(name), services.speech.models), "id": name}


for prefix in ("/openai/v1", "/openai"):  # of Azure's clients
    router.add_api_route(f"{prefix}/models", models, include_in_schema=False)
    router.add_api_route(f"{prefix}/models/{{name}}", model, include_in_schema=False)


def model_card(name: str, models: ModelSelector) -> dict[str, Any]:
    """Returns a model in OpenAI's shape, with the licence of its weights and the languages it speaks."""
    weights = models.licence(name)
    return {
        "id": name,
        "object": "model",
        "created": 0,
        "owned_by": "2Noise",
        "license": weights.name,
        "license_url": weights.url,
        "attribution": weights.attribution,
        "commercial_use": weights.commercial_use,
        "languages": list(models.languages(name)),
        **models.state(name),
    }
