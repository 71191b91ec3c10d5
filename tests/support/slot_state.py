"""Slot state: the tensors of the decode kernels, small, with random contents where a test looks."""

import torch

from pipeline.model.gpu.kernels.step import SlotState

VOCAB = 70
WIDTH = 48


def make_state(slots: int, *, rows: list[dict[str, float]] | None = None, seed: int = 0, steps: int = 8) -> SlotState:
    generator = torch.Generator().manual_seed(seed)
    rows = rows or [{"temperature": 0.3, "top_p": 0.7, "top_k": 20, "penalty": 1.05}] * slots

    def ints(*shape: int, value: int = 0) -> torch.Tensor:
        return torch.full(shape, value, dtype=torch.int32)

    def column(name: str) -> torch.Tensor:
        return torch.tensor([row[name] for row in rows], dtype=torch.float64)

    return SlotState(
        temperature=column("temperature").float(),
        dropped_mass=(1 - column("top_p")).float(),
        penalty=column("penalty").float(),
        top_k=column("top_k").int(),
        min_steps=ints(slots),
        max_steps=ints(slots, value=steps),
        from_noise=torch.arange(slots, dtype=torch.int32) % 2,
        is_text=ints(slots),
        uniforms=torch.rand(slots, steps, 4, generator=generator),
        noise=torch.empty(slots, 4, VOCAB).exponential_(generator=generator),
        hidden=torch.randn(slots, WIDTH, generator=generator),
        positions=ints(slots, value=5),
        steps=ints(slots),
        active=ints(slots, value=1),
        recent=torch.randint(0, VOCAB + 1, (slots, 4, 16), generator=generator, dtype=torch.int32),
        tokens=ints(slots, 4),
        ends=ints(slots, 4),
        finite=ints(slots, 4, value=1),
        emitted=ints(slots),
        out_hidden=torch.zeros(2, slots, WIDTH),
        out_tokens=ints(2, slots, 4),
        out_emitted=ints(2, slots),
        ended=ints(slots),
        broken=ints(slots),
    )
