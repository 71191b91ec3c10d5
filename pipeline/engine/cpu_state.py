"""CPU state: every per-slot tensor of a CPU's runner.

In:    the engine's configuration, the sizes of the vocabularies; newly scheduled sequences
Out:   SlotState
Owns:  the tensors, and which of them a preempted sequence takes along
Never: the step that changes them (cpu_runner.py, pipeline/model/cpu/native_step.py), the KV cache
"""

from dataclasses import dataclass, fields

import torch

from pipeline.config import EngineConfig
from pipeline.engine.sequence import Sequence, slot_of
from pipeline.model.cpu.native_step import HeadTensors, SlotTensors
from pipeline.model.sampling import RowParams, counter_uniforms, penalty_powers, upstream_noise
from pipeline.spec import CODEBOOKS, REPETITION_WINDOW
from pipeline.types import Head, SeedMode


@dataclass(frozen=True, slots=True, eq=False)
class SlotState:
    """Every per-slot tensor of an engine: S slots, K steps per round, V codes and T text tokens in the vocabularies."""

    # The settings of a slot: written at prefill, constant afterwards.
    temperature: torch.Tensor  # (S, 1, 1) float32
    dropped_mass: torch.Tensor  # (S, 1, 1) float32: 1 - top_p
    penalty: torch.Tensor  # (S, 1, 1) float32
    powers: torch.Tensor  # (S, window + 1) float32: the penalty to the power of 0, 1, ...; only the native step reads it
    top_k: torch.Tensor  # (S, 1, 1) int64
    min_steps: torch.Tensor  # (S,) int64
    max_steps: torch.Tensor  # (S,) int64
    eos: torch.Tensor  # (S, 1, 1) int64
    is_text: torch.Tensor  # (S,) bool
    from_noise: torch.Tensor  # (S, 1) bool
    uniforms: torch.Tensor  # (S, steps, 4) float32
    code_noise: torch.Tensor  # (S, 4, V) float32
    text_noise: torch.Tensor  # (S, 1, T) float32
    # The progress of a slot: changed by every step it makes.
    hidden: torch.Tensor  # (S, width) float32
    positions: torch.Tensor  # (S,) int64
    steps: torch.Tensor  # (S,) int64
    recent_codes: torch.Tensor  # (S, 4, window) int64; V where nothing was drawn yet
    recent_text: torch.Tensor  # (S, 1, window) int64; T where nothing was drawn yet
    active: torch.Tensor  # (S,) bool: it still advances in this round
    # The results of a round, which the host reads.
    out_hidden: torch.Tensor  # (K, S, width) float32
    out_tokens: torch.Tensor  # (K, S, 4) int64
    out_emitted: torch.Tensor  # (K, S) bool
    ended: torch.Tensor  # (S,) bool
    broken: torch.Tensor  # (S,) bool

    def kept(self) -> tuple[torch.Tensor, ...]:
        """Returns the tensors, one row per slot, that outlive a step: a preempted sequence takes its rows along."""
        return (
            *(self.temperature, self.dropped_mass, self.penalty, self.powers, self.top_k, self.min_steps, self.max_steps),
            *(self.eos, self.is_text, self.from_noise, self.uniforms, self.code_noise, self.text_noise),
            *(self.hidden, self.positions, self.steps, self.recent_codes, self.recent_text),
        )

    def params(self, used: slice) -> RowParams:
        """Returns the sampling values of the used slots."""
        return RowParams(self.temperature[used], self.dropped_mass[used], self.top_k[used], self.penalty[used])

    def native(self) -> tuple[SlotTensors, HeadTensors, HeadTensors]:
        """Returns the same tensors as the native step takes them: slots, code head, text head."""
        slots = SlotTensors(**{field.name: getattr(self, field.name) for field in fields(SlotTensors)})
        return slots, HeadTensors(self.code_noise, self.recent_codes), HeadTensors(self.text_noise, self.recent_text)

    def occupy(self, sequence: Sequence, hidden: torch.Tensor) -> None:
        """Writes a new sequence's settings and its state after prefill, hidden (width,), into its slot."""
        slot, prompt, sampling = slot_of(sequence), sequence.prompt, sequence.sampling
        is_text = prompt.head is Head.TEXT
        code_vocab, text_vocab = self.code_noise.shape[2], self.text_noise.shape[2]
        self.temperature[slot] = sampling.temperature
        self.dropped_mass[slot] = 1 - sampling.top_p
        self.penalty[slot] = sampling.repetition_penalty
        self.powers[slot] = penalty_powers(torch.tensor(sampling.repetition_penalty))
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
            self.uniforms[slot, : sequence.max_steps] = torch.from_numpy(uniforms)
        self.hidden[slot] = hidden
        self.positions[slot] = len(prompt.ids)
        self.steps[slot] = 0
        self.recent_codes[slot] = code_vocab
        self.recent_text[slot] = text_vocab


def empty_state(config: EngineConfig, *, width: int, code_vocab: int, text_vocab: int, device: torch.device) -> SlotState:
    """Returns the state of an engine without sequences: idle slots hold values that every step can compute with."""
    slots, steps = config.slots, config.steps_per_round

    def whole(*shape: int, value: int = 0) -> torch.Tensor:
        return torch.full(shape, value, dtype=torch.int64, device=device)

    def real(*shape: int, value: float = 0.0) -> torch.Tensor:
        return torch.full(shape, value, dtype=torch.float32, device=device)

    def flags(*shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=torch.bool, device=device)

    return SlotState(
        temperature=real(slots, 1, 1, value=1.0),
        dropped_mass=real(slots, 1, 1),
        penalty=real(slots, 1, 1, value=1.0),
        powers=penalty_powers(real(slots, value=1.0)),
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
