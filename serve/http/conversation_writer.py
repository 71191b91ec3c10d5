"""Conversation writer: the events of a conversation as JSON messages of the service's own protocol.

In:    ConversationEvents, errors
Out:   messages, as mappings
Never: a socket; a message that a client library refuses for its size
"""

import base64
from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.voices.voice_names import display_name
from serve.errors import retry_spread, to_api_error
from serve.http.ignored_fields import named_fields
from serve.http.session import Message
from serve.speech.conversation.conversation_events import (
    ContextCancelled,
    ContextClosed,
    ContextFailed,
    ConversationEvent,
    PartSkipped,
    PartSpoken,
)
from serve.speech.conversation.played import Played
from serve.speech.events import Audio, Finished, Started, Timed
from serve.speech.times import coverage_fields, times_fields

MOST_AUDIO_BYTES = 1 << 18
"""of one message; client libraries refuse messages of a MiB"""


def audio_pieces(data: bytes) -> Iterator[bytes]:
    """Yields audio in pieces of at most MOST_AUDIO_BYTES, one for each message."""
    for place in range(0, len(data), MOST_AUDIO_BYTES):
        yield data[place : place + MOST_AUDIO_BYTES]


def messages(event: ConversationEvent, request_id: str) -> Iterator[Message]:
    """Yields the messages of an event."""
    match event:
        case PartSpoken():
            for fields in _spoken(event):
                yield {**fields, "context": event.context, "part": event.number}
        case PartSkipped():
            characters = [event.part.start, event.part.start + len(event.part.text)]
            yield {"type": "skipped", "context": event.context, "part": event.number, "characters": characters} | error_fields(
                event.error, request_id
            )
        case ContextClosed():
            yield {"type": "closed", "context": event.context, "duration_ms": round(1000 * event.audio_s)}
        case ContextCancelled():
            yield {"type": "cancelled", "context": event.context, "heard": _played_fields(event.played)}
        case ContextFailed():
            yield {"type": "error", "context": event.context, "part": event.number} | error_fields(event.error, request_id)


def error_message(error: BaseException, request_id: str, context: str | None = None) -> Message:
    """Returns the message about a refusal; what it concerns goes on unchanged."""
    named = {} if context is None else {"context": context}
    return {"type": "refused", **named, **error_fields(error, request_id)}


def error_fields(error: BaseException, request_id: str) -> Message:
    """Returns the status that HTTP has for an error, when to try again, and the envelope."""
    refusal = to_api_error(error)
    wait_s = refusal.wait_s(retry_spread())
    retry = {} if wait_s is None else {"retry_after_s": round(wait_s, 3)}
    return {"status": refusal.spec.status, **retry, **refusal.body(request_id)}


def _spoken(spoken: PartSpoken) -> Iterator[Message]:
    match spoken.event:
        case Started():
            yield {"type": "started", **_start(spoken.event, spoken.part.start, len(spoken.part.text))}
        case Timed():
            job, part = spoken.event.job, spoken.part
            times = times_fields(spoken.event.items, job, from_s=spoken.from_s, from_character=part.start)
            if job.timestamps is not None and times:
                yield {"type": "times", **times}
        case Audio():
            for piece in audio_pieces(spoken.event.data):
                yield {"type": "audio", "audio": base64.b64encode(piece).decode()}
        case Finished():
            coverage = spoken.event.report.coverage
            yield {
                "type": "finished",
                "duration_ms": round(1000 * spoken.event.audio_s),
                "steps": spoken.event.report.steps,
                "warnings": dict(spoken.event.warnings),
                **({} if coverage is None else {"coverage": coverage_fields(coverage)}),
            }


def _start(started: Started, start: int, characters: int) -> Mapping[str, Any]:
    job = started.job
    return {
        "characters": [start, start + characters],
        "seed": job.request.sampling.seed,
        "voice": display_name(job.request.voice),
        "model": job.request.model,
        "latency": job.request.scheduling.latency.value,
        "cache": started.cache.value,
        "content_type": job.audio.content_type,
        "sample_rate": job.audio.sample_rate,
        "warnings": dict(started.warnings),
        "ignored_fields": named_fields(job.ignored),
        "degraded": list(job.degraded),
        **({} if started.token is None else {"resume": started.token}),
    }


def _played_fields(played: Played) -> Message:
    return {
        "characters": played.characters,
        "words": played.words,
        "ms": round(1000 * played.played_s),
        "quality": "exact" if played.is_exact else "estimated",
        "unheard_steps": played.unheard_steps,
    }
