"""Flux session: version 2 of Deepgram's protocol, in turns: each begins with its first text and ends with a flush.

In:    frames, ConversationEvents, errors
Out:   calls of a Conversation; messages
Owns:  the turns that have not ended, the audio of the session so far
Never: a socket; the end of a turn before its last byte; audio of a turn that was interrupted behind the message that says so

All turns are texts of one context, one after the other, which begins anew after an interruption and with another speed.
"""

import secrets
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pydantic import ConfigDict

from pipeline.errors import AtCapacity
from pipeline.types.bounds import SPEED
from serve.config.app_config import ConversationsConfig
from serve.errors import bad_request, to_api_error
from serve.http.bounded_fields import parse_object
from serve.http.close_codes import NORMAL
from serve.http.conversation_writer import audio_pieces
from serve.http.session import Message
from serve.protocols.deepgram.session import SpeakSession
from serve.protocols.openai.schemas.conversation import read_fields
from serve.speech.conversation.conversation import MAX_WAITING_CHARS, Conversation
from serve.speech.conversation.conversation_events import (
    ContextCancelled,
    ContextClosed,
    ContextFailed,
    ConversationEvent,
    PartSkipped,
    PartSpoken,
)
from serve.speech.conversation.played import Played
from serve.speech.events import Audio, Finished, Started
from serve.speech.schemas.base import Body

MOST_TURNS = 256
"""that have not ended"""
MOST_TURN_CHARS = 4 * MAX_WAITING_CHARS
"""of a turn that are kept to say which were heard"""


class PlaybackOffset(Body):
    """How much of the session's audio the client has played."""

    type: Literal["time_ms"] = "time_ms"
    value: int


class FluxMessage(Body):
    """What a client says. Unknown fields have no effect."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["Speak", "Flush", "Interrupt", "Configure", "Close"]
    text: str | None = None
    speed: float | None = None
    playback_offset: PlaybackOffset | None = None


@dataclass(slots=True)
class _Turn:
    """A turn that has not ended."""

    start: int
    """its first character in the text of the context"""
    first: int
    """its first part in the context"""
    id: str = field(default_factory=lambda: f"dg_sp_{secrets.token_hex(6)}")
    text: str = ""
    """as far as it is kept"""
    characters: int = 0
    billed: int = 0
    audio_s: float = 0.0
    stop: int | None = None
    """how many parts of the context are complete with its flush; None: it grows"""
    has_begun: bool = False


class FluxSession(SpeakSession):
    """One client of version 2; see Session."""

    def __init__(self, query: Mapping[str, str], config: ConversationsConfig, request_id: str) -> None:
        super().__init__(query, config, request_id)
        self._is_closing = False
        self._contexts = 0  # that were opened; the last one speaks
        self._is_other = False  # whether the settings are not those of the context
        self._length = 0  # characters of the context
        self._turns: deque[_Turn] = deque()
        self._before_s = self._audio_s = 0.0  # of the session: before the context, and all of it
        self._bytes_a_second = 1
        self._interrupted_ms = -1
        self._is_split = False  # whether the interruption says what was played
        self._characters = self._billed = 0  # of the session

    def _greeting(self, uuid: str) -> Message:
        return {"type": "Connected", "model_uuids": [uuid]}

    async def obey(self, frame: str, conversation: Conversation) -> Message | Sequence[Message] | None:
        """As Session says."""
        message = read_fields(FluxMessage, parse_object(frame))
        match message.type:
            case "Speak":
                if message.text is None:
                    raise bad_request("missing_field", "text is required", param="text")
                await self._speak(message.text, conversation)
                return None
            case "Flush":
                return self._flush(conversation)
            case "Interrupt":
                return await self._interrupt(message.playback_offset, conversation)
            case "Configure":
                return self._configure(message.speed)
            case "Close":
                return self._close(conversation)

    def messages(self, event: ConversationEvent) -> Iterator[Message | bytes]:
        """As Session says; what a context says that speaks no more is dropped."""
        if event.context != self._name:
            return
        match event:
            case PartSpoken(event=Started(job=job)):
                turn = self._turn_of(event.number)
                turn.billed += job.characters
                self._bytes_a_second = job.audio.sample_rate * (2 if job.audio.container == "pcm" else 1)
                if not turn.has_begun:
                    turn.has_begun = True
                    yield {"type": "SpeechStarted", "speech_id": turn.id}
            case PartSpoken(event=Audio(data=data)):
                self._turn_of(event.number).audio_s += len(data) / self._bytes_a_second
                self._audio_s += len(data) / self._bytes_a_second
                yield from audio_pieces(data)
            case PartSpoken(event=Finished()):
                yield from self._part_done()
            case PartSkipped():
                yield _warning("NO_SYNTHESIZABLE_TEXT", to_api_error(event.error).message)
                yield from self._part_done()
            case ContextCancelled():
                yield self._interruption(event.played)
            case ContextFailed():
                yield self._failed(event)
            case ContextClosed() if self._is_closing:
                yield self._goodbye()
            case PartSpoken() | ContextClosed():
                pass

    @property
    def _name(self) -> str:
        return f"turns {self._contexts}"

    async def _speak(self, text: str, conversation: Conversation) -> None:
        if self._is_closing:
            raise bad_request("socket_closing", "the session is closing: it takes no more text")
        is_open = conversation.is_open(self._name)
        if not is_open or (self._is_other and not self._turns):
            if is_open:
                conversation.close(self._name)
            self._contexts += 1
            conversation.open(self._name, self._settings)
            self._length, self._done, self._before_s, self._is_other = 0, 0, self._audio_s, False
        if not self._turns or self._turns[-1].stop is not None:
            if len(self._turns) >= MOST_TURNS:
                raise AtCapacity(f"{MOST_TURNS} turns have not ended: send the next one later", retry_after_s=1.0)
            self._turns.append(_Turn(self._length, conversation.parts(self._name)))
        turn = self._turns[-1]
        await conversation.add(self._name, text)
        self._length += len(text)
        turn.characters += len(text)
        self._characters += len(text)
        turn.text += text[: max(0, MOST_TURN_CHARS - len(turn.text))]

    def _flush(self, conversation: Conversation) -> Message | Sequence[Message] | None:
        if not self._turns or self._turns[-1].stop is not None or not conversation.is_open(self._name):
            return _warning("NO_ACTIVE_SPEECH", "no turn is open: nothing was said since the last flush")
        self._end_turn(conversation)
        return list(self._ended_turns())

    async def _interrupt(self, offset: PlaybackOffset | None, conversation: Conversation) -> Message | None:
        if not self._turns or not conversation.is_open(self._name):
            return _warning("NO_ACTIVE_SPEECH", "no turn is being spoken")
        if offset is not None and offset.value <= self._interrupted_ms:
            return _warning("INVALID_INTERRUPT_OFFSET", "playback_offset is behind that of the interruption before it")
        self._interrupted_ms = self._interrupted_ms if offset is None else offset.value
        self._is_split = offset is not None
        played_s = None if offset is None else max(0.0, offset.value / 1000 - self._before_s)
        await conversation.cancel(self._name, played_s)
        return None

    def _interruption(self, played: Played) -> Message:
        turn, self._turns = self._turns[0], deque()
        self._billed += turn.billed
        split = max(0, min(len(turn.text), played.characters - turn.start))
        halves = {}
        if self._is_split:
            self._audio_s = self._before_s + played.played_s
            halves = {"text_spoken": turn.text[:split], "text_remaining": turn.text[split:]}
        return {
            "type": "SpeechInterrupted",
            "audio_played_ms": round(1000 * self._audio_s),
            **halves,
            "metadata": _metadata(turn),
        }

    def _configure(self, speed: float | None) -> Message:
        if speed is not None and not SPEED.least <= speed <= SPEED.most:
            return {
                "type": "ConfigureFailure",
                "code": "SPEED_OUT_OF_RANGE",
                "field": "speed",
                "value": speed,
                "description": f"speed is from {SPEED.least:g} to {SPEED.most:g}",
            }
        if speed is not None:
            self._settings = replace(self._settings, speech={**self._settings.speech, "speed": speed})
            self._is_other = True
        applied = self._settings.speech.get("speed")
        return {"type": "ConfigureSuccess", "applied": {} if applied is None else {"speed": applied}}

    def _close(self, conversation: Conversation) -> Message | Sequence[Message] | None:
        self._is_closing = True
        if not self._turns or not conversation.is_open(self._name):
            return self._goodbye()
        if self._turns[-1].stop is None:
            self._end_turn(conversation)
        conversation.close(self._name)
        return list(self._ended_turns())

    def _goodbye(self) -> Message:
        self.over = NORMAL, ""
        return {
            "type": "SessionMetadata",
            "total_audio_duration_ms": round(1000 * self._audio_s),
            "total_input_character_count": self._characters,
            "total_billable_character_count": self._billed,
        }

    def _end_turn(self, conversation: Conversation) -> None:
        """Ends the text of the turn that grows."""
        conversation.flush(self._name)
        self._turns[-1].stop = conversation.parts(self._name)

    def _part_done(self) -> Iterator[Message]:
        self._done += 1
        yield from self._ended_turns()

    def _ended_turns(self) -> Iterator[Message]:
        """Yields what is said behind the turns all of whose parts are done."""
        while self._turns and self._turns[0].stop is not None and self._turns[0].stop <= self._done:
            turn = self._turns.popleft()
            self._billed += turn.billed
            yield {"type": "SpeechMetadata", **_metadata(turn)}
            yield {"type": "Flushed", "speech_id": turn.id}

    def _turn_of(self, part: int) -> _Turn:
        return next(turn for turn in reversed(self._turns) if turn.first <= part)


def _warning(code: str, description: str) -> Message:
    return {"type": "Warning", "code": code, "description": description}


def _metadata(turn: _Turn) -> dict[str, Any]:
    return {
        "speech_id": turn.id,
        "audio_duration_ms": round(1000 * turn.audio_s),
        "input_character_count": turn.characters,
        "billable_character_count": turn.billed,
        "controls_applied": {"pronunciations_applied": 0, "breaks_applied": 0, "pronunciation_warnings": 0},
    }
