"""What each route requires of the client; whatever is not declared is closed."""

import pytest
from fastapi import APIRouter, WebSocket
from fastapi.routing import APIRoute

from serve.access.api_keys import Scope
from serve.config.app_config import PROJECT
from serve.http.route_access import (
    ADMIN,
    ANY_KEY,
    DECLARATION,
    LIST,
    OPEN,
    PROBE,
    SPEECH,
    RouteAccess,
    RouteAccessTable,
    open_to_all,
    requires,
)
from serve.protocols.api import ROUTERS, create_api, route_access
from tests.support.fakes import Speaker, make_services

TEXT, VOICES = RouteAccess(frozenset({Scope.TEXT})), RouteAccess(frozenset({Scope.VOICES}))

NEEDS = {
    "open": OPEN,
    "probe": PROBE,
    "any key": ANY_KEY,
    "list": LIST,
    "admin": ADMIN,
    "text": TEXT,
    "voices": VOICES,
    "a stream": SPEECH,
    "speech": RouteAccess(frozenset({Scope.SPEECH})),
    "stores text": RouteAccess(frozenset({Scope.TEXT}), stores=True),
    "makes voices": RouteAccess(frozenset({Scope.VOICES}), stream=True),
}
ROWS = (line.split("\t") for line in (PROJECT / "tests/data/route_access.tsv").read_text().splitlines())
ACCESS = {(method, path): NEEDS[needs] for method, path, needs in ROWS}


def ask(method: str, path: str, table: RouteAccessTable | None = None, *, kind: str = "http", root: str = "") -> RouteAccess:
    method_of = {"method": method} if kind == "http" else {}
    return (table or route_access()).access_of({"type": kind, "path": root + path, "root_path": root, **method_of})


@pytest.mark.parametrize(("method", "path"), ACCESS)
def test_a_route_requires_what_it_declares(method: str, path: str):
    concrete = path.replace("{name}", "anna").replace("{lexicon_id}", "medicine")
    assert ask(method, concrete) == ask(method, concrete, root="/tts") == ACCESS[method, path]


def test_the_table_names_every_route_and_every_route_declares():
    api = create_api(lambda: make_services(Speaker()))
    assert {(method.upper(), path) for path, methods in api.openapi()["paths"].items() for method in methods} == set(ACCESS)
    routes = [route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)]
    assert sum(route.include_in_schema for route in routes) == len(ACCESS), "beside one of ElevenLabs at OpenAI's path"
    assert [route.path for route in routes if not hasattr(route.endpoint, DECLARATION)] == []


def test_the_documents_of_the_routes_need_no_key():
    assert ask("GET", "/docs") == ask("GET", "/openapi.json") == OPEN


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "OPTIONS"])
@pytest.mark.parametrize("path", ["/no/such/route", "/health/", "/docs/oauth2-redirect", "//health", "/v1/audio/voices/a/b"])
def test_a_path_without_a_route_needs_a_key(method: str, path: str):
    assert ask(method, path) == ANY_KEY


@pytest.mark.parametrize("path", ["/admin", "/admin/", "/admin/drain"])
def test_whatever_lies_below_admin_needs_its_scope(path: str):
    assert ask("POST", path) == ADMIN


def test_a_method_the_path_does_not_have_is_as_open_as_the_path():
    assert ask("POST", "/health") == ask("HEAD", "/") == OPEN
    assert ask("PUT", "/live") == PROBE
    assert ask("PUT", "/v1/audio/speech") == ANY_KEY


def test_a_new_route_without_a_declaration_is_closed():
    router = APIRouter()

    @router.get("/new")
    async def new() -> None: ...

    @router.websocket("/new/stream")
    async def stream(socket: WebSocket) -> None: ...

    table = RouteAccessTable(router.routes)
    assert ask("GET", "/new", table) == ask("", "/new/stream", table, kind="websocket") == ANY_KEY


def test_websockets_declare_as_routes_do_and_are_closed_otherwise():
    router = APIRouter()

    @router.websocket("/stream")
    @requires(Scope.SPEECH, stream=True)
    async def stream(socket: WebSocket) -> None: ...

    @router.get("/page")
    @open_to_all
    async def page() -> None: ...

    table = RouteAccessTable(router.routes, open_paths=("/docs",))
    assert ask("", "/stream", table, kind="websocket") == SPEECH
    for path in ("/page", "/docs", "/no/such/route"):
        assert ask("", path, table, kind="websocket") == ANY_KEY
