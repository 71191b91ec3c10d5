"""Text API: the routes that analyse a text without synthesising it, and the lexicons.

In:    HTTP
Out:   JSON
Never: a step of the model, except for /v1/text/refine
"""

import asyncio
from collections.abc import Awaitable, Mapping
from functools import partial
from typing import Literal, TypeVar

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel

from pipeline.errors import UnknownLexicon
from pipeline.spec import SAMPLE_RATE, SAMPLES_PER_STEP
from pipeline.store.threads import ask_store
from pipeline.text.lexicon.lexicon_library import LEXICON_ID
from pipeline.text.markup.ssml_elements import STYLES
from pipeline.text.refine_guard import diff
from pipeline.text.segment import predicted_steps
from pipeline.types import SPEED, LexiconEntry, Passage, PronunciationKind, Refined, Segment, SpeechText, SynthesisRequest
from serve.access.api_keys import Scope
from serve.errors import ApiError, ErrorSpec, bad_request, not_finished
from serve.http.dependencies import RequestServices
from serve.http.ignored_fields import named_fields
from serve.http.middleware import caller_of
from serve.http.openapi import answers, takes
from serve.http.request_context import context_of, is_strict
from serve.http.route_access import any_key, requires
from serve.http.services import Services
from serve.protocols.openai.schemas import text_replies
from serve.speech.resolve import build_request, select_version, written_text
from serve.speech.schemas.base import read_body
from serve.speech.schemas.speech import SpeechBody
from serve.speech.schemas.text import LexiconBody, TextBody, check_ignored, entries_of

READINGS: tuple[Literal["zh", "en", "dialect"], ...] = ("zh", "en", "dialect")

READING_FIELDS = ("normalize", "apply_text_normalization", "lexicon")
"""fields that change how words are read, not how markup is understood"""

T = TypeVar("T")
B = TypeVar("B", bound=BaseModel)

router = APIRouter(tags=["text"])


@router.post("/v1/text/normalize", openapi_extra=takes(TextBody), responses=answers(400, 408, 413, 415, 422, 429, 503))
@requires(Scope.TEXT)
async def normalize(request: Request, services: RequestServices) -> text_replies.NormalizeReply:
    """Returns the normalised text, and what became of every character."""
    body = await _body(TextBody, request, services)
    synthesis, ignored = _text_request(body, request, services)
    speech_text = await _within_limits(services, services.text.read(synthesis))
    syllables = _syllables(synthesis, speech_text)
    return text_replies.NormalizeReply(
        text=" ".join(segment.text for segment in speech_text.segments),
        segments=[_segment(speech_text, index, syllables) for index in range(len(speech_text.segments))],
        warnings=_warnings(speech_text.warnings),
        dropped=list(speech_text.dropped),
        ignored_fields=ignored,
    )


@router.post("/v1/text/ssml", openapi_extra=takes(TextBody), responses=answers(400, 408, 413, 415, 422, 503))
@requires(Scope.TEXT)
async def ssml(request: Request, services: RequestServices) -> text_replies.SsmlReply:
    """Returns how an SSML document is parsed."""
    body = await _body(TextBody, request, services)
    unused = [name for name in READING_FIELDS if name in body.model_fields_set]
    if "input_type" in body.model_fields_set and body.input_type != "ssml":
        unused.append("input_type")
    check_ignored(unused, unused, strict=is_strict(request))
    written = written_text(body.model_copy(update={"input_type": "ssml"}), context_of(request), services.speech)
    return text_replies.SsmlReply(
        text=written.text,
        passages=[_passage(passage) for passage in written.passages],
        marks=[text_replies.MarkReply(name=mark.name, position=mark.position) for mark in written.marks],
        warnings=_warnings(written.warnings),
        ignored_fields=named_fields([*body.ignored, *unused]),
    )


@router.post(
    "/v1/audio/speech/plan", openapi_extra=takes(SpeechBody), responses=answers(400, 404, 408, 413, 415, 422, 429, 503)
)
@requires(Scope.TEXT)
async def plan(request: Request, services: RequestServices) -> text_replies.PlanReply:
    """Returns what POST /v1/audio/speech would synthesise for this body, without doing it."""
    body = await _body(SpeechBody, request, services)
    synthesis, ignored = _speech_request(body, request, services)
    speech_text = await _within_limits(services, services.text.read(synthesis))
    segments = [_planned(segment, synthesis) for segment in speech_text.segments]
    silence_s = (sum(segment.silence_ms for segment in segments) + speech_text.closing_silence_ms) / 1000
    return text_replies.PlanReply(
        voice=synthesis.voice,
        characters=len(synthesis.text),
        segments=segments,
        closing_silence_ms=speech_text.closing_silence_ms,
        predicted_steps=sum(segment.steps for segment in segments),
        predicted_seconds=round(sum(segment.seconds for segment in segments) + silence_s, 3),
        warnings=_warnings(speech_text.warnings),
        dropped=list(speech_text.dropped),
        ignored_fields=ignored,
    )


@router.post("/v1/text/refine", openapi_extra=takes(SpeechBody), responses=answers(400, 404, 408, 413, 415, 422, 429, 503, 504))
@requires(Scope.SPEECH, stream=True)
async def refine(request: Request, services: RequestServices) -> text_replies.RefineReply:
    """Returns the text after ChatTTS's refine pass, and whether the guard accepts it."""
    body = await _body(SpeechBody, request, services)
    if body.refine is False:
        body = body.model_copy(update={"refine": True})
    synthesis, ignored = _speech_request(body, request, services)
    async with caller_of(request).charged(len(synthesis.text) if synthesis.refine else 0) as charge:
        with services.speech.admission.acquire():
            segments = await _within_limits(
                services, services.text.refine(synthesis) if synthesis.refine else _unrefined(services, synthesis)
            )
        charge.keep()
    replies = [
        text_replies.RefinedReply(
            source=segment.source,
            refined=segment.refined,
            accepted=segment.accepted,
            diff=[
                text_replies.ChangeReply(op=change.op, source=change.source, refined=change.refined) for change in segment.diff
            ],
        )
        for segment in segments
    ]
    return text_replies.RefineReply(
        refined=" ".join(reply.refined for reply in replies),
        accepted=all(reply.accepted for reply in replies),
        diff=[change for reply in replies for change in reply.diff],
        segments=replies,
        seed=synthesis.refine.sampling.seed if synthesis.refine else synthesis.sampling.seed,
        ignored_fields=ignored,
    )


@router.get("/v1/styles")
@any_key
async def styles() -> text_replies.StylesReply:
    """Returns the styles that mstts:express-as may name."""
    return text_replies.StylesReply(
        styles=[
            text_replies.StyleReply(id=name, rate=prosody.rate, gain_db=prosody.gain_db) for name, prosody in STYLES.items()
        ]
    )


@router.get("/v1/lexicons/{lexicon_id}", responses=answers(400, 404))
@requires(Scope.TEXT)
async def lexicon(lexicon_id: str, services: RequestServices) -> text_replies.LexiconReply:
    """Returns a stored lexicon."""
    _check_id(lexicon_id)
    try:
        entries = services.speech.lexicons.get(lexicon_id)
    except UnknownLexicon:
        raise _no_such_lexicon() from None
    return text_replies.LexiconReply(id=lexicon_id, entries={entry.word: _sound(entry) for entry in entries})


@router.put(
    "/v1/lexicons/{lexicon_id}", openapi_extra=takes(LexiconBody), responses=answers(400, 403, 408, 409, 413, 415, 503, 507)
)
@requires(Scope.TEXT, stores=True)
async def put_lexicon(lexicon_id: str, request: Request, services: RequestServices) -> text_replies.KeptReply:
    """Stores a lexicon, in place of one with the same id that is the caller's; every replica uses it within a second."""
    _check_id(lexicon_id)
    entries = entries_of((await _body(LexiconBody, request, services)).entries)
    version = await ask_store(services.speech.lexicons.put, lexicon_id, entries, caller_of(request).writer)
    return text_replies.KeptReply(id=lexicon_id, version=version, entries=len(entries))


@router.delete("/v1/lexicons/{lexicon_id}", status_code=204, responses=answers(400, 403, 404, 503))
@requires(Scope.TEXT, stores=True)
async def delete_lexicon(lexicon_id: str, request: Request, services: RequestServices) -> Response:
    """Deletes a lexicon."""
    _check_id(lexicon_id)
    try:
        await ask_store(services.speech.lexicons.delete, lexicon_id, caller_of(request).writer)
    except UnknownLexicon:
        raise _no_such_lexicon() from None
    return Response(status_code=204)


# What the routes share.


async def _body(kind: type[B], request: Request, services: Services) -> B:
    body = await services.bodies.read_json(request, partial(read_body, kind))
    if isinstance(body, TextBody) and not isinstance(body, SpeechBody):
        check_ignored(body.ignored, (), strict=is_strict(request))
    return body


def _text_request(body: TextBody, request: Request, services: Services) -> tuple[SynthesisRequest, list[str]]:
    """Returns a request of which only the text matters, and the fields of the body that have no effect."""
    speech = SpeechBody(**{name: getattr(body, name) for name in TextBody.model_fields})
    synthesis, lost = _speech_request(speech, request, services)
    return synthesis, [*named_fields(list(body.model_extra or {})), *lost]


def _speech_request(body: SpeechBody, request: Request, services: Services) -> tuple[SynthesisRequest, list[str]]:
    """Returns the request of a body, and its fields that have no effect."""
    context = context_of(request)
    selection = select_version(body, context, services.speech)
    built = build_request(selection, context, services.speech)
    return built, named_fields([*body.ignored, *selection.lost])


async def _unrefined(services: Services, synthesis: SynthesisRequest) -> list[Refined]:
    """Returns every segment unchanged, for a checkpoint without a refine pass."""
    speech_text = await services.text.read(synthesis)
    texts = [segment.text for segment in speech_text.segments]
    return [Refined(text, text, tuple(diff(text, text)), accepted=False) for text in texts]


async def _within_limits(services: Services, answer: Awaitable[T]) -> T:
    limit_s = services.speech.limits.total_timeout_s
    try:
        async with asyncio.timeout(limit_s):
            return await answer
    except TimeoutError:
        raise not_finished(limit_s) from None


def _check_id(lexicon_id: str) -> None:
    if not LEXICON_ID.fullmatch(lexicon_id):
        raise bad_request(
            "out_of_range", "a lexicon's id is 1 to 64 of the characters A-Z a-z 0-9 . _ -, no dot first", param="id"
        )


def _no_such_lexicon() -> ApiError:
    return ApiError(
        "no such lexicon; PUT /v1/lexicons/{id} creates one",
        ErrorSpec(404, "not_found_error", "lexicon_not_found", False),
        param="id",
    )


def _warnings(warnings: tuple[tuple[str, int], ...]) -> list[text_replies.WarningReply]:
    return [text_replies.WarningReply(code=code, count=count) for code, count in warnings]


def _segment(speech_text: SpeechText, index: int, syllables: Mapping[tuple[int, int], str]) -> text_replies.SegmentReply:
    segment = speech_text.segments[index]
    return text_replies.SegmentReply(
        text=segment.text,
        language="zh" if segment.language == "zh" else "en",
        source=segment.source,
        spans=[
            text_replies.SpanReply(
                source=(span.source_start, span.source_stop),
                spoken=(span.spoken_start, span.spoken_stop),
                kind="control" if span.kind == "control" else "text",
                pinyin=syllables.get((span.source_start, span.source_stop)),
            )
            for span in speech_text.spans[index]
        ],
    )


def _syllables(request: SynthesisRequest, speech_text: SpeechText) -> dict[tuple[int, int], str]:
    """Returns characters of the input -> the pinyin that SSML or a lexicon has for them."""
    written: dict[tuple[int, int], str] = {}
    offset = 0
    for passage in request.passages:
        hints = (hint for hint in passage.pronunciations if hint.kind is PronunciationKind.PINYIN)
        written |= {(offset + hint.start, offset + hint.stop): hint.value for hint in hints}
        offset += len(passage.text)
    words = {entry.word: entry.value for entry in reversed(request.lexicon) if entry.kind is PronunciationKind.PINYIN}
    places = ((span.source_start, span.source_stop) for spans in speech_text.spans for span in spans if words)
    read = {place: request.text[slice(*place)].strip() for place in places}
    return {place: words[word] for place, word in read.items() if word in words} | written


def _planned(segment: Segment, request: SynthesisRequest) -> text_replies.PlannedSegment:
    steps = predicted_steps(segment.text)
    speed = SPEED.clamp(request.speed * segment.prosody.rate)
    return text_replies.PlannedSegment(
        index=segment.index,
        text=segment.text,
        language="zh" if segment.language == "zh" else "en",
        source=segment.source,
        voice=segment.prosody.voice or request.voice,
        rate=segment.prosody.rate,
        gain_db=segment.prosody.gain_db,
        silence_ms=segment.silence_ms,
        steps=steps,
        seconds=round(steps * SAMPLES_PER_STEP / SAMPLE_RATE / speed, 3),
    )


def _passage(passage: Passage) -> text_replies.PassageReply:
    return text_replies.PassageReply(
        text=passage.text,
        language=next((known for known in READINGS if known == passage.language), "auto"),
        voice=passage.prosody.voice,
        rate=passage.prosody.rate,
        gain_db=passage.prosody.gain_db,
        silence_ms=passage.silence_ms,
        hints=[
            text_replies.HintReply(start=hint.start, stop=hint.stop, kind=hint.kind.value, value=hint.value)
            for hint in passage.pronunciations
        ],
    )


def _sound(entry: LexiconEntry) -> text_replies.SoundReply:
    return (
        text_replies.SoundReply(pinyin=entry.value)
        if entry.kind is PronunciationKind.PINYIN
        else text_replies.SoundReply(alias=entry.value)
    )
