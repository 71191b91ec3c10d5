"""Ingress setup: builds the parts of one ingress replica and the work it does beside its requests.

In:    AppConfig, the handles of the deployments behind it
Out:   IngressParts, the background work
Owns:  the order of construction
Never: requests
"""

import asyncio
import logging
import time
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from ray import serve
from ray.serve._private.constants import RAY_SERVE_ENABLE_HA_PROXY
from ray.util import get_node_ip_address

from pipeline.cache.cache import CodeCache
from pipeline.errors import StoreUnavailable, SynthesisError
from pipeline.paths import cache_home
from pipeline.store.open import open_store
from pipeline.store.poll import follow
from pipeline.store.store import Store
from pipeline.text.lexicon.library import LexiconLibrary
from pipeline.types import Refined, SpeechText, SynthesisRequest
from pipeline.voices.catalogue import VoiceCatalogue
from pipeline.voices.library import VoiceLibrary
from serve.access.admission import AdmissionLimiter
from serve.access.api_keys import KeyRing
from serve.access.authentication import Authenticator, local_peer_check
from serve.access.cross_origin import CrossOriginPolicy
from serve.access.keys_marker import marker_for
from serve.access.quotas import LocalQuotas, Quotas
from serve.access.redis_quotas import RedisQuotas
from serve.config.app_config import STORE_FILE, AppConfig, VoicesConfig, project_path
from serve.deployments.ingress_status import IngressStatus
from serve.deployments.replica_info import replica_info
from serve.http.body_reader import BodyReader
from serve.http.services import Services
from serve.observability.metrics.ingress import IngressMetrics
from serve.observability.metrics.registry import every_period
from serve.observability.request_log import RefusalTally
from serve.observability.tracing import Tracing
from serve.remote.code_cache import follow_purges, open_cache
from serve.remote.remote_stages import Handle, RemoteEncoder, ask_capabilities, ask_fingerprint, ask_speakers
from serve.remote.version_pipelines import TEXT, VersionPipelines
from serve.resilience.quarantine import Quarantine
from serve.speech.load_shedding import Degrader
from serve.speech.model_selection import ModelSelector
from serve.speech.recent_overload import RecentOverload
from serve.speech.services import SpeechServices
from serve.versions.rollout import Rollout
from serve.voices.voice_service import VoiceService

LOG = logging.getLogger("ray.serve.chattts")

FIRST_WORDS = "Ready."
RETRY_S = 1.0
LOOK_S = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class IngressParts:
    """The parts of one ingress replica."""

    services: Services
    status: IngressStatus
    rollout: Rollout
    pipelines: VersionPipelines
    cache: CodeCache
    keys: KeyRing
    quotas: Quotas
    metrics: IngressMetrics


class QuarantinedText:
    """http.services.TextServices: the pipelines' answers about a text, under the quarantine's eyes."""

    def __init__(self, quarantine: Quarantine, pipelines: VersionPipelines) -> None:
        self._quarantine = quarantine
        self._pipelines = pipelines

    async def read(self, request: SynthesisRequest) -> SpeechText:
        """The text as it would be spoken."""
        return await self._quarantine.answer(self._pipelines.read, request)

    async def refine(self, request: SynthesisRequest) -> list[Refined]:
        """The refine pass's version of every segment."""
        return await self._quarantine.answer(self._pipelines.refine, request)


async def build_parts(config: AppConfig, stages: Mapping[str, Handle], listens: str | None) -> IngressParts:
    """Build one ingress replica; waits until the stages behind it have loaded their weights.

    Args:
        stages: the deployments behind the ingress, by name.
        listens: the host the service listens on; None: not known.
    """
    acoustic = stages[config.versions[0].acoustic]
    metrics, admission = IngressMetrics(), AdmissionLimiter(config.limits.max_in_flight)
    store = open_records(config.voices)
    library = await open_library(config.voices, await ask_speakers(acoustic), store)
    keys, quotas = await open_keys(config, store)
    cache, idempotency = open_cache(config.cache, store)
    rollout, quarantine, degrader = Rollout(config.versions), Quarantine(config.quarantine), Degrader(config.degrade)
    pipelines = VersionPipelines(
        rollout,
        stages,
        library,
        cache,
        config.breaker,
        fingerprint=await ask_fingerprint(acoustic),
        has_room=lambda share: admission.in_flight <= share * admission.capacity,
        on_result=metrics.compared,
    )
    status = IngressStatus(
        admission=admission,
        degrader=degrader,
        pipelines=pipelines,
        rollout=rollout,
        quarantine=quarantine,
        cache=cache,
        keys=keys,
        quotas=quotas,
    )
    speech = SpeechServices(
        stream=partial(quarantine.stream, pipelines.stream),
        voice_id=library.canonical,
        lexicons=LexiconLibrary(store),
        limits=config.limits,
        lanes=config.lanes,
        admission=admission,
        idempotency=idempotency,
        models=ModelSelector(rollout, await ask_capabilities(stages[TEXT])),
        degrader=degrader,
        overload=RecentOverload(),
        observer=metrics,
        refusals=RefusalTally(),
        tracing=Tracing(config.tracing, "Ingress", replica_info()["replica"]),
    )
    services = Services(
        speech=speech,
        text=QuarantinedText(quarantine, pipelines),
        voices=build_voices(config, library, speech, acoustic, pipelines),
        list_voices=library.list,
        bodies=BodyReader(config.limits),
        authenticator=build_authenticator(config, keys, quotas, listens),
        status=status,
        purge=cache.purge,
        source_offer=config.source_offer,
    )
    return IngressParts(services, status, rollout, pipelines, cache, keys, quotas, metrics)


def open_records(config: VoicesConfig) -> Store:
    """The store of what clients keep. One that cannot be used costs what is in it, never the service."""
    return open_store(str(cache_home() / STORE_FILE) if config.store is None else config.store)


async def open_keys(config: AppConfig, records: Store) -> tuple[KeyRing, Quotas]:
    """The keys, read once, and where their quotas are counted."""
    url = config.keys.store or config.voices.store
    store = records if config.keys.store is None else open_store(config.keys.store)
    # A service that says keys only is closed without a key, whatever there was.
    ring = KeyRing(store, marker_for(store, cache_home()) if config.keys.open is None else None)
    try:
        await asyncio.to_thread(ring.refresh)
    except StoreUnavailable as error:
        LOG.error("keys: %s; nobody is served before they have been read, unless keys.open", error)
    share = LocalQuotas(lambda: serve.get_replica_context().world_size)
    return ring, RedisQuotas(url, share) if url is not None and "://" in url else share


async def open_library(config: VoicesConfig, speakers: tuple[int, NDArray[np.float16] | None], store: Store) -> VoiceLibrary:
    """Catalogue and store, for the speakers of a checkpoint: an embedding's width, and their statistics."""
    catalogue = VoiceCatalogue.load(project_path(config.catalogue), *speakers)
    library = VoiceLibrary(catalogue, store, max_voices=config.max_voices, allow_inline=config.inline)
    try:
        await asyncio.to_thread(library.refresh)
    except StoreUnavailable as error:
        LOG.error("voices: %s; starting with the shipped ones", error)
    return library


def build_voices(
    config: AppConfig, library: VoiceLibrary, speech: SpeechServices, acoustic: Handle, pipelines: VersionPipelines
) -> VoiceService:
    """What makes voices, with the first version of the model."""
    first = config.versions[0]
    return VoiceService(
        library,
        config.voices,
        speech.stream,
        RemoteEncoder(acoustic, pipelines.breakers[first.stage("acoustic")]),
        model=first.pipeline.checkpoint,
        max_prompt=first.pipeline.engine.max_prompt,
        speaks=speech.models.languages(),
    )


def build_authenticator(config: AppConfig, keys: KeyRing, quotas: Quotas, listens: str | None) -> Authenticator:
    """What decides which callers are served."""
    own = (get_node_ip_address(),)  # type: ignore[no-untyped-call]
    return Authenticator(
        keys,
        quotas,
        is_open=config.keys.open,
        is_local_peer=local_peer_check(listens=listens, behind_proxy=RAY_SERVE_ENABLE_HA_PROXY, own=own),
        origins=CrossOriginPolicy(config.http.allowed_hosts, config.http.allowed_origins),
    )


def background_work(config: AppConfig, parts: IngressParts) -> Iterator[tuple[str, Coroutine[Any, Any, None]]]:
    """Everything the replica does beside its requests, each piece with its name."""
    services, unreadable, period_s = parts.services, parts.status.unreadable, config.voices.refresh_s
    yield "voices", services.voices.follow(unreadable)
    yield "lexicons", follow("lexicons", services.speech.lexicons.refresh, period_s, unreadable)
    yield "keys", follow("keys", parts.keys.refresh, config.keys.refresh_s, unreadable)
    if isinstance(parts.quotas, RedisQuotas):
        yield "quotas", parts.quotas.follow()
    yield "metrics", every_period(partial(parts.status.export, parts.metrics))
    yield "purges", follow_purges(parts.cache, period_s, unreadable)
    for following in parts.pipelines.follow_fingerprints():
        yield "fingerprints", following
    yield "silent stages", parts.pipelines.watch_silence()
    if config.degrade.steps:
        yield "load", shed_load(services.speech, parts.pipelines, parts.metrics)


async def shed_load(speech: SpeechServices, pipelines: VersionPipelines, metrics: IngressMetrics) -> None:
    """Let the degradation ladder look at the load, again and again."""
    admission, degrader = speech.admission, speech.degrader
    while True:
        queue, rtf = await pipelines.load() if admission.in_flight else (0.0, 0.0)
        degrader.observe(max(queue, admission.in_flight / admission.capacity), rtf)
        metrics.set_degradation(degrader.ladder.level)
        await asyncio.sleep(LOOK_S)


async def speak_first_words(speech: SpeechServices) -> float:
    """One synthesis through the whole chain, tried until it succeeds.

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
