"""Health: whether the service lives, is ready and how its parts are; and the front page.

In:    HTTP
Out:   JSON, one HTML page
Owns:  the page, once it has been read
Never: Ray, torch
"""

from functools import cache
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response

from pipeline.audio.formats import CONTAINERS
from serve.http.about import NAME, version
from serve.http.dependencies import RequestServices
from serve.http.route_access import open_to_all, probe

router = APIRouter()

PAGE = Path(__file__).parents[1] / "page.html"
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
        return JSONResponse({"status": "ready"})
    return JSONResponse({"status": "not_ready", "reason": reason}, 503, {"Retry-After": READY_RETRY_S})


@router.get("/health")
@open_to_all
async def health(services: RequestServices) -> dict[str, Any]:
    admission = {
        "in_flight": services.speech.admission.in_flight,
        "capacity": services.speech.admission.capacity,
        "mean_duration_s": round(services.speech.admission.mean_duration_s, 3),
        "receiving": services.bodies.arriving,
    }
    return {"name": NAME, "version": version(), "admission": admission, **await services.status.health()}


@router.get("/v1/")
@open_to_all
async def base() -> dict[str, Any]:
    return about()


@router.get("/", response_class=Response)
@open_to_all
async def front(request: Request) -> Response:
    if "text/html" in request.headers.get("accept", ""):
        return HTMLResponse(page())
    return JSONResponse(about())


def about() -> dict[str, Any]:
    """Returns what programs are told at the address that they are given."""
    return {"name": NAME, "version": version(), "formats": list(CONTAINERS), "source": "/source"}


@cache
def page() -> str:
    """Returns the page for browsers."""
    return PAGE.read_text(encoding="utf-8")
