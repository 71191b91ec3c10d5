"""Voice loudness: how loud a voice is, measured once on a sentence of its own, and the gain that levels it in a dialogue.

In:    ids of voices, versions of the model, the service's own synthesis
Out:   gains [dB]
Owns:  what was measured, in memory; what was measured of shipped voices also in the store; how many measures run at a time
Never: a measure that depends on a request's text, seed or moment: equal requests must have equal bytes; a measure without a
       request that waits for it; one that nobody pays

The caller whose request begins a measure pays its sentence. Where that cannot pay, the next one that waits begins anew.

A stored voice has had its measure and its gain since it was made, so nothing is added. Any other voice says the sentence of a
preview, with the preview's seed.

A request waits for one voice at a time and holds its place of the admission meanwhile. So there are never more measures than
admitted requests, and a request with many voices lets others have their turn.
"""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, replace

from pipeline.audio.loudness import SILENCE_LUFS
from pipeline.store.threads import ask_store
from pipeline.types import SchedulingParams
from pipeline.voices.library import VoiceLibrary
from pipeline.voices.measure import loudness_lufs, static_gain_db
from serve.access.caller import Caller
from serve.config.model_versions import Version
from serve.errors import ApiError
from serve.voices.voice_sampler import VoiceSampler

MOST_KEPT = 4096  # voices; seeds and blends are without number
MOST_AT_ONCE = 2  # syntheses of this replica: most of the engine's slots stay free for what is listened to


@dataclass(eq=False, slots=True)
class _Measure:
    """A measure that was begun, and how many requests wait for it."""

    task: asyncio.Task[float | None]
    waiting: int = 0

    @property
    def has_result(self) -> bool:
        return self.task.done() and not self.task.cancelled() and self.task.exception() is None


class VoiceLoudness:
    """Measures the voices of a library, each once."""

    def __init__(self, library: VoiceLibrary, sampler: VoiceSampler, target_lufs: float | None) -> None:
        """
        Args:
            target_lufs: to which voices are brought; None: to none.
        """
        self._library = library
        self._sampler = sampler
        self._target_lufs = target_lufs
        self._measures: OrderedDict[tuple[str, str], _Measure] = OrderedDict()
        self._room = asyncio.Semaphore(MOST_AT_ONCE)

    async def gains_db(
        self, voices: set[str], version: Version, scheduling: SchedulingParams, caller: Caller
    ) -> dict[str, float]:
        """Returns the gain of each voice on top of its own, measured one after the other.

        Args:
            voices: ids.
            version: of the model that speaks.
            scheduling: of the request that waits for them.
            caller: who pays the measures that begin with this request.

        Raises:
            SynthesisError: a voice could not be measured now.
            ApiError: 429, its caller cannot pay.
        """
        if self._target_lufs is None:
            return {}
        names = sorted(name for name in voices if self._library.find(name) is None)
        measured = [await self._lufs(name, version, scheduling, caller) for name in names]
        return {name: static_gain_db(lufs, self._target_lufs) for name, lufs in zip(names, measured, strict=True)}

    async def _lufs(self, name: str, version: Version, scheduling: SchedulingParams, caller: Caller) -> float | None:
        """Returns how loud a voice is, measured now if it has not been; requests that come together wait for one measure."""
        key = (name, version.id)
        while True:
            is_payer = key not in self._measures
            if is_payer:
                self._measures[key] = _Measure(asyncio.create_task(self._measure(name, version, scheduling, caller)))
            measure = self._measures[key]
            self._measures.move_to_end(key)
            if len(self._measures) > MOST_KEPT:
                self._measures.popitem(last=False)
            measure.waiting += 1
            try:
                return await asyncio.shield(measure.task)
            except ApiError:
                if is_payer:
                    raise
            finally:
                measure.waiting -= 1
                if measure.task.done() or not measure.waiting:
                    await self._end(key, measure)

    async def _end(self, key: tuple[str, str], measure: _Measure) -> None:
        """Ends a measure that failed, or that no request waits for any more; the next request begins another one."""
        if measure.has_result:
            return
        if self._measures.get(key) is measure:
            del self._measures[key]
        measure.task.cancel()
        await asyncio.gather(measure.task, return_exceptions=True)

    async def _measure(self, name: str, version: Version, scheduling: SchedulingParams, caller: Caller) -> float | None:
        shipped, checkpoint = self._library.catalogue.has(name), version.pipeline.checkpoint
        if shipped and (stored := await ask_store(self._library.loudness, name, checkpoint)) is not None:
            return stored if stored > SILENCE_LUFS else None
        waits = replace(scheduling, first_audio_s=None)
        async with self._room:
            samples = await self._sampler.say_preview(name, (), caller, model=version.id, scheduling=waits)
        lufs = await asyncio.to_thread(loudness_lufs, samples)
        if shipped:
            await ask_store(self._library.keep_loudness, name, checkpoint, SILENCE_LUFS if lufs is None else lufs)
        return lufs
