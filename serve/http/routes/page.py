"""Page: the studio for browsers at `/`, and its files.

In:    HTTP
Out:   HTML, CSS, ES modules; to programs, JSON
Owns:  nothing
Never: Ray, torch; a file outside the page's folder
"""

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from pipeline.audio.formats import CONTAINERS
from serve.errors import plain_status
from serve.http import page_files
from serve.http.about import NAME, version
from serve.http.docs_page import docs_page
from serve.http.openapi import answers
from serve.http.route_access import open_to_all

router = APIRouter()


@router.get("/v1/")
@open_to_all
async def base() -> dict[str, Any]:
    return about()


@router.get("/", response_class=Response)
@open_to_all
async def front(request: Request) -> Response:
    if "text/html" in request.headers.get("accept", ""):
        headers = {**page_files.DOCUMENT_HEADERS, "Vary": "Accept"}
        return Response(page_files.document(), media_type="text/html; charset=utf-8", headers=headers)
    return JSONResponse(about(), headers={"Vary": "Accept"})


@router.get("/docs", response_class=Response)
@open_to_all
async def docs(request: Request) -> Response:
    """Returns the API's document as a page, which loads nothing from elsewhere."""
    api = request.app
    if getattr(api.state, "docs_page", None) is None:
        api.state.docs_page = docs_page(api.openapi())
    return Response(api.state.docs_page, media_type="text/html; charset=utf-8", headers=page_files.DOCUMENT_HEADERS)


@router.get("/page/{version}/{path:path}", response_class=Response, responses=answers(404))
@open_to_all
async def file(version: str, path: str) -> Response:
    """Returns a file of the page; one of another release, which a rolling update still asks for, must not be kept."""
    found = page_files.page_files().get(path)
    if found is None or path == page_files.DOCUMENT:
        raise plain_status(404, None)
    kept = page_files.FOR_EVER if version == page_files.version() else "no-store"
    return Response(found.content, media_type=found.media_type, headers={"Cache-Control": kept, **page_files.SECURITY})


def about() -> dict[str, Any]:
    """Returns what programs are told at the address that they are given."""
    return {"name": NAME, "version": version(), "formats": list(CONTAINERS), "source": "/source"}
