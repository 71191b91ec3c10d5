"""Shadow: another version synthesises some requests once more, to compare length and loudness of the audio.

In:    request and audio of a real reply, after its last chunk
Out:   Comparison, to a callback
Owns:  the shadow runs in progress
Never: the real reply, which is over before a run begins; a queue: a run without capacity is dropped
"""

import asyncio
import logging
import random
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pipeline.protocols import SpeechStream
from pipeline.types import CacheControl, Lane, SchedulingParams, SynthesisRequest
from pipeline.voices.measure import loudness_lufs
from serve.config.model_versions import ShadowConfig

LOG = logging.getLogger("ray.serve.chattts")


@dataclass(frozen=True, slots=True)
class Comparison:
    """Result of one shadow run."""

    version: str
    result: str
    """compared, dropped, failed"""
    duration_ratio: float | None = None
    """length of its audio, relative to the real one"""
    loudness_db: float | None = None
    """difference in loudness; None: one of the two has none"""


class Shadow:
    """The shadow runs of one ingress replica."""

    def __init__(
        self, stream: SpeechStream, has_room: Callable[[float], bool], on_result: Callable[[Comparison], None]
    ) -> None:
        """
        Args:
            stream: synthesises a request with the version it names.
            has_room: True if at most this share of limits.max_in_flight is in use.
            on_result: called for every run, dropped ones included.
        """
        self._stream = stream
        self._has_room = has_room
        self._on_result = on_result
        self._running: set[asyncio.Task[None]] = set()
        self._random = random.Random()

    def wanted(self, request: SynthesisRequest, config: ShadowConfig | None) -> bool:
        """Draws whether this request is compared."""
        return config is not None and request.model != config.version and self._random.random() < config.share

    def begin(self, request: SynthesisRequest, audio: list[NDArray[np.float32]], config: ShadowConfig) -> None:
        """Synthesises it again in the background if there is capacity; returns at once.

        Args:
            audio: the real reply's samples, in chunks.
        """
        if len(self._running) >= config.max_concurrent or not self._has_room(config.max_load):
            self._on_result(Comparison(config.version, "dropped"))
            return
        task = asyncio.create_task(self._run(request, audio, config))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _run(self, request: SynthesisRequest, audio: list[NDArray[np.float32]], config: ShadowConfig) -> None:
        version, rate = config.version, request.audio.sample_rate
        name = f"{request.request_id[:100]}.shadow"
        shadow = replace(request, request_id=name, model=version, cache=CacheControl(), scheduling=SchedulingParams(Lane.BULK))
        shadow_audio: list[NDArray[np.float32]] = []
        try:
            async with aclosing(self._stream(shadow)) as chunks:
                async for chunk in chunks:
                    shadow_audio.append(chunk.samples)
                    if not self._has_room(config.max_load):
                        self._on_result(Comparison(version, "dropped"))
                        return
            self._on_result(await asyncio.to_thread(compare, version, audio, shadow_audio, rate))
        except Exception as error:
            LOG.warning("shadow: %s failed: %s", version, type(error).__name__)
            self._on_result(Comparison(version, "failed"))


def compare(version: str, audio: list[NDArray[np.float32]], shadow_audio: list[NDArray[np.float32]], rate: int) -> Comparison:
    """Returns how the second audio differs from the first."""
    real, shadow = (np.concatenate([np.zeros(0, np.float32), *parts]) for parts in (audio, shadow_audio))
    loudness, other = loudness_lufs(real, rate), loudness_lufs(shadow, rate)
    return Comparison(
        version,
        "compared",
        duration_ratio=len(shadow) / max(1, len(real)),
        loudness_db=None if loudness is None or other is None else other - loudness,
    )
