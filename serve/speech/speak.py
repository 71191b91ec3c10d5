"""Speak: the one way from a request to its audio, for every entry point.

In:    the context of a request, then its body
Out:   Started, Audio, ..., Finished; or the error that ends the request
Owns:  the state of one request: its admission, its time limits, its measurements
Never: a clean end after a failure; Started before there is audio

An entry point (HTTP, a socket, a batch) reads a body and writes events in its own protocol:

    with open_speech(services, RequestContext(request_id, caller)) as speech:
        job = await speech.accept(body)
        async with aclosing(speech.speak(job)) as events:
            async for event in events:
                ...

Admission, quotas, idempotency, resuming, time limits, the cache, metrics, the trace and the log lines are handled here, once.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, aclosing, closing, contextmanager, nullcontext

import numpy as np
from numpy.typing import NDArray

from pipeline.audio.encode import Encoder, encode_whole
from pipeline.audio.formats import IN_WAV, AudioFormat
from pipeline.errors import DeadlineExceeded
from pipeline.types import AudioChunk, TimedItem
from serve.access.idempotency import checked_key, seed_of
from serve.access.resume_tokens import Continuation, Origin
from serve.errors import not_finished
from serve.observability.request_log import WANT_OF_ROOM, log_finished, log_received, reply_fields
from serve.observability.stage_timings import CURRENT_TIMINGS, Fields
from serve.speech.events import Audio, Finished, SpeechEvent, Started, Timed
from serve.speech.job import RequestContext, SpeechJob
from serve.speech.payment import KeyedRequest, Payment
from serve.speech.recorder import ReplyRecorder
from serve.speech.resolve import resolve_job
from serve.speech.resuming import KnownPart
from serve.speech.schemas.speech import SpeechBody
from serve.speech.speech_services import SpeechServices

# Cheap to encode. The other formats are encoded in a thread, or they would delay every other reply.
LIGHT_CONTAINERS = ("pcm", "wav", "ulaw", "alaw", *IN_WAV)
ENCODERS = ThreadPoolExecutor(8, thread_name_prefix="encoder")  # nothing that waits for somebody else may keep them


class Encoding:
    """The bytes of one reply, made of its samples without delaying the other replies of the process."""

    def __init__(self, audio: AudioFormat, *, streamed: bool) -> None:
        """
        Args:
            streamed: False: the whole container in one piece, with exact sizes in its header.
        """
        self._audio = audio
        self._encoder = Encoder(audio) if streamed else None
        self._is_light = audio.container in LIGHT_CONTAINERS
        self._samples = [np.zeros(0, np.float32)]  # of one piece

    async def feed(self, samples: NDArray[np.float32]) -> bytes:
        """Returns the bytes that became final; it may be none."""
        if self._encoder is None:
            self._samples.append(samples)
            return b""
        return self._encoder.feed(samples) if self._is_light else await _in_thread(self._encoder.feed, samples)

    async def finish(self) -> bytes:
        """Returns the last bytes."""
        if self._encoder is None:
            samples = np.concatenate(self._samples)
            return await asyncio.get_running_loop().run_in_executor(ENCODERS, encode_whole, samples, self._audio)
        return self._encoder.finish() if self._is_light else await _in_thread(self._encoder.finish)

    def close(self) -> None:
        """Frees the encoder."""
        if self._encoder is not None:
            self._encoder.close()


async def _in_thread(work: Callable[..., bytes], *args: object) -> bytes:
    """Runs `work` in a thread; a cancellation waits for it, or the encoder would be closed while it works."""
    running = asyncio.ensure_future(asyncio.get_running_loop().run_in_executor(ENCODERS, work, *args))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait((running,))
        raise


class ClientLeft(Exception):
    """Raised by an entry point whose client has left: nothing has failed, and nothing reads a reply."""


@contextmanager
def open_speech(services: SpeechServices, context: RequestContext) -> Iterator["SpeechSession"]:
    """Yields the session of one request for speech, from its arrival to the last byte of its reply.

    However the block ends, the request is counted, traced and logged; an error that leaves the block is its outcome.

    Raises:
        AtCapacity, Draining: at once, before the body is read in vain.
    """
    recorder = ReplyRecorder(context.request_id)
    session: SpeechSession | None = None
    with services.tracing.request(context.request_id, context.traceparent) as span:
        CURRENT_TIMINGS.set(recorder.timings)  # of this task and of those it starts
        try:
            with ExitStack() as admitted:
                services.admission.check(continues=context.continues)
                session = SpeechSession(services, context, recorder, admitted)
                yield session
        except ClientLeft:
            raise
        except Exception as error:
            recorder.failed(error)
            raise
        finally:
            if session is not None:
                session.close()
            stats, job = recorder.stats(), recorder.job
            services.observer.finished(stats)
            if job is None and stats.code in WANT_OF_ROOM:
                services.refusals.add(stats.code)
            else:
                summary = {} if job is None else job.summary() | went_on(context)
                log_finished(context.request_id, context.caller.id, summary, stats, recorder.timings)
            span.set_attributes(reply_fields(stats, recorder.timings))


def went_on(context: RequestContext) -> Fields:
    """Returns the field of a log line about a reply that goes on; none for a new one."""
    return {} if context.resumes is None else {"resumed_at_byte": context.resumes.first}


class SpeechSession:
    """One request: accept it, then speak it."""

    def __init__(self, services: SpeechServices, context: RequestContext, recorder: ReplyRecorder, admitted: ExitStack) -> None:
        self._services = services
        self._context = context
        self._recorder = recorder
        self._admitted = admitted
        self._known = None if context.resumes is None else KnownPart(context.resumes)
        self._origin: Origin | None = None  # of the reply that it goes on with
        self._body: SpeechBody | None = None
        self._payment = Payment(context.caller, services.idempotency)
        self._times: list[TimedItem] = []  # that have not been yielded

    @property
    def audio_s(self) -> float:
        """Seconds of audio that were synthesised so far."""
        return self._recorder.audio_s

    @property
    def is_resumed(self) -> bool:
        """True if the request goes on with an earlier reply."""
        return self._known is not None

    async def accept(self, body: SpeechBody, raw: bytes = b"") -> SpeechJob:
        """Admits the request, and has its caller pay for it.

        The one place where the rate, the streams, the characters and the audio of a key are asked, for every entry point.

        Args:
            raw: the body as JSON, to which its idempotency key belongs; not needed without a key.

        Raises:
            AtCapacity, Draining: the replica is full, or about to stop.
            InvalidRequest, ApiError: the body is wrong, or the caller may not have it, or the reply cannot go on where it was.
            ApiError: 401, the key was revoked while its socket was open.
            StageAsleep: a stage is being started, and its first audio would be later than promised.
        """
        services, context = self._services, self._context
        context.caller.check_key()
        self._admitted.callback(await context.caller.enter())
        self._admitted.enter_context(self._place())
        tenant, key = context.caller.id, checked_key(context.idempotency_key)
        continuation = await services.resuming.continuation(body, context)
        self._origin = None if continuation is None else continuation.origin
        self._body = body
        key_seed = None if key is None else seed_of(tenant, key)
        job = resolve_job(body, context, services, key_seed=key_seed, origin=self._origin)
        job = job.after(await services.awake(job.request))
        await self._pay(job, continuation, None if key is None else KeyedRequest(tenant, key, raw))
        self._recorder.job = job
        return job

    def give_back_place(self) -> None:
        """Ends the admission before the reply is written: all of its audio has been generated."""
        self._admitted.close()

    def close(self) -> None:
        """Gives back what was paid if nothing of the reply was sent."""
        self._payment.close()

    async def speak(self, job: SpeechJob, encoding: Encoding | None = None) -> AsyncGenerator[SpeechEvent, None]:
        """Streams the reply in the job's format.

        Args:
            encoding: of several replies in one stream, which its owner finishes; None: this reply has its own.

        Raises:
            SynthesisError: before Started if possible.
            ApiError: before Started, the reply cannot go on where it was; 401 at any time, the key was revoked.
        """
        recorder = self._recorder
        log_received(self._context.request_id, self._context.caller.id, job.summary())
        try:
            if self._origin is not None and self._body is not None:
                self._services.resuming.check(self._origin, self._body, job)
            async with aclosing(self._encoded(job, encoding)) as pieces:
                async for data in pieces:
                    if not recorder.has_started:
                        yield await self._start(job)
                    if self._times:
                        yield self._timed(job)
                    yield Audio(data)
            if not recorder.has_started:
                yield await self._start(job, is_all=True)
            if self._times:
                yield self._timed(job)
            yield Finished(job, recorder.audio_s, recorder.report, recorder.warnings)
        except Exception as error:
            recorder.failed(error)
            raise
        recorder.finished()

    @contextmanager
    def _place(self) -> Iterator[None]:
        """Holds a place of the admission, and tells how many are taken.

        Raises:
            AtCapacity, Draining: the replica is full, or about to stop.
        """
        admission, observer = self._services.admission, self._services.observer
        try:
            with admission.acquire(continues=self._context.continues):
                observer.in_flight_changed(admission.in_flight)
                yield
        finally:
            observer.in_flight_changed(admission.in_flight)

    async def _start(self, job: SpeechJob, *, is_all: bool = False) -> Started:
        recorder = self._recorder
        resumed = None if self._known is None else self._known.resumed(is_all=is_all)
        await self._payment.confirm()
        token = await self._token(job)
        self._payment.keep()
        recorder.has_started, recorder.is_resumed = True, resumed is not None
        timings_ms = recorder.timings_ms()
        return Started(job, recorder.cache, recorder.warnings, self._payment.is_repeated, timings_ms, token, resumed)

    async def _token(self, job: SpeechJob) -> str | None:
        """Returns what the reply can be resumed with."""
        if self._body is None:
            return None
        engines, is_paid = set(self._recorder.timings.builds), self._payment.has_paid
        return await self._services.resuming.token_for(self._body, job, self._context, engines, is_paid=is_paid)

    async def _encoded(self, job: SpeechJob, shared: Encoding | None) -> AsyncGenerator[bytes, None]:
        """Streams the bytes of the reply that the client does not have, within the time limits.

        Raises:
            ApiError: they would not be those of the reply that it goes on with.
        """
        limits, recorder = self._services.limits, self._recorder
        ends_at = _now() + limits.total_timeout_s
        limit_s, problem = job.first_audio_timeout_s, "no audio"
        with nullcontext(shared) if shared else closing(Encoding(job.audio, streamed=job.streamed)) as encoding:
            try:
                async with aclosing(self._services.stream(job.request)) as chunks:
                    while (chunk := await _next_chunk(chunks, limit_s, problem, ends_at, limits.total_timeout_s)) is not None:
                        self._context.caller.check_key()
                        if chunk.is_made:
                            await self._payment.pay_made()
                        duration_s = recorder.add(chunk, job.audio.sample_rate)
                        self._times += chunk.times
                        if not duration_s:
                            continue  # the audio stages keep samples that are not final yet
                        self._payment.add_audio(duration_s)
                        data = await encoding.feed(chunk.samples)
                        if data and (rest := self._rest_of(data)):
                            yield rest
                        # Bulk requests may be preempted for longer than a listener would wait.
                        limit_s = limits.total_timeout_s if job.is_bulk else limits.chunk_timeout_s
                        problem = "no further audio"
            finally:
                self._payment.end_audio()
            data = await encoding.finish() if shared is None else b""
            if (data or not job.streamed) and ((rest := self._rest_of(data)) or self._known is None):
                yield rest

    def _rest_of(self, data: bytes) -> bytes:
        """Returns the part of the next bytes that the client does not have.

        Raises:
            ApiError: they are not those of the reply that it goes on with.
        """
        if self._origin is not None and not self._recorder.has_started:
            self._services.resuming.check_engine(self._origin, self._recorder.timings.builds)
        return data if self._known is None else self._known.rest_of(data)

    def _timed(self, job: SpeechJob) -> Timed:
        items, self._times = tuple(self._times), []
        return Timed(job, items)

    async def _pay(self, job: SpeechJob, continuation: Continuation | None, keyed: KeyedRequest | None) -> None:
        payment, resumes, request = self._payment, self._context.resumes, job.request
        if self._context.is_paid:
            await payment.take(request, 0)
        elif continuation is not None and continuation.is_paid and resumes is not None and resumes.first:
            await payment.take_rest(request, job.characters, continuation.token)
        elif continuation is None and keyed is not None:
            await payment.take_once(request, job.characters, keyed)
        else:
            await payment.take(request, job.characters)


async def _next_chunk(
    chunks: AsyncGenerator[AudioChunk, None], limit_s: float, problem: str, ends_at: float, total_s: float
) -> AudioChunk | None:
    """Returns the next chunk; None at the end.

    Args:
        limit_s: how long to wait for it.
        problem: what is missing if it does not come, for the message.
        ends_at: end of the request's whole time of total_s, by the loop's clock; writing slowly uses it up.

    Raises:
        DeadlineExceeded
    """
    now = _now()
    try:
        if now < ends_at:
            async with asyncio.timeout_at(min(now + limit_s, ends_at)):
                return await anext(chunks, None)
    except TimeoutError:
        pass
    if ends_at <= now + limit_s:
        raise not_finished(total_s)
    raise DeadlineExceeded(f"{problem} after {limit_s:g} s")


def _now() -> float:
    return asyncio.get_running_loop().time()
