"""Health: whether the service lives, is ready and how its parts are.

In:    HTTP
Out:   JSON
"""

from collections.abc import Iterable, Mapping
from typing import Any

from fastapi import APIRouter, HTTPException
from fastapi.responses import JSONResponse, Response

from pipeline.types import Lane, LoadReport
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


@router.get("/cell")
@open_to_all
async def cell(services: RequestServices) -> Response:
    """Returns what an edge before several services asks each of them; 503 from one that takes nothing new."""
    admission = services.speech.admission
    state = {**cell_state(services.speech.load_reports()), "draining": admission.closed}
    return JSONResponse(state, 503 if admission.closed else 200)


def cell_state(reports: Iterable[LoadReport]) -> Mapping[str, Any]:
    """Returns the builds, the share of slots that are free, and the wait for one by lane [s]; all free before any report."""
    known = list(reports)
    slots, busy = sum(report.usable for report in known), sum(report.sequences for report in known)
    waits = {
        lane.value: min((report.first_audio_s(report.sequences, lane, 0) for report in known), default=0.0) for lane in Lane
    }
    return {
        "builds": sorted({report.build for report in known} - {""}),
        "slots": slots,
        "free": round(max(0.0, 1 - busy / slots), 3) if slots else 1.0,
        "wait_s": {lane: round(wait_s, 3) for lane, wait_s in waits.items()},
    }


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
