"""Ingress: the routes and the spine, deployed.

In:    HTTP, through Serve
Out:   HTTP
Owns:  one Synthesizer over handles, the door, whether the chain has spoken
Never: torch, mathematics
"""

import asyncio
import logging
import time
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np
from fastapi import FastAPI
from numpy.typing import NDArray
from pydantic import ValidationError
from ray import serve
from ray.serve._private.constants import RAY_SERVE_ENABLE_HA_PROXY
from ray.util import get_node_ip_address

from pipeline.errors import StoreUnavailable, SynthesisError
from pipeline.paths import cache_home
from pipeline.store.open import open_store
from pipeline.store.poll import follow
from pipeline.store.store import Store
from pipeline.text.lexicon.library import LexiconLibrary
from pipeline.types import SynthesisRequest
from pipeline.voices.catalogue import VoiceCatalogue
from pipeline.voices.library import VoiceLibrary
from serve.access.admission import AdmissionLimiter
from serve.access.api_keys import LOST, KeyRing
from serve.access.authentication import Authenticator, local_peer_check
from serve.access.cross_origin import CrossOriginPolicy
from serve.access.keys_marker import marker_for
from serve.access.quotas import LocalQuotas, Quotas
from serve.access.redis_quotas import RedisQuotas
from serve.config.app_config import STORE_FILE, AppConfig, VoicesConfig, project_path
from serve.config.messages import explain
from serve.config.model_versions import RoutesConfig, wrong_routes
from serve.deployments.background_tasks import Background
from serve.deployments.replica_info import replica_info
from serve.http.api import create_api
from serve.http.body_reader import BodyReader
from serve.http.services import Services
from serve.observability.metrics.ingress import IngressMetrics
from serve.observability.metrics.registry import every_period
from serve.observability.tracing import Tracing
from serve.remote.code_cache import follow_purges, open_cache
from serve.remote.remote_stages import Handle, RemoteEncoder, ask_fingerprint, ask_speakers, ask_taught
from serve.remote.version_pipelines import VersionPipelines, fullest_gpu
from serve.resilience.quarantine import Quarantine
from serve.speech.load_shedding import Degrader
from serve.speech.model_selection import ModelSelector
from serve.versions.rollout import Rollout
from serve.voices.voice_service import VoiceService

LOG = logging.getLogger("ray.serve.chattts")

FIRST_WORDS = "Ready."
RETRY_S = 1.0
LOOK_S = 1.0


def build_api() -> FastAPI:
    """The routes over the replica they run in. Serve's server announces the request id itself."""

    def services() -> Services:
        replica: Any = serve.get_replica_context().servable_object
        found: Services = replica.services
        return found

    return create_api(services, announce_request_id=False)


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


@serve.deployment(name="Ingress")
@serve.ingress(build_api)
class Ingress:
    """Takes requests once the whole chain has spoken a sentence."""

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, config: AppConfig, stages: Mapping[str, Handle], listens: str | None
    ) -> None:
        """Args:
        stages: the deployments behind this one, by name.
        """
        first = config.versions[0]
        acoustic = stages[first.acoustic]
        store = open_records(config.voices)
        voices = await open_library(config.voices, await ask_speakers(acoustic), store)
        self._lexicons = LexiconLibrary(store)
        self._quarantine = Quarantine(config.quarantine)
        ring, quotas = await open_keys(config, store)
        self._quotas = quotas
        is_local_peer = local_peer_check(listens=listens, behind_proxy=RAY_SERVE_ENABLE_HA_PROXY, own=(get_node_ip_address(),))  # type: ignore[no-untyped-call]
        cache, idempotency = open_cache(config.cache, store)
        self._cache = cache
        self._rollout = rollout = Rollout(config.versions)
        self._routes_error = ""
        watch = IngressMetrics()
        admission = AdmissionLimiter(config.limits.max_in_flight)
        self._pipelines = pipelines = VersionPipelines(
            rollout,
            stages,
            voices,
            cache,
            config.breaker,
            fingerprint=await ask_fingerprint(acoustic),
            has_room=lambda share: admission.in_flight <= share * admission.capacity,
            on_result=watch.compared,
        )
        stream = partial(self._quarantine.stream, pipelines.stream)
        models = ModelSelector(rollout, await ask_taught(stages["TextNormalizer"]))
        self.services = Services(
            stream=stream,
            voice_id=voices.canonical,
            read=partial(self._quarantine.answer, pipelines.read),
            refine=partial(self._quarantine.answer, pipelines.refine),
            lexicons=self._lexicons,
            list_voices=voices.list,
            voices=VoiceService(
                voices,
                config.voices,
                stream,
                RemoteEncoder(acoustic, pipelines.breakers[first.stage("acoustic")]),
                model=first.pipeline.checkpoint,
                max_prompt=first.pipeline.engine.max_prompt,
                speaks=models.languages(),
            ),
            limits=config.limits,
            bodies=BodyReader(config.limits),
            admission=admission,
            why_not_ready=self._why_not_ready,
            health=self._health,
            purge=cache.purge,
            idempotency=idempotency,
            models=models,
            source_offer=config.source_offer,
            degrader=Degrader(config.degrade),
            observer=watch,
            lanes=config.lanes,
            authenticator=Authenticator(
                ring,
                quotas,
                is_open=config.keys.open,
                is_local_peer=is_local_peer,
                origins=CrossOriginPolicy(config.http.allowed_hosts, config.http.allowed_origins),
            ),
            tracing=Tracing(config.tracing, "Ingress", replica_info()["replica"]),
        )
        self._ring = ring
        self._away: dict[str, str] = {}  # why which records cannot be read now
        self._background = background = Background()
        background.start("voices", self.services.voices.follow(self._away))
        background.start("lexicons", follow("lexicons", self._lexicons.refresh, config.voices.refresh_s, self._away))
        background.start("keys", follow("keys", ring.refresh, config.keys.refresh_s, self._away))
        if isinstance(quotas, RedisQuotas):
            background.start("quotas", quotas.follow())
        background.start("metrics", every_period(partial(self._show, watch)))
        background.start("purges", follow_purges(cache, config.voices.refresh_s, self._away))
        for following in pipelines.follow_fingerprints():
            background.start("fingerprints", following)
        background.start("silent stages", pipelines.watch_silence())
        if config.degrade.steps:
            background.start("load", self._look_at_load(watch))
        self._first_audio_s = await self._speak_first_words()
        await pipelines.probe_once()  # before the first request: a version without replicas would keep it waiting
        background.start("probes", pipelines.probe())

    def reconfigure(self, user_config: dict[str, Any]) -> None:
        """New shares of the versions, without a restart. Ones that are wrong change nothing: requests go on as before."""
        try:
            routes = RoutesConfig.model_validate(user_config)
            mistakes = list(wrong_routes(routes, tuple(self._rollout.versions.values())))
        except ValidationError as error:
            mistakes = explain(RoutesConfig, error, "user_config")
        self._routes_error = "; ".join(mistakes)
        if mistakes:
            LOG.error("versions: the weights stay as they were: %s", self._routes_error)
        else:
            self._rollout.configure(routes)

    def _show(self, watch: IngressMetrics) -> None:
        """Every figure that is looked at, not told."""
        watch.in_flight_changed(self.services.admission.in_flight)  # told too, but Ray forgets a gauge nobody sets
        watch.set_quotas(self._quotas.is_away)
        watch.set_cache(asdict(self._cache.stats()))
        watch.set_policies(self._pipelines.breakers.values(), self._quarantine, self._rollout)

    async def _look_at_load(self, watch: IngressMetrics) -> None:
        """Climb and descend the degrade ladder."""
        admission, degrader = self.services.admission, self.services.degrader
        while True:
            queue, rtf = await self._pipelines.load() if admission.in_flight else (0.0, 0.0)
            degrader.observe(max(queue, admission.in_flight / admission.capacity), rtf)
            watch.set_degradation(degrader.ladder.level)
            await asyncio.sleep(LOOK_S)

    async def _speak_first_words(self) -> float:
        """One synthesis through the whole chain; Serve sends this replica no request before it is done.

        Returns:
            the seconds it took to the first audio.
        """
        limit_s = self.services.limits.start_timeout_s
        async with asyncio.timeout(limit_s):
            while True:
                request = SynthesisRequest("first-words", FIRST_WORDS, self.services.voice_id(None), timeout_s=limit_s)
                began, first_audio_s = time.monotonic(), 0.0
                try:
                    async with aclosing(self.services.stream(request)) as chunks:
                        async for chunk in chunks:
                            first_audio_s = first_audio_s or time.monotonic() - began
                            if chunk.is_last:
                                return first_audio_s
                except SynthesisError as error:
                    LOG.warning("not ready yet: %s", error)
                await asyncio.sleep(RETRY_S)

    def check_health(self) -> None:
        """Serve replaces the replica when this raises three times in a row, or its loop is too busy to answer."""
        self._background.check()

    async def drain(self) -> int:
        """Take nothing new; returns how many requests are still inside. See scripts/operate/drain.py."""
        return self.services.admission.close()

    async def _why_not_ready(self) -> str | None:
        if self.services.admission.closed:
            return "draining"
        silent = await self._pipelines.unresponsive()
        return f"no answer from {' and '.join(silent)}" if silent else None

    async def _health(self) -> dict[str, Any]:
        text, acoustic, vocoder = await asyncio.gather(*map(self._pipelines.stats, ("text", "acoustic", "vocoder")))
        rollout = self._rollout
        return {
            "first_audio_s": round(self._first_audio_s, 3),
            "cache": asdict(self._cache.stats()),
            "stores": self._away | ({"keys": LOST} if self._ring.are_lost else {}),
            "gpu_mem_percent": fullest_gpu((*acoustic, *vocoder)),
            "text": text,
            "acoustic": acoustic,
            "vocoder": vocoder,
            "breakers": {stage: breaker.summary() for stage, breaker in self._pipelines.breakers.items()},
            "quarantine": self._quarantine.summary(),
            "degrade": {
                "level": self.services.degrader.ladder.level,
                "active_steps": self.services.degrader.ladder.active_steps,
            },
            "versions": {version: rollout.summary(version) for version in rollout.versions},
            **({"routes_error": self._routes_error} if self._routes_error else {}),
        }
