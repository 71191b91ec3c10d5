"""Context: one text of a conversation that grows, and the audio that follows it.

In:    pieces of text, flushes, a close or a cancel
Out:   ConversationEvents, in the order of the text
Owns:  the task that speaks the parts one after the other
Never: audio that depends on when a piece of text came; two parts of one context at a time

Every part is a request of serve/speech with the samples of an HTTP reply, and with its bytes unless parts are joined. The next
one begins as soon as no more than `lead_s` of the audio that was sent can still be unplayed, so that an interruption wastes no
more than that and one part.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from pipeline.errors import NoSpeakableText, ReaderStalled
from pipeline.text.incremental import GrowingText, Part
from pipeline.text.markup.marked_text import Table, marked
from serve.access.resume_tokens import Resumption
from serve.speech.conversation.conversation_events import (
    ContextClosed,
    ContextFailed,
    ConversationEvent,
    PartSkipped,
    PartSpoken,
)
from serve.speech.conversation.played import Listener, Played
from serve.speech.events import Audio, Finished, Started
from serve.speech.job import RequestContext
from serve.speech.schemas.base import read_body
from serve.speech.schemas.speech import SpeechBody
from serve.speech.speak import ClientLeft, Encoding, open_speech
from serve.speech.speech_services import SpeechServices

Emit = Callable[[ConversationEvent], Awaitable[None]]
"""writes an event to the client; raises ClientLeft or ReaderStalled"""
PIECE_CHARS = 2048
"""of a text that are looked at, before others have their turn; some 5 ms for the worst of them"""


@dataclass(frozen=True)
class ContextSettings:
    """How a context is cut and spoken. Its fields are checked once, however many parts it has."""

    speech: Mapping[str, Any]
    """fields of SpeechBody but `input`"""
    lead_s: float
    """audio that may be sent ahead of what a listener has played, before the next part begins [s]"""
    sentences: bool = False
    """a part also ends behind every sentence whose reading is certain"""
    pause_s: float | None = None
    """a part also ends when no text has come for so long; None: never [s]"""
    resumes: Resumption | None = None
    """where the first part goes on, which is a part of an earlier context; None: it begins"""
    joins_parts: bool = False
    """the bytes of all parts are one stream of the container; False: each part has the bytes of a reply of its own"""
    markup: Table = field(default_factory=dict)
    """what the protocol marks in a text"""

    def body(self, text: str) -> SpeechBody:
        """Returns the body of the HTTP request that speaks this text in the same way.

        Raises:
            ApiError: a field is wrong.
        """
        return read_body(SpeechBody, json.dumps({**self.speech, "input": text}).encode())

    def part_body(self, text: str) -> SpeechBody:
        """Returns the body for a part, which is a text that is not empty and has no half characters.

        Raises:
            ApiError: a field is wrong.
        """
        return self._checked.model_copy(update=marked(text, self.markup))

    @cached_property
    def _checked(self) -> SpeechBody:
        return self.body(".")

    def spoken_by(self, voice: str | None) -> "ContextSettings":
        """Returns the settings with another voice; None: as they are."""
        return self if voice is None else replace(self, speech={**self.speech, "voice": voice})


@dataclass(frozen=True, slots=True)
class _Line:
    """A part, and who speaks it."""

    part: Part
    voice: str | None
    """None: the voice of the context"""


class Context:
    """A text of a conversation that grows, and its audio: from its opening until it is closed, cancelled or has failed."""

    def __init__(
        self,
        name: str,
        settings: ContextSettings,
        services: SpeechServices,
        request: RequestContext,
        emit: Emit,
        changed: Callable[[], object],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            request: of the whole context; each part has its id with a number behind it.
            changed: called when is_busy or is_over may have become another.
        """
        self.name = name
        self.parts = 0
        """how many parts are complete, spoken or not"""
        self.broken: Exception | None = None
        """why nothing more can be written to the client; None: it can"""
        self._settings: dict[str | None, ContextSettings] = {None: settings}
        """voice -> how it speaks, None: the voice of the settings; a context has few"""
        self._services = services
        self._request = request
        self._emit = emit
        self._changed = changed
        self._text = GrowingText(sentences=settings.sentences)
        self._listener = Listener(clock)
        self._voice: str | None = None  # of the text that is no part yet
        self._encoding: Encoding | None = None  # of all parts, where they are joined
        self._lines: asyncio.Queue[_Line | None] = asyncio.Queue()
        self._unspoken = 0  # characters of _lines
        self._pause: asyncio.TimerHandle | None = None
        self._is_closed = False  # by the client
        self._hurry = asyncio.Event()
        self._present: Part | None = None
        self._speaking = asyncio.create_task(self._run(), name=f"context of {request.request_id}")
        self._speaking.add_done_callback(lambda _: changed())

    @property
    def is_over(self) -> bool:
        """True once nothing more of it will be spoken."""
        return self._speaking.done()

    @property
    def is_busy(self) -> bool:
        """True while text of it that is complete has not been spoken to its end."""
        return not self.is_over and (self._present is not None or not self._lines.empty())

    @property
    def waiting(self) -> int:
        """How many characters have been received and not been spoken."""
        return self._unspoken + self._text.waiting

    @property
    def parts_waiting(self) -> int:
        """How many parts are complete and not begun."""
        return self._lines.qsize()

    @property
    def accepts_text(self) -> bool:
        """False once it is closed."""
        return not self._is_closed

    async def add(self, text: str, voice: str | None = None) -> None:
        """Appends text, PIECE_CHARS at a time; a part also ends where the voice changes.

        Args:
            voice: who speaks it; None: the voice of the settings.
        """
        if voice != self._voice:
            self.flush()
            self._voice = voice
        self._stop_pause()
        for place in range(0, len(text), PIECE_CHARS):
            if place:
                await asyncio.sleep(0)
            self._put(*self._text.add(text[place : place + PIECE_CHARS]))
        if (pause_s := self._spoken_by(None).pause_s) is not None:
            self._pause = asyncio.get_running_loop().call_later(pause_s, self.flush)

    def flush(self) -> None:
        """Ends the present part."""
        self._stop_pause()
        part = self._text.flush()
        if part is not None:
            self._put(part)

    def close(self, *, rest: bool = True) -> None:
        """Ends the text; what there is of it is spoken, without `rest` only the parts that are complete."""
        if not self._is_closed:
            if rest:
                self.flush()
            self._stop_pause()
            self._is_closed = True
            self._lines.put_nowait(None)

    def hurry(self) -> None:
        """Speaks what is complete without waiting for the listener: the replica is about to stop."""
        self._hurry.set()

    async def stop(self) -> None:
        """Ends the speech at once; the engine has its slot back within one round."""
        self._stop_pause()
        self._speaking.cancel()
        await asyncio.wait((self._speaking,))

    async def cancel(self, played_s: float | None = None) -> Played:
        """Stops, and returns what was played; `played_s` as for Listener.played."""
        played = self._listener.played(played_s, speed=self._spoken_by(None).part_body(".").speed)
        await self.stop()
        self._services.observer.interrupted(played.unheard_steps)
        return played

    def _spoken_by(self, voice: str | None) -> ContextSettings:
        """Returns the settings with this voice."""
        if voice not in self._settings:
            self._settings[voice] = self._settings[None].spoken_by(voice)
        return self._settings[voice]

    def _put(self, *parts: Part) -> None:
        for part in parts:
            self.parts += 1
            self._unspoken += len(part.text)
            self._lines.put_nowait(_Line(part, self._voice))
            self._changed()

    def _stop_pause(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None

    async def _run(self) -> None:
        number = 0
        try:
            while (line := await self._lines.get()) is not None:
                self._present = part = line.part
                await self._wait_for_listener()
                try:
                    await self._speak(number, part, self._spoken_by(line.voice))
                except NoSpeakableText as error:
                    await self._emit(PartSkipped(self.name, number, part, error))
                self._unspoken -= len(part.text)
                self._present = None
                self._changed()
                number += 1
            rest = b"" if self._encoding is None else await self._encoding.finish()
            await self._emit(ContextClosed(self.name, self._listener.sent_s, rest))
        except (ClientLeft, ReaderStalled) as error:
            self.broken = error
        except Exception as error:
            await self._fail(number, error)
        finally:
            if self._encoding is not None:
                self._encoding.close()

    async def _fail(self, number: int, error: Exception) -> None:
        try:
            await self._emit(ContextFailed(self.name, number, error))
        except (ClientLeft, ReaderStalled) as broken:
            self.broken = broken

    async def _wait_for_listener(self) -> None:
        while not self._hurry.is_set() and (ahead_s := self._listener.lead_s - self._spoken_by(None).lead_s) > 0:
            try:
                async with asyncio.timeout(ahead_s):
                    await self._hurry.wait()
            except TimeoutError:
                pass

    async def _speak(self, number: int, part: Part, settings: ContextSettings) -> None:
        """Speaks one part as one request.

        Raises:
            ClientLeft, ReaderStalled: nothing can be written to the client.
            SynthesisError, ApiError
        """
        resumes = settings.resumes if number == 0 else None
        name = f"{self._request.request_id}.{number}"
        request = replace(self._request, request_id=name, behind=part.behind, continues=True, resumes=resumes)
        with open_speech(self._services, request) as speech:
            job = await speech.accept(settings.part_body(part.text))
            self._listener.began(part)
            sent_s, from_s = 0.0, self._listener.sent_s
            if settings.joins_parts and self._encoding is None:
                self._encoding = Encoding(job.audio, streamed=True)
            async with aclosing(speech.speak(job, self._encoding)) as events:
                async for event in events:
                    await self._emit(PartSpoken(self.name, number, part, event, from_s))
                    if isinstance(event, Started) and event.resumed is not None:
                        sent_s = speech.audio_s  # it was sent before
                    if isinstance(event, Audio | Finished) and speech.audio_s > sent_s:
                        self._listener.received(speech.audio_s - sent_s)
                        sent_s = speech.audio_s
            self._listener.ended()
