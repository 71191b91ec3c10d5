"""CachedGenerator: a generator that looks into the cache before it asks the model.

In:    prompts
Out:   StepBlocks, the same bits as without a cache
Owns:  the present fingerprint of the model
Never: an entry of another fingerprint, tenant or purge generation
"""

import time
from collections.abc import AsyncGenerator, Sequence

from pipeline.cache.cache import NOT_THERE, CodeCache, GenerationTerms, terms_for
from pipeline.cache.key import CacheEntryKey, Kept, entry_key_for
from pipeline.errors import NotCached
from pipeline.protocols import CodeGenerator
from pipeline.types import CacheControl, CacheMode, CacheResult, Head, Prompt, SamplingParams, StepBlock


class CachedModel:
    """One model behind the cache."""

    def __init__(self, generator: CodeGenerator, cache: CodeCache, *, payload: Kept, fingerprint: str | None = None) -> None:
        """
        Args:
            payload: what is stored of audio.
            fingerprint: the engine's; None: not known yet, so nothing is stored or found.
        """
        self.cache = cache
        self.fingerprint = fingerprint
        self.generator = generator
        self._payload = payload

    def for_request(self, control: CacheControl) -> "CachedGenerator | None":
        """Returns the generator of one request; None: it does not use the cache.

        Raises:
            NotCached: it accepts cached speech only, and there is none.
        """
        if control.mode is CacheMode.ONLY_IF_CACHED and self.fingerprint is None:
            raise NotCached(NOT_THERE, param="cache")
        if control.mode is CacheMode.NO_STORE or self.fingerprint is None:
            return None
        return CachedGenerator(self, control)

    def entry_key(self, prompt: Prompt, sampling: SamplingParams, tenant: str) -> CacheEntryKey:
        """Returns the key of a prompt's steps at this moment."""
        assert self.fingerprint is not None, "for_request() returns no generator before the fingerprint is known"
        generations = self.cache.generations.of(tenant)
        return entry_key_for(
            prompt, sampling, fingerprint=self.fingerprint, tenant=tenant, generations=generations, payload=self._payload
        )


class CachedGenerator:
    """protocols.CodeGenerator for one request."""

    def __init__(self, model: CachedModel, control: CacheControl) -> None:
        self._model = model
        self._control = control
        self.result = CacheResult.BYPASS
        """where the first segment's steps come from, once the first of them has arrived"""
        self.has_made = False
        """whether the model makes steps of any segment"""

    def generate(
        self, prompt: Prompt, sampling: SamplingParams, *, timeout_s: float, admitted: bool = False
    ) -> AsyncGenerator[StepBlock, None]:
        """Streams the steps of a prompt, from the cache or the model.

        Raises:
            NotCached: a second take, which check() has not looked for.
        """
        model = self._model

        def generate(terms: GenerationTerms) -> AsyncGenerator[StepBlock, None]:
            left_s = terms.deadline - time.monotonic()
            return model.generator.generate(prompt, sampling, timeout_s=left_s, admitted=terms.admitted)

        def on_source(result: CacheResult) -> None:
            self.has_made |= result is CacheResult.MISS
            if prompt.head is Head.CODE and prompt.segment.index == 0:
                self.result = result

        def on_build(fingerprint: str) -> None:
            model.fingerprint = fingerprint

        return model.cache.steps(
            model.entry_key(prompt, sampling, self._control.tenant),
            generate,
            terms_for(timeout_s, prompt.scheduling, admitted=admitted),
            refresh=self._control.mode is CacheMode.REFRESH,
            on_source=on_source,
            on_build=on_build,
            must_be_cached=sampling.attempt > 0 and self._control.mode is CacheMode.ONLY_IF_CACHED,
        )

    async def check(self, prompts: Sequence[Prompt], sampling: SamplingParams) -> None:
        """Checks that a request that accepts cached speech only will find all of it.

        Raises:
            NotCached
        """
        if self._control.mode is not CacheMode.ONLY_IF_CACHED:
            return
        for prompt in prompts:
            drawn = sampling.of(prompt.segment.prosody)
            if not await self._model.cache.has(self._model.entry_key(prompt, drawn, self._control.tenant)):
                raise NotCached(NOT_THERE, param="cache")
