"""Page: the studio for browsers at `/`, and its files.

In:    HTTP
Out:   HTML, CSS, ES modules; to programs, JSON
Never: a file outside the page's folder
"""

import json
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from pipeline.audio.formats import CONTAINERS
from serve.errors import plain_status
from serve.http.about import NAME, version
from serve.http.dependencies import RequestServices
from serve.http.openapi import answers
from serve.http.route_access import open_to_all
from serve.page import page_files

router = APIRouter()


def docs_page(document: Mapping[str, Any]) -> bytes:
    """Returns the page: every operation, with its parameters, body and replies."""
    style = f"page/{page_files.version()}"
    operations = "".join(
        _operation(method, path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    )
    schemas = "".join(_json(name, schema, mark=name) for name, schema in document["components"]["schemas"].items())
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>{NAME}: API</title><link rel="icon" href="{style}/icon.svg" type="image/svg+xml">'
        f'<link rel="stylesheet" href="{style}/style.css"></head><body><header><h1>{NAME} <span>API</span></h1></header><main>'
        f'<p>Version {escape(document["info"]["version"])}. For programs: <a href="openapi.json">openapi.json</a>. '
        '<a href=".">The studio</a>, <a href="source">the source</a>.</p>'
        f"{operations}<h2>Schemas</h2>{schemas}</main></body></html>"
    ).encode()


def _operation(method: str, path: str, operation: Mapping[str, Any]) -> str:
    says = escape(operation.get("description") or operation.get("summary") or "")
    return f"<section><h2><code>{method.upper()} {escape(path)}</code></h2><p>{says}</p>{''.join(_parts(operation))}</section>"


def _parts(operation: Mapping[str, Any]) -> Iterator[str]:
    parameters = operation.get("parameters", ())
    if parameters:
        rows = "".join(
            f"<li><code>{escape(parameter['name'])}</code> ({escape(parameter['in'])})</li>" for parameter in parameters
        )
        yield f"<ul>{rows}</ul>"
    for kind, content in operation.get("requestBody", {}).get("content", {}).items():
        yield _json(f"body: {kind}", content.get("schema", {}))
    yield f"<p>Replies: {', '.join(map(escape, operation['responses']))}</p>"


def _json(title: str, schema: Mapping[str, Any], mark: str = "") -> str:
    text = escape(json.dumps(schema, indent=2, ensure_ascii=False))
    place = f' id="{escape(mark)}"' if mark else ""
    return f"<details{place}><summary>{escape(title)}</summary><pre>{text}</pre></details>"


@router.get("/v1/")
@open_to_all
async def base(services: RequestServices) -> dict[str, Any]:
    return {**about(), "max_text_chars": services.speech.limits.max_text_chars}


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
    page_file = page_files.page_files().get(path)
    if page_file is None or path == page_files.DOCUMENT:
        raise plain_status(404, None)
    caching = page_files.FOR_EVER if version == page_files.version() else "no-store"
    return Response(
        page_file.content, media_type=page_file.media_type, headers={"Cache-Control": caching, **page_files.SECURITY}
    )


def about() -> dict[str, Any]:
    """Returns what programs are told at the address that they are given."""
    return {"name": NAME, "version": version(), "formats": list(CONTAINERS), "source": "/source"}
