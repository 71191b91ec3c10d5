"""Steps: a model's generator that looks into the cache first.

In:    prompts
Out:   StepBlocks, the same bits as without a cache
Owns:  which fingerprint of the model is the present one
Never: an entry of another fingerprint, tenant or epoch
"""

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from pipeline.cache.cache import CodeCache, GenerationTerms, terms_for
from pipeline.cache.key import CacheEntryKey, entry_key_for
from pipeline.errors import NotCached
from pipeline.protocols import CodeGenerator
from pipeline.types import CacheControl, CacheMode, CacheResult, Head, Prompt, SamplingParams, StepBlock

NOT_THERE = "this is not in the cache, and the request takes nothing else (only-if-cached)"


class CachedModel:
    """One model behind the cache."""

    def __init__(self, generator: CodeGenerator, cache: CodeCache, *, hidden: bool, fingerprint: str | None = None) -> None:
        """
        Args:
            hidden: the vocoder reads hidden states, so they are kept beside the codes.
            fingerprint: what makes the steps; None: not known yet, nothing is kept or found.
        """
        self.cache = cache
        self.fingerprint = fingerprint
        self._generator = generator
        self._hidden = hidden

    def of(self, order: CacheControl) -> "CachedSteps | None":
        """The generator of one request; None: it wants nothing of the cache.

        Raises:
            NotCached: it wants nothing else, and there is nothing.
        """
        if order.mode is CacheMode.ONLY_IF_CACHED and self.fingerprint is None:
            raise NotCached(NOT_THERE, param="cache")
        if order.mode is CacheMode.NO_STORE or self.fingerprint is None:
            return None
        return CachedSteps(self, order)

    def place(self, prompt: Prompt, sampling: SamplingParams, tenant: str) -> CacheEntryKey:
        """Where the steps of a prompt are kept, now."""
        assert self.fingerprint is not None, "of() gives nobody a generator before the fingerprint is known"
        # Nobody hears a refined text's hidden states.
        hidden = self._hidden and prompt.head is Head.CODE
        generations = self.cache.generations.of(tenant)
        return entry_key_for(
            prompt, sampling, fingerprint=self.fingerprint, tenant=tenant, generations=generations, hidden=hidden
        )

    async def make(self, prompt: Prompt, sampling: SamplingParams, terms: GenerationTerms) -> AsyncGenerator[StepBlock, None]:
        """The steps from the model itself."""
        steps = self._generator.generate(prompt, sampling, timeout_s=terms.deadline - time.monotonic(), admitted=terms.admitted)
        async with aclosing(steps):
            async for block in steps:
                if block.finish is not None:
                    self.fingerprint = block.fingerprint
                yield block


class CachedSteps:
    """protocols.CodeGenerator for one request."""

    def __init__(self, model: CachedModel, order: CacheControl) -> None:
        self._model = model
        self._order = order
        self.result = CacheResult.BYPASS
        """where the first segment's steps come from, once the first of them is there"""

    async def generate(
        self, prompt: Prompt, sampling: SamplingParams, *, timeout_s: float, admitted: bool = False
    ) -> AsyncGenerator[StepBlock, None]:
        """See protocols.CodeGenerator."""

        def on_source(result: CacheResult) -> None:
            if prompt.head is Head.CODE and prompt.segment.index == 0:
                self.result = result

        steps = self._model.cache.steps(
            self._model.place(prompt, sampling, self._order.tenant),
            lambda terms: self._model.make(prompt, sampling, terms),
            terms_for(timeout_s, prompt.scheduling, admitted=admitted),
            refresh=self._order.mode is CacheMode.REFRESH,
            on_source=on_source,
        )
        async with aclosing(steps):
            async for block in steps:
                yield block

    async def check(self, prompts: Sequence[Prompt], sampling: SamplingParams) -> None:
        """See that a request that takes nothing else finds all of it.

        Raises:
            NotCached
        """
        if self._order.mode is not CacheMode.ONLY_IF_CACHED:
            return
        for prompt in prompts:
            if not await self._model.cache.has(self._model.place(prompt, sampling, self._order.tenant)):
                raise NotCached(
                    "this speech is not in the cache, and the request takes no other (only-if-cached)", param="cache"
                )
