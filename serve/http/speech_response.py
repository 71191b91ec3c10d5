"""Reply: one spoken answer, from the arriving body to the last byte.

In:    a POST /v1/audio/speech, the Services
Out:   status and headers together with the first audio, then the body
Owns:  the state of this one reply: its encoder, its time limits, its place at the door
Never: Ray; a clean end after a failure; a status before there is audio
"""

import asyncio
import base64
import hashlib
import json
import logging
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import aclosing
from dataclasses import replace

import numpy as np
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from pipeline.audio.encode import Encoder, encode_whole
from pipeline.errors import AtCapacity, DeadlineExceeded, ReaderStalled, SynthesisError
from pipeline.types import AudioChunk, AudioReport, CacheResult, Lane, SchedulingParams
from pipeline.voices.names import display_name
from serve.access.authentication import caller_of
from serve.access.idempotency import HEADER as IDEMPOTENCY_KEY
from serve.access.idempotency import checked_key, seed_of
from serve.errors import ApiError, to_api_error
from serve.http.body_reader import is_strict
from serve.http.services import Services
from serve.observability.reply_stats import Outcome, PlayCursor, ReplyStats
from serve.observability.request_log import WANT_OF_ROOM, log_finished, log_received, traced
from serve.remote.stage_timing import CURRENT, StageTimings
from serve.speech.schemas.base import read_body
from serve.speech.schemas.speech import SpeechBody, SpeechJob, ignored_header, to_order
from serve.speech.schemas.text import read_text, warnings_header

# Child of Ray's own logger by name alone: under Serve its handler writes these lines, elsewhere logging's root does.
LOG = logging.getLogger("ray.serve.chattts")

MADE = {"X-AI-Generated": "true"}
"""on every reply that is speech"""

# Formats that cost next to nothing to encode; the others are encoded in a thread, or they would hold up every other reply.
LIGHT_CONTAINERS = ("pcm", "wav", "ulaw", "alaw")


class CutReply(Exception):
    """Ends the connection without a terminator: the body is visibly unfinished."""


class SpeechResponse(Response):
    """Speaks."""

    def __init__(self, request: Request, services: Services, request_id: str) -> None:
        self._request = request
        self._services = services
        self._limits = services.limits
        self._caller = caller_of(request)
        self._request_id = request_id
        self._started_at = time.perf_counter()
        self._status_sent = False
        self._audio_s = 0.0
        self._report = AudioReport(steps=0)
        self._source = CacheResult.BYPASS
        self._replayed: bool | None = None
        self._first_audio_s: float | None = None
        self._cursor = PlayCursor()
        self._stages = StageTimings()
        self._warnings: dict[str, int] = {}
        self._taken: SpeechJob | None = None
        self._given_up: tuple[str, ...] = ()
        self._outcome = Outcome.LEFT
        self._code = ""
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._services.tracing.request(self._request_id, self._request.headers.get("traceparent")) as span:
            try:
                await self._reply(receive, send)
            finally:
                span.set_attributes(traced(self._stats(), self._stages))

    async def _reply(self, receive: Receive, send: Send) -> None:
        admission, observer = self._services.admission, self._services.observer
        CURRENT.set(self._stages)  # of this task and of those it starts: the reply is the last thing it does
        try:
            admission.check()  # before the body is read: nobody sends one in vain
            raw = await self._services.bodies.read_json(self._request)
            with admission.acquire():
                observer.in_flight_changed(admission.in_flight)
                self._taken = order = await self._accepted(raw)
                await self._unless_the_client_leaves(receive, self._speak(order, send))
        except ClientDisconnect:
            pass  # the listener's good right; the line below says so
        except Exception as error:
            if self._status_sent:
                self._fail(error, Outcome.CUT)
                raise CutReply(self._request_id) from None
            self._fail(error, Outcome.REFUSED)
            raise to_api_error(error) from None
        finally:
            observer.in_flight_changed(admission.in_flight)
            stats = self._stats()
            observer.finished(stats)
            if self._taken is None and self._code in WANT_OF_ROOM:
                self._services.refusals.add(self._code)
            else:
                log_finished(self._request_id, self._caller.id, self._taken, stats, self._stages)

    async def _accepted(self, raw: bytes) -> SpeechJob:
        """The order, charged for: once, however often its Idempotency-Key comes with it."""
        tenant, key = self._caller.id, checked_key(self._request.headers.get(IDEMPOTENCY_KEY))
        order = self._order(raw, None if key is None else seed_of(tenant, key))
        characters = len(order.request.text)
        if key is None:
            await self._caller.charge_characters(characters)
            return order
        idempotency = self._services.idempotency
        self._replayed = await idempotency.is_repeated(tenant, key, raw)
        if not self._replayed:
            try:
                await self._caller.charge_characters(characters)
            except ApiError:
                await idempotency.release(tenant, key)
                raise
        return order

    def _order(self, raw: bytes, seed: int | None) -> SpeechJob:
        services = self._services
        eased = services.degrader.fit(read_body(SpeechBody, raw), seeded=seed is not None)
        said, self._given_up = eased.body, eased.given_up
        strict, voice = is_strict(self._request), services.voice_id(said.voice_name)
        fitted = services.models.fit(said, self._request, voice, strict=strict)
        body = fitted.body
        scheduling = self._scheduling(body.priority)
        services.degrader.let_in(scheduling.lane)
        if seed is None and body.seed is None:  # with a seed the cache may have it
            services.overload.check(fitted.version.id, scheduling.lane)
        order = to_order(
            body,
            request_id=self._request_id,
            voice=voice,
            text=read_text(body, limits=self._limits, strict=strict, voice_id=services.voice_id, lexicon=services.lexicons.get),
            limits=self._limits,
            strict=strict,
            accepts_events="text/event-stream" in self._request.headers.get("accept", ""),
            cache_control=self._request.headers.get("cache-control", ""),
            tenant=self._caller.id,
            seed=seed,
            scheduling=scheduling,
        )
        return replace(order, request=eased.fit(fitted.fit(order.request)), ignored=(*order.ignored, *fitted.without))

    def _scheduling(self, wished: str | None) -> SchedulingParams:
        """How the request stands in line, with the time its lane promises."""
        lane = self._caller.lane(wished)
        promised_s = {
            Lane.INTERACTIVE: self._services.lanes.interactive_timeout_s,
            Lane.STANDARD: self._limits.first_audio_timeout_s,
            Lane.BULK: self._services.lanes.bulk_timeout_s,
        }
        return SchedulingParams(lane, self._caller.id, promised_s[lane])

    # Speaking.

    async def _unless_the_client_leaves(self, receive: Receive, speaking: Coroutine[None, None, None]) -> None:
        """Run `speaking` to its end, or cancel it as soon as the client is gone.

        We listen ourselves, before the first audio too: Serve's own watch can be switched off by a client's header.
        """
        work = asyncio.create_task(speaking)
        leaving = asyncio.create_task(_disconnect(receive))
        try:
            await asyncio.wait((work, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise ClientDisconnect
            await work
        finally:
            leaving.cancel()
            work.cancel()
            await asyncio.gather(work, leaving, return_exceptions=True)

    async def _speak(self, order: SpeechJob, send: Send) -> None:
        log_received(self._request_id, self._caller.id, order)
        try:
            async with asyncio.timeout(self._limits.total_timeout_s):
                async with aclosing(self._services.stream(order.request)) as chunks:
                    if not order.streamed:
                        await self._send_whole(order, chunks, send)
                    elif order.as_events:
                        await self._send_events(order, chunks, send)
                    else:
                        await self._send_streamed(order, chunks, send)
        except TimeoutError:
            raise DeadlineExceeded(f"not finished after {self._limits.total_timeout_s:g} s (limits.total_timeout_s)") from None
        except AtCapacity as error:
            if type(error) is AtCapacity:  # a deadline that cannot be kept says nothing about others
                self._services.overload.note(order.request.model, order.request.scheduling.lane, error)
            raise
        if self._outcome is Outcome.LEFT:
            self._outcome = Outcome.DONE

    async def _send_streamed(self, order: SpeechJob, chunks: AsyncGenerator[AudioChunk, None], send: Send) -> None:
        async with aclosing(self._encoded(order, chunks)) as pieces:
            async for data in pieces:
                if not self._status_sent:
                    await self._send_status(order, send, order.audio.content_type)
                await self._send(send, data)
        await self._send_end(send)

    async def _send_whole(self, order: SpeechJob, chunks: AsyncGenerator[AudioChunk, None], send: Send) -> None:
        spoken = []
        async with aclosing(self._timely(order, chunks)) as timely:
            async for chunk in timely:
                spoken.append(chunk.samples)
        samples = np.concatenate(spoken) if spoken else np.zeros(0, np.float32)
        data = await asyncio.to_thread(encode_whole, samples, order.audio)
        cut = ",".join(map(str, self._report.trimmed_ms))
        exact = {
            "Content-Length": str(len(data)),
            "Digest": f"SHA-256={base64.b64encode(hashlib.sha256(data).digest()).decode()}",
            "X-Audio-Duration-Ms": str(round(1000 * self._audio_s)),
            "X-Usage-Characters": str(len(order.request.text)),
            "X-Usage-Audio-Tokens": str(self._report.steps),
            **({"X-Audio-Trimmed-Ms": cut} if order.request.audio.trim else {}),
        }
        await self._send_status(order, send, order.audio.content_type, exact)
        await self._send(send, data)
        await self._send_end(send)

    async def _send_events(self, order: SpeechJob, chunks: AsyncGenerator[AudioChunk, None], send: Send) -> None:
        digest = hashlib.sha256()
        try:
            async with aclosing(self._encoded(order, chunks)) as pieces:
                seq = 0
                async for data in pieces:
                    if not self._status_sent:
                        await self._send_status(order, send, "text/event-stream")
                    digest.update(data)
                    delta = {"type": "speech.audio.delta", "audio": base64.b64encode(data).decode(), "seq": seq}
                    await self._send(send, _event(delta))
                    seq += 1
        except SynthesisError as error:
            if not self._status_sent or isinstance(error, ReaderStalled):
                raise
            # An event stream can say what went wrong; the audio in it is marked unfinished by the missing done event.
            self._fail(error, Outcome.CUT)
            await self._send(send, _event({"type": "speech.audio.error", **to_api_error(error).body(self._request_id)}))
        else:
            await self._send(send, _event(self._done(order, digest.hexdigest())))
        await self._send_end(send)

    async def _encoded(self, order: SpeechJob, chunks: AsyncGenerator[AudioChunk, None]) -> AsyncGenerator[bytes, None]:
        """Non-empty pieces of the container, one a chunk."""
        encoder = Encoder(order.audio)
        light = order.audio.container in LIGHT_CONTAINERS
        try:
            async with aclosing(self._timely(order, chunks)) as timely:
                async for chunk in timely:
                    data = encoder.feed(chunk.samples) if light else await _in_thread(encoder.feed, chunk.samples)
                    if data:
                        yield data
            data = encoder.finish() if light else await _in_thread(encoder.finish)
            if data:
                yield data
        finally:
            encoder.close()

    async def _timely(self, order: SpeechJob, chunks: AsyncGenerator[AudioChunk, None]) -> AsyncGenerator[AudioChunk, None]:
        """The chunks, none of them late."""
        limit_s, what = order.first_audio_timeout_s, "no audio"
        while True:
            try:
                async with asyncio.timeout(limit_s):
                    chunk = await anext(chunks, None)
            except TimeoutError:
                raise DeadlineExceeded(f"{what} after {limit_s:g} s") from None
            if chunk is None:
                return
            self._warnings.update(chunk.warnings)
            self._report = chunk.report or self._report
            if not len(chunk.samples):
                continue  # the audio rooms hold back what they cannot finish yet
            if self._first_audio_s is None:
                self._source = chunk.cache
                self._stages.cache = chunk.cache.value
                self._first_audio_s = time.perf_counter() - self._started_at
            duration_s = len(chunk.samples) / order.audio.sample_rate
            self._cursor.arrived(time.perf_counter(), duration_s)
            self._audio_s += duration_s
            self._caller.record_audio(duration_s)
            yield chunk
            # Bulk may be interrupted for longer than listeners would wait.
            bulk = order.request.scheduling.lane is Lane.BULK
            limit_s = self._limits.total_timeout_s if bulk else self._limits.chunk_timeout_s
            what = "no further audio"

    # The wire.

    async def _send_status(self, order: SpeechJob, send: Send, media_type: str, more: Mapping[str, str] | None = None) -> None:
        request = order.request
        headers = {
            "Content-Type": media_type,
            "X-Audio-Seed": str(request.sampling.seed),
            "X-Voice-Id": display_name(request.voice),
            "X-Cache": self._source,
            "X-Model-Version": request.model,
            **MADE,
            "Server-Timing": self._server_timing(),
            "Cache-Control": "no-store",
            "X-Accel-Buffering": "no",
            **(more or {}),
        }
        if self._replayed is not None:
            headers["Idempotency-Replayed"] = str(self._replayed).lower()
        if self._warnings:
            headers["X-Text-Warnings"] = warnings_header(self._warnings)
        if self._given_up:
            headers["X-Degraded"] = ", ".join(self._given_up)
        if order.ignored:
            headers["X-Ignored-Fields"] = ignored_header(order.ignored)
        raw = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        self._status_sent = True
        await send({"type": "http.response.start", "status": 200, "headers": raw})

    async def _send(self, send: Send, data: bytes) -> None:
        await self._patiently(send, {"type": "http.response.body", "body": data, "more_body": True})

    async def _send_end(self, send: Send) -> None:
        await self._patiently(send, {"type": "http.response.body", "body": b"", "more_body": False})

    async def _patiently(self, send: Send, message: Message) -> None:
        """Wait for the reader, but not for ever: `send` returns once its buffer has room again."""
        limit_s = self._limits.stall_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                await send(message)
        except TimeoutError:
            raise ReaderStalled(f"the reader took nothing for {limit_s:g} s (limits.stall_timeout_s)") from None

    def _server_timing(self) -> str:
        now_s = time.perf_counter() - self._started_at
        first_s = now_s if self._first_audio_s is None else self._first_audio_s
        whole = f"audio;dur={1000 * first_s:.1f}, encode;dur={1000 * (now_s - first_s):.1f}, total;dur={1000 * now_s:.1f}"
        return self._stages.server_timing() + whole

    def _done(self, order: SpeechJob, sha256: str) -> dict[str, object]:
        # What is billable here: characters in, steps out, whatever the audio rooms made of them.
        steps, characters = self._report.steps, len(order.request.text)
        return {
            "type": "speech.audio.done",
            "usage": {"input_tokens": characters, "output_tokens": steps, "total_tokens": characters + steps},
            "audio": {
                "duration_ms": round(1000 * self._audio_s),
                "sample_rate": order.audio.sample_rate,
                "content_type": order.audio.content_type,
                "seed": order.request.sampling.seed,
                "sha256": sha256,
                **({"trimmed_ms": self._report.trimmed_ms} if order.request.audio.trim else {}),
            },
            "warnings": self._warnings,
        }

    def _stats(self) -> ReplyStats:
        order = self._taken
        return ReplyStats(
            outcome=self._outcome,
            code=self._code,
            streamed=order is not None and order.streamed,
            first_audio_s=self._first_audio_s,
            took_s=time.perf_counter() - self._started_at,
            audio_s=self._audio_s,
            stalled_s=self._cursor.stalled_s,
            characters=0 if order is None else len(order.request.text),
            warnings=self._warnings,
        )

    def _fail(self, error: Exception, outcome: Outcome) -> None:
        self._outcome, self._code = outcome, to_api_error(error).spec.code
        if not isinstance(error, ApiError | SynthesisError):
            LOG.error("speech broke request=%s", self._request_id, exc_info=error)


async def _in_thread(work: Callable[..., bytes], *args: object) -> bytes:
    """Run in a thread; a cancellation waits for it, or the encoder would be closed while it works."""
    running = asyncio.ensure_future(asyncio.to_thread(work, *args))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait((running,))
        raise


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _event(data: Mapping[str, object]) -> bytes:
    return f"event: {data['type']}\ndata: {json.dumps(data)}\n\n".encode()
