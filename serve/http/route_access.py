"""Route access: what a route requires of the client, declared at the route.

In:    handlers marked by `requires`, `any_key`, `listing`, `open_to_all` or `probe`; the scope of a request
Out:   RouteAccess
Never: keys, quotas: serve/access checks them

A route without a declaration, and a path without a route, need a key: whatever is new is closed until it says otherwise.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import Scope as AsgiScope

from serve.access.api_keys import Scope
from serve.http.protocol import path_in

H = TypeVar("H", bound=Callable[..., Any])

DECLARATION = "route_access"
ADMIN_PATH = "/admin/"


@dataclass(frozen=True, slots=True)
class RouteAccess:
    """What a route requires of the client."""

    scopes: frozenset[Scope] | None = None
    """any one of them is enough; None: no key is needed"""
    stream: bool = False
    """True if the model works while the request lasts: it counts against the key's concurrent requests"""
    stores: bool = False
    """True if it stores what all clients use: without a key only where keys.anonymous_scopes has voices"""
    is_list: bool = False
    """True if it only lists voices or models: no key is needed where keys.open_lists says so"""
    is_probe: bool = False
    """True if the Host is not checked either: probes call a replica by any address it has"""


OPEN = RouteAccess()
PROBE = RouteAccess(is_probe=True)
ANY_KEY = RouteAccess(frozenset(Scope))
LIST = RouteAccess(frozenset(Scope), is_list=True)
ADMIN = RouteAccess(frozenset({Scope.ADMIN}))
SPEECH = RouteAccess(frozenset({Scope.SPEECH}), stream=True)


def requires(scope: Scope, *, stream: bool = False, stores: bool = False) -> Callable[[H], H]:
    """Declares that a handler needs a key with this scope; `stream` and `stores` as in RouteAccess."""
    return _declare(RouteAccess(frozenset({scope}), stream, stores))


def any_key(handler: H) -> H:
    """Declares that a handler needs a key, whatever its scopes."""
    return _declare(ANY_KEY)(handler)


def listing(handler: H) -> H:
    """Declares that a handler lists voices or models: it needs a key, whatever its scopes, unless keys.open_lists is set."""
    return _declare(LIST)(handler)


def open_to_all(handler: H) -> H:
    """Declares that a handler needs no key."""
    return _declare(OPEN)(handler)


def probe(handler: H) -> H:
    """Declares that a handler needs neither a key nor a Host of this machine."""
    return _declare(PROBE)(handler)


class RouteAccessTable:
    """Finds the declaration of the route that will handle a request."""

    def __init__(self, routes: Iterable[BaseRoute], *, open_paths: Collection[str] = ()) -> None:
        """
        Args:
            routes: in the order in which the router tries them.
            open_paths: paths that need no key, of routes whose handlers are not ours to mark.
        """
        self._routes = [route for route in routes if isinstance(route, Route | WebSocketRoute)]
        self._open_paths = frozenset(open_paths)

    def access_of(self, scope: AsgiScope) -> RouteAccess:
        """Returns what a request for HTTP or a WebSocket requires.

        Of a path with another method, which the router will answer with 405: nothing where the path is open, else any key.
        """
        path = path_in(scope)
        is_websocket = scope["type"] == "websocket"
        if path in self._open_paths and not is_websocket:
            return OPEN
        access = ADMIN if f"{path}/".startswith(ADMIN_PATH) else ANY_KEY
        for route in self._routes:
            if isinstance(route, WebSocketRoute) != is_websocket or route.path_regex.match(path) is None:
                continue
            declared: RouteAccess = getattr(route.endpoint, DECLARATION, ANY_KEY)
            if isinstance(route, WebSocketRoute) or scope["method"] in (route.methods or ()):
                return declared
            if declared.scopes is None:
                access = declared
        return access


def _declare(access: RouteAccess) -> Callable[[H], H]:
    def mark(handler: H) -> H:
        setattr(handler, DECLARATION, access)
        return handler

    return mark
