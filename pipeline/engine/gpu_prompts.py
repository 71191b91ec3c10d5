"""GPU prompts: the static input of one prefill on a GPU, and how newly scheduled sequences fill it.

In:    newly scheduled sequences
Out:   Prompts, and what to copy into its tensors
Owns:  what each number of a prompt is
Never: the model, the graphs, the copies themselves (gpu_runner.py)
"""

from collections.abc import Iterator
from collections.abc import Sequence as Ordered

import numpy as np
import torch
import torch.nn.functional as F

from pipeline.engine.sequence import Sequence, slot_of
from pipeline.model.gpu.kernels.prompt import FLOAT_FIELDS, PLACE_FIELDS, Prompts
from pipeline.model.uniforms import counter_uniforms
from pipeline.spec import CODEBOOKS
from pipeline.types import Head, SeedMode


def empty_prompts(rows: int, length: int, width: int, steps: int, *, spare: int, device: torch.device) -> Prompts:
    """Returns the input of a prefill of `rows` prompts of `length` positions; its unused rows write to the slot `spare`."""
    numbers = torch.zeros(rows, len(PLACE_FIELDS), dtype=torch.int64, device=device)
    numbers[:, PLACE_FIELDS.index("slot")] = spare
    return Prompts(
        tokens=torch.zeros(rows, length, CODEBOOKS + 1, dtype=torch.int64, device=device),
        numbers=numbers,
        floats=torch.ones(rows, len(FLOAT_FIELDS), device=device),
        speakers=torch.zeros(rows, width, device=device),
        uniforms=torch.full((rows, steps, CODEBOOKS), 0.5, device=device),
    )


def fill(prompts: Prompts, sequences: Ordered[Sequence], *, spare: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yields the host's content of each tensor of `prompts` for these sequences, and the tensor it belongs to.

    Args:
        spare: the slot that unused rows write to.
    """
    tokens = np.zeros(prompts.tokens.shape, np.int64)
    numbers = np.zeros(prompts.numbers.shape, np.int64)
    numbers[:, PLACE_FIELDS.index("slot")] = spare
    floats = np.ones(prompts.floats.shape, np.float32)
    speakers = np.zeros(prompts.speakers.shape, np.float32)
    uniforms = np.full(prompts.uniforms.shape, 0.5, np.float32)
    for row, sequence in enumerate(sequences):
        prompt, sampling = sequence.prompt, sequence.sampling
        tokens[row, : len(prompt.ids), :CODEBOOKS] = prompt.ids
        tokens[row, : len(prompt.ids), CODEBOOKS] = prompt.text_mask
        numbers[row] = _place_numbers(sequence)
        floats[row] = sampling.temperature, 1 - sampling.top_p, sampling.repetition_penalty
        if prompt.speaker is not None:
            # On the host, in float16 as upstream does: a voice is the same on every device.
            speakers[row] = F.normalize(torch.tensor(prompt.speaker), dim=0).float().numpy()
        if sampling.seed_mode is SeedMode.COUNTER:
            drawn = counter_uniforms(sampling, prompt.head, prompt.segment.index, sequence.max_steps)
            uniforms[row, : len(drawn)] = drawn
    for values, target in (
        (tokens, prompts.tokens),
        (numbers, prompts.numbers),
        (floats, prompts.floats),
        (speakers, prompts.speakers),
        (uniforms, prompts.uniforms),
    ):
        yield torch.from_numpy(values), target


def _place_numbers(sequence: Sequence) -> tuple[int, ...]:
    """Returns a sequence's whole numbers, in the order of PLACE_FIELDS."""
    prompt, sampling = sequence.prompt, sequence.sampling
    is_text = prompt.head is Head.TEXT
    assert not is_text or prompt.eos_token is not None, "a TEXT prompt names its end"
    return (
        slot_of(sequence),
        len(prompt.ids) - 1,
        -1 if prompt.speaker is None or prompt.speaker_position is None else prompt.speaker_position,
        sampling.top_k,
        sampling.min_steps,
        sequence.max_steps,
        sampling.seed_mode is SeedMode.UPSTREAM,
        is_text,
        prompt.eos_token or 0,
    )
