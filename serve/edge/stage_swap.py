"""Stage swap: puts another acoustic stage in the place of the one that serves, and goes back if it is no good.

In:    the handle of the stage, what loads another one beside it
Out:   the new stage in service, after a trial; WentBack where it does not stay
Owns:  the trial: what counts as worse
Never: a stream that is cut: a request ends with the stage it has begun with
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from statistics import median
from typing import Any, Protocol

from pipeline.errors import AtCapacity, SynthesisError
from pipeline.spec import STEPS_PER_SECOND
from pipeline.types import SamplingParams
from serve.stages.acoustic_stage import short_prompt

PROBE_TOKEN, PROBE_STEPS = 7, 64  # 1.4 s of audio
PROBE_LIMIT_S = 30.0
PROBES, PROBE_PERIOD_S = 6, 10.0  # of a trial
DECIDING = 3  # the last probes of a trial, whose median decides: the first run beside requests of the old stage
SLOW = 1.0  # real-time factor above which streams stop
MARGIN = 1.1
IDLE_PERIOD_S = 0.2
LONGEST_REQUEST_S = 7200.0  # the greatest limits.total_timeout_s


class WentBack(Exception):
    """A stage was not better than the one before it, which serves again."""


class SwappableHandle(Protocol):
    """serve.local.local_handle.LocalHandle."""

    stage: Any

    def is_used(self, stage: Any) -> bool:
        """True while a request that has begun with a stage goes on."""
        ...


class StageSwap:
    """The acoustic stage of one version."""

    def __init__(self, handle: SwappableHandle, *, period_s: float = PROBE_PERIOD_S) -> None:
        self._handle, self._period_s = handle, period_s
        self._retiring: asyncio.Task[None] | None = None

    async def to(self, load: Callable[[], Awaitable[Any]]) -> None:
        """Loads a stage, directs new requests to it and tries it. The old one is closed when its last request has ended.

        Raises:
            WentBack: it cannot be loaded, does not speak, or streams are about to stop with it and were not before.
        """
        if self._retiring is not None:
            await self._retiring  # never three stages in memory
        old, new = self._handle.stage, None
        before = await self._probe(old)
        try:
            new = await load()
            if await new.traits() != await old.traits():
                raise WentBack("its chunks have other sizes, which the service reads once")
            self._judge([await self._probe(new)], [before])
            self._handle.stage = new
            factors = []
            for _ in range(PROBES):
                await asyncio.sleep(self._period_s)
                new.check_health()
                factors.append(await self._probe(new))
            self._judge(factors[-DECIDING:], [before, await self._probe(old)])  # the load may have changed
        except Exception as error:
            self._handle.stage = old
            if new is not None:
                self._retire(new)
            raise WentBack(f"{type(error).__name__}: {error}" if not isinstance(error, WentBack) else str(error)) from error
        self._retire(old)

    def _judge(self, factors: list[float | None], others: list[float | None]) -> None:
        known = [factor for factor in factors if factor is not None]
        before = max((factor for factor in others if factor is not None), default=0.0)
        if known and median(known) > max(SLOW, MARGIN * before):
            raise WentBack(f"a second of audio takes {median(known):.2f} s with it, and {before:.2f} s without")

    def _retire(self, stage: Any) -> None:
        async def close() -> None:
            with suppress(TimeoutError):
                async with asyncio.timeout(LONGEST_REQUEST_S):
                    while True:
                        if not self._handle.is_used(stage):
                            break
                        await asyncio.sleep(IDLE_PERIOD_S)
            await stage.close()

        self._retiring = asyncio.create_task(close())

    async def _probe(self, stage: Any) -> float | None:
        """Returns the real-time factor of a short speech; None: the stage has no place for it now."""
        began, steps = 0.0, 0
        prompt = short_prompt(PROBE_TOKEN, PROBE_STEPS)
        speech = stage.generate(prompt, SamplingParams(seed=1, min_steps=PROBE_STEPS), PROBE_LIMIT_S, False)
        async with aclosing(speech) as blocks:
            async for block in blocks:
                if isinstance(block, AtCapacity):
                    return None
                if isinstance(block, SynthesisError):
                    raise block
                if began:
                    steps += len(block.codes)
                began = began or time.monotonic()
        return (time.monotonic() - began) * STEPS_PER_SECOND / steps if steps else None
