"""Version pipelines: the chain of stages of every version of the model, and the one that a request takes.

In:    SynthesisRequest with the version that ModelSelector chose
Out:   the results of that version's Synthesizer; StageAsleep while a stage of it is being started
Owns:  one Synthesizer over handles per version, the breakers, the probes, the checks of stages that show no progress
Never: HTTP; another version in the middle of a request
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Coroutine, Iterable, Mapping
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
from pipeline.spec import SAMPLE_RATE, SAMPLES_PER_STEP
from pipeline.synthesizer import Synthesizer
from pipeline.types import AudioChunk, Refined, SpeechText, SynthesisRequest
from serve.config.model_versions import Version
from serve.remote.builds import Builds
from serve.remote.code_cache import follow_fingerprint
from serve.remote.remote_stages import (
    Handle,
    RemoteDecoder,
    RemoteEncoder,
    RemoteFollower,
    RemoteFrontend,
    RemoteGenerator,
    ask_fingerprint,
    ask_stats,
)
from serve.remote.waking import Wakefulness, Waking
from serve.resilience.autoscaling import BACKLOG_S, BUSY
from serve.resilience.circuit_breaker import Breaker, is_fault
from serve.resilience.quarantine import Quarantine
from serve.versions.rollout import Rollout

STEPS_PER_SECOND = SAMPLE_RATE / SAMPLES_PER_STEP
TEXT = "TextNormalizer"
OF_REPLICA = ("replica", "gpus", "trouble", "has_work", "gpu_mem_percent", BUSY, BACKLOG_S)  # what the stats of any stage have
LOOK_S = 1.0  # between two checks for calls without progress
GIVEN_UP_S = 5.0  # a client that leaves after so long without audio counts as a failure of the version


class VersionPipelines:
    """Synthesises requests with the versions they name, and probes the replicas of every version."""

    def __init__(
        self,
        rollout: Rollout,
        handles: Mapping[str, Handle],
        voices: VoiceSource,
        cache: CodeCache,
        quarantine: Quarantine,
        *,
        fingerprint: str,
        wake_limit_s: float,
    ) -> None:
        """
        Args:
            handles: deployment name -> its handle.
            cache: of sampled steps, for all versions; the key of an entry includes the fingerprint of its engine.
            fingerprint: of the first version; those of the others are requested.
            wake_limit_s: the argument of Waking [s].
        """
        self._rollout = rollout
        self._quarantine = quarantine
        self._handles = handles
        self._waking = Waking(handles, wake_limit_s)
        self.builds = Builds()
        self.breakers = {"text": Breaker("text")}
        self._deployments = {"text": TEXT}  # stage -> the deployment that works for it
        self._synthesizers: dict[str, Synthesizer] = {}
        self._cached: dict[str, CachedModel] = {}
        for version in rollout.versions.values():
            kinds = ("acoustic", "acoustic" if version.decodes_itself else "vocoder")
            acoustic, vocoder = (self.breakers.setdefault(stage, Breaker(stage)) for stage in map(version.stage, kinds))
            self._deployments |= {acoustic.stage: version.acoustic, vocoder.stage: version.vocoder}
            generator = RemoteGenerator(handles[version.acoustic], acoustic)
            self._cached[version.id] = CachedModel(generator, cache, kept=kept_of(version.pipeline.vocoder))
            self._synthesizers[version.id] = Synthesizer(
                RemoteFrontend(handles[TEXT], self.breakers["text"], version.id),
                generator,
                RemoteDecoder(handles[version.vocoder], vocoder),
                voices,
                version.pipeline.speech,
                self._cached[version.id],
                RemoteFollower(handles[version.acoustic], acoustic),
            )
        next(iter(self._cached.values())).fingerprint = fingerprint

    async def stream(self, request: SynthesisRequest) -> AsyncGenerator[AudioChunk, None]:
        """Streams the audio of a request from the version it names, and reports its outcome to the rollout.

        Raises:
            as Synthesizer.stream; StageAsleep; RequestQuarantined, AtCapacity: as Quarantine.track.
        """
        with self._quarantine.track(request):
            self._waking.check(needed_by(self._version(request)))
            version, began, first_audio_s, failed = self._version(request).id, time.monotonic(), None, False
            try:
                async with aclosing(self._pipeline_for(request).stream(request)) as chunks:
                    async for chunk in chunks:
                        if first_audio_s is None and len(chunk.samples):
                            first_audio_s = time.monotonic() - began
                        yield chunk
            except BaseException as error:
                failed = is_its_failure(error)
                left = isinstance(error, asyncio.CancelledError | GeneratorExit) and first_audio_s is None
                failed = failed or (left and time.monotonic() - began > GIVEN_UP_S)
                raise
            finally:
                self._rollout.ended(version, failed=failed, first_audio_s=first_audio_s)

    async def awake(self, request: SynthesisRequest) -> float:
        """Returns once every stage of the version has a replica.

        Returns:
            how long it waited, at most the time that is promised for the first audio [s].

        Raises:
            StageAsleep: it takes longer.
        """
        return await self._waking.wait(needed_by(self._version(request)), request.scheduling.first_audio_s or 0.0)

    async def read(self, request: SynthesisRequest) -> SpeechText:
        """Returns the text as the version normalises it, without a step of the model."""
        with self._quarantine.track(request):
            self._waking.check([TEXT])
            return await self._pipeline_for(request).read(request)

    async def refine(self, request: SynthesisRequest) -> list[Refined]:
        """Returns every segment before and after the version's refine pass."""
        with self._quarantine.track(request):
            self._waking.check(needed_by(self._version(request)))
            return await self._pipeline_for(request).refine(request)

    async def encode(self, samples: NDArray[np.float32]) -> NDArray[np.int64]:
        """Returns the codes (n, 4) of a recording (m,), as the first version's protocols.RecordingEncoder."""
        first = next(iter(self._rollout.versions.values()))
        self._waking.check([first.acoustic])
        return await RemoteEncoder(self._handles[first.acoustic], self.breakers[first.stage("acoustic")]).encode(samples)

    def _version(self, request: SynthesisRequest) -> Version:
        versions = self._rollout.versions
        return versions.get(request.model) or next(iter(versions.values()))

    def _pipeline_for(self, request: SynthesisRequest) -> Synthesizer:
        return self._synthesizers[self._version(request).id]

    # The state of the replicas.

    def follow_fingerprints(self) -> list[Coroutine[Any, Any, None]]:
        """Returns the background work that keeps the fingerprint of every version's engine up to date in the cache."""
        acoustic = {version: self._rollout.versions[version].acoustic for version in self._cached}
        return [
            follow_fingerprint(
                cached,
                partial(ask_fingerprint, self._handles[acoustic[version]]),
                is_asked=partial(self._waking.is_awake, acoustic[version]),
            )
            for version, cached in self._cached.items()
        ]

    def fingerprint(self, version: str) -> str:
        """Returns the fingerprint of a version's engine as far as it is known; empty: not yet."""
        return self._cached[version].fingerprint or ""

    def kinds_of_replicas(self) -> dict[str, int]:
        """Returns version -> how many kinds of replicas a stage of it has, at most; 1: all would make the same bytes."""
        return {version.id: self.builds.count(needed_by(version)) for version in self._rollout.versions.values()}

    def wakefulness(self) -> dict[str, Wakefulness]:
        """Returns deployment -> whether it has replicas."""
        return {name: self._waking.state(name) for name in self._handles}

    async def stats(self, kind: str) -> list[dict[str, Any]]:
        """Returns the stats of every replica of one kind of stage, with the name of the deployment if there are several."""
        deployments = [TEXT] if kind == "text" else [getattr(version, kind) for version in self._rollout.versions.values()]
        answers = await self._ask(deployments)
        if kind == "vocoder":
            answers = {name: list(map(of_vocoder, found)) for name, found in answers.items()}
        single = len(answers) == 1
        return [one if single else {"deployment": name, **one} for name, found in answers.items() for one in found]

    async def load(self) -> tuple[float, float]:
        """Returns the fullest queue as a share of its capacity, and the slowest engine's real-time factor [s per s of audio].

        An engine that decodes only one sequence does not count: it is not slow because of load.
        """
        fullness, rtf = 0.0, 0.0
        for version in self._rollout.versions.values():
            engine = version.pipeline.engine
            for one in await ask_stats(self._handles[version.acoustic]):
                fullness = max(fullness, one["waiting"] / engine.max_waiting if engine.max_waiting else 0.0)
                if one["slots_used"] > 1:
                    rtf = max(rtf, one["round_s"] / engine.steps_per_round * STEPS_PER_SECOND)
        return fullness, rtf

    async def unresponsive(self) -> list[str]:
        """Returns the deployments without a healthy replica that versions in service need: their requests would fail.

        One that is asleep is not among them: its requests are told when to come back.
        """
        rollout = self._rollout
        needed = [one for one in rollout.versions.values() if rollout.shares(one.name)[one.id] > 0]
        answers = await self._ask(self._waking.awake(name for one in needed for name in needed_by(one)))
        silent = [name for name, found in answers.items() if not any(map(is_well, found))]
        return self._waking.awake(silent)  # meanwhile a replica may have gone

    async def probe(self) -> None:
        """Probes every version each period, until cancelled."""
        while True:
            await asyncio.sleep(self._rollout.routes.probe.period_s)
            await self.probe_once()

    async def probe_once(self) -> None:
        """Probes every version once."""
        for version in self._rollout.versions.values():
            answers = await self._ask(self._waking.awake(needed_by(version)))
            for deployment, replicas in answers.items():
                self.builds.told(deployment, filter(is_well, replicas))
            self._rollout.probed(version.id, trouble_in(answers, self._rollout.routes.probe.max_gpu_memory_percent))

    async def watch_silence(self) -> None:
        """Checks every LOOK_S whether the replicas of stages whose calls show no progress hang, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            await asyncio.gather(*(self._check_silent(breaker) for breaker in self.breakers.values() if breaker.is_silent))

    async def _check_silent(self, breaker: Breaker) -> None:
        deployment = self._deployments[breaker.stage]
        if not self._waking.is_awake(deployment):
            return  # its calls wait for a replica that is being started
        well = [one for one in await ask_stats(self._handles[deployment]) if is_well(one)]
        breaker.judge_silence(is_well=bool(well), has_work=any(one.get("has_work", True) for one in well))

    async def _ask(self, deployments: Iterable[str]) -> dict[str, list[dict[str, Any]]]:
        """Returns the stats of the replicas of each deployment; every deployment is called once, all at the same time."""
        names = list(dict.fromkeys(deployments))
        answers = await asyncio.gather(*(ask_stats(self._handles[name]) for name in names))
        return dict(zip(names, answers, strict=True))


def needed_by(version: Version) -> tuple[str, ...]:
    """Returns the deployments that speech with a version needs."""
    return tuple(dict.fromkeys((TEXT, version.acoustic, version.vocoder)))


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


def of_vocoder(stats: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the stats of a vocoder, cut out of its engine's where it is beside it."""
    if not isinstance(beside := stats.get("vocoder"), Mapping):
        return dict(stats)
    return {**{name: stats[name] for name in OF_REPLICA}, **beside}


def is_well(stats: Mapping[str, Any]) -> bool:
    """True if a replica reports no trouble in its stats."""
    return not stats.get("trouble")


def fullest_gpu(replicas: Iterable[Mapping[str, Any]]) -> float | None:
    """Returns the memory use of the fullest GPU of the replicas [%]; None if none of them has a GPU."""
    return max((one["gpu_mem_percent"] for one in replicas if one.get("gpu_mem_percent") is not None), default=None)


def trouble_in(answers: Mapping[str, Iterable[Mapping[str, Any]]], most_gpu_mem_percent: float) -> str:
    """Returns the trouble with the replicas of a version; empty: none. One full GPU among several is trouble."""
    for name, found in answers.items():
        replicas = list(found)
        if not replicas:
            return f"no answer from {name}"
        if not any(map(is_well, replicas)):
            return f"{name}: {replicas[0]['trouble']}"
        fullest = fullest_gpu(replicas)
        if fullest is not None and fullest > most_gpu_mem_percent:
            return f"GPU memory of {name} is {fullest:.0f} % full"
    return ""
