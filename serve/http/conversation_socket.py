"""Conversation socket: one WebSocket from its opening to its close, in the protocol of any Session.

In:    text frames
Out:   text and binary frames; a close code that says why
Owns:  the time of the last message
Never: an endless wait for a client that reads nothing; an error without words
"""

import asyncio
import json
from contextlib import suppress

from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from pipeline.errors import ReaderStalled, SynthesisError
from serve.access.pace import MessagePace, too_many_messages
from serve.access.refusals import invalid_key
from serve.errors import ApiError, bad_request, to_api_error
from serve.http.close_codes import GOING_AWAY, NORMAL, POLICY_VIOLATION, TRY_AGAIN
from serve.http.middleware import caller_of, subprotocol_of
from serve.http.request_context import context_of
from serve.http.services import Services
from serve.http.session import Message, Session
from serve.http.speech_writers import GENERATED
from serve.speech.conversation.conversation import Conversation
from serve.speech.conversation.conversation_events import ContextFailed, ConversationEvent
from serve.speech.speak import ClientLeft

CLOSE_S = 1.0  # longest time to say why
FIRST_MESSAGE_S = 1.0  # a refused client's time to name its context: LiveKit's waits for ever for one that it is not told of


class ConversationSocket:
    """One client's socket."""

    def __init__(self, socket: WebSocket, services: Services, session: Session) -> None:
        self._socket = socket
        self._services = services
        self._session = session
        self._caller = caller_of(socket)
        self._stalled: ReaderStalled | None = None
        self._sending = asyncio.Lock()
        self._pace = MessagePace(_now)
        self._has_told_of_key = False  # that it was revoked
        self._conversation = Conversation(services.speech, services.conversations.config, context_of(socket), self._emit)

    async def converse(self) -> None:
        """Serves the socket until either side closes it."""
        headers = [(name.lower().encode(), value.encode()) for name, value in GENERATED.items()]
        await self._socket.accept(subprotocol_of(self._socket.scope), headers)
        try:
            with self._services.conversations.joined(self._conversation):
                if (greeting := self._session.begin(self._conversation)) is not None:
                    await self._say(greeting)
                with self._caller.wakes(self._conversation.changed):
                    code, reason = await self._listen()
        except (ClientLeft, ReaderStalled):
            code, reason = POLICY_VIOLATION, "the client reads nothing"
        except (SynthesisError, ApiError) as refusal:
            code, reason = self._session.over or (TRY_AGAIN, to_api_error(refusal).spec.code)
            with suppress(ClientLeft, ReaderStalled):
                await self._say(self._session.refusal(refusal, None))
                if self._session.refuses_per_context and (frame := await self._first_frame()) is not None:
                    await self._say(self._session.refusal(refusal, frame))
        finally:
            await self._conversation.stop()
        await self._close(code, reason)

    async def _listen(self) -> tuple[int, str]:
        """Handles frames until the conversation is over; returns the close code and why.

        Raises:
            ClientLeft, ReaderStalled: nothing can be written to the client.
        """
        conversation, idle_s, changed = self._conversation, self._session.idle_s, self._conversation.changed
        receiving = self._next_frame()
        active_at, has_said_goodbye = _now(), False
        try:
            while True:
                changed.clear()
                if conversation.broken is not None:
                    raise conversation.broken
                if self._caller.is_revoked():
                    return await self._revoked()
                if receiving.done():
                    frame = receiving.result()
                    if frame is None:
                        return NORMAL, ""
                    active_at = _now()
                    if not self._pace.takes(len(frame)):
                        refusal = too_many_messages()
                        await self._say(self._session.refusal(refusal, None))
                        return POLICY_VIOLATION, refusal.spec.code
                    await self._handle(frame)
                    receiving = self._next_frame()
                if self._session.over is not None:
                    return self._session.over
                if conversation.leaving.is_set() and not has_said_goodbye:
                    has_said_goodbye = True
                    if (farewell := self._session.farewell()) is not None:
                        await self._say(farewell)
                is_busy = conversation.is_busy
                if has_said_goodbye and not is_busy:
                    return GOING_AWAY, "the service is about to stop; connect again"
                if not is_busy and _now() - active_at >= idle_s:
                    return self._session.idle_code, f"idle for {idle_s:g} s"
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(None if is_busy else active_at + idle_s):
                        await changed.wait()
                if is_busy:
                    active_at = _now()
        finally:
            receiving.cancel()

    async def _revoked(self) -> tuple[int, str]:
        """Ends what is spoken, and says why, unless a part has just failed by it; returns the close code and why."""
        await self._conversation.stop()
        refusal = invalid_key()
        if not self._has_told_of_key:
            await self._say(self._session.refusal(refusal, None))
        return self._session.over or (POLICY_VIOLATION, refusal.spec.code)

    def _next_frame(self) -> asyncio.Task[str | bytes | None]:
        """Receives a frame in a task, whose end is a change of the conversation."""
        receiving = asyncio.create_task(self._receive())
        receiving.add_done_callback(lambda _: self._conversation.changed.set())
        return receiving

    async def _receive(self) -> str | bytes | None:
        """Returns the next frame; None if the client has closed or left."""
        message = await self._socket.receive()
        if message["type"] == "websocket.disconnect":
            return None
        text: str | None = message.get("text")
        return message["bytes"] if text is None else text

    async def _first_frame(self) -> str | None:
        """Returns the first message of a client that is refused; None: there is none in time, or it is no text."""
        with suppress(TimeoutError):
            async with asyncio.timeout(FIRST_MESSAGE_S):
                frame = await self._receive()
                return frame if isinstance(frame, str) else None
        return None

    async def _handle(self, frame: str | bytes) -> None:
        """Does what a frame says, or says why not."""
        try:
            confirmed = await self._session.obey(self._checked(frame), self._conversation)
        except (ApiError, SynthesisError) as refusal:
            if isinstance(refusal, ReaderStalled):
                raise
            self._pace.refused()
            confirmed = self._session.refusal(refusal, frame if isinstance(frame, str) else None)
        for message in (confirmed,) if isinstance(confirmed, dict) else confirmed or ():
            await self._say(message)

    def _checked(self, frame: str | bytes) -> str:
        most = self._services.speech.limits.max_body_bytes  # uvicorn_protocols.py closes for more than a MiB
        if isinstance(frame, bytes):
            raise bad_request("invalid_type", "messages are JSON in text frames; this frame is binary")
        if 4 * len(frame) > most and len(frame.encode()) > most:
            raise bad_request("body_too_large", f"the message is larger than {most} bytes", status=413)
        return frame

    async def _emit(self, event: ConversationEvent) -> None:
        self._has_told_of_key |= isinstance(event, ContextFailed) and self._caller.is_revoked()
        for message in self._session.messages(event):
            await self._say(message)
        if self._session.over is not None:
            self._conversation.changed.set()

    async def _say(self, message: Message | bytes) -> None:
        """Sends a message.

        Raises:
            ClientLeft: the socket is closed.
            ReaderStalled: the client read nothing for limits.stall_timeout_s.
        """
        frame = message if isinstance(message, bytes) else json.dumps(message)
        try:
            async with self._sending:
                if self._stalled is not None:
                    raise self._stalled
                await (self._socket.send_bytes(frame) if isinstance(frame, bytes) else self._socket.send_text(frame))
        except ReaderStalled as stalled:
            self._stalled = stalled
            raise
        except (WebSocketDisconnect, RuntimeError):
            raise ClientLeft from None

    async def _close(self, code: int, reason: str) -> None:
        if self._socket.client_state is WebSocketState.CONNECTED and self._socket.application_state is WebSocketState.CONNECTED:
            with suppress(WebSocketDisconnect, RuntimeError, TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    await self._socket.close(code, reason)


def _now() -> float:
    return asyncio.get_running_loop().time()
