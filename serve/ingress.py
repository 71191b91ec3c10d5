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

from pipeline.checkpoints import cache_home
from pipeline.errors import StoreUnavailable, SynthesisError
from pipeline.store.choose import open_store
from pipeline.store.store import Store
from pipeline.text.lexicons import LexiconLibrary
from pipeline.types import SynthesisRequest
from pipeline.voices.catalogue import VoiceCatalogue
from pipeline.voices.library import VoiceLibrary
from serve.api import create_api
from serve.backend import Backend
from serve.cache import follow_purges, open_cache
from serve.config import STORE_FILE, AppConfig, VoicesConfig, explain, project_path
from serve.degrader import Degrader
from serve.door import Door
from serve.following import follow
from serve.gate import Gate, trust
from serve.handles import Handle, RemoteEncoder, ask_build, ask_speakers
from serve.keys import KeyRing
from serve.lines import Lines
from serve.metrics import IngressMetrics, every_period
from serve.model_config import RoutesConfig, wrong_routes
from serve.model_desk import ModelDesk
from serve.placement import placed
from serve.quarantine import Quarantine
from serve.quotas import LocalQuotas, Quotas
from serve.quotas_redis import RedisQuotas
from serve.rollout import Rollout
from serve.tracing import Tracing
from serve.voice_desk import VoiceDesk

LOG = logging.getLogger("ray.serve.chattts")

FIRST_WORDS = "Ready."
RETRY_S = 1.0
LOOK_S = 1.0


def build_api() -> FastAPI:
    """The routes over the replica they run in. Serve's server announces the request id itself."""

    def backend() -> Backend:
        replica: Any = serve.get_replica_context().servable_object
        found: Backend = replica.backend
        return found

    return create_api(backend, announce_request_id=False)


async def open_records(config: VoicesConfig) -> Store | None:
    """The store of what clients keep. One that cannot be opened costs what is in it, never the service."""
    url = str(cache_home() / STORE_FILE) if config.store is None else config.store
    try:
        return await asyncio.to_thread(open_store, url)
    except StoreUnavailable as error:
        LOG.warning("store: %s; nothing can be kept (voices.store)", error.message)
        return None


async def open_keys(config: AppConfig, records: Store | None) -> tuple[KeyRing, Quotas]:
    """The keys, read once, and where their quotas are counted."""
    url = config.keys.store or config.voices.store
    store = records
    if config.keys.store is not None:
        try:
            store = await asyncio.to_thread(open_store, config.keys.store)
        except StoreUnavailable as error:
            LOG.warning("keys: %s (keys.store)", error.message)
            store = None
    ring = KeyRing(store)
    try:
        await asyncio.to_thread(ring.refresh)
    except StoreUnavailable as error:
        LOG.warning("keys: %s; nobody is served before they have been read, unless keys.open", error.message)
    share = LocalQuotas(lambda: serve.get_replica_context().world_size)
    return ring, RedisQuotas(url, share) if url is not None and "://" in url else share


async def open_library(
    config: VoicesConfig, speakers: tuple[int, NDArray[np.float16] | None], store: Store | None
) -> VoiceLibrary:
    """Catalogue and store, for the speakers of a checkpoint: an embedding's width, and their statistics."""
    catalogue = VoiceCatalogue.load(project_path(config.catalogue), *speakers)
    library = VoiceLibrary(catalogue, store, max_voices=config.max_voices, allow_inline=config.inline)
    try:
        await asyncio.to_thread(library.refresh)
    except StoreUnavailable as error:
        LOG.warning("voices: %s; starting with the shipped ones", error.message)
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
        store = await open_records(config.voices)
        voices = await open_library(config.voices, await ask_speakers(acoustic), store)
        self._lexicons = LexiconLibrary(store)
        self._quarantine = Quarantine(config.quarantine)
        ring, quotas = await open_keys(config, store)
        self._quotas = quotas
        trusts = trust(listens=listens, behind_proxy=RAY_SERVE_ENABLE_HA_PROXY, own=(get_node_ip_address(),))  # type: ignore[no-untyped-call]
        cache, idempotency = open_cache(config.cache, store)
        self._cache = cache
        self._rollout = rollout = Rollout(config.versions)
        self._routes_error = ""
        watch = IngressMetrics()
        door = Door(config.limits.max_in_flight)
        self._lines = lines = Lines(
            rollout,
            stages,
            voices,
            cache,
            config.breaker,
            build=await ask_build(acoustic),
            has_room=lambda share: door.inside <= share * door.places,
            told=watch.compared,
        )
        stream = partial(self._quarantine.stream, lines.stream)
        self.backend = Backend(
            stream=stream,
            voice_id=voices.canonical,
            read=lines.read,
            refine=partial(self._quarantine.answer, lines.refine),
            lexicons=self._lexicons,
            voices=voices.list,
            desk=VoiceDesk(
                voices,
                config.voices,
                stream,
                RemoteEncoder(acoustic, lines.breakers[first.stage("acoustic")]),
                model=first.pipeline.checkpoint,
                max_prompt=first.pipeline.engine.max_prompt,
            ),
            limits=config.limits,
            door=door,
            why_not_ready=self._why_not_ready,
            health=self._health,
            purge=cache.purge,
            idempotency=idempotency,
            models=ModelDesk(rollout),
            offer=config.offer,
            degrader=Degrader(config.degrade),
            watch=watch,
            lanes=config.lanes,
            gate=Gate(ring, quotas, is_open=config.keys.open, trusts=trusts),
            tracing=Tracing(config.tracing, "Ingress", placed()["replica"]),
        )
        self._following = (
            asyncio.create_task(self.backend.desk.follow()),
            asyncio.create_task(follow("lexicons", self._lexicons.refresh, config.voices.refresh_s)),
            asyncio.create_task(follow("keys", ring.refresh, config.keys.refresh_s)),
            *([asyncio.create_task(quotas.follow())] if isinstance(quotas, RedisQuotas) else []),
            asyncio.create_task(every_period(partial(self._show, watch))),
            asyncio.create_task(follow_purges(cache, config.voices.refresh_s)),
            *lines.follow_builds(),
            *([asyncio.create_task(self._look_at_load(watch))] if config.degrade.rungs else []),
        )
        self._first_audio_s = await self._speak_first_words()
        if len(config.versions) > 1:
            await lines.look()  # before the first request: a version without replicas would keep it waiting
            self._following += (asyncio.create_task(lines.probe()),)

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
        watch.present(self.backend.door.inside)  # told too, but Ray forgets a gauge nobody sets
        watch.show_quotas(self._quotas.is_away)
        watch.show_cache(asdict(self._cache.stats()))
        watch.show(self._lines.breakers.values(), self._quarantine, self._rollout)

    async def _look_at_load(self, watch: IngressMetrics) -> None:
        """Climb and descend the degrade ladder."""
        door, degrader = self.backend.door, self.backend.degrader
        while True:
            queue, rtf = await self._lines.load() if door.inside else (0.0, 0.0)
            degrader.observe(max(queue, door.inside / door.places), rtf)
            watch.degraded(degrader.ladder.level)
            await asyncio.sleep(LOOK_S)

    async def _speak_first_words(self) -> float:
        """One synthesis through the whole chain; Serve sends this replica no request before it is done.

        Returns:
            the seconds it took to the first audio.
        """
        limit_s = self.backend.limits.start_timeout_s
        async with asyncio.timeout(limit_s):
            while True:
                request = SynthesisRequest("first-words", FIRST_WORDS, self.backend.voice_id(None), timeout_s=limit_s)
                began, first_audio_s = time.monotonic(), 0.0
                try:
                    async with aclosing(self.backend.stream(request)) as chunks:
                        async for chunk in chunks:
                            first_audio_s = first_audio_s or time.monotonic() - began
                            if chunk.is_last:
                                return first_audio_s
                except SynthesisError as error:
                    LOG.warning("not ready yet: %s", error)
                await asyncio.sleep(RETRY_S)

    async def drain(self) -> int:
        """Take nothing new; returns how many requests are still inside. See scripts/drain.py."""
        return self.backend.door.close()

    async def _why_not_ready(self) -> str | None:
        if self.backend.door.closed:
            return "draining"
        silent = await self._lines.silent()
        return f"no answer from {' and '.join(silent)}" if silent else None

    async def _health(self) -> dict[str, Any]:
        acoustic, vocoder = await asyncio.gather(self._lines.stats("acoustic"), self._lines.stats("vocoder"))
        rollout = self._rollout
        return {
            "first_audio_s": round(self._first_audio_s, 3),
            "cache": asdict(self._cache.stats()),
            "acoustic": acoustic,
            "vocoder": vocoder,
            "breakers": {stage: breaker.shown() for stage, breaker in self._lines.breakers.items()},
            "quarantine": self._quarantine.shown(),
            "degrade": {"level": self.backend.degrader.ladder.level, "given_up": self.backend.degrader.ladder.rungs},
            "versions": {version: rollout.shown(version) for version in rollout.versions},
            **({"routes_error": self._routes_error} if self._routes_error else {}),
        }
