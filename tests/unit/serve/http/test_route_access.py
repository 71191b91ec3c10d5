"""What each route requires of the client; whatever is not declared is closed."""

import pytest
from fastapi import APIRouter, WebSocket
from fastapi.routing import APIRoute

from serve.access.api_keys import Scope
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
STORES_TEXT = RouteAccess(frozenset({Scope.TEXT}), stores=True)
MAKES_VOICES = RouteAccess(frozenset({Scope.VOICES}), stream=True)

ACCESS = {
    ("GET", "/"): OPEN,
    ("GET", "/docs"): OPEN,
    ("GET", "/page/{version}/{path}"): OPEN,
    ("GET", "/live"): PROBE,
    ("GET", "/ready"): PROBE,
    ("GET", "/health"): OPEN,
    ("GET", "/cell"): OPEN,
    ("GET", "/source"): OPEN,
    ("GET", "/source.tar.gz"): OPEN,
    ("GET", "/v1/models"): ANY_KEY,
    ("GET", "/v1/models/{name}"): ANY_KEY,
    ("GET", "/v1/styles"): ANY_KEY,
    ("POST", "/v1/audio/speech"): SPEECH,
    ("POST", "/v1/audio/speech/batch"): SPEECH,
    ("POST", "/v1/audio/dialogue"): SPEECH,
    ("POST", "/v1/audio/speech/plan"): TEXT,
    ("DELETE", "/v1/audio/speech/cache"): RouteAccess(frozenset({Scope.SPEECH})),
    **{
        (method, f"/v1/audio/jobs{path}"): RouteAccess(frozenset({Scope.SPEECH}))
        for method, path in (
            *(("POST", ""), ("GET", ""), ("POST", "/plan"), ("GET", "/{job_id}"), ("DELETE", "/{job_id}")),
            *(
                ("GET", "/{job_id}/parts"),
                ("POST", "/{job_id}/parts/{number}"),
                ("GET", "/{job_id}/subtitles"),
                ("POST", "/{job_id}/pause"),
                ("POST", "/{job_id}/resume"),
                ("POST", "/{job_id}/cancel"),
            ),
        )
    },
    ("GET", "/v1/audio/jobs/{job_id}/audio"): SPEECH,
    ("GET", "/v1/audio/jobs/{job_id}/events"): SPEECH,
    ("GET", "/admin/status"): ADMIN,
    ("POST", "/admin/cache/purge"): ADMIN,
    ("POST", "/v1/text/normalize"): TEXT,
    ("POST", "/v1/text/ssml"): TEXT,
    ("POST", "/v1/text/refine"): SPEECH,
    ("GET", "/v1/lexicons/{lexicon_id}"): TEXT,
    ("PUT", "/v1/lexicons/{lexicon_id}"): STORES_TEXT,
    ("DELETE", "/v1/lexicons/{lexicon_id}"): STORES_TEXT,
    ("POST", "/v1/pronunciation-dictionaries/add-from-rules"): STORES_TEXT,
    ("POST", "/v1/pronunciation-dictionaries/add-from-file"): STORES_TEXT,
    **{("POST", f"/v1/pronunciation-dictionaries/{{name}}/{change}-rules"): STORES_TEXT for change in ("set", "add", "remove")},
    ("GET", "/v1/pronunciation-dictionaries"): TEXT,
    ("GET", "/v1/pronunciation-dictionaries/{name}"): TEXT,
    ("POST", "/v1/single-use-token/{token_type}"): RouteAccess(frozenset({Scope.SPEECH})),
    ("POST", "/v1/auth/grant"): RouteAccess(frozenset({Scope.SPEECH})),
    ("POST", "/v1/text-to-speech/{name}"): SPEECH,
    ("POST", "/v1/text-to-speech/{name}/stream"): SPEECH,
    ("POST", "/v1/text-to-speech/{name}/with-timestamps"): SPEECH,
    ("POST", "/v1/text-to-speech/{name}/stream/with-timestamps"): SPEECH,
    ("GET", "/v1/voices"): ANY_KEY,
    ("GET", "/v2/voices"): ANY_KEY,
    ("GET", "/v1/voices/settings/default"): ANY_KEY,
    ("GET", "/v1/voices/{name}"): ANY_KEY,
    ("GET", "/v1/voices/{name}/settings"): ANY_KEY,
    ("GET", "/elevenlabs/v1/models"): ANY_KEY,
    ("POST", "/v1/speak"): SPEECH,
    ("POST", "/v2/speak"): SPEECH,
    ("POST", "/v1/text-to-dialogue"): SPEECH,
    ("POST", "/v1/text-to-dialogue/stream"): SPEECH,
    ("POST", "/v1/text-to-dialogue/with-timestamps"): SPEECH,
    ("POST", "/v1/text-to-dialogue/stream/with-timestamps"): SPEECH,
    ("GET", "/v1/user"): ANY_KEY,
    ("GET", "/v1/user/subscription"): ANY_KEY,
    ("POST", "/v1/voices/add"): MAKES_VOICES,
    ("POST", "/v1/voices/{name}/edit"): VOICES,
    ("POST", "/v1/voices/{name}/settings/edit"): VOICES,
    ("DELETE", "/v1/voices/{name}"): VOICES,
    ("GET", "/v1/"): OPEN,
    ("POST", "/dev/captioned_speech"): SPEECH,
    ("POST", "/piper"): SPEECH,
    ("GET", "/piper"): SPEECH,
    ("GET", "/piper/voices"): LIST,
    ("POST", "/vapi"): SPEECH,
    ("GET", "/v1/audio/models"): LIST,
    ("GET", "/v1/audio/voices"): LIST,
    ("POST", "/v1/audio/voices"): MAKES_VOICES,
    ("POST", "/v1/audio/voices/random"): VOICES,
    ("POST", "/v1/audio/voices/blend"): MAKES_VOICES,
    ("GET", "/v1/audio/voices/{name}"): ANY_KEY,
    ("PATCH", "/v1/audio/voices/{name}"): VOICES,
    ("DELETE", "/v1/audio/voices/{name}"): VOICES,
    ("GET", "/v1/audio/voices/{name}/preview"): MAKES_VOICES,
    ("POST", "/v1/audio/voices/{name}/score"): MAKES_VOICES,
}


def ask(method: str, path: str, table: RouteAccessTable | None = None, *, kind: str = "http", root: str = "") -> RouteAccess:
    method_of = {"method": method} if kind == "http" else {}
    return (table or route_access()).access_of({"type": kind, "path": root + path, "root_path": root, **method_of})


@pytest.mark.parametrize(("method", "path"), ACCESS)
def test_a_route_requires_what_it_declares(method: str, path: str):
    concrete = path.replace("{name}", "anna").replace("{lexicon_id}", "medicine")
    assert ask(method, concrete) == ask(method, concrete, root="/tts") == ACCESS[method, path]


def test_the_table_above_names_every_route_and_every_route_declares():
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
