"""Anteroom: where a socket waits whose client says its key in its first message.

In:    the first message of a socket without a key
Out:   the key; the socket as its route expects it, without the key in the message; a refusal in the protocol's words
Owns:  how many sockets wait, in all and from each address
Never: a second message before the key is good; a first message of more than MOST_BYTES; a key in an error or a log
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlencode

from starlette.types import Message, Receive, Scope, Send

from serve.errors import ApiError, ErrorSpec, bad_request
from serve.http.protocol import Protocols, path_in
from serve.http.uvicorn_protocols import MESSAGE_LIMIT

MOST_BYTES = 4096
MOST_S = 5.0
MOST_OF_AN_ADDRESS = 16
MOST_SOCKETS = 256
TOKEN_FIELD = "single_use_token"
KEY_FIELDS = ("xi_api_key", "xi-api-key", "authorization")


class SocketLeft(Exception):
    """Raised when the client of a waiting socket has left: nobody reads a refusal."""


@dataclass(slots=True, eq=False)
class _Place:
    """A waiting socket."""

    address: str
    limit: asyncio.Timeout
    is_let_go: bool = False


class Anteroom:
    """The waiting sockets of one ingress replica. Where all places are taken, the newest one gets the place of the one that has
    waited longest at the address with most: whoever says its key at once is not shut out by those that say nothing."""

    def __init__(self) -> None:
        self._places: list[_Place] = []  # by the time of their arrival

    @asynccontextmanager
    async def place(self, address: str) -> AsyncIterator[None]:
        """Counts a waiting socket until the block ends, which it does in time.

        Args:
            address: of its client; empty: unknown.

        Raises:
            ApiError: 401, the block took too long; 429, too many wait.
        """
        if address and sum(place.address == address for place in self._places) >= MOST_OF_AN_ADDRESS:
            raise _too_many()
        if len(self._places) >= MOST_SOCKETS:
            self._let_one_go()
        place = _Place(address, asyncio.timeout(MOST_S))
        self._places.append(place)
        try:
            async with place.limit:
                yield
        except TimeoutError:
            raise _too_many() if place.is_let_go else _without_key() from None
        finally:
            if not place.is_let_go:
                self._places.remove(place)

    def _let_one_go(self) -> None:
        [(most, _)] = Counter(place.address for place in self._places).most_common(1)
        longest = next(place for place in self._places if place.address == most)
        self._places.remove(longest)
        longest.is_let_go = True
        if not longest.limit.expired():
            longest.limit.reschedule(asyncio.get_running_loop().time())


class WaitingSocket:
    """A request; if it is for a socket whose client may say its key in its first message, that socket too."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, protocols: Protocols) -> None:
        self.scope = scope
        self._protocol = protocols.of(scope)
        self.is_open = False
        """whether it was accepted before its key was known"""
        self._receive = receive
        self._send = send
        self._replayed: list[Message] = []
        self._fields: dict[str, Any] = {}  # of the first message, once it was read

    @property
    def may_say_its_key(self) -> bool:
        """Whether clients of its protocol say their key in the first message."""
        return self.scope["type"] == "websocket" and self._protocol.has_key_message(path_in(self.scope))

    def in_address(self, *fields: str) -> str | None:
        """Returns the secret that the query of the address says, which its route does not see; None: it says none."""
        query = parse_qsl(self.scope["query_string"].decode("latin-1"), keep_blank_values=True)
        self.scope["query_string"] = urlencode([pair for pair in query if pair[0] not in fields]).encode()
        return next((value.removeprefix("Bearer ").strip() for name, value in query if name in fields and value), None)

    async def key(self) -> str:
        """Accepts the socket and returns the key that its first message says.

        Raises:
            ApiError: 400, 401, 413
            SocketLeft
        """
        await self._send({"type": "websocket.accept", "message_limit": MOST_BYTES})
        self.is_open = True
        text = await self._first_text()
        try:
            fields = json.loads(text)
        except (ValueError, RecursionError):
            raise bad_request("invalid_json", "the message is not valid JSON") from None
        if not isinstance(fields, dict):
            raise bad_request("invalid_type", "a message is a JSON object")
        self._fields = fields
        values = [fields.pop(name, None) for name in KEY_FIELDS]
        key = next((value for value in values if isinstance(value, str) and value.strip()), None)
        if key is None:
            raise _without_key()
        self._replayed = [{"type": "websocket.receive", "text": json.dumps(fields)}, {"type": "websocket.connect"}]
        return key.removeprefix("Bearer ").strip()

    async def receive(self) -> Message:
        """As ASGI's; to its route a socket seems to open now, with its first message."""
        return self._replayed.pop() if self._replayed else await self._receive()

    async def send(self, message: Message) -> None:
        """As ASGI's."""
        is_second = self.is_open and message["type"] == "websocket.accept"
        if not is_second or MESSAGE_LIMIT in self.scope.get("extensions", {}):
            await self._send(message)

    async def refuse(self, refusal: ApiError, request_id: str) -> None:
        """Says why a socket that is open is refused, and closes it."""
        message = self._protocol.socket_error(refusal, request_id, path_in(self.scope), self._fields)
        await self._send({"type": "websocket.send", "text": json.dumps(message)})
        code = self._protocol.close_code(refusal)
        await self._send({"type": "websocket.close", "code": code, "reason": refusal.spec.code})

    async def _first_text(self) -> str:
        while (message := await self._receive())["type"] == "websocket.connect":
            pass
        if message["type"] == "websocket.disconnect":
            raise SocketLeft
        text: str | None = message.get("text")
        if text is None:
            raise bad_request("invalid_type", "messages are JSON in text frames; this frame is binary")
        if len(text) > MOST_BYTES:
            raise bad_request("body_too_large", f"a first message with a key has at most {MOST_BYTES} bytes", status=413)
        return text


def _too_many() -> ApiError:
    return ApiError(
        "too many sockets wait for their first message with a key: send the key in the header xi-api-key",
        ErrorSpec(429, "rate_limit_error", "too_many_without_a_key", True, MOST_S),
    )


def _without_key() -> ApiError:
    message = f"send a key: in the header xi-api-key, or as xi_api_key of a first message within {MOST_S:g} s"
    return ApiError(message, ErrorSpec(401, "authentication_error", "missing_api_key", False))
