"""Protocol: what a protocol registers about itself, so that the server around its routes knows none by name.

In:    the path and the headers of a request
Out:   the protocol that it belongs to: its routes, the form of its errors, how its sockets say why they close
Never: an import that Serve's proxy would have to hold: routes are named, and imported where they are served
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import Headers
from starlette.types import Scope

from serve.errors import ApiError
from serve.http.close_codes import close_code


@dataclass(frozen=True, slots=True)
class ErrorForm:
    """An error as the clients of a protocol read it."""

    status: int
    body: dict[str, Any]
    headers: dict[str, str]
    """beside those of every error; they do not replace what the server sets"""


def own_form(refusal: ApiError, request_id: str) -> ErrorForm:
    """Returns the service's own form of an error, which is OpenAI's."""
    return ErrorForm(refusal.spec.status, refusal.body(request_id), {})


def own_message(refusal: ApiError, request_id: str, path: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the service's own message about a refused socket."""
    return refusal.body(request_id)


@dataclass(frozen=True, slots=True)
class Protocol:
    """One protocol, as the server around its routes has to know it."""

    paths: tuple[str, ...] = ()
    """of requests that are its own, with all paths below them"""
    shared_paths: tuple[str, ...] = ()
    """of requests that are its own, with all paths below them, if they have the headers of its clients"""
    is_known_by: Callable[[Headers], bool] = lambda headers: False
    routers: tuple[str, ...] = ()
    """modules with a `router` each, in the order in which they are tried"""
    error: Callable[[ApiError, str], ErrorForm] = own_form
    """of a refusal and the request's id"""
    has_key_message: Callable[[str], bool] = lambda path: False
    """whether clients of the WebSocket at a path may say their key in its first message"""
    socket_error: Callable[[ApiError, str, str, Mapping[str, Any]], dict[str, Any]] = own_message
    """the message about a refusal: of it, the request's id, the path, and the fields of the message that was refused"""

    def owns(self, path: str, headers: Headers) -> bool:
        """True if a request is of this protocol."""
        return _is_below(path, self.paths) or (_is_below(path, self.shared_paths) and self.is_known_by(headers))

    def close_code(self, refusal: ApiError) -> int:
        """Returns the code with which a socket closes for this reason."""
        return close_code(self.error(refusal, "").status)


class Protocols:
    """The protocols of a service. A request belongs to the first that owns it, or else to the last one."""

    def __init__(self, *protocols: Protocol) -> None:
        self._protocols = protocols

    def __iter__(self) -> Iterator[Protocol]:
        return iter(self._protocols)

    def of(self, scope: Scope) -> Protocol:
        """Returns the protocol of a request."""
        path, headers = path_in(scope), Headers(scope=scope)
        return next((protocol for protocol in self._protocols if protocol.owns(path, headers)), self._protocols[-1])

    def of_unknown(self, scope: Scope) -> Protocol:
        """Returns the protocol of a request that no route takes: of a path that is nobody's, the client's."""
        protocol, headers = self.of(scope), Headers(scope=scope)
        asking = (one for one in self._protocols if one.is_known_by(headers))
        return next(asking, protocol) if protocol is self._protocols[-1] else protocol


def _is_below(path: str, parents: tuple[str, ...]) -> bool:
    return any(path == parent or path.startswith(f"{parent}/") for parent in parents)


def path_in(scope: Scope) -> str:
    """Returns the path of a request below the route prefix."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", "")) or "/"
