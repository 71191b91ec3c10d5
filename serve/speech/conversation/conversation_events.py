"""Conversation events: what a session receives from its conversation and writes in its own protocol.

In:    the events of one part's speech
Out:   ConversationEvent
Never: JSON
"""

from dataclasses import dataclass

from pipeline.text.incremental import Part
from serve.speech.conversation.played import Played
from serve.speech.events import SpeechEvent


@dataclass(frozen=True, slots=True)
class PartSpoken:
    """The next event of the speech of one part."""

    context: str
    number: int
    """of the part in its context: 0, 1, ..."""
    part: Part
    event: SpeechEvent
    from_s: float = 0.0
    """where the part begins in the audio of its context [s]"""


@dataclass(frozen=True, slots=True)
class PartSkipped:
    """A part has nothing to say, a lone "..." for example; the context goes on."""

    context: str
    number: int
    part: Part
    error: Exception


@dataclass(frozen=True, slots=True)
class ContextClosed:
    """All text of a context that was closed is spoken. Its id may be used again."""

    context: str
    audio_s: float
    rest: bytes = b""
    """of the audio of parts that are joined: what the encoder had not returned before"""


@dataclass(frozen=True, slots=True)
class ContextCancelled:
    """A context was interrupted and speaks no more. Its id may be used again."""

    context: str
    played: Played


@dataclass(frozen=True, slots=True)
class ContextFailed:
    """A part could not be spoken, and the context has ended. Its id may be used again."""

    context: str
    number: int
    error: Exception


ConversationEvent = PartSpoken | PartSkipped | ContextClosed | ContextCancelled | ContextFailed
