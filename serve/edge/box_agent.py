"""Box agent: keeps a service in one process at what its center has signed for it.

In:    messages of a broker; files of the center
Out:   the state of the box, retained; other stages in place of the one that serves
Owns:  what the box runs, and which manifest it follows
Never: an end of the service: whatever a broker, a center or a file brings is a sentence in the state
"""

import asyncio
import json
import logging
import shutil
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiomqtt
import psutil

from pipeline.checkpoint.locate import resolve
from pipeline.config import PipelineConfig
from pipeline.errors import CheckpointError
from pipeline.spec import STEPS_PER_SECOND
from serve.config.edge import EdgeConfig
from serve.edge.box_folder import MOST_TRIES, BoxFolder, BoxTrouble, Superseded
from serve.edge.broker_link import STATE, TARGET, stay_connected
from serve.edge.download import FetchError, RetryPolicy
from serve.edge.signed_manifest import Manifest, ManifestRefused, Variant, open_manifest, read_public_key
from serve.edge.stage_swap import StageSwap, SwappableHandle, WentBack

LOG = logging.getLogger("ray.serve.chattts")

AWAY, AWAY_S = b'{"online": false}', 1.0
STATE_PERIOD_S = 30.0
MESSAGE_PAUSE_S = 0.5  # after a refused message: they must take neither a core nor the log
RETRIES = RetryPolicy(first_pause_s=2.0, longest_pause_s=300.0)
MEMORY_TIMES, MEMORY_BYTES = 2, 64 << 20  # a stage takes at most so many times its files, and so much beside them
MOST_LETTERS = 300  # of a sentence in the state


class BoxAgent:
    """The agent of one box."""

    def __init__(
        self,
        config: EdgeConfig,
        base: PipelineConfig,
        home: Path,
        handle: SwappableHandle,
        load: Callable[[PipelineConfig], Awaitable[Any]],
        health: Callable[[], Awaitable[Mapping[str, Any]]],
        *,
        swap: StageSwap | None = None,
    ) -> None:
        """
        Args:
            base: the settings that the service has started with.
            home: $CHATTTS_HOME.
            handle: of the acoustic stage.
            load: returns a stage with these settings, warm.
            health: what /health says.

        Raises:
            ConfigError: edge.key is none.
            OSError: the home cannot be written.
        """
        self._config, self._base, self._load, self._health = config, base, load, health
        self._key = read_public_key(Path(config.key or "").expanduser())
        self._folder = BoxFolder(home / "edge", resolve(base.checkpoint, home))
        self._swap = swap or StageSwap(handle)
        self._manifest: Manifest | None = None
        self._stop = threading.Event()
        self._news, self._changed = asyncio.Event(), asyncio.Event()
        self._running: Variant | None = None
        self._link, self._problem, self._went_back = 0.0, "", ""

    async def run(self) -> None:
        """Works until cancelled."""
        with suppress(ManifestRefused):  # of another key, or none yet
            self._manifest = open_manifest(self._folder.record.message.encode(), self._key, self._config.name)
        will = aiomqtt.Will(STATE.format(self._config.name), AWAY, qos=1, retain=True)
        while True:
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(stay_connected(self._config, self._talk, will))
                    group.create_task(self._follow())
            except Exception:  # a defect here must not end the service
                LOG.exception("edge: the agent of this box begins again")
            finally:
                self._stop.set()
            await asyncio.sleep(RETRIES.longest_pause_s)

    async def _talk(self, client: aiomqtt.Client) -> None:
        """Reads manifests and publishes the state, as long as the connection lasts."""
        topic = STATE.format(self._config.name)
        await client.subscribe(TARGET.format(self._config.name), qos=1)
        reading = asyncio.create_task(self._read(client))
        try:
            while not reading.done():
                await client.publish(topic, json.dumps(await self.state()), qos=1, retain=True)
                changed = asyncio.create_task(self._changed.wait())
                await asyncio.wait({reading, changed}, timeout=STATE_PERIOD_S, return_when=asyncio.FIRST_COMPLETED)
                changed.cancel()
                self._changed.clear()
            await reading
        finally:
            reading.cancel()
            with suppress(Exception):
                await client.publish(topic, AWAY, qos=1, retain=True, timeout=AWAY_S)

    async def _read(self, client: aiomqtt.Client) -> None:
        async for message in client.messages:
            try:
                await self.accept(bytes(message.payload))
            except (ManifestRefused, OSError, ValueError, TypeError) as refusal:
                self._say(str(refusal))
                await asyncio.sleep(MESSAGE_PAUSE_S)

    async def accept(self, message: bytes) -> None:
        """Follows the manifest of a message from now on.

        Raises:
            ManifestRefused: it is none for this box, or not newer than the one that the box follows.
            OSError: it cannot be remembered.
        """
        manifest = open_manifest(message, self._key, self._config.name)
        record = self._folder.record
        if manifest.serial < record.serial or (manifest.serial == record.serial and message.decode() != record.message):
            raise ManifestRefused(f"a manifest with the serial number {manifest.serial}; this box has had {record.serial}")
        if manifest != self._manifest:
            await asyncio.to_thread(self._folder.remember, serial=manifest.serial, message=message.decode())
            self._manifest = manifest
            self._stop.set()
            self._news.set()

    async def state(self) -> dict[str, Any]:
        """Returns what the center reads."""
        health, memory = await self._health(), psutil.virtual_memory()
        engine: Mapping[str, Any] = next(iter(health["acoustic"]), {})
        rtf = engine.get("round_s", 0.0) / self._base.engine.steps_per_round * STEPS_PER_SECOND
        return {
            "online": True,
            "build": engine.get("fingerprint", ""),
            "variant": self._running.name if self._running else "",
            "variant_id": self._running.id if self._running else "",
            "serial": self._folder.record.serial,
            "failed": self._folder.failed,
            "problem": self._problem,
            "went_back": self._went_back,
            "rtf": round(rtf, 3) or None,
            "waiting": engine.get("waiting", 0),
            "degrade": health["degrade"],
            "memory_mib": memory.total >> 20,
            "free_memory_mib": memory.available >> 20,
            "free_disk_mib": shutil.disk_usage(self._folder.root).free >> 20,
            "link_kib_per_s": round(self._link / 1024, 1) or None,
        }

    async def _follow(self) -> None:
        """Does what the manifest says; after a fault again, later each time."""
        failures = 0
        while True:
            self._news.clear()
            manifest, self._stop = self._manifest, threading.Event()
            pause_s = None
            try:
                if manifest is not None:
                    await self._advance(manifest, self._stop)
                failures = 0
            except Superseded:
                continue
            except (FetchError, BoxTrouble, CheckpointError, OSError) as trouble:
                failures += 1
                pause_s = RETRIES.pause_s(min(failures, 16))
                self._say(str(trouble))
            else:
                self._say("")
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._news.wait()

    async def _advance(self, manifest: Manifest, stop: threading.Event) -> None:
        """Takes each variant into service as soon as it is complete, the lightest first; returns when the last one is."""
        await asyncio.to_thread(self._folder.keep_only, manifest.variants, self._running)
        while True:
            left = list(self._untried(manifest))
            complete = [variant for variant in left if await asyncio.to_thread(self._folder.has, variant)]
            if complete and complete[-1] != self._running:
                await self._take(complete[-1])
                continue
            missing = left[left.index(complete[-1]) + 1 :] if complete else left
            if not missing:
                return
            rate = await asyncio.to_thread(self._folder.fetch, missing[0], manifest.url, stop)
            self._link = rate or self._link

    def _untried(self, manifest: Manifest) -> Iterator[Variant]:
        failed = self._folder.failed
        return (variant for variant in manifest.variants if variant.id not in failed)

    async def _take(self, variant: Variant) -> None:
        """Puts a complete variant in the place of what serves, or remembers that it does not do."""
        available, needed = psutil.virtual_memory().available, MEMORY_TIMES * variant.size + MEMORY_BYTES
        if available < needed:
            raise BoxTrouble(
                f"{variant.name} may need {needed >> 20} MiB of memory beside what serves; free are {available >> 20}"
            )
        folder, tries = await asyncio.to_thread(self._folder.open, variant), self._folder.record.tries.get(variant.id, 0)

        async def load() -> Any:
            return await self._load(variant.settings(self._base, folder))

        await asyncio.to_thread(self._folder.count, variant, tries + 1)  # a process that dies in the trial has tried it
        try:
            await self._swap.to(load)
        except WentBack as reason:
            await asyncio.to_thread(self._folder.count, variant, MOST_TRIES)
            self._went_back = f"{variant.name}: {reason}"[:MOST_LETTERS]
            LOG.error("edge: went back from %s", self._went_back)
        except asyncio.CancelledError:
            self._folder.count(variant, tries)
            raise
        else:
            await asyncio.to_thread(self._folder.count, variant, 0)
            LOG.warning("edge: %s serves", variant.name)
            self._running = variant
        self._changed.set()

    def _say(self, problem: str) -> None:
        """Tells the center, and the log, what is in the way; empty: nothing."""
        problem = problem[:MOST_LETTERS]
        if problem and problem != self._problem:
            LOG.warning("edge: %s", problem)
        if problem != self._problem:
            self._problem = problem
            self._changed.set()
