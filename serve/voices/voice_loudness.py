"""Voice loudness: how loud a voice is, measured once on a sentence of its own, and the gain that levels it in a dialogue.

In:    ids of voices, versions of the model, the service's own synthesis
Out:   gains [dB]
Owns:  what was measured, in memory; what was measured of shipped voices also in the store
Never: a measure that depends on a request's text, seed or moment: equal requests must have equal bytes

A stored voice has had its measure and its gain since it was made, so nothing is added. Any other voice says the sentence of a
preview, with the preview's seed.
"""

import asyncio
from collections import OrderedDict
from dataclasses import replace

from pipeline.audio.loudness import SILENCE_LUFS
from pipeline.types import SchedulingParams
from pipeline.voices.library import VoiceLibrary
from pipeline.voices.measure import loudness_lufs, static_gain_db
from serve.config.model_versions import Version
from serve.voices.voice_sampler import VoiceSampler

MOST_KEPT = 4096  # voices; seeds and blends are without number


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
        self._measured: OrderedDict[tuple[str, str], asyncio.Task[float | None]] = OrderedDict()

    async def gains_db(self, voices: set[str], version: Version, scheduling: SchedulingParams) -> dict[str, float]:
        """Returns the gain of each voice on top of its own.

        Args:
            voices: ids.
            version: of the model that speaks.
            scheduling: of the request that waits for them.

        Raises:
            SynthesisError: a voice could not be measured now.
        """
        if self._target_lufs is None:
            return {}
        names = sorted(name for name in voices if self._library.find(name) is None)
        measured = await asyncio.gather(*(self._lufs(name, version, scheduling) for name in names))
        return {name: static_gain_db(lufs, self._target_lufs) for name, lufs in zip(names, measured, strict=True)}

    async def _lufs(self, name: str, version: Version, scheduling: SchedulingParams) -> float | None:
        """Returns how loud a voice is, measured now if it has not been; requests that come together wait for one measure."""
        key = (name, version.id)
        task = self._measured.get(key)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = self._measured[key] = asyncio.create_task(self._measure(name, version, scheduling))
        self._measured.move_to_end(key)
        if len(self._measured) > MOST_KEPT:
            self._measured.popitem(last=False)
        return await asyncio.shield(task)

    async def _measure(self, name: str, version: Version, scheduling: SchedulingParams) -> float | None:
        shipped, checkpoint = self._library.catalogue.has(name), version.pipeline.checkpoint
        if shipped and (kept := await asyncio.to_thread(self._library.loudness, name, checkpoint)) is not None:
            return kept if kept > SILENCE_LUFS else None
        waits = replace(scheduling, first_audio_s=None)
        samples = await self._sampler.say_preview(name, (), model=version.id, scheduling=waits)
        lufs = await asyncio.to_thread(loudness_lufs, samples)
        if shipped:
            await asyncio.to_thread(self._library.keep_loudness, name, checkpoint, SILENCE_LUFS if lufs is None else lufs)
        return lufs
