"""Shadow: some requests are spoken once more by another version, for nobody, to compare how long and how loud it speaks.

In:    what a real reply was made of, after its last chunk
Out:   Comparison, to whoever counts them
Owns:  the shadow runs under way
Never: the real reply: it is over before a run begins; a queue: what finds no room is dropped
"""

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pipeline.types import AudioChunk, CacheOrder, Lane, SchedulingParams, SynthesisRequest
from pipeline.voices.measure import loudness_lufs
from serve.config.model_versions import ShadowConfig

LOG = logging.getLogger("ray.serve.chattts")

Stream = Callable[[SynthesisRequest], AsyncGenerator[AudioChunk, None]]


@dataclass(frozen=True, slots=True)
class Comparison:
    """One shadow run."""

    version: str
    result: str
    """compared, dropped, failed"""
    duration_ratio: float | None = None
    """its audio's length over the real one's"""
    loudness_db: float | None = None
    """how much louder it is; None: one of the two has no loudness"""


class Shadow:
    """Of one ingress replica."""

    def __init__(self, stream: Stream, has_room: Callable[[float], bool], told: Callable[[Comparison], None]) -> None:
        """
        Args:
            stream: speaks a request with the version it names.
            has_room: whether no more than a share of the places at the door is taken.
            told: hears of every run, and of every run that was dropped.
        """
        self._stream = stream
        self._has_room = has_room
        self._told = told
        self._running: set[asyncio.Task[None]] = set()
        self._random = random.Random()

    def wanted(self, request: SynthesisRequest, config: ShadowConfig | None) -> bool:
        """Whether this request is one of those that are compared."""
        return config is not None and request.model != config.version and self._random.random() < config.share

    def begin(self, request: SynthesisRequest, heard: list[NDArray[np.float32]], config: ShadowConfig) -> None:
        """Speak it again, in the background, when there is room; returns at once.

        Args:
            heard: the real reply's audio.
        """
        if len(self._running) >= config.max_concurrent or not self._has_room(config.max_load):
            self._told(Comparison(config.version, "dropped"))
            return
        task = asyncio.create_task(self._run(request, heard, config))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _run(self, request: SynthesisRequest, heard: list[NDArray[np.float32]], config: ShadowConfig) -> None:
        version, rate = config.version, request.audio.sample_rate
        name = f"{request.request_id[:100]}.shadow"
        shadow = replace(request, request_id=name, model=version, cache=CacheOrder(), scheduling=SchedulingParams(Lane.BULK))
        spoken: list[NDArray[np.float32]] = []
        try:
            async with aclosing(self._stream(shadow)) as chunks:
                async for chunk in chunks:
                    spoken.append(chunk.samples)
                    if not self._has_room(config.max_load):
                        self._told(Comparison(version, "dropped"))
                        return
            self._told(await asyncio.to_thread(compare, version, heard, spoken, rate))
        except Exception as error:
            LOG.warning("shadow: %s failed: %s", version, type(error).__name__)
            self._told(Comparison(version, "failed"))


def compare(version: str, heard: list[NDArray[np.float32]], spoken: list[NDArray[np.float32]], rate: int) -> Comparison:
    """How the second audio differs from the first."""
    real, shadow = (np.concatenate([np.zeros(0, np.float32), *parts]) for parts in (heard, spoken))
    loudness, other = loudness_lufs(real, rate), loudness_lufs(shadow, rate)
    return Comparison(
        version,
        "compared",
        duration_ratio=len(shadow) / max(1, len(real)),
        loudness_db=None if loudness is None or other is None else other - loudness,
    )
