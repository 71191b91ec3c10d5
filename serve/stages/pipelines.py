"""Pipelines: the chain of stages of every version of the model, and the one that a request takes.

In:    SynthesisRequest with the version that ModelSelector chose
Out:   the results of that version's Synthesizer; StageAsleep while a stage of it is being started
Owns:  one Synthesizer over handles per version
Never: another version in the middle of a request
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Coroutine, Mapping
from contextlib import aclosing
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.cache.cache import CodeCache
from pipeline.cache.cached_generator import CachedModel
from pipeline.cache.key import Kept
from pipeline.config import VocoderConfig
from pipeline.errors import DeadlineExceeded, NonFiniteOutput, StageUnavailable
from pipeline.protocols import VoiceSource
from pipeline.synthesizer import Synthesizer
from pipeline.types import AudioChunk, CacheMode, Refined, SpeechText, SynthesisRequest
from serve.config.model_versions import TEXT, Version
from serve.resilience.circuit_breaker import is_fault
from serve.resilience.quarantine import Quarantine
from serve.resilience.rollout import Rollout
from serve.stages.code_cache import follow_fingerprint
from serve.stages.replicas import Replicas, needed_by, stages_of
from serve.stages.stage_clients import (
    StageDecoder,
    StageEncoder,
    StageFollower,
    StageFrontend,
    StageGenerator,
    ask_fingerprint,
)
from serve.stages.stage_handle import StageHandle

GIVEN_UP_S = 5.0  # a client that leaves after so long without audio counts as a failure of the version


class VersionPipelines:
    """Synthesises requests with the versions they name."""

    def __init__(
        self,
        rollout: Rollout,
        handles: Mapping[str, StageHandle],
        replicas: Replicas,
        voices: VoiceSource,
        cache: CodeCache,
        quarantine: Quarantine,
        *,
        fingerprint: str,
    ) -> None:
        """
        Args:
            handles: deployment name -> its handle.
            cache: of sampled steps, for all versions; the key of an entry includes the fingerprint of its engine.
            fingerprint: of the first version; those of the others are requested.
        """
        self._rollout = rollout
        self._quarantine = quarantine
        self._handles = handles
        self._cold_starts = replicas.cold_starts
        self._breakers = replicas.breakers
        self._synthesizers: dict[str, Synthesizer] = {}
        self._cached: dict[str, CachedModel] = {}
        for version in rollout.versions.values():
            acoustic, vocoder = (self._breakers[stage] for stage in stages_of(version))
            generator = StageGenerator(handles[version.acoustic], acoustic)
            self._cached[version.id] = CachedModel(generator, cache, payload=kept_of(version.pipeline.vocoder))
            self._synthesizers[version.id] = Synthesizer(
                StageFrontend(handles[TEXT], self._breakers["text"], version.id),
                generator,
                StageDecoder(handles[version.vocoder], vocoder),
                voices,
                version.pipeline.speech,
                self._cached[version.id],
                StageFollower(handles[version.acoustic], acoustic),
            )
        next(iter(self._cached.values())).fingerprint = fingerprint

    async def stream(self, request: SynthesisRequest) -> AsyncGenerator[AudioChunk, None]:
        """Streams the audio of a request from the version it names, and reports its outcome to the rollout.

        Raises:
            as Synthesizer.stream; StageAsleep; RequestQuarantined: as Quarantine.track.
        """
        with self._quarantine.track(request):
            version = self._version(request)
            self._cold_starts.check(needed_by(version))
            began, first_audio_s, failed = time.monotonic(), None, False
            try:
                async with aclosing(self._synthesizers[version.id].stream(request)) as chunks:
                    async for chunk in chunks:
                        if first_audio_s is None and len(chunk.samples):
                            first_audio_s = time.monotonic() - began
                        yield chunk
            except BaseException as error:
                failed = is_its_failure(error)
                gave_up = isinstance(error, asyncio.CancelledError | GeneratorExit) and first_audio_s is None
                failed = failed or (gave_up and time.monotonic() - began > GIVEN_UP_S)
                raise
            finally:
                self._rollout.ended(version.id, failed=failed, first_audio_s=first_audio_s)

    async def awake(self, request: SynthesisRequest) -> float:
        """Returns once every stage of the version has a replica; called before anything is paid or logged.

        Returns:
            how long it waited, at most the time that is promised for the first audio [s].

        Raises:
            StageAsleep: it takes longer. AtCapacity: every replica has just refused the lane, and the cache may not answer.
        """
        version = self._version(request)
        waited_s = await self._cold_starts.wait(needed_by(version), request.scheduling.first_audio_s or 0.0)
        if request.cache.mode in (CacheMode.NO_STORE, CacheMode.REFRESH):
            self._handles[version.acoustic].table.check_room(request.scheduling.lane)
        return waited_s

    async def read(self, request: SynthesisRequest) -> SpeechText:
        """Returns the text as the version normalises it, without a step of the model."""
        with self._quarantine.track(request):
            self._cold_starts.check([TEXT])
            return await self._pipeline_for(request).read(request)

    async def refine(self, request: SynthesisRequest) -> list[Refined]:
        """Returns every segment before and after the version's refine pass."""
        with self._quarantine.track(request):
            self._cold_starts.check(needed_by(self._version(request)))
            return await self._pipeline_for(request).refine(request)

    async def encode(self, samples: NDArray[np.float32]) -> NDArray[np.int64]:
        """Returns the codes (n, 4) of a recording (m,), as the first version's protocols.RecordingEncoder."""
        first = next(iter(self._rollout.versions.values()))
        self._cold_starts.check([first.acoustic])
        return await StageEncoder(self._handles[first.acoustic], self._breakers[first.stage("acoustic")]).encode(samples)

    def _version(self, request: SynthesisRequest) -> Version:
        versions = self._rollout.versions
        return versions.get(request.model) or next(iter(versions.values()))

    def _pipeline_for(self, request: SynthesisRequest) -> Synthesizer:
        return self._synthesizers[self._version(request).id]

    def follow_fingerprints(self) -> list[Coroutine[Any, Any, None]]:
        """Returns the background work that keeps the fingerprint of every version's engine up to date in the cache."""
        acoustic = {version: self._rollout.versions[version].acoustic for version in self._cached}
        return [
            follow_fingerprint(
                cached,
                partial(ask_fingerprint, self._handles[acoustic[version]]),
                is_asked=partial(self._cold_starts.is_awake, acoustic[version]),
            )
            for version, cached in self._cached.items()
        ]

    def fingerprint(self, version: str) -> str:
        """Returns the fingerprint of a version's engine as far as it is known; empty: not yet."""
        return self._cached[version].fingerprint or ""


def is_its_failure(error: BaseException) -> bool:
    """True if the end of a request counts against the version that synthesised it.

    This is more than a stage's breaker counts: numbers that are not finite and late answers do not mean that a replica is
    broken, but they do speak against a version whose siblings have none.
    """
    return is_fault(error) or isinstance(error, NonFiniteOutput | StageUnavailable | DeadlineExceeded)


def kept_of(vocoder: VocoderConfig) -> Kept:
    """Returns what the cache keeps of a version's steps."""
    if vocoder.is_beside_engine:
        return Kept.SAMPLES
    return Kept.HIDDEN if vocoder.use_decoder else Kept.CODES
