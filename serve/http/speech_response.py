"""Speech response: the HTTP reply to a request for speech, from the arriving body to the last byte.

In:    a POST /v1/audio/speech or a translation of one, the Services
Out:   status and headers together with the first audio, then the body
Owns:  the connection of one reply
Never: a clean end after a failure; what serve/speech decides for every entry point
"""

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pipeline.errors import SynthesisError
from serve.access.idempotency import HEADER as IDEMPOTENCY_KEY
from serve.errors import bad_request, to_api_error
from serve.http.connection import Connection
from serve.http.request_context import context_of
from serve.http.resume_request import resumption_of
from serve.http.services import Services
from serve.http.speech_writers import ChunkedWriter, JsonWriter, SpeechWriter, SseWriter, WholeWriter
from serve.speech.job import SpeechJob
from serve.speech.schemas.base import read_body, read_values
from serve.speech.schemas.speech import SpeechBody
from serve.speech.speak import ClientLeft, SpeechSession, open_speech


class CutReply(Exception):
    """Ends the connection without a terminator, so that the client sees an incomplete body."""


class SpeechResponse(Response):
    """Receives the body of a request and streams its audio."""

    def __init__(
        self,
        request: Request,
        services: Services,
        translate: Callable[[bytes], dict[str, Any]] | None = None,
        names_of: Callable[[SpeechJob], Mapping[str, str]] = lambda job: {},
        writer: Callable[[Connection], SpeechWriter] | None = None,
    ) -> None:
        """
        Args:
            translate: makes the fields of POST /v1/audio/speech of a body in another protocol; raises ApiError.
            names_of: headers in which that protocol says things about a job.
            writer: of that protocol; None: the body selects one.
        """
        self._request = request
        self._translate = translate
        self._names_of = names_of
        self._writer = writer
        self._services = services
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        services, context = self._services.speech, context_of(self._request)
        context = replace(context, resumes=resumption_of(self._request.headers))
        connection = Connection(send, services.limits, self._services.unread)
        try:
            with open_speech(services, context) as speech:
                await self._reply(speech, connection, receive)
        except ClientLeft:
            pass
        except Exception as error:
            if connection.has_begun:
                raise CutReply(context.request_id) from None
            raise to_api_error(error) from None

    def _read(self, raw: bytes) -> tuple[bytes, SpeechBody]:
        """Returns the body of POST /v1/audio/speech that a body stands for, and its JSON if it has an idempotency key."""
        if self._translate is None:
            return raw, read_body(SpeechBody, raw)
        fields = self._translate(raw)
        return json.dumps(fields).encode() if IDEMPOTENCY_KEY in self._request.headers else b"", read_values(SpeechBody, fields)

    async def _reply(self, speech: SpeechSession, connection: Connection, receive: Receive) -> None:
        try:
            raw, body = await self._services.bodies.read_json(self._request, self._read)
        except ClientDisconnect:
            raise ClientLeft from None
        accept = self._request.headers.get("accept", "")
        writer = writer_for(body, connection, accept=accept) if self._writer is None else self._writer(connection)
        check_resumable(speech, writer)
        job = await speech.accept(body, raw)
        connection.also = self._names_of(job)
        await unless_the_client_leaves(receive, write_reply(speech, job, writer, connection))


def writer_for(body: SpeechBody, connection: Connection, *, accept: str) -> SpeechWriter:
    """Returns the writer that the body, or the Accept header, selects.

    Raises:
        ApiError: 400, events without streaming, or times in a stream of audio.
    """
    as_events = body.stream_format == "sse" or "text/event-stream" in accept
    if as_events and not body.stream:
        raise bad_request("conflicting_fields", "stream=false cannot be sent as events", param="stream_format")
    timed = next((name for name in ("timestamps", "subtitles") if getattr(body, name) is not None), None)
    if as_events:
        return SseWriter(connection)
    if timed is not None and body.stream:
        message = f"a stream of audio has no place for {timed}: add stream=false for JSON, or stream_format=sse for events"
        raise bad_request("conflicting_fields", message, param=timed)
    if not body.stream:
        return WholeWriter(connection) if timed is None else JsonWriter(connection)
    return ChunkedWriter(connection)


def check_resumable(speech: SpeechSession, writer: SpeechWriter | None) -> None:
    """Checks that a reply that goes on has a form with a place to go on at.

    Raises:
        ApiError: 400
    """
    if speech.is_resumed and not isinstance(writer, ChunkedWriter | WholeWriter | SseWriter):
        raise bad_request(
            "not_resumable", "only audio and events go on in their middle: send the request without Range", param="Range"
        )


async def unless_the_client_leaves(receive: Receive, reply: Coroutine[None, None, None]) -> None:
    """Awaits `reply`, or cancels it as soon as the client has left.

    Also checked here before the first audio: a client's header can switch off Serve's own check.

    Raises:
        ClientLeft
    """
    work = asyncio.create_task(reply)
    leaving = asyncio.create_task(_disconnect(receive))
    try:
        await asyncio.wait((work, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise ClientLeft
        await work
    finally:
        leaving.cancel()
        work.cancel()
        await asyncio.gather(work, leaving, return_exceptions=True)


async def write_reply(speech: SpeechSession, job: SpeechJob, writer: SpeechWriter, connection: Connection) -> None:
    """Speaks a job and writes its events; its place is free as soon as the rest of them waits for a slow reader only.

    Raises:
        SynthesisError: one that the writer could not tell.
    """
    connection.when_complete = speech.give_back_place
    async with connection:
        try:
            async with aclosing(speech.speak(job)) as events:
                async for event in events:
                    await writer.write(event)
        except SynthesisError as error:
            if not await writer.write_error(error):
                raise


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
