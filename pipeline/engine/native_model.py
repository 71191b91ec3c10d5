"""Native model: a CPU's prompts and steps as calls into machine code; needs no torch.

In:    newly scheduled sequences; the steps of a round
Out:   the runner's arrays, changed in place
Owns:  the packed weights, both vocabularies
Never: which slots are active, the results of a round (cpu_runner.py)
"""

from collections.abc import Sequence as Ordered

import numpy as np
from numpy.typing import NDArray

from pipeline.checkpoint.weights import Checkpoint
from pipeline.config import EngineConfig
from pipeline.engine.cpu_state import SlotState
from pipeline.engine.kv_cache import Arrays
from pipeline.engine.scheduler import Plan
from pipeline.engine.sequence import Sequence, slot_of
from pipeline.model.cpu.native import NativeDecoder
from pipeline.model.cpu.native_step import NativeStep
from pipeline.model.cpu.vocabulary import Vocabulary
from pipeline.native.threads import default_threads


class NativeModel:
    """The model of a CPU's runner, in C++."""

    def __init__(self, config: EngineConfig, checkpoint: Checkpoint, state: SlotState, cache: Arrays) -> None:
        """
        Raises:
            NativeUnavailable: this machine, or a model of these dimensions, cannot use it.
        """
        self._cache = cache
        self._vocabulary = Vocabulary(checkpoint.embed())
        self._decoder = NativeDecoder(
            checkpoint.gpt(),
            checkpoint.gpt_spec,
            positions=config.positions,
            rows=config.slots,
            weights=config.dtype if config.weights == "dtype" else config.weights,
            threads=config.threads or default_threads(),
        )
        self._step = NativeStep(self._decoder, self._vocabulary, *state.native(), cache)

    def prefill(self, sequences: Ordered[Sequence]) -> NDArray[np.float32]:
        """Computes prompts in their slots. Returns the state after each, (sequences, width)."""
        prompts = [self._vocabulary.embed_prompt(sequence.prompt) for sequence in sequences]
        return self._decoder.prefill(prompts, [slot_of(sequence) for sequence in sequences], self._cache)

    def step(self, number: int, plan: Plan) -> None:
        """Makes step `number` of a round: draws, feeds back and advances the active slots."""
        self._step(number)
