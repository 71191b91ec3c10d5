"""Planning: a body becomes what is spoken, part by part, with everything settled that could change later.

In:    JobBody, Document, RequestContext
Out:   JobPlan; or the refusal
Never: audio, the store; a part that this service would refuse for its voice, its model or its format
"""

import json
import secrets
from dataclasses import dataclass, replace

from pipeline.books.job_files import SAMPLE_BYTES
from pipeline.books.question import Document
from pipeline.books.script import Part, Script
from pipeline.errors import NoSpeakableText, TextTooLong
from pipeline.types import MAX_SEED, Lane
from serve.jobs.body import JobBody
from serve.jobs.record import Output
from serve.speech.job import RequestContext
from serve.speech.resolve import build_request, select_version
from serve.speech.schemas.base import read_values
from serve.speech.schemas.speech import SpeechBody
from serve.speech.speech_services import SpeechServices


@dataclass(frozen=True, slots=True)
class JobPlan:
    """What a job will do."""

    script: Script
    output: Output
    ignored: tuple[str, ...]
    """fields of the body that have no effect, a cover that no file can show, files that a book names and does not contain"""
    size: int
    """about how many bytes the files will have"""
    cover: bytes = b""

    @property
    def predicted_s(self) -> float:
        """About how long the audio will be [s]."""
        return sum(self.script.predicted_s)


def plan_job(body: JobBody, context: RequestContext, speech: SpeechServices, document: Document) -> JobPlan:
    """Returns the plan of a body. It takes a second for a long book: call it in a thread.

    Args:
        document: what is spoken.

    Raises:
        InvalidRequest, ApiError: the body is wrong, or the caller may not have it.
    """
    context.caller.lane(Lane.BULK)
    audio = body.audio()
    seed = secrets.randbelow(MAX_SEED + 1) if body.seed is None else body.seed
    fields = body.model_copy(update={"seed": seed, "sample_rate": audio.sample_rate}).shared_fields()
    read, kind = document.script, {"input_type": "ssml"} if body.input_type == "ssml" and not document.is_book else {}
    title, author = body.title or read.title, body.author or read.author
    script = replace(read, speech=fields | kind, title=title, author=author)
    if not script.parts:
        raise NoSpeakableText("the text has no letter and no digit", param="input")
    script, ignored = _settled(script, body, context, speech)
    if document.cover is None:
        ignored += ("cover",)
    ignored += tuple(f"missing file {name}" for name in document.missing)
    output = Output(container=audio.container, sample_rate=audio.sample_rate, kbps=audio.kbps)
    return JobPlan(script, output, ignored, _size(script, output), document.cover or b"")


def _size(script: Script, output: Output) -> int:
    rate, result = output.sample_rate, 16_000  # bytes per second of a compressed file, at most
    return round(sum(script.predicted_s) * (rate * SAMPLE_BYTES + result)) + 2 * len(script.to_json())


def _settled(script: Script, body: JobBody, context: RequestContext, speech: SpeechServices) -> tuple[Script, tuple[str, ...]]:
    """Returns the script with the ids of its voice and of its version of the model, and the fields without effect."""
    limit = speech.limits.max_text_chars
    longest = max(map(script.characters_of, range(len(script.parts))))
    if longest > limit:
        raise TextTooLong(
            f"a passage without an end of a sentence has {longest} characters; the limit is {limit} (limits.max_text_chars)",
            param="input",
        )
    without_effect = {**(body.model_extra or {}), "instructions": body.instructions}
    fields = read_values(SpeechBody, {**script.speech, "input": script.parts[0].text, **without_effect})
    selection = select_version(fields, context, speech)
    request = build_request(selection, context, speech)
    script = replace(script, speech={**script.speech, "voice": request.voice, "model": request.model})
    parts, settled = list(script.parts), dict[str, Part]()
    for number, part in enumerate(script.parts):
        if part.own or script.speech.get("input_type") == "ssml":
            kind = part.text if not part.own else json.dumps(part.own, sort_keys=True)
            if kind not in settled:
                settled[kind] = settled_part(script, number, context, speech)
            parts[number] = replace(part, own=settled[kind].own)
    return replace(script, parts=tuple(parts)), (*fields.ignored, *selection.lost)


def settled_part(script: Script, number: int, context: RequestContext, speech: SpeechServices) -> Part:
    """Returns a part with the id of its voice.

    Raises:
        InvalidRequest, ApiError: it cannot be spoken.
    """
    part, fields = script.parts[number], read_values(SpeechBody, script.body_of(number))
    request = build_request(select_version(fields, context, speech), context, speech)
    return replace(part, own={**part.own, "voice": request.voice}) if "voice" in part.own else part
