"""Schemas: HTTP bodies as clients know them, checked once, and what they mean in the domain.

In:    a JSON body
Out:   SpeechBody, then SynthesisRequest
Owns:  nothing
Never: a client's text in an error message; a field that is ignored in silence
"""

import re
import secrets
from dataclasses import dataclass, replace
from typing import Literal

from pydantic import Field

from pipeline.audio.formats import CONTAINERS, SAMPLE_RATES, AudioFormat, audio_format, named_format
from pipeline.audio.tempo import share_speed
from pipeline.types import (
    AudioOptions,
    CacheControl,
    CacheMode,
    Denoise,
    RefineGuard,
    RefineParams,
    SamplingParams,
    SchedulingParams,
    SeedMode,
    SynthesisRequest,
)
from serve.config.app_config import LimitsConfig
from serve.errors import bad_request
from serve.speech.schemas.base import Body
from serve.speech.schemas.text import TextBody, WrittenText, check_ignored

SAMPLING = SamplingParams()
REFINE = RefineParams()
MAX_SEED = 2**32 - 1

MODEL = "chattts"
MODELS = (MODEL, "tts-1", "tts-1-hd", "gpt-4o-mini-tts")
# Understood and kept for client libraries, but nothing is done with them here.
WITHOUT_EFFECT = ("instructions", "user")

HEADER_TOKEN = re.compile(r"[A-Za-z0-9_.-]{1,64}")
MOST_NAMED_FIELDS = 20


class VoiceBody(Body):
    """OpenAI's custom voice object."""

    id: str = Field(min_length=1, max_length=4096)


class RefineBody(Body):
    """How much of each manner the refine pass may add."""

    oral: int = Field(REFINE.oral, ge=0, le=9)
    laugh: int = Field(REFINE.laugh, ge=0, le=2)
    pause: int = Field(REFINE.pause, ge=0, le=7, alias="break")
    seed: int | None = Field(None, ge=0, le=MAX_SEED, description="null: the request's")
    temperature: float = Field(REFINE.sampling.temperature, ge=0.01, le=2.0)
    guard: Literal["strict", "drop", "off"] = Field(
        "drop", description="a refined text that lost or changed a word is refused, dropped, or spoken all the same"
    )


class PostBody(Body):
    """What happens to the finished audio. Whatever is not named does not happen."""

    trim: bool = Field(False, description="cut the quiet before the first sound and after the last one")
    denoise: Literal["off", "auto", "on"] = Field("off", description="auto: only under 20 dB of signal over noise")
    gain_db: float = Field(0.0, ge=-24.0, le=24.0, description="one gain for the whole, limited to -1 dBTP [dB]")
    loudness_lufs: float | None = Field(None, ge=-40.0, le=-10.0, description="bring the voice to this loudness [LUFS]")
    fade_ms: float = Field(0.0, ge=0.0, le=1000.0, description="rise at the beginning and fall at the end [ms]")


TIDY = PostBody(trim=True, fade_ms=5.0)
"""what `post: true` means"""


class SpeechBody(TextBody):
    """POST /v1/audio/speech. Unknown fields are kept, so that the reply can name them."""

    model: str = Field(
        MODEL,
        max_length=128,
        description="one of GET /v1/models: name or name@version; OpenAI's names mean the first",
    )
    voice: str | VoiceBody | None = Field(None, description="id, name or alias; null: the operator's default")
    instructions: str | None = Field(None, max_length=1000)
    response_format: str = Field("mp3", max_length=32, description=", ".join(CONTAINERS))
    output_format: str | None = Field(
        None, max_length=32, description="all of the three fields around in one name: mp3_44100_128, pcm_16000, ulaw_8000"
    )
    sample_rate: int | None = Field(
        None, description=f"{', '.join(map(str, SAMPLE_RATES))} [Hz]; null: 24000, 8000 for ulaw and alaw"
    )
    bitrate: int | None = Field(None, ge=1, le=320, description="null: mp3 64, opus 32, aac 64 [kbit/s]")
    post: bool | PostBody = Field(False, description="true: trim, and fades of 5 ms")
    stream: bool = Field(True, description="false: the whole audio first, with exact sizes")
    stream_format: Literal["audio", "sse"] = "audio"
    speed: float = Field(1.0, ge=0.25, le=4.0)
    speed_mode: Literal["stretch", "token", "auto"] = Field(
        "stretch",
        description="stretch: the finished audio, exactly; token: ChatTTS's own [speed_0..9]; auto: the token as far as "
        "the model sounds natural, stretch for the rest",
    )
    seed: int | None = Field(None, ge=0, le=MAX_SEED, description="null: drawn by the server, returned in X-Audio-Seed")
    seed_mode: Literal["counter", "upstream"] = "counter"
    temperature: float = Field(SAMPLING.temperature, ge=0.01, le=2.0)
    top_p: float = Field(SAMPLING.top_p, ge=0.05, le=1.0)
    top_k: int = Field(SAMPLING.top_k, ge=1, le=626)
    repetition_penalty: float = Field(SAMPLING.repetition_penalty, ge=0.5, le=2.0)
    refine: bool | RefineBody = Field(False, description="ChatTTS rewrites the text first, with pauses and fillers")
    user: str | None = Field(None, max_length=512)
    priority: Literal["interactive", "standard", "bulk"] | None = Field(
        None, description="the lane; null: standard, or the most urgent one the key may use"
    )
    deadline_ms: int | None = Field(
        None, ge=50, le=600_000, description="the first audio is promised by then, or the request refused; null: the lane's"
    )
    cache: Literal["default", "no-store", "refresh", "only-if-cached"] = Field(
        "default", description="of what was sampled before with this seed; Cache-Control says the same where this is left out"
    )

    @property
    def ignored(self) -> list[str]:
        """Fields that change nothing, unknown ones included."""
        return [name for name in WITHOUT_EFFECT if getattr(self, name) is not None] + super().ignored

    @property
    def voice_name(self) -> str | None:
        """The voice as the client names it."""
        return self.voice.id if isinstance(self.voice, VoiceBody) else self.voice


@dataclass(frozen=True, slots=True)
class SpeechJob:
    """A checked body: what to synthesise and how to send it."""

    request: SynthesisRequest
    audio: AudioFormat
    streamed: bool
    as_events: bool
    first_audio_timeout_s: float
    ignored: tuple[str, ...]


def to_order(
    body: SpeechBody,
    *,
    request_id: str,
    voice: str,
    text: WrittenText,
    limits: LimitsConfig,
    strict: bool,
    accepts_events: bool,
    scheduling: SchedulingParams,
    cache_control: str = "",
    tenant: str = "",
    seed: int | None = None,
) -> SpeechJob:
    """What the body means.

    Args:
        voice: id of the voice, looked up by the caller.
        text: what text_schemas.read_text made of the body.
        strict: refuse fields that have no effect instead of naming them in the reply.
        accepts_events: the client prefers server-sent events (its Accept header says so).
        scheduling: how it stands in line, with the time its lane promises; deadline_ms replaces that.
        cache_control: that header of the request.
        tenant: whose cache entries the request may find.
        seed: of a body without one; None: drawn now.

    Raises:
        InvalidRequest, ApiError
    """
    as_events = body.stream_format == "sse" or accepts_events
    if as_events and not body.stream:
        raise bad_request("conflicting_fields", "stream=false cannot be sent as events", param="stream_format")
    promised_s = scheduling.first_audio_s or limits.first_audio_timeout_s
    if body.deadline_ms is not None:
        promised_s = body.deadline_ms / 1000
    if body.seed is None and seed is not None:
        body = body.model_copy(update={"seed": seed})
    request = to_request(body, request_id=request_id, voice=voice, text=text, limits=limits, strict=strict)
    return SpeechJob(
        request=replace(
            request,
            cache=CacheControl(_cache_mode(body, cache_control), tenant),
            scheduling=replace(scheduling, first_audio_s=promised_s),
        ),
        audio=_format(body),
        streamed=body.stream,
        as_events=as_events,
        first_audio_timeout_s=promised_s,
        ignored=tuple(body.ignored),
    )


def to_request(
    body: SpeechBody, *, request_id: str, voice: str, text: WrittenText, limits: LimitsConfig, strict: bool
) -> SynthesisRequest:
    """The part of the body the domain knows; see to_order.

    Raises:
        ApiError
    """
    check_ignored(body.ignored, WITHOUT_EFFECT, strict=strict)
    token, stretch = share_speed(body.speed, body.speed_mode)
    sampling = _sampling(body)
    return SynthesisRequest(
        request_id=request_id,
        text=text.text,
        passages=text.passages,
        control_tags=text.control_tags,
        strict=strict,
        lexicon=text.lexicon,
        normalize=text.normalize,
        warnings=text.warnings,
        voice=voice,
        sampling=sampling,
        speed=stretch,
        speed_token=token,
        audio=_options(body.post, _format(body).sample_rate),
        refine=_refine(body, sampling),
        language=body.language,
        timeout_s=limits.total_timeout_s,
    )


def ignored_header(names: tuple[str, ...]) -> str:
    """The names as a header value; those that do not fit into a header are only counted."""
    shown = [name for name in names if HEADER_TOKEN.fullmatch(name)][:MOST_NAMED_FIELDS]
    hidden = len(names) - len(shown)
    return ", ".join([*shown, f"+{hidden}"] if hidden else shown)


def _sampling(body: SpeechBody) -> SamplingParams:
    return SamplingParams(
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        repetition_penalty=body.repetition_penalty,
        seed=secrets.randbelow(MAX_SEED + 1) if body.seed is None else body.seed,
        seed_mode=SeedMode(body.seed_mode),
    )


def _format(body: SpeechBody) -> AudioFormat:
    """The one format that all the fields about it agree on."""
    if body.output_format is None:
        return audio_format(body.response_format, body.sample_rate, body.bitrate)
    other = next((name for name in ("response_format", "sample_rate", "bitrate") if name in body.model_fields_set), None)
    if other is not None:
        raise bad_request(
            "conflicting_fields", f"output_format says what {other} would say: leave one of them out", param=other
        )
    return named_format(body.output_format)


def _options(post: bool | PostBody, sample_rate: int) -> AudioOptions:
    wanted = TIDY if post is True else PostBody() if post is False else post
    return AudioOptions(
        sample_rate=sample_rate,
        trim=wanted.trim,
        denoise=Denoise(wanted.denoise),
        gain_db=wanted.gain_db,
        loudness_lufs=wanted.loudness_lufs,
        fade_ms=wanted.fade_ms,
    )


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


def _cache_mode(body: SpeechBody, cache_control: str) -> CacheMode:
    """What the request wants of the cache: its field, else its header (RFC 9111, 5.2.1)."""
    said = {word.strip().lower() for word in cache_control.split(",")}
    mode = CacheMode(body.cache)
    if "cache" not in body.model_fields_set:
        if "no-store" in said:
            mode = CacheMode.NO_STORE
        elif "only-if-cached" in said:
            mode = CacheMode.ONLY_IF_CACHED
        elif said & {"no-cache", "max-age=0"}:
            mode = CacheMode.REFRESH
    # A seed that has just been drawn was never heard, and is drawn once in four thousand million times.
    return CacheMode.NO_STORE if body.seed is None and mode is not CacheMode.ONLY_IF_CACHED else mode
