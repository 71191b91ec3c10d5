"""Speech schemas: the body of a request for speech, checked once.

In:    a JSON object
Out:   SpeechBody
Never: a client's text in an error message; a field that is ignored without a note
"""

from typing import Any, Literal

from pydantic import Field, field_validator

from pipeline.audio.formats import CONTAINERS, SAMPLE_RATES
from pipeline.types import RefineParams, SamplingParams
from pipeline.types.bounds import TEMPERATURE
from serve.config.bounded import (
    FadeMs,
    GainDb,
    Laugh,
    LoudnessLufs,
    Oral,
    Pause,
    RepetitionPenalty,
    Seed,
    Speed,
    Temperature,
    TopK,
    TopP,
)
from serve.speech.job import TimestampsOf
from serve.speech.schemas.base import Body
from serve.speech.schemas.text import TextBody

SAMPLING = SamplingParams()
REFINE = RefineParams()

MODEL = "chattts"
MODELS = (MODEL, "tts-1", "tts-1-hd", "gpt-4o-mini-tts")
OTHER_MODELS = ("kokoro",)
"""names that clients of other services are fixed on; they mean the first model, and no list has them"""
DATED = ("tts-1-", "gpt-4o-mini-tts-")
"""beginnings of OpenAI's dated names"""
RECORDINGS = ("references", "ref_audio", "ref_text", "reference_audio", "speaker_embedding", "audio_prompt")
"""fields in which other servers take somebody's voice with the text: to leave them out would be to speak with another one"""
# Accepted for client libraries; it has no effect here.
WITHOUT_EFFECT = ("instructions",)


class VoiceBody(Body):
    """OpenAI's custom voice object."""

    id: str = Field(min_length=1, max_length=4096)


class RefineBody(Body):
    """How much of each style the refine pass may add."""

    oral: Oral = REFINE.oral
    laugh: Laugh = REFINE.laugh
    pause: Pause = Field(REFINE.pause, alias="break")
    seed: Seed | None = Field(None, description="null: the request's")
    temperature: Temperature = REFINE.sampling.temperature
    guard: Literal["strict", "drop", "off"] = Field(
        "drop", description="a refined text that lost or changed a word is refused, dropped, or spoken all the same"
    )


class PostBody(Body):
    """Processing of the finished audio; steps that are not named are not applied."""

    trim: bool = Field(False, description="cut the quiet before the first sound and after the last one")
    denoise: Literal["off", "auto", "on"] = Field("off", description="auto: only under 20 dB of signal over noise")
    gain_db: GainDb = Field(0.0, description="one gain for the whole, limited to -1 dBTP [dB]")
    loudness_lufs: LoudnessLufs | None = Field(None, description="bring the voice to this loudness [LUFS]")
    fade_ms: FadeMs = Field(0.0, description="rise at the beginning and fall at the end [ms]")


TIDY = PostBody(trim=True, fade_ms=5.0)
"""the meaning of `post: true`"""


class SpeechBody(TextBody):
    """POST /v1/audio/speech. Unknown fields are kept, so that the reply can name them."""

    model: str = Field(
        MODEL,
        max_length=128,
        description="one of GET /v1/models: name or name@version; OpenAI's names mean the first",
    )
    voice: str | VoiceBody | None = Field(None, description="id, name or alias; null: the operator's default")
    speaker: str | None = Field(None, max_length=4096, description="the same as voice, as other servers call it")
    instructions: str | None = Field(None, max_length=16_384)
    response_format: str = Field("mp3", max_length=32, description=f"{', '.join(CONTAINERS)}; ogg is opus")
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
    speed: Speed = 1.0
    speed_mode: Literal["stretch", "token", "auto"] = Field(
        "stretch",
        description="stretch: the finished audio, exactly; token: ChatTTS's own [speed_0..9], in steps of a fifth, up to 1.8; "
        "auto: the token as far as the model sounds natural, stretch for the rest",
    )
    seed: Seed | None = Field(None, description="null: drawn by the server, returned in X-Audio-Seed")
    seed_mode: Literal["counter", "upstream"] = "counter"
    temperature: Temperature = SAMPLING.temperature
    top_p: TopP = Field(SAMPLING.top_p, description="at least three tokens are kept, as in ChatTTS")
    top_k: TopK = Field(SAMPLING.top_k, description="fewer than three count as three, as in ChatTTS")
    repetition_penalty: RepetitionPenalty = SAMPLING.repetition_penalty
    refine: bool | RefineBody = Field(False, description="ChatTTS rewrites the text first, with pauses and fillers")
    user: str | None = Field(None, max_length=512, description="keeps this user on one of several versions of the model")
    priority: Literal["interactive", "standard", "bulk"] | None = Field(
        None, description="the lane; null: standard, or the most urgent one the key may use"
    )
    deadline_ms: int | None = Field(
        None, ge=50, le=600_000, description="the first audio is promised by then, or the request refused; null: the lane's"
    )
    latency: Literal["exact", "low"] | None = Field(
        None,
        description="exact: a sample waits for every step that affects it; low: the first seconds wait for fewer, so the first "
        "audio comes sooner; null: the operator's choice",
    )
    cache: Literal["default", "no-store", "refresh", "only-if-cached"] = Field(
        "default", description="of what was sampled before with this seed; Cache-Control says the same where this is left out"
    )

    retries: int = Field(
        0,
        ge=0,
        le=3,
        description="speak a segment again, up to so often, that lost or repeated a word; sent when it is whole",
    )
    timestamps: TimestampsOf | None = Field(
        None,
        description="tell when each segment, word or character is heard, with stream false or stream_format sse; live: words, "
        "late where audio that waits for them might be missed",
    )
    subtitles: Literal["srt", "vtt"] | None = Field(
        None, description="subtitles beside the audio, in this format; as timestamps"
    )

    @property
    def ignored(self) -> list[str]:
        """Fields without effect, unknown ones included."""
        return [name for name in WITHOUT_EFFECT if getattr(self, name) is not None] + super().ignored

    @property
    def voice_name(self) -> str | None:
        """The voice as the client names it."""
        voice = self.speaker if self.voice is None else self.voice
        return voice.id if isinstance(voice, VoiceBody) else voice

    @field_validator("seed", mode="before")
    @classmethod
    def _drawn(cls, seed: Any) -> Any:
        return None if seed == -1 else seed  # of other servers: draw one

    @field_validator("temperature", mode="before")
    @classmethod
    def _coldest(cls, temperature: Any) -> Any:
        return TEMPERATURE.least if temperature == 0 else temperature
