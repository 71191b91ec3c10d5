"""GPU state: every per-slot tensor of a GPU's runner.

In:    the engine's configuration, the sizes of the vocabularies
Out:   GpuState
Owns:  the tensors, and which of them a preempted sequence takes along
Never: the kernels that change them (pipeline/model/gpu/kernels/step.py), the KV cache, copies
"""

from dataclasses import dataclass

import torch

from pipeline.config import EngineConfig
from pipeline.model.gpu.kernels.step import SlotState
from pipeline.spec import CODEBOOKS, REPETITION_WINDOW


@dataclass(frozen=True, slots=True, eq=False)
class GpuState(SlotState):
    """The kernels' per-slot tensors, and those of the refine pass, whose tokens torch draws: S slots, T text tokens."""

    text_eos: torch.Tensor  # (S,) int64
    text_noise: torch.Tensor  # (S, 1, T) float32
    recent_text: torch.Tensor  # (S, 1, window) int64; T where nothing was drawn yet
    out_numbers: torch.Tensor  # out_tokens, out_emitted, ended and broken in one int32 tensor: the host reads them in one copy

    def persistent(self) -> tuple[torch.Tensor, ...]:
        """Returns the tensors, one row per slot, that outlive a step: a preempted sequence takes its rows along."""
        return (
            *(self.temperature, self.dropped_mass, self.penalty, self.top_k, self.min_steps, self.max_steps),
            *(self.from_noise, self.is_text, self.uniforms, self.noise),
            *(self.hidden, self.positions, self.steps, self.recent),
            *(self.text_eos, self.text_noise, self.recent_text),
        )


def empty_state(config: EngineConfig, *, width: int, code_vocab: int, text_vocab: int, device: torch.device) -> GpuState:
    """Returns the state of an engine without sequences: idle slots hold values that every step can compute with.

    Tensors that a prefill writes have one slot more, the spare one, for its unused rows.
    """
    slots, spared, steps = config.slots, config.slots + 1, config.steps_per_round

    def ints(*shape: int, value: int = 0, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return torch.full(shape, value, dtype=dtype, device=device)

    def floats(*shape: int, value: float = 0.0) -> torch.Tensor:
        return torch.full(shape, value, dtype=torch.float32, device=device)

    out_numbers = ints(slots * (steps * CODEBOOKS + steps + 2))
    out_tokens, out_emitted, ended, broken = split_numbers(out_numbers, steps, slots)
    return GpuState(
        temperature=floats(spared, value=1.0),
        dropped_mass=floats(spared),
        penalty=floats(spared, value=1.0),
        top_k=ints(spared, value=code_vocab),
        min_steps=ints(spared),
        max_steps=ints(spared),
        from_noise=ints(spared),
        is_text=ints(spared),
        uniforms=floats(spared, config.max_steps, CODEBOOKS, value=0.5),
        noise=floats(spared, CODEBOOKS, code_vocab, value=1.0),
        hidden=floats(spared, width),
        positions=ints(spared),
        steps=ints(spared),
        active=ints(spared),
        recent=ints(spared, CODEBOOKS, REPETITION_WINDOW, value=code_vocab),
        tokens=ints(slots, CODEBOOKS),
        ends=ints(slots, CODEBOOKS),
        finite=ints(slots, CODEBOOKS),
        emitted=ints(slots),
        out_hidden=floats(steps, slots, width),
        out_tokens=out_tokens,
        out_emitted=out_emitted,
        ended=ended,
        broken=broken,
        text_eos=ints(spared, dtype=torch.int64),
        text_noise=floats(slots, 1, text_vocab, value=1.0),
        recent_text=ints(spared, 1, REPETITION_WINDOW, value=text_vocab, dtype=torch.int64),
        out_numbers=out_numbers,
    )


def split_numbers(
    numbers: torch.Tensor, steps: int, slots: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns views of `out_numbers`: tokens (K, S, 4), emitted (K, S), ended (S,), broken (S,)."""
    tokens, emitted, ended, broken = torch.split(numbers, [steps * slots * CODEBOOKS, steps * slots, slots, slots])
    return tokens.view(steps, slots, CODEBOOKS), emitted.view(steps, slots), ended, broken
