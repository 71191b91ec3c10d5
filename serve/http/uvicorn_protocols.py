"""Uvicorn protocols: what uvicorn leaves unbounded on one connection, bounded, however it was started.

In:    connections of any uvicorn of this process, Serve's own too, once `install` was called
Out:   ASGI scopes, messages and their order, as uvicorn's
Owns:  what one connection holds for the application and for its client
Never: a compressed WebSocket, whose messages grow behind their limit; frames that are parsed for nobody

A WebSocket's bytes are parsed SLICE_BYTES at a time, and only while few messages wait for the application. Frames that are no
message (pings, pongs, fragments) have a pace, and what comes behind a close is dropped.
"""

import asyncio
import fcntl
import termios
from array import array
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, cast

import uvicorn.config
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.frames import Frame

from serve.access.pace import Pace
from serve.http.close_codes import MESSAGE_TOO_BIG, POLICY_VIOLATION

MESSAGE_LIMIT = "chattts.message_limit"
"""extension of a scope: `websocket.accept` may have a `message_limit` [bytes]; then one message is parsed, and what follows it
waits for a second `websocket.accept`"""
MOST_MESSAGE_BYTES = 1 << 20
"""of a message of a WebSocket"""
MOST_WAITING = 16
"""messages that wait for the application, before no more bytes are parsed"""
SLICE_BYTES = 4096
HEAD_BYTES = 14
"""of a frame, at most"""
FRAMES, FRAMES_A_SECOND = 1024, 32.0
"""pace of frames that are no message"""
MOST_BEHIND_CLOSE = 16 << 10
"""bytes that are parsed behind a close: the client's own close is among them"""
DROP_S = 0.02
"""between two reads that are dropped [s]"""
LINGER_S = 2.0
"""how long a socket that broke a rule is read, so that its client can read why it was closed [s]"""
UNREAD_S = 120.0
"""how long a client may take for what a reply that has ended left in the buffers; longer than connections are kept alive [s]"""
MOST_BEHIND_REPLY = 16 << 20
"""bytes of a body that are dropped behind the reply to it: clients read no reply before they have sent all"""
BEHIND_REPLY_S = 30.0
"""how long such a body may take [s]"""
MOST_HEAD_BYTES = 64 << 10
"""of a request before its body; serve/protocols/outer_middleware.py answers what is over its own limit and below this one"""
HEAD_S = 30.0
"""how long a client may take for that, from its connection or the first byte on [s]"""
NO_HANDSHAKE = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 18\r\nConnection: close\r\n\r\n"
    b"This is no socket."
)

Loop = asyncio.AbstractEventLoop

TRANSPORT: ContextVar[asyncio.Transport | None] = ContextVar("transport of the request", default=None)


def install() -> None:
    """Has every uvicorn of this process that is not told which protocols to speak use these."""
    uvicorn.config.HTTP_PROTOCOLS["auto"] = f"{__name__}:BoundedHttp"
    uvicorn.config.WS_PROTOCOLS["auto"] = f"{__name__}:BoundedSocket"


def application_of(config: Config) -> ASGIApp:
    """Returns the application without the middleware by which uvicorn believes X-Forwarded-For of peers on this machine, which
    HAProxy passes on from any client; serve/access/proxies.py decides whom to believe."""
    app = config.loaded_app
    return cast(ASGIApp, app.app if isinstance(app, ProxyHeadersMiddleware) else app)


def cut_connection() -> None:
    """Ends the connection of the present request at once, without what is still held for its client."""
    transport = TRANSPORT.get()
    if transport is not None:
        transport.abort()


def untaken_bytes() -> int:
    """Returns what the client of the present request has not taken of what was sent, in the kernel too; 0: unknown."""
    transport = TRANSPORT.get()
    if transport is None or transport.is_closing():
        return 0
    in_kernel = array("i", [0])
    with suppress(OSError):
        fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, in_kernel)
    return transport.get_write_buffer_size() + in_kernel[0]


class BoundedHttp(HttpToolsProtocol):
    """A connection for HTTP."""

    def __init__(self, config: Config, server_state: ServerState, app_state: dict[str, Any], _loop: Loop | None = None) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._application = application_of(config)
        self.app = self._run
        self._is_in_body = False
        self._behind_reply = 0
        self._head_end: asyncio.TimerHandle | None = None  # while the head of a request is incomplete
        self._head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Waits for a request."""
        super().connection_made(transport)
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        """Takes what has come; cuts the connection if a head is too long."""
        self._head_bytes += len(data)
        super().data_received(data)
        if self._head_end is not None and self._head_bytes > MOST_HEAD_BYTES:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends with the connection."""
        super().connection_lost(exc)
        self._take_head()

    def on_message_begin(self) -> None:
        """Begins a request."""
        super().on_message_begin()
        self._is_in_body, self._behind_reply = True, 0
        self._expect_head()

    def on_headers_complete(self) -> None:
        """Starts the request."""
        self._take_head()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Takes a piece of a body; cuts the connection if too much of it follows the reply."""
        super().on_body(body)
        self._behind_reply += len(body) if self.cycle.response_complete else 0
        if self._behind_reply > MOST_BEHIND_REPLY:
            self.transport.abort()

    def on_message_complete(self) -> None:
        """Ends a request."""
        super().on_message_complete()
        self._is_in_body = False

    def on_response_complete(self) -> None:
        """Goes on with the next request; gives the body of this one a time to end."""
        super().on_response_complete()
        if self._is_in_body and self.cycle.response_complete:
            self.loop.call_later(BEHIND_REPLY_S, self._cut_if_in_body, self.cycle)

    def _expect_head(self) -> None:
        self._take_head()
        self._head_end, self._head_bytes = self.loop.call_later(HEAD_S, self.transport.abort), 0

    def _take_head(self) -> None:
        if self._head_end is not None:
            self._head_end.cancel()
            self._head_end = None

    def _cut_if_in_body(self, cycle: RequestResponseCycle) -> None:
        if self._is_in_body and self.cycle is cycle:
            self.transport.abort()

    async def _run(self, scope: Scope, receive: Receive, send: Send) -> None:
        TRANSPORT.set(self.transport)
        try:
            await self._application(scope, receive, self._until_closed(send) if scope["http_version"] == "1.0" else send)
        finally:
            if self.transport.get_write_buffer_size():
                self.loop.call_later(UNREAD_S, self._cut_if_unread)

    def _until_closed(self, send: Send) -> Send:
        """Returns what sends a reply of unknown length as HTTP/1.0 has it: without chunks, to the end of the connection."""
        cycle = self.cycle

        async def plain(message: Message) -> None:
            if message["type"] == "http.response.start" and "content-length" not in Headers(raw=message["headers"]):
                cycle.chunked_encoding, cycle.keep_alive = False, False
            if cycle.chunked_encoding is False and "body" in message and not cycle.keep_alive:
                cycle.expected_content_length = len(message["body"]) + message.get("more_body", False)
            await send(message)

        return plain

    def _cut_if_unread(self) -> None:
        if self.transport.is_closing():
            self.transport.abort()


class BoundedSocket(WebSocketsSansIOProtocol):
    """A connection for a WebSocket."""

    def __init__(self, config: Config, server_state: ServerState, app_state: dict[str, Any], _loop: Loop | None = None) -> None:
        config.ws_per_message_deflate = False
        config.ws_max_size = MOST_MESSAGE_BYTES
        super().__init__(config, server_state, app_state, _loop)
        self._application = application_of(config)
        self.app = self._run
        self._unparsed = b""
        self._behind_close = 0
        self._other_frames = Pace(FRAMES, FRAMES_A_SECOND, self.loop.time)
        self._first_left: int | None = None  # of the bytes of the one message that may come; None: any number may
        self._has_first = False

    async def _run(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["extensions"][MESSAGE_LIMIT] = {}
        TRANSPORT.set(self.transport)
        try:
            await self._application(scope, receive, send)
        finally:
            self.loop.call_later(self.close_timeout, self.transport.abort)

    async def send(self, message: Message) -> None:  # type: ignore[override]
        """As uvicorn's; see MESSAGE_LIMIT."""
        is_accept = message["type"] == "websocket.accept"
        if not (is_accept and self.handshake_complete):
            await super().send(message)  # type: ignore[arg-type]
        if is_accept:
            self._first_left, self._has_first = message.get("message_limit"), False
            self.read_paused = False
            self.transport.resume_reading()
            self._parse()

    async def receive(self) -> Any:
        """As uvicorn's; then parses the bytes that have waited for it."""
        message = await super().receive()
        self._parse()
        return message

    def data_received(self, data: bytes) -> None:
        """Parses what has come, as far as there is room for its messages."""
        if self.close_sent:
            self._behind_close += len(data)
        if self._behind_close > MOST_BEHIND_CLOSE:
            self._unparsed = b""
            self.transport.pause_reading()
            self.loop.call_later(DROP_S, self._read_on)
            return
        self._unparsed += data
        self._parse()

    def send_receive_event_to_app(self) -> None:
        """Takes a whole message."""
        super().send_receive_event_to_app()
        self._has_first = self._first_left is not None

    def handle_cont(self, event: Frame) -> None:
        """Takes a fragment."""
        if self._is_in_pace():
            super().handle_cont(event)

    def handle_ping(self) -> None:
        """Answers a ping."""
        if self._is_in_pace():
            super().handle_ping()

    def handle_pong(self, event: Frame) -> None:
        """Takes the answer to a ping."""
        if self._is_in_pace():
            super().handle_pong(event)

    def handle_parser_exception(self) -> None:
        """Closes a socket whose client broke a rule, and reads for a moment what the client cannot stop sending."""
        assert self.conn.close_sent is not None
        code, reason = self.conn.close_sent.code, self.conn.close_sent.reason
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent, self._behind_close, self._unparsed = True, MOST_BEHIND_CLOSE, b""
        self.close_timer = self.loop.call_later(LINGER_S, self.transport.abort)

    def _parse(self) -> None:
        """Parses slices of what has come: before the handshake is complete the request, before a key is good one message."""
        while self._unparsed and (self.close_sent or self.queue.qsize() < MOST_WAITING):
            is_opening = self.handshake_initiated and not self.handshake_complete
            if is_opening or (self._has_first and not self.close_sent):
                self.read_paused = True
                self.transport.pause_reading()
                return
            piece, self._unparsed = self._unparsed[:SLICE_BYTES], self._unparsed[SLICE_BYTES:]
            super().data_received(piece)
            if self.conn.handshake_exc is not None and not self.handshake_initiated:
                self._refuse_handshake()
            elif self._first_left is not None and not (self._has_first or self.close_sent):
                self._count_first(len(piece))

    def _count_first(self, size: int) -> None:
        """Counts bytes of the one message that may come; closes a socket with too many."""
        assert self._first_left is not None
        self._first_left -= size
        if self._first_left < -HEAD_BYTES:
            self.conn.fail(MESSAGE_TOO_BIG, "the first message is too long")
            self.handle_parser_exception()

    def _refuse_handshake(self) -> None:
        """Answers what is no handshake: uvicorn would leave its client without a reply."""
        self._unparsed = b""
        self.transport.write(b"".join(self.conn.data_to_send()) or NO_HANDSHAKE)
        self.transport.close()

    def _is_in_pace(self) -> bool:
        """Counts a frame that is no message; closes a socket with too many."""
        if self.close_sent:
            return False
        if self._other_frames.take():
            return True
        self.conn.fail(POLICY_VIOLATION, "too many frames that are no message")
        self.handle_parser_exception()
        return False

    def _read_on(self) -> None:
        if not self.transport.is_closing():
            self.transport.resume_reading()
