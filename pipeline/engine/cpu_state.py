"""CPU state: every per-slot array of a CPU's runner.

In:    the engine's configuration, the sizes of the vocabularies; newly scheduled sequences
Out:   SlotState
Owns:  the arrays, and which of them a preempted sequence takes along
Never: the step that changes them (cpu_runner.py, torch_model.py), the KV cache
"""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.config import EngineConfig
from pipeline.engine.sequence import Sequence, slot_of
from pipeline.model.cpu.native_step import HeadArrays, SlotArrays
from pipeline.model.uniforms import counter_uniforms
from pipeline.spec import CODEBOOKS, REPETITION_WINDOW
from pipeline.types import Head, SeedMode
from pipeline.with_torch import torch_part


@dataclass(frozen=True, slots=True, eq=False)
class SlotState:
    """Every per-slot array of an engine: S slots, K steps per round, V codes and T text tokens in the vocabularies."""

    # The settings of a slot: written at prefill, constant afterwards.
    temperature: NDArray[np.float32]  # (S, 1, 1)
    dropped_mass: NDArray[np.float32]  # (S, 1, 1): 1 - top_p
    penalty: NDArray[np.float32]  # (S, 1, 1)
    powers: NDArray[np.float32]  # (S, window + 1): the penalty to the power of 0, 1, ...; only the native step reads it
    top_k: NDArray[np.int64]  # (S, 1, 1)
    min_steps: NDArray[np.int64]  # (S,)
    max_steps: NDArray[np.int64]  # (S,)
    eos: NDArray[np.int64]  # (S, 1, 1)
    is_text: NDArray[np.bool_]  # (S,)
    from_noise: NDArray[np.bool_]  # (S, 1)
    uniforms: NDArray[np.float32]  # (S, steps, 4)
    code_noise: NDArray[np.float32]  # (S, 4, V)
    text_noise: NDArray[np.float32]  # (S, 1, T)
    # The progress of a slot: changed by every step it makes.
    hidden: NDArray[np.float32]  # (S, width)
    positions: NDArray[np.int64]  # (S,)
    steps: NDArray[np.int64]  # (S,)
    recent_codes: NDArray[np.int64]  # (S, 4, window); V where nothing was drawn yet
    recent_text: NDArray[np.int64]  # (S, 1, window); T where nothing was drawn yet
    active: NDArray[np.bool_]  # (S,): it still advances in this round
    # The results of a round, which the host reads.
    out_hidden: NDArray[np.float32]  # (K, S, width)
    out_tokens: NDArray[np.int64]  # (K, S, 4)
    out_emitted: NDArray[np.bool_]  # (K, S)
    ended: NDArray[np.bool_]  # (S,)
    broken: NDArray[np.bool_]  # (S,)

    def persistent(self) -> tuple[NDArray[Any], ...]:
        """Returns the arrays, one row per slot, that outlive a step: a preempted sequence takes its rows along."""
        return (
            *(self.temperature, self.dropped_mass, self.penalty, self.powers, self.top_k, self.min_steps, self.max_steps),
            *(self.eos, self.is_text, self.from_noise, self.uniforms, self.code_noise, self.text_noise),
            *(self.hidden, self.positions, self.steps, self.recent_codes, self.recent_text),
        )

    def native(self) -> tuple[SlotArrays, HeadArrays, HeadArrays]:
        """Returns the same arrays as the native step takes them: slots, code head, text head."""
        slots = SlotArrays(**{field.name: getattr(self, field.name) for field in fields(SlotArrays)})
        return slots, HeadArrays(self.code_noise, self.recent_codes), HeadArrays(self.text_noise, self.recent_text)

    def occupy(self, sequence: Sequence, hidden: NDArray[np.float32]) -> None:
        """Writes a new sequence's settings and its state after prefill, hidden (width,), into its slot."""
        slot, prompt, sampling = slot_of(sequence), sequence.prompt, sequence.sampling
        is_text = prompt.head is Head.TEXT
        code_vocab, text_vocab = self.code_noise.shape[2], self.text_noise.shape[2]
        self.temperature[slot] = sampling.temperature
        self.dropped_mass[slot] = 1 - sampling.top_p
        self.penalty[slot] = sampling.repetition_penalty
        self.powers[slot] = penalty_powers(sampling.repetition_penalty)
        self.top_k[slot] = sampling.top_k
        self.min_steps[slot] = sampling.min_steps
        self.max_steps[slot] = sequence.max_steps
        self.is_text[slot] = is_text
        self.from_noise[slot] = sampling.seed_mode is SeedMode.UPSTREAM
        self.eos[slot] = code_vocab - 1
        if is_text:
            assert prompt.eos_token is not None, "a TEXT prompt names its end"
            self.eos[slot] = prompt.eos_token
        if sampling.seed_mode is SeedMode.UPSTREAM:
            noise = self.text_noise if is_text else self.code_noise
            noise[slot] = upstream_noise(sampling.seed, *noise.shape[1:])
        else:
            uniforms = counter_uniforms(sampling, prompt.head, prompt.segment.index, sequence.max_steps)
            self.uniforms[slot, : sequence.max_steps] = uniforms
        self.hidden[slot] = hidden
        self.positions[slot] = len(prompt.ids)
        self.steps[slot] = 0
        self.recent_codes[slot] = code_vocab
        self.recent_text[slot] = text_vocab


def penalty_powers(penalty: float) -> NDArray[np.float32]:
    """Returns (window + 1,): the factor for a token drawn 0, 1, ... times."""
    return np.power(np.float64(np.float32(penalty)), np.arange(REPETITION_WINDOW + 1)).astype(np.float32)


def upstream_noise(seed: int, draws: int, vocab: int) -> NDArray[np.float32]:
    """Returns the UPSTREAM noise of one seed (draws, vocab), which torch alone can draw: its first use imports torch.

    Raises:
        ConfigError: PyTorch is not installed.
    """
    sampling = torch_part("pipeline.model.sampling", wanted_for="seed_mode upstream")
    noise: NDArray[np.float32] = sampling.upstream_noise(seed, draws, vocab).numpy()
    return noise


def empty_state(config: EngineConfig, *, width: int, code_vocab: int, text_vocab: int) -> SlotState:
    """Returns the state of an engine without sequences: idle slots hold values that every step can compute with."""
    slots, steps = config.slots, config.steps_per_round

    def whole(*shape: int, value: int = 0) -> NDArray[np.int64]:
        return np.full(shape, value, np.int64)

    def real(*shape: int, value: float = 0.0) -> NDArray[np.float32]:
        return np.full(shape, value, np.float32)

    def flags(*shape: int) -> NDArray[np.bool_]:
        return np.zeros(shape, np.bool_)

    return SlotState(
        temperature=real(slots, 1, 1, value=1.0),
        dropped_mass=real(slots, 1, 1),
        penalty=real(slots, 1, 1, value=1.0),
        powers=real(slots, REPETITION_WINDOW + 1, value=1.0),
        top_k=whole(slots, 1, 1, value=code_vocab),
        min_steps=whole(slots),
        max_steps=whole(slots),
        eos=whole(slots, 1, 1, value=code_vocab - 1),
        is_text=flags(slots),
        from_noise=flags(slots, 1),
        uniforms=real(slots, config.max_steps, CODEBOOKS, value=0.5),
        code_noise=real(slots, CODEBOOKS, code_vocab, value=1.0),
        text_noise=real(slots, 1, text_vocab, value=1.0),
        hidden=real(slots, width),
        positions=whole(slots),
        steps=whole(slots),
        recent_codes=whole(slots, CODEBOOKS, REPETITION_WINDOW, value=code_vocab),
        recent_text=whole(slots, 1, REPETITION_WINDOW, value=text_vocab),
        active=flags(slots),
        out_hidden=real(steps, slots, width),
        out_tokens=whole(steps, slots, CODEBOOKS),
        out_emitted=flags(steps, slots),
        ended=flags(slots),
        broken=flags(slots),
    )
