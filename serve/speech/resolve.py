"""Resolve: a checked body becomes a job, in one step.

In:    SpeechBody, RequestContext, SpeechServices
Out:   SpeechJob to synthesise, SynthesisRequest for routes that only look at the text
Never: a body's text in an error message

    body -> degraded under load -> adapted to the chosen version -> SynthesisRequest
"""

import secrets
from dataclasses import replace

from pipeline.audio.formats import AudioFormat, audio_format, named_format
from pipeline.audio.tempo import share_speed
from pipeline.errors import UnknownVoice
from pipeline.types import (
    MAX_SEED,
    AudioOptions,
    CacheControl,
    CacheMode,
    Denoise,
    Lane,
    Latency,
    RefineGuard,
    RefineParams,
    SamplingParams,
    SchedulingParams,
    SeedMode,
    SegmentLength,
    SynthesisRequest,
    TimeDetail,
)
from pipeline.with_torch import check_seed_mode
from serve.access.resume_tokens import ANEW, Origin, not_resumable
from serve.config.policies import DegradationStep
from serve.errors import bad_request
from serve.speech.job import OF_WORDS, RequestContext, SpeechJob
from serve.speech.load_shedding import SKIPPED_CHUNK_SIZES
from serve.speech.model_selection import Selection
from serve.speech.schemas.speech import RECORDINGS, REFINE, TIDY, WITHOUT_EFFECT, PostBody, RefineBody, SpeechBody
from serve.speech.schemas.text import TextBody, WrittenText, check_ignored, read_text, without_markup
from serve.speech.speech_services import SpeechServices

SEGMENT_LENGTHS = {
    DegradationStep.SHORTEST_SEGMENTS: SegmentLength.SHORTEST,
    DegradationStep.SEGMENTS: SegmentLength.HALF,
}
"""the first of them that is applied counts"""


def resolve_job(
    body: SpeechBody,
    context: RequestContext,
    services: SpeechServices,
    *,
    key_seed: int | None = None,
    origin: Origin | None = None,
) -> SpeechJob:
    """Returns the job for a request at this moment.

    Args:
        key_seed: seed of its idempotency key, for a body without a seed; None: one is drawn.
        origin: of the reply that it goes on with, which had its seed, version and degradation; None: it is a new one.

    Raises:
        InvalidRequest, ApiError: the body is wrong, or the caller may not have it.
        AtCapacity: its lane is refused at this moment.
    """
    if origin is None:
        body, degraded = services.degrader.apply_to_body(body, seeded=key_seed is not None, strict=context.strict)
    else:
        if origin.model not in services.models.rollout.versions:
            raise not_resumable("resume_changed", f"{origin.model} is not served any more: {ANEW}")
        key_seed, pinned = origin.seed, body.model_copy(update={"model": origin.model, "user": None})
        body, degraded = services.degrader.without(pinned, map(DegradationStep, origin.degraded))
    selection = select_version(body, context, services)
    body = selection.body
    seed = key_seed if body.seed is None else body.seed
    skipped = SKIPPED_CHUNK_SIZES if DegradationStep.FIRST_CHUNK in degraded else 0
    latency = Latency(body.latency or selection.version.pipeline.speech.latency)
    scheduling = replace(_scheduling(body, context, services), latency=latency, skipped_chunk_sizes=skipped)
    services.degrader.check_admitted(scheduling.lane)
    cache_mode = _cache_mode(body, context.cache_control, is_seeded=seed is not None)
    request = replace(
        build_request(selection, context, services, seed=seed),
        scheduling=scheduling,
        segment_length=next((length for step, length in SEGMENT_LENGTHS.items() if step in degraded), SegmentLength.USUAL),
        keep_expression=DegradationStep.EXPRESSION not in degraded or not services.degrader.has_tags_by_default(body),
        cache=CacheControl(cache_mode, context.caller.id),
    )
    return SpeechJob(
        request=request,
        audio=format_of(body),
        streamed=body.stream,
        ignored=(*body.ignored, *selection.lost),
        degraded=degraded,
        timestamps=body.timestamps,
        subtitles=body.subtitles,
    )


def select_version(body: SpeechBody, context: RequestContext, services: SpeechServices) -> Selection:
    """Returns the voice, the version of the model, and the body adapted to this version.

    Raises:
        UnknownVoice, ApiError
    """
    if (name := next((name for name in RECORDINGS if (body.model_extra or {}).get(name)), None)) is not None:
        message = f"a request has no recording of a voice: create the voice with POST /v1/audio/voices, and leave {name} out"
        raise bad_request("recording_not_supported", message, param=name)
    lost: tuple[str, ...] = ()
    try:
        voice = services.voice_id(body.voice_name)
    except UnknownVoice:
        if (default := _substitute(context, services)) is None:
            raise
        voice, lost = default, ("voice",)
    selection = services.models.apply_to_body(
        body, caller=context.caller.id, host=context.client_host, voice=voice, strict=context.strict
    )
    return replace(selection, lost=(*lost, *selection.lost))


def _substitute(context: RequestContext, services: SpeechServices) -> str | None:
    """Returns the voice that speaks for one that is not there; None: it is refused."""
    return services.voice_id(None) if services.replaces_unknown_voices and not context.strict else None


def build_request(
    selection: Selection, context: RequestContext, services: SpeechServices, *, seed: int | None = None
) -> SynthesisRequest:
    """Returns what the body asks for as the domain knows it, without urgency and without the cache.

    Args:
        seed: None: the body's, else one is drawn.

    Raises:
        InvalidRequest, ApiError
    """
    body, compat = selection.body, selection.version.compat
    text = written_text(body, context, services)
    if text.turns and not compat.ssml:
        message = f"{selection.version.id} has one voice per request: choose another model, or send the turns one by one"
        raise bad_request("unsupported_dialogue", message, param="model")
    if not compat.ssml:
        text = without_markup(text, strict=context.strict)
    check_ignored(body.ignored, WITHOUT_EFFECT, strict=context.strict)
    token, stretch = share_speed(body.speed, body.speed_mode)
    sampling = _sampling(body, body.seed if seed is None else seed)
    return SynthesisRequest(
        request_id=context.request_id,
        text=text.text,
        behind=context.behind,
        passages=text.passages,
        control_tags=text.control_tags,
        keep_control_tags=compat.control_tags,
        strict=context.strict,
        lexicon=text.lexicon,
        normalize=text.normalize,
        warnings=text.warnings,
        voice=selection.voice,
        sampling=sampling,
        speed=stretch,
        audio=_options(body.post, format_of(body).sample_rate),
        speed_token=token,
        refine=_refine(body, sampling),
        language=body.reading,
        times=_times(body, text),
        marks=text.marks,
        turns=text.turns,
        retries=body.retries,
        model=selection.version.id,
        timeout_s=services.limits.total_timeout_s,
    )


def written_text(body: TextBody, context: RequestContext, services: SpeechServices) -> WrittenText:
    """Returns the text part of a body, with its voices and lexicons looked up.

    Raises:
        InvalidRequest, ApiError
    """
    return read_text(
        body,
        limits=services.limits,
        strict=context.strict,
        voice_id=services.voice_id,
        lexicon=services.lexicons.get,
        substitute=_substitute(context, services),
    )


def _scheduling(body: SpeechBody, context: RequestContext, services: SpeechServices) -> SchedulingParams:
    """Returns the lane and the time to the first audio: the client's deadline, else the lane's time."""
    lane = context.caller.lane(body.priority)
    promised_s = {
        Lane.INTERACTIVE: services.lanes.interactive_timeout_s,
        Lane.STANDARD: services.limits.first_audio_timeout_s,
        Lane.BULK: services.lanes.bulk_timeout_s,
    }
    first_audio_s = promised_s[lane] if body.deadline_ms is None else body.deadline_ms / 1000
    return SchedulingParams(lane, context.caller.id, first_audio_s)


def _sampling(body: SpeechBody, seed: int | None) -> SamplingParams:
    check_seed_mode(SeedMode(body.seed_mode))
    return SamplingParams(
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        repetition_penalty=body.repetition_penalty,
        seed=secrets.randbelow(MAX_SEED + 1) if seed is None else seed,
        seed_mode=SeedMode(body.seed_mode),
    )


def format_of(body: SpeechBody) -> AudioFormat:
    """Returns the format; output_format excludes the other fields about it.

    Raises:
        ApiError, UnsupportedFormat
    """
    if body.output_format is None:
        return audio_format(body.response_format, body.sample_rate, body.bitrate)
    other = next((name for name in ("response_format", "sample_rate", "bitrate") if name in body.model_fields_set), None)
    if other is not None:
        raise bad_request("conflicting_fields", f"output_format includes {other}: leave one of them out", param=other)
    return named_format(body.output_format)


def _options(post: bool | PostBody, sample_rate: int) -> AudioOptions:
    settings = TIDY if post is True else PostBody() if post is False else post
    return AudioOptions(
        sample_rate=sample_rate,
        trim=settings.trim,
        denoise=Denoise(settings.denoise),
        gain_db=settings.gain_db,
        loudness_lufs=settings.loudness_lufs,
        fade_ms=settings.fade_ms,
    )


def _times(body: SpeechBody, text: WrittenText) -> TimeDetail:
    """Returns how finely times are needed: subtitles end between words, and a mark may stand between two."""
    if body.retries and body.seed_mode == "upstream":
        raise bad_request("conflicting_fields", "seed_mode upstream has one take: leave retries out", param="retries")
    if body.timestamps is None and body.subtitles is None and not body.retries:
        return TimeDetail.SEGMENT if text.turns else TimeDetail.OFF
    if body.refine is False:
        if body.timestamps == "live":
            return TimeDetail.LIVE
        needs_words = body.timestamps in OF_WORDS or text.marks or body.subtitles or body.retries
        return TimeDetail.WORD if needs_words else TimeDetail.SEGMENT
    if body.timestamps in OF_WORDS or body.retries:
        param = "retries" if body.retries else "timestamps"
        message = f"refine rewrites the text, so its words are not those of input: leave it or {param} out"
        raise bad_request("conflicting_fields", message, param=param)
    return TimeDetail.SEGMENT


def _refine(body: SpeechBody, sampling: SamplingParams) -> RefineParams | None:
    if body.refine is False:
        return None
    refine = RefineBody() if body.refine is True else body.refine
    seed = sampling.seed if refine.seed is None else refine.seed
    seeded = replace(REFINE.sampling, seed=seed, seed_mode=sampling.seed_mode, temperature=refine.temperature)
    return RefineParams(
        oral=refine.oral,
        laugh=refine.laugh,
        pause=refine.pause,
        guard=RefineGuard(refine.guard),
        sampling=seeded,
    )


def _cache_mode(body: SpeechBody, cache_control: str, *, is_seeded: bool) -> CacheMode:
    """Returns how the request may use the cache: its field, else its header (RFC 9111, 5.2.1)."""
    words = {word.strip().lower() for word in cache_control.split(",")}
    mode = CacheMode(body.cache)
    if "cache" not in body.model_fields_set:
        if "no-store" in words:
            mode = CacheMode.NO_STORE
        elif "only-if-cached" in words:
            mode = CacheMode.ONLY_IF_CACHED
        elif words & {"no-cache", "max-age=0"}:
            mode = CacheMode.REFRESH
    # A seed that is drawn now is not in the cache: each one comes up once in 2**32 draws.
    return mode if is_seeded or mode is CacheMode.ONLY_IF_CACHED else CacheMode.NO_STORE
