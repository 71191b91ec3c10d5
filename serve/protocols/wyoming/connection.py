"""Wyoming connection: one client, from its first event to the end of the stream.

In:    a stream of bytes
Out:   Events: information, audio as it is generated, errors
Owns:  the one speech that is under way
Never: an endless wait for a client that reads nothing; audio-stop after a failure
"""

import asyncio
import logging
from contextlib import suppress
from functools import partial

from wyoming.event import Event
from wyoming.info import Describe, SelectProgram
from wyoming.ping import Ping, Pong
from wyoming.tts import Synthesize, SynthesizeChunk, SynthesizeStart, SynthesizeStop

from pipeline.errors import ReaderStalled, SynthesisError
from serve.access.pace import MessagePace, too_many_messages
from serve.config.protocols import WyomingConfig
from serve.errors import ApiError, bad_request
from serve.http.services import Services
from serve.protocols.wyoming.messages import (
    PROGRAM,
    ChunkData,
    PingData,
    ProgramData,
    SynthesizeData,
    checked,
    error_event,
    info,
)
from serve.protocols.wyoming.player import Player
from serve.protocols.wyoming.reader import CappedReader, linger
from serve.protocols.wyoming.speeches import GrowingSpeech, WholeSpeech
from serve.speech.speak import ClientLeft

LOG = logging.getLogger("ray.serve.chattts")


class WyomingConnection:
    """One client's connection."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, services: Services, config: WyomingConfig
    ) -> None:
        limits = services.speech.limits
        self._events = CappedReader(reader, limits.max_body_bytes, limits.body_timeout_s)
        self._player = Player(writer, limits.stall_timeout_s)
        self._pace = MessagePace(asyncio.get_running_loop().time)
        self._services = services
        self._config = config
        self._speech: WholeSpeech | GrowingSpeech | None = None
        self._speaking: asyncio.Task[None] | None = None  # the task of _speech
        self._leaving = asyncio.Event()
        self._linger = partial(linger, reader, writer)

    def leave(self) -> None:
        """Ends the connection once it has spoken."""
        self._leaving.set()

    async def run(self) -> None:
        """Serves the client until either side ends the stream."""
        try:
            await self._listen()
        except (ClientLeft, ReaderStalled):
            pass
        except Exception as error:
            if not isinstance(error, ApiError | SynthesisError):
                LOG.exception("wyoming: a connection ended by an error of the service")
            await self._stop_speaking()
            with suppress(ClientLeft, ReaderStalled):
                await self._player.say(error_event(error))
                await self._linger()
        finally:
            await self._stop_speaking()
            self._player.close()

    async def _stop_speaking(self) -> None:
        if self._speaking is not None:
            self._speaking.cancel()
            await asyncio.wait((self._speaking,))

    async def _listen(self) -> None:
        """Handles events until the stream ends, or the service stops, or nothing has happened for too long.

        Raises:
            ClientLeft, ReaderStalled: nothing can be written to the client.
            SynthesisError, ApiError: the stream ends with it.
        """
        idle_s = self._services.conversations.config.idle_timeout_s
        leaving, reading = asyncio.create_task(self._leaving.wait()), asyncio.create_task(self._events.next())
        pending: Event | None = None
        try:
            while True:
                waiting: set[asyncio.Task[object]] = {self._speaking or leaving}
                if pending is None:
                    waiting.add(reading)
                done, _ = await asyncio.wait(waiting, timeout=idle_s, return_when=asyncio.FIRST_COMPLETED)
                if self._speaking in done:
                    await self._forget_speech()
                elif leaving in done or not (done or (self._speech is not None and self._speech.is_audible)):
                    return
                if pending is None and reading.done():
                    pending = reading.result()
                    if pending is None:
                        return
                    reading = asyncio.create_task(self._events.next())
                if pending is not None and not isinstance(self._speech, WholeSpeech):
                    event, pending = pending, None
                    if not self._pace.takes(self._events.size):
                        raise too_many_messages()
                    await self._obey(event)
        finally:
            for task in (leaving, reading):
                task.cancel()
            await asyncio.gather(leaving, reading, return_exceptions=True)

    async def _obey(self, event: Event) -> None:
        """Does what an event says; those without a meaning here are dropped, as the protocol says.

        Raises:
            SynthesisError, ApiError
        """
        kind, growing = event.type, self._speech
        if Describe.is_type(kind):
            await self._player.say(info(self._services.voices.library.list(), self._services.speech.models))
        elif Ping.is_type(kind):
            text = checked(PingData, event.data).text
            # Half of a pair of surrogates is no text that could be sent.
            await self._player.say(Pong(text=text and text.encode(errors="replace").decode()).event())
        elif SelectProgram.is_type(kind):
            if checked(ProgramData, event.data).name != PROGRAM:
                raise bad_request("program_not_found", f"the one program here is {PROGRAM}", param="name")
        elif SynthesizeStart.is_type(kind):
            if growing is not None:
                raise bad_request("conflict", "a text is being received: synthesize-stop comes first", status=409)
            await self._begin(GrowingSpeech(self._services, self._config, self._player, event.data))
        elif Synthesize.is_type(kind):
            if isinstance(growing, GrowingSpeech):
                await growing.repeat(checked(SynthesizeData, event.data).text)
            else:
                await self._begin(WholeSpeech(self._services, self._config, self._player, event.data))
        elif SynthesizeChunk.is_type(kind):
            if not isinstance(growing, GrowingSpeech):
                raise bad_request("conflict", "there is no text to add to: synthesize-start comes first", status=409)
            await growing.add(checked(ChunkData, event.data).text)
        elif SynthesizeStop.is_type(kind) and isinstance(growing, GrowingSpeech):
            growing.close()

    async def _begin(self, speech: WholeSpeech | GrowingSpeech) -> None:
        self._speech = speech
        self._speaking = asyncio.create_task(speech.run(), name="speech of Wyoming")
        opened = asyncio.create_task(speech.opened.wait())
        await asyncio.wait((opened, self._speaking), return_when=asyncio.FIRST_COMPLETED)
        opened.cancel()

    async def _forget_speech(self) -> None:
        """Forgets the speech that has ended, or raises why it failed: who waits for its audio would wait for ever, unless
        the stream ends too."""
        speaking, self._speaking, self._speech = self._speaking, None, None
        assert speaking is not None
        await speaking
