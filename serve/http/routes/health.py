"""Health: whether the service lives, is ready and how its parts are.

In:    HTTP
Out:   JSON
"""

from typing import Any

from fastapi import APIRouter, HTTPException
from fastapi.responses import JSONResponse, Response

from serve.access.api_keys import Scope
from serve.http.about import NAME, version
from serve.http.dependencies import RequestServices
from serve.http.openapi import answers
from serve.http.route_access import open_to_all, probe, requires
from serve.http.services import Services

router = APIRouter()

READY_RETRY_S = "2"


@router.get("/live")
@probe
async def live() -> dict[str, str]:
    return {"status": "live"}


@router.get("/ready")
@probe
async def ready(services: RequestServices) -> Response:
    reason = await services.status.why_not_ready()
    if reason is None:
        # Without replicas it takes requests all the same: those are what wakes it.
        asleep = dict(services.status.wakefulness())
        return JSONResponse({"status": "ready", **({"stages": asleep} if asleep else {})})
    return JSONResponse({"status": "not_ready", "reason": reason}, 503, {"Retry-After": READY_RETRY_S})


@router.get("/metrics", include_in_schema=False)
@open_to_all
async def metrics(services: RequestServices) -> Response:
    """Returns the metrics of a service in one process; those of others are collected by Ray."""
    if services.metrics_text is None:
        raise HTTPException(404)
    return Response(services.metrics_text(), media_type="text/plain; version=0.0.4")


@router.get("/health")
@open_to_all
async def health(services: RequestServices) -> dict[str, Any]:
    return await state_of(services)


@router.get("/admin/status", responses=answers(401, 403))
@requires(Scope.ADMIN)
async def status(services: RequestServices) -> dict[str, Any]:
    """Returns what /health does, how the last minutes of this ingress replica went, and where the operator's tools are."""
    return {**await state_of(services), "recent": services.recent.summary(), "dashboards": dict(services.dashboards)}


async def state_of(services: Services) -> dict[str, Any]:
    """Returns the state of every part."""
    admission = {
        "in_flight": services.speech.admission.in_flight,
        "capacity": services.speech.admission.capacity,
        "mean_duration_s": round(services.speech.admission.mean_duration_s, 3),
        "receiving": services.bodies.arriving,
    }
    return {"name": NAME, "version": version(), "admission": admission, **await services.status.health()}
