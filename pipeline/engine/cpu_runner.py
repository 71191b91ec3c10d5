"""CpuRunner: runs a plan on a CPU and returns plain numpy.

In:    newly scheduled sequences; the slots that decode
Out:   RoundOutput
Owns:  the KV cache, the per-slot arrays (cpu_state.py), the model that changes them
Never: the reasons for a plan, queues, readers; torch, unless it decodes with it

One step of all slots, of which only the active ones advance:

    hidden --heads--> logits --filter, draw--> tokens --embed--> decode --> hidden
       '--------- emitted with the tokens ---------'

A step starts from the state that prefill or the previous step left, so prefill never samples. A round has `steps_per_round`;
whether a sequence ends within it (EOS, step cap, non-finite values) is decided by the step. NativeModel makes steps in C++,
its slow twin torch_model.py with torch's operations.
"""

import logging
from collections.abc import Sequence as Ordered
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pipeline.checkpoint.weights import Checkpoint
from pipeline.config import EngineConfig
from pipeline.engine import kv_cache
from pipeline.engine.cpu_state import SlotState, empty_state
from pipeline.engine.device import PreemptedSlot, RoundOutput
from pipeline.engine.kv_cache import Arrays
from pipeline.engine.scheduler import Plan
from pipeline.engine.sequence import Sequence, slot_of
from pipeline.errors import ConfigError
from pipeline.model.cpu.native import NativeDecoder
from pipeline.model.cpu.native_step import NativeStep
from pipeline.model.cpu.vocabulary import Vocabulary, folded_heads
from pipeline.native.compiler import NativeUnavailable
from pipeline.native.thread_count import default_threads
from pipeline.with_torch import torch_part

logger = logging.getLogger(__name__)


class NativeModel:
    """The model of a CPU's runner, in C++."""

    def __init__(self, config: EngineConfig, checkpoint: Checkpoint, state: SlotState, cache: Arrays) -> None:
        """
        Raises:
            NativeUnavailable: this machine, or a model of these dimensions, cannot use it.
        """
        self._cache = cache
        embed = checkpoint.embed()
        self._vocabulary = Vocabulary(embed)
        self._decoder = NativeDecoder(
            checkpoint.gpt(),
            checkpoint.gpt_spec,
            positions=config.positions,
            rows=config.slots,
            weights=config.dtype if config.weights == "dtype" else config.weights,
            threads=config.threads or default_threads(),
        )
        self._step = NativeStep(self._decoder, self._vocabulary, folded_heads(embed), *state.native(), cache)

    def prefill(self, sequences: Ordered[Sequence]) -> NDArray[np.float32]:
        """Computes prompts in their slots. Returns the state after each, (sequences, width)."""
        prompts = [self._vocabulary.embed_prompt(sequence.prompt) for sequence in sequences]
        return self._decoder.prefill(prompts, [slot_of(sequence) for sequence in sequences], self._cache)

    def step(self, number: int, plan: Plan) -> None:
        """Makes step `number` of a round: draws, feeds back and advances the active slots."""
        self._step(number)


class CpuModel(Protocol):
    """The model of one runner, which works on the runner's state and cache."""

    def prefill(self, sequences: Ordered[Sequence]) -> NDArray[np.float32]:
        """Computes prompts, all of one bucket, in their slots. Returns the state after each, (sequences, width)."""
        ...

    def step(self, number: int, plan: Plan) -> None:
        """Makes step `number` of a round: the active slots advance, and what they emit is written."""
        ...


class CpuRunner:
    """The engine's arithmetic on a CPU; pipeline/engine/gpu_runner.py is a GPU's. It is created and used on one thread."""

    rounds_ahead = 0

    def __init__(self, config: EngineConfig, checkpoint: Checkpoint) -> None:
        self._config = config
        spec = checkpoint.gpt_spec
        self._cache = kv_cache.allocate(config, spec)
        self._state = empty_state(config, width=spec.width, code_vocab=spec.audio_vocab, text_vocab=spec.text_vocab)
        self._model = make_model(config, checkpoint, self._state, self._cache)

    def prefill(self, sequences: Ordered[Sequence]) -> None:
        """Computes the prompts of newly scheduled sequences, all of one bucket, in their slots."""
        for sequence, hidden in zip(sequences, self._model.prefill(sequences), strict=True):
            self._state.occupy(sequence, hidden)

    def launch(self, plan: Plan) -> None:
        """Runs one round: `steps_per_round` steps in which the plan's decoding slots advance until they end."""
        state = self._state
        for flags in (state.active, state.ended, state.broken):
            flags[:] = False
        state.active[[slot_of(sequence) for sequence in plan.decode]] = True
        for number in range(self._config.steps_per_round):
            self._model.step(number, plan)

    def read(self) -> RoundOutput:
        """Returns copies of the round's results; the next round overwrites the originals."""
        state = self._state
        return RoundOutput(
            hidden=state.out_hidden.copy(),
            tokens=state.out_tokens.copy(),
            emitted=state.out_emitted.copy(),
            ended=state.ended.copy(),
            broken=state.broken.copy(),
        )

    def preempt(self, slot: int, length: int) -> PreemptedSlot:
        """Returns a copy of the slot's state and of the first `length` positions of its cache."""
        cached = tuple(array[:, slot, :, :length].copy() for array in self._cache)
        return PreemptedSlot(cached, tuple(np.copy(array[slot]) for array in self._state.persistent()))

    def restore(self, slot: int, preempted: object) -> None:
        """Writes what `preempt` returned into any slot."""
        assert isinstance(preempted, PreemptedSlot)
        for array, block in zip(self._cache, preempted.cached, strict=True):
            array[:, slot, :, : block.shape[2]] = block
        for array, row in zip(self._state.persistent(), preempted.state, strict=True):
            array[slot] = row

    def reset_slot(self, slot: int) -> None:
        """Zeroes the cache and the state that a broken sequence left: a masked position still enters torch's arithmetic."""
        for array in self._cache:
            array[:, slot] = 0
        self._state.hidden[slot] = 0

    @property
    def num_graphs(self) -> int:
        """Always 0: a CPU has no CUDA graphs."""
        return 0

    def drop_graphs(self) -> None:
        """Does nothing: a CPU has no CUDA graphs."""

    @property
    def kv_bytes(self) -> int:
        """Size of the KV cache [bytes]."""
        return sum(array.nbytes for array in self._cache)


def make_model(config: EngineConfig, checkpoint: Checkpoint, state: SlotState, cache: kv_cache.Arrays) -> CpuModel:
    """Builds the model; it decodes natively unless torch is configured or native code is unavailable.

    Raises:
        ConfigError: native decoding is configured and this machine cannot do it, or torch is needed and not installed.
    """
    why = ""
    if config.decode != "torch":
        try:
            return NativeModel(config, checkpoint, state, cache)
        except NativeUnavailable as reason:
            if config.decode == "native" or config.weights != "dtype":
                raise ConfigError(
                    f"engine.decode {config.decode} with engine.weights {config.weights} decodes natively, which here is "
                    f"impossible: {reason}; set decode to torch and weights to dtype"
                ) from reason
            why = str(reason)
    torch_model: Any = torch_part("pipeline.engine.torch_model", wanted_for="engine.decode torch, or auto without native code,")
    if why:
        logger.warning("decoding with torch's operations, which takes several times as long: %s (engine.decode)", why)
    model: CpuModel = torch_model.TorchModel(config, checkpoint, state, cache)
    return model
