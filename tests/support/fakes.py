"""Fakes: small real classes with a behaviour, standing where the model would.

Speaker         what serve/ calls: SynthesisRequest -> AudioChunks, a sine whose pitch is the seed's
PromptMaker     protocols.TextFrontend: one prompt a sentence
StepMaker       protocols.CodeGenerator: as many steps as the text has letters
ToneDecoder     protocols.WaveDecoder, one that carries: a tone a step
"""

import asyncio
import math
import os
import tempfile
import threading
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.config import PipelineConfig
from pipeline.errors import EngineFault
from pipeline.protocols import SpeechStream
from pipeline.spec import SAMPLE_RATE, SAMPLES_PER_STEP
from pipeline.store.sqlite import SqliteStore
from pipeline.text.lexicon.lexicon_library import LexiconLibrary
from pipeline.text.refine_guard import accepts, diff
from pipeline.text.segment import least_steps
from pipeline.text.speech_text import build_speech_text
from pipeline.types import (
    Admission,
    AudioChunk,
    AudioReport,
    CacheResult,
    DecodedAudio,
    DecoderState,
    DecoderTraits,
    FinishReason,
    Head,
    HiddenWindow,
    Passage,
    Prompt,
    Refined,
    SamplingParams,
    Segment,
    SpeechPlan,
    SpeechText,
    StepBatch,
    StepBlock,
    SynthesisRequest,
    Voice,
)
from pipeline.voices.catalogue import VoiceCatalogue, VoiceInfo
from pipeline.voices.library import VoiceLibrary
from serve.access.admission import AdmissionLimiter
from serve.access.api_keys import Scope
from serve.access.authentication import Authenticator
from serve.access.idempotency import Idempotency
from serve.access.resume_tokens import ResumeTokens
from serve.config.app_config import (
    PROJECT,
    AppConfig,
    ConversationsConfig,
    LanesConfig,
    LimitsConfig,
    SourceOfferConfig,
    VoicesConfig,
)
from serve.config.jobs import JobsConfig
from serve.config.model_versions import versions_of
from serve.http.body_reader import BodyReader
from serve.http.connection import UnreadBytes
from serve.http.services import Services
from serve.jobs.service import JobService
from serve.observability.recent_replies import RecentReplies
from serve.observability.reply_stats import ReplyStats
from serve.observability.request_log import RefusalTally
from serve.observability.tracing import Tracing
from serve.resilience.rollout import Rollout
from serve.speech.conversation.conversation import Conversations
from serve.speech.load_shedding import Degrader
from serve.speech.model_selection import ModelSelector
from serve.speech.resuming import Resuming
from serve.speech.speech_services import SpeechServices
from serve.voices.voice_service import VoiceService

CHUNK = 4_800  # samples, 200 ms
WIDTH = 8


def sine(seed: int, first_sample: int, samples: int) -> NDArray[np.float32]:
    """The same numbers for the same seed, wherever a chunk begins."""
    at = np.arange(first_sample, first_sample + samples)
    return (0.5 * np.sin(2 * math.pi * (200 + seed % 400) * at / SAMPLE_RATE)).astype(np.float32)


@dataclass
class Speaker:
    """A voice made of one sine: well-behaved, slow, failing or endless."""

    chunks: int | None = 5
    """None: endless"""
    first_pause_s: float = 0.0
    pause_s: float = 0.0
    fails_at: int | None = None
    """the chunk in whose place `error` is raised"""
    error: Exception = field(default_factory=lambda: RuntimeError("canary-secret-of-the-inside"))
    chunk_samples: int = CHUNK
    opened: int = 0
    closed: int = 0
    produced: int = 0
    requests: list[SynthesisRequest] = field(default_factory=list)
    source: CacheResult = CacheResult.BYPASS
    purged: list[str | None] = field(default_factory=list)
    purge_error: Exception | None = None
    last_closed: threading.Event = field(default_factory=threading.Event)

    async def stream(self, request: SynthesisRequest) -> AsyncGenerator[AudioChunk, None]:
        self.opened += 1
        self.requests.append(request)
        try:
            await asyncio.sleep(self.first_pause_s)
            index = 0
            while self.chunks is None or index < self.chunks:
                if index == self.fails_at:
                    raise self.error
                if index:
                    await asyncio.sleep(self.pause_s)
                first = index * self.chunk_samples
                self.produced += 1
                index += 1
                is_last = index == self.chunks
                report = AudioReport(steps=index * self.chunk_samples // SAMPLES_PER_STEP) if is_last else None
                samples = sine(request.sampling.seed, first, self.chunk_samples)
                yield AudioChunk(samples, first, is_last, report=report, cache=self.source)
        finally:
            self.closed += 1
            if self.closed == self.opened:
                self.last_closed.set()


def pcm_of(seed: int, chunks: int = 5) -> NDArray[np.float32]:
    """The samples that a Speaker of so many chunks generates for a seed."""
    return sine(seed, 0, chunks * CHUNK)


def close_to(data: bytes, samples: NDArray[np.float32]) -> bool:
    """Whether 16-bit PCM holds these samples, but for rounding."""
    received = np.frombuffer(data, "<i2").astype(np.float32) / 32767
    return len(received) == len(samples) and bool(np.abs(received - samples).max() < 1e-3)


VOICES = (
    VoiceInfo("default", ("alloy", "nova"), ("en", "zh"), "a sine", "built-in"),
    VoiceInfo("calm", (), (), "the same sine", "seed:1"),
)


def make_library() -> VoiceLibrary:
    """The built-in voices of VOICES, without a store."""
    voices = {name: Voice(info.name, None) for info in VOICES for name in (info.name, *info.aliases)}
    return VoiceLibrary(VoiceCatalogue(voices, VOICES, WIDTH))


def shipped_library() -> VoiceLibrary:
    """The voices and names that are shipped, without a store."""
    return VoiceLibrary(VoiceCatalogue.load(PROJECT / "configs/voices.yaml", 2 * WIDTH))


def shipped_models() -> ModelSelector:
    """Returns the selector of a service with one model and the names of others' models that are shipped."""
    return ModelSelector(Rollout(versions_of(PipelineConfig(), {})), aliases=AppConfig().model_aliases)


class FakeText:
    """http.services.TextServices over a Speaker, which records what is refined."""

    def __init__(self, speaker: Speaker) -> None:
        self._speaker = speaker

    async def read(self, request: SynthesisRequest) -> SpeechText:
        return build_speech_text(request)

    async def refine(self, request: SynthesisRequest) -> list[Refined]:
        self._speaker.requests.append(request)
        texts = [(segment.text, f"{segment.text} [laugh]") for segment in (await self.read(request)).segments]
        return [Refined(text, refined, tuple(diff(text, refined)), accepts(text, refined)) for text, refined in texts]


@dataclass
class FakeStatus:
    """http.services.ServiceStatus of a Speaker."""

    speaker: Speaker
    not_ready: str | None = None
    asleep: dict[str, str] = field(default_factory=dict)

    async def why_not_ready(self) -> str | None:
        return self.not_ready

    def wakefulness(self) -> dict[str, str]:
        return self.asleep

    async def health(self) -> dict[str, object]:
        return {"engine": {"slots": 1, "slots_used": self.speaker.opened - self.speaker.closed}}


class RecordingObserver:
    """Keeps every reply and every number of requests in flight."""

    def __init__(self) -> None:
        self.replies: list[ReplyStats] = []
        self.in_flight: list[int] = []

    def finished(self, stats: ReplyStats) -> None:
        self.replies.append(stats)

    def in_flight_changed(self, in_flight: int) -> None:
        self.in_flight.append(in_flight)

    def rejected(self, code: str) -> None:
        """Ignored."""

    def interrupted(self, unheard_steps: int) -> None:
        """Ignored."""


def only_model() -> ModelSelector:
    """Returns the selector of a service with one model."""
    return ModelSelector(Rollout(versions_of(PipelineConfig(), {})))


async def always_awake(request: SynthesisRequest) -> float:
    """No stage is asleep."""
    return 0.0


def make_speech_services(speaker: Speaker, limits: LimitsConfig | None = None, **parts: Any) -> SpeechServices:
    """What speaking needs, around a Speaker; `parts` stand in place of the usual ones."""
    limits = limits or LimitsConfig()
    idempotency = parts.get("idempotency") or Idempotency()
    tokens = ResumeTokens(b"secret of a test", limits.resume_s)
    usual: dict[str, Any] = {
        "stream": speaker.stream,
        "awake": always_awake,
        "voice_id": make_library().canonical,
        "lexicons": LexiconLibrary(),
        "limits": limits,
        "lanes": LanesConfig(),
        "admission": AdmissionLimiter(limits.max_in_flight),
        "idempotency": idempotency,
        "resuming": Resuming(tokens, idempotency, build=lambda version: "this build", engine=lambda version: "this engine"),
        "models": only_model(),
        "degrader": Degrader(),
        "observer": RecordingObserver(),
        "refusals": RefusalTally(),
        "tracing": Tracing(),
    }
    return SpeechServices(**usual | parts)


def make_services(
    speaker: Speaker,
    limits: LimitsConfig | None = None,
    *,
    not_ready: str | None = None,
    conversations: ConversationsConfig | None = None,
    **parts: Any,
) -> Services:
    """A whole ingress replica around a Speaker; `parts` are those of its speech."""
    recent = RecentReplies(parts.pop("observer", RecordingObserver()))
    speech = make_speech_services(speaker, limits, observer=recent, **parts)

    async def purge(tenant: str | None) -> None:
        if speaker.purge_error is not None:
            raise speaker.purge_error
        speaker.purged.append(tenant)

    return Services(
        speech=speech,
        conversations=Conversations(conversations or ConversationsConfig()),
        jobs=make_jobs(speech),
        text=FakeText(speaker),
        voices=make_voices(speaker.stream),
        bodies=BodyReader(speech.limits),
        unread=UnreadBytes(speech.limits.max_unread_bytes),
        authenticator=Authenticator(anonymous_scopes=tuple(Scope)),
        status=FakeStatus(speaker, not_ready),
        purge=purge,
        source_offer=SourceOfferConfig(),
        recent=recent,
        metrics_text=None,
        dashboards={},
    )


def make_jobs(speech: SpeechServices, config: JobsConfig | None = None, folder: Path | None = None) -> JobService:
    """Jobs in a file and a folder that are made with the first job; nothing speaks them."""
    folder = folder or Path(tempfile.gettempdir()) / f"chattts-jobs-{os.getpid()}"
    return JobService(config or JobsConfig(), SqliteStore(folder / "store.sqlite"), folder, speech)


def make_voices(stream: SpeechStream, library: VoiceLibrary | None = None, config: VoicesConfig | None = None) -> VoiceService:
    """Voices whose encoder gives a step for every 512 samples; without a library, two built-in ones that nothing adds to."""
    library = library or make_library()
    return VoiceService(library, config or VoicesConfig(), stream, StepCounter(), model="fake", max_prompt=2048)


class StepCounter:
    """protocols.RecordingEncoder: codes that follow from how loud a step is."""

    async def encode(self, samples: NDArray[np.float32]) -> NDArray[np.int64]:
        steps = samples[: len(samples) // SAMPLES_PER_STEP * SAMPLES_PER_STEP].reshape(-1, SAMPLES_PER_STEP)
        loud = np.clip(np.abs(steps).max(axis=1) * 624, 0, 624).astype(np.int64)
        return np.repeat(loud[:, None], 4, axis=1)


class PromptMaker:
    """One prompt a sentence; the prompt's ids are its letters."""

    def __init__(self, *, warnings: tuple[tuple[str, int], ...] = ()) -> None:
        self.warnings = warnings

    async def plan(self, request: SynthesisRequest, voices: Mapping[str, Voice]) -> SpeechPlan:
        passages = request.passages or (Passage(request.text),)
        pieces = [
            (sentence.strip(), passage.prosody, 0 if number else passage.silence_ms)
            for passage in passages
            for number, sentence in enumerate(filter(str.strip, passage.text.split(".")))
        ]
        prompts = tuple(
            self._prompt(Segment(text, index, index == len(pieces) - 1, prosody=prosody, silence_ms=silence_ms))
            for index, (text, prosody, silence_ms) in enumerate(pieces)
        )
        return SpeechPlan(prompts, 0 if passages[-1].text else passages[-1].silence_ms, self.warnings)

    async def replan(
        self, request: SynthesisRequest, voices: Mapping[str, Voice], plan: SpeechPlan, refined: list[NDArray[np.int64]]
    ) -> SpeechPlan:
        texts = ("".join(map(chr, ids)) for ids in refined)
        prompts = (self._prompt(replace(prompt.segment, text=text)) for prompt, text in zip(plan.prompts, texts, strict=True))
        return replace(plan, prompts=tuple(prompts))

    def _prompt(self, segment: Segment) -> Prompt:
        ids = np.repeat(np.array([ord(letter) for letter in segment.text])[:, None], 4, axis=1)
        return Prompt(
            ids,
            np.ones(len(ids), np.bool_),
            Head.CODE,
            segment,
            max_steps=4 * len(ids),
            least_steps=least_steps(segment.text, speed_token=5),
        )


class StepMaker:
    """Two steps a letter, in blocks; the hidden state counts the steps."""

    def __init__(self, *, pause_s: float = 0.0, block: int = 4) -> None:
        self.pause_s = pause_s
        self.block = block
        self.running = 0

    async def generate(
        self, prompt: Prompt, sampling: SamplingParams, *, timeout_s: float, admitted: bool = False
    ) -> AsyncGenerator[StepBlock, None]:
        self.running += 1
        steps = 2 * len(prompt.ids)
        try:
            for first in range(0, steps, self.block):
                await asyncio.sleep(self.pause_s)
                count = min(self.block, steps - first)
                hidden = np.full((count, WIDTH), sampling.seed % 97, np.float32)
                hidden[:, 0] = np.arange(first, first + count)
                last = first + count == steps
                finish = FinishReason.EOS if last else None
                admission = None if first else Admission(waited_s=0.25, prefill_s=0.0)
                yield StepBlock(hidden, np.zeros((count, 4), np.int64), first, finish, admission)
        finally:
            self.running -= 1


class Hasty(StepMaker):
    """Ends every segment after two steps, but for those it is told to finish, and second takes if it `relents`."""

    def __init__(self, *whole: int, relents: bool = False) -> None:
        super().__init__()
        self.whole = whole
        self.relents = relents

    async def generate(
        self, prompt: Prompt, sampling: SamplingParams, *, timeout_s: float, admitted: bool = False
    ) -> AsyncGenerator[StepBlock, None]:
        if prompt.segment.index not in self.whole and not (self.relents and sampling.attempt):
            prompt = replace(prompt, ids=prompt.ids[:1])
        async for block in super().generate(prompt, sampling, timeout_s=timeout_s, admitted=admitted):
            yield block


class ToneDecoder:
    """A constant a step: its first hidden number, scaled into audio; heard two steps later."""

    async def traits(self) -> DecoderTraits:
        return DecoderTraits(is_stateful=True, use_decoder=True, look_ahead=2, chunk_steps=(3, 5))

    async def decode(self, window: HiddenWindow) -> NDArray[np.float32]:
        raise EngineFault("this decoder carries")

    async def feed(self, batch: StepBatch) -> DecodedAudio:
        before = batch.state or DecoderState(1, 0, np.zeros(0, np.float32))
        waiting = np.concatenate([before.memory, batch.steps[:, 0]])
        whole = len(waiting) if batch.is_last else max(0, len(waiting) - 2)
        samples = np.repeat(waiting[:whole] / 1e4, SAMPLES_PER_STEP).astype(np.float32)
        if batch.is_last:
            return DecodedAudio(samples[:-256], None)
        return DecodedAudio(samples, DecoderState(1, before.steps + len(batch.steps), waiting[whole:]))
