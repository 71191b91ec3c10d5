"""Part speech: speaks one part of a job as any other request is spoken.

In:    the fields of a request for speech, the owner of the job
Out:   SpokenPart
Never: another way to speak than serve/speech; a part that was simplified under load; a job that ends at a part without words
"""

from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from pipeline.books.job_files import SAMPLE_BYTES, Cue, PartNotes
from pipeline.errors import AtCapacity, NoSpeakableText
from pipeline.types import Lane, TimedItem
from serve.speech.events import Audio, Finished, Timed
from serve.speech.job import RequestContext
from serve.speech.schemas.base import read_values
from serve.speech.schemas.speech import SpeechBody
from serve.speech.speak import open_speech
from serve.speech.speech_services import SpeechServices
from serve.speech.subtitles import cues

WITHOUT_WORDS = "no_speakable_text"
"""warning of a part that the checkpoint has no word for: it is silent"""
WAIT_S = 5.0
"""before a part is tried again that would have been simplified"""


@dataclass(frozen=True, slots=True, eq=False)
class SpokenPart:
    """The samples of a part, 16 bits each, and what is known of them."""

    pcm: bytes
    notes: PartNotes

    def seconds(self, sample_rate: int) -> float:
        """Returns how long it is [s]."""
        return len(self.pcm) / SAMPLE_BYTES / sample_rate


async def speak_part(speech: SpeechServices, tenant: str, request_id: str, fields: dict[str, Any]) -> SpokenPart:
    """Speaks a part in the bulk lane. Its characters were charged with the job; streams and audio are those of its owner's key.

    Raises:
        SynthesisError, ApiError: as SpeechSession; 401 once the key is revoked, 429 while it has no stream or audio left.
    """
    body = read_values(SpeechBody, {**fields, "response_format": "pcm", "priority": Lane.BULK.value})
    context = RequestContext(request_id, replace(speech.owner(tenant), lanes=(Lane.BULK,)), is_paid=True)
    pieces: list[bytes] = []
    items: list[TimedItem] = []
    warnings: dict[str, int] = {}
    try:
        with open_speech(speech, context) as session:
            job = await session.accept(body)
            if job.degraded:
                raise AtCapacity("a part of a job waits until nothing is simplified under load", retry_after_s=WAIT_S)
            async with aclosing(session.speak(job)) as events:
                async for event in events:
                    if isinstance(event, Audio):
                        pieces.append(event.data)
                    elif isinstance(event, Timed):
                        items += event.items
                    elif isinstance(event, Finished):
                        warnings = dict(event.warnings)
    except NoSpeakableText:
        return SpokenPart(b"", PartNotes((), {WITHOUT_WORDS: 1}))
    rate = job.audio.sample_rate
    shown = tuple(Cue(round(cue.start * rate), round(cue.end * rate), cue.text, cue.voice) for cue in cues(items, job))
    return SpokenPart(b"".join(pieces), PartNotes(shown, warnings))
