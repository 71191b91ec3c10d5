"""Ingress setup: builds the parts of one ingress replica and the work it does beside its requests.

In:    AppConfig, the handles of the deployments behind it
Out:   IngressParts, the background work
Owns:  the order of construction
Never: requests
"""

import asyncio
import functools
import hashlib
import logging
import platform
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import pipeline
from pipeline.checkpoint.manifest import file_sha256
from pipeline.config import PipelineConfig
from pipeline.errors import SynthesisError
from pipeline.native.instructions import usable
from pipeline.store.poll import follow
from pipeline.types import SynthesisRequest
from serve.access.admission import AdmissionLimiter
from serve.access.api_keys import Scope
from serve.access.authentication import Authenticator, local_peer_check
from serve.access.cross_origin import CrossOriginPolicy
from serve.access.proxies import Proxies
from serve.access.redis_quotas import RedisQuotas
from serve.access.resume_tokens import ResumeTokens
from serve.access.single_use_tokens import SingleUseTokens
from serve.config.app_config import AppConfig
from serve.config.folders import jobs_folder
from serve.config.model_versions import TEXT
from serve.http.body_reader import BodyReader
from serve.http.connection import UnreadBytes
from serve.http.services import Services
from serve.ingress.ingress_records import IngressRecords, open_records
from serve.ingress.ingress_status import IngressStatus
from serve.jobs.runner import JobRunner
from serve.jobs.service import JobService
from serve.observability.metrics.ingress_metrics import IngressMetrics
from serve.observability.metrics.registry import every_period
from serve.observability.recent_replies import RecentReplies
from serve.observability.reply_stats import ReplyObserver
from serve.observability.request_log import RefusalTally
from serve.observability.tracing import Tracing
from serve.protocols.wyoming.listener import WyomingListener
from serve.resilience.quarantine import Quarantine
from serve.resilience.rollout import Rollout
from serve.speech.conversation.conversation import Conversations
from serve.speech.load_shedding import Degrader
from serve.speech.model_selection import ModelSelector
from serve.speech.resuming import Resuming
from serve.speech.speech_services import SpeechServices
from serve.stages.code_cache import follow_purges
from serve.stages.pipelines import VersionPipelines
from serve.stages.replica_context import ReplicaContext
from serve.stages.replicas import Replicas
from serve.stages.stage_clients import ask_capabilities, ask_fingerprint, ask_speakers
from serve.stages.stage_handle import StageHandle
from serve.voices.voice_service import VoiceService

LOG = logging.getLogger("ray.serve.chattts")

FIRST_WORDS = "Ready."
RETRY_S = 1.0
LOOK_S = 1.0
RECORDS_PERIOD_S = 0.5  # until what one replica stores counts on every other: voices, keys, lexicons, purges
STORE_PERIOD_S = 5.0  # of looking whether stores take writes
DASHBOARDS = ("ray_dashboard", "grafana")  # keys of http: what the page's status links to
ROOT = Path(pipeline.__file__).parent
COMPILED = "__pycache__"
LIBRARIES = ("numpy", "av", "soxr", "OpenCC", "rjieba", "emoji")
"""whose results are heard: samples, containers, the reading of texts"""


def reply_build(settings: PipelineConfig) -> str:
    """Returns the hash for a version with these settings. Blocking on its first call: it reads the program."""
    return hashlib.sha256(f"{_program()}\n{settings.model_dump_json()}".encode()).hexdigest()[:32]


@functools.cache
def _program() -> str:
    files = sorted(path for path in ROOT.rglob("*") if path.is_file() and COMPILED not in path.parts)
    parts = [
        *(f"{path.relative_to(ROOT)}={file_sha256(path)}" for path in files),
        *(f"{name}={version(name)}" for name in LIBRARIES),
        f"{platform.machine()} {next(iter(usable()), '')}",
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


@dataclass(frozen=True, slots=True, eq=False)
class IngressParts:
    """The parts of one ingress replica."""

    services: Services
    status: IngressStatus
    records: IngressRecords
    replicas: Replicas
    pipelines: VersionPipelines
    metrics: IngressMetrics
    wyoming: WyomingListener


class Leaver(Protocol):
    """What clients stay at for longer than for one request."""

    def leave(self) -> None:
        """Takes nothing new, and speaks what it has."""
        ...


async def build_parts(
    context: ReplicaContext, config: AppConfig, stages: Mapping[str, StageHandle], listens: str | None
) -> IngressParts:
    """Builds one ingress replica; waits until the stages behind it have loaded their weights.

    Args:
        context: of the process this runs in.
        stages: those behind the ingress, by name.
        listens: the host the service listens on; None: not known.
    """
    acoustic = stages[config.versions[0].acoustic]
    records = await open_records(config, await ask_speakers(acoustic), context.num_replicas)
    models = ModelSelector(Rollout(config.versions), await ask_capabilities(stages[TEXT]), config.model_aliases)
    admission, metrics = AdmissionLimiter(config.limits.max_in_flight), IngressMetrics(context.new_series)
    quarantine = Quarantine()
    replicas = Replicas(models.rollout, stages, config.limits.start_timeout_s)
    pipelines = VersionPipelines(
        models.rollout,
        stages,
        replicas,
        records.voices,
        records.cache,
        quarantine,
        fingerprint=await ask_fingerprint(acoustic),
    )
    recent = RecentReplies(metrics)
    authenticator = build_authenticator(context, config, records, listens)
    builds = {version.id: reply_build(version.pipeline) for version in config.versions}
    speech = build_speech(context, config, records, models, admission, recent, pipelines, replicas, authenticator, builds)
    unread = UnreadBytes(config.limits.max_unread_bytes)
    status = IngressStatus(speech, records, replicas, quarantine, unread, context.runtime_limits)
    services = Services(
        speech=speech,
        conversations=Conversations(config.conversations),
        jobs=build_jobs(context, config, records, speech, builds),
        text=pipelines,
        voices=build_voices(config, records, speech, pipelines),
        bodies=BodyReader(config.limits),
        unread=unread,
        authenticator=authenticator,
        status=status,
        purge=records.cache.purge,
        source_offer=config.source_offer,
        recent=recent,
        metrics_text=context.metrics_text,
        dashboards={name: link for name in DASHBOARDS if (link := getattr(config.http, name)) is not None},
    )
    return IngressParts(services, status, records, replicas, pipelines, metrics, WyomingListener(config.wyoming, services))


def build_speech(
    context: ReplicaContext,
    config: AppConfig,
    records: IngressRecords,
    models: ModelSelector,
    admission: AdmissionLimiter,
    observer: ReplyObserver,
    pipelines: VersionPipelines,
    replicas: Replicas,
    authenticator: Authenticator,
    builds: Mapping[str, str],
) -> SpeechServices:
    """Returns what every request for speech passes; `builds` are those of the versions by id, as reply_build says."""
    return SpeechServices(
        stream=pipelines.stream,
        awake=pipelines.awake,
        voice_id=records.voices.canonical,
        lexicons=records.lexicons,
        limits=config.limits,
        lanes=config.lanes,
        admission=admission,
        idempotency=records.idempotency,
        resuming=Resuming(
            ResumeTokens(records.secret, config.limits.resume_s),
            records.idempotency,
            build=builds.__getitem__,
            engine=pipelines.fingerprint,
        ),
        models=models,
        degrader=Degrader(config.degrade, tags_by_default=config.limits.control_tags == "by_default"),
        observer=observer,
        refusals=RefusalTally(),
        tracing=Tracing(config.tracing, "Ingress", context.replica),
        replaces_unknown_voices=config.voices.unknown == "default",
        load_reports=replicas.load_reports,
        owner=authenticator.owner,
    )


def build_jobs(
    context: ReplicaContext, config: AppConfig, records: IngressRecords, speech: SpeechServices, builds: Mapping[str, str]
) -> JobService:
    """Returns the jobs, whose files are in the configured folder."""
    return JobService(
        config.jobs,
        records.store,
        jobs_folder(config.jobs),
        speech,
        is_leaving=context.is_stopping,
        build=lambda model: builds.get(model, ""),
    )


def build_voices(
    config: AppConfig, records: IngressRecords, speech: SpeechServices, pipelines: VersionPipelines
) -> VoiceService:
    """Returns the voices, which the first version of the model speaks and measures."""
    first = config.versions[0]
    return VoiceService(
        records.voices,
        config.voices,
        speech.stream,
        pipelines,
        model=first.pipeline.checkpoint,
        max_prompt=first.pipeline.engine.max_prompt,
        speaks=speech.models.languages(first.id),
    )


def build_authenticator(
    context: ReplicaContext, config: AppConfig, records: IngressRecords, listens: str | None
) -> Authenticator:
    """Returns the check of keys and quotas, which knows this machine's own address."""
    signer = ResumeTokens(records.secret, config.limits.resume_s)
    return Authenticator(
        records.keys,
        records.quotas,
        is_open=config.keys.open,
        anonymous_scopes=tuple(map(Scope, config.keys.anonymous_scopes)),
        has_open_lists=config.keys.open_lists,
        is_local_peer=local_peer_check(listens=listens, behind_proxy=context.is_behind_proxy, own=context.addresses),
        origins=CrossOriginPolicy(config.http.allowed_hosts, config.http.allowed_origins),
        single_use=SingleUseTokens(signer, records.idempotency),
        proxies=Proxies(config.http.trusted_proxies, haproxies=context.addresses if context.is_behind_proxy else ()),
    )


def background_work(
    context: ReplicaContext, config: AppConfig, parts: IngressParts
) -> Iterator[tuple[str, Coroutine[Any, Any, None]]]:
    """Yields everything the replica does beside its requests, each piece with its name."""
    records, unreadable, period_s = parts.records, parts.status.unreadable, RECORDS_PERIOD_S
    yield "voices", follow("voices", records.voices.refresh, period_s, unreadable)
    yield "lexicons", follow("lexicons", records.lexicons.refresh, period_s, unreadable)
    yield "keys", follow("keys", records.keys.refresh, period_s, unreadable)
    yield "resume tokens", follow("resume tokens", records.secret.refresh, STORE_PERIOD_S, unreadable)
    for name, store in records.stores.items():
        yield name, follow(name, store.probe, STORE_PERIOD_S, unreadable)
    if isinstance(records.quotas, RedisQuotas):
        yield "quotas", records.quotas.follow(unreadable)
    yield "metrics", every_period(partial(parts.status.export, parts.metrics))
    jobs = parts.services.jobs
    yield "metrics of jobs", every_period(lambda: parts.metrics.set_jobs(jobs.waiting_for_disk, jobs.queued_s))
    yield "purges", follow_purges(records.cache, period_s, unreadable)
    for following in parts.pipelines.follow_fingerprints():
        yield "fingerprints", following
    yield "silent stages", parts.replicas.watch_silence()
    yield "jobs", JobRunner(parts.services.jobs, parts.services.speech).run()
    yield "conversations", leave_when_stopped(context.is_stopping, parts.services.conversations, parts.wyoming)
    if config.degrade.steps:
        yield "load", shed_load(parts.services.speech, parts.replicas, parts.metrics)


async def leave_when_stopped(is_stopping: Callable[[], bool], *leavers: Leaver) -> None:
    """Tells them when this replica is about to be stopped; looks every LOOK_S, until cancelled."""
    while True:
        await asyncio.sleep(LOOK_S)
        if is_stopping():
            for leaver in leavers:
                leaver.leave()


async def shed_load(speech: SpeechServices, replicas: Replicas, metrics: IngressMetrics) -> None:
    """Shows the load to the degradation ladder every LOOK_S, until cancelled."""
    admission, degrader, before = speech.admission, speech.degrader, (-1, -1)
    while True:
        now = admission.admitted, admission.in_flight
        queue, took_s, audio_s = replicas.load() if admission.in_flight or now != before else (0.0, 0.0, 0.0)
        before = now  # the end of a speech, and what began and ended since the last look, count too
        degrader.observe(max(queue, admission.in_flight / admission.capacity), took_s, audio_s)
        metrics.set_degradation(degrader.config.steps, degrader.ladder.level)
        await asyncio.sleep(LOOK_S)


async def speak_first_words(speech: SpeechServices) -> float:
    """Synthesises a sentence through the whole chain, again until it succeeds.

    Returns:
        the time to the first audio [s].

    Raises:
        TimeoutError: it has not succeeded within limits.start_timeout_s.
    """
    limit_s = speech.limits.start_timeout_s
    async with asyncio.timeout(limit_s):
        while True:
            request = SynthesisRequest("first-words", FIRST_WORDS, speech.voice_id(None), timeout_s=limit_s)
            began, first_audio_s = time.monotonic(), 0.0
            try:
                async with aclosing(speech.stream(request)) as chunks:
                    async for chunk in chunks:
                        first_audio_s = first_audio_s or time.monotonic() - began
                        if chunk.is_last:
                            return first_audio_s
            except SynthesisError as error:
                LOG.warning("not ready yet: %s", error)
            await asyncio.sleep(RETRY_S)
