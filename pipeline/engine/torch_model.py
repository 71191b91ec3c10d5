"""Torch model: a CPU's prompts and steps with torch's operations; the slow twin of cpu_runner.py.

In:    newly scheduled sequences; the steps of a round
Out:   the runner's arrays, changed in place: its tensors are the same memory
Owns:  the weights
Never: which slots are active, the results of a round (cpu_runner.py)

Every draw has one shape (slots, ...). Inactive rows go through the same arithmetic and change nothing.
"""

from collections.abc import Sequence as Ordered
from dataclasses import fields
from types import SimpleNamespace

import numpy as np
import torch
from numpy.typing import NDArray

from pipeline.checkpoint.in_torch import in_torch
from pipeline.checkpoint.weights import Checkpoint
from pipeline.config import EngineConfig
from pipeline.engine.cpu_state import SlotState
from pipeline.engine.kv_cache import Arrays
from pipeline.engine.scheduler import Plan, prefill_bucket
from pipeline.engine.sequence import Sequence, slot_of
from pipeline.engine.tensor_cache import DTYPES, as_tensor, as_tensors
from pipeline.model.embedding import Embedding
from pipeline.model.gpt import ActiveExtent, Gpt
from pipeline.model.sampling import RowParams, draw, filter_logits, remember
from pipeline.spec import CODEBOOKS
from pipeline.types import Head

CPU = torch.device("cpu")


class TorchModel:
    """The model of a CPU's runner, in torch."""

    def __init__(self, config: EngineConfig, checkpoint: Checkpoint, state: SlotState, cache: Arrays) -> None:
        if config.threads is not None:
            torch.set_num_threads(config.threads)  # counts for the thread that calls it
        self._config = config
        self._gpt = Gpt(
            in_torch(checkpoint.gpt()),
            checkpoint.gpt_spec,
            positions=config.positions,
            rows=config.slots,
            device=CPU,
            dtype=DTYPES[config.dtype],
        )
        self._embedding = Embedding(in_torch(checkpoint.embed()), device=CPU)
        self._cache = as_tensors(cache)
        self._state = SimpleNamespace(**{field.name: as_tensor(getattr(state, field.name)) for field in fields(state)})
        self._x = torch.zeros(config.slots, checkpoint.gpt_spec.width)  # the embeddings that the step feeds back
        self._slot_index = torch.arange(config.slots)

    @torch.inference_mode()
    def prefill(self, sequences: Ordered[Sequence]) -> NDArray[np.float32]:
        """Computes prompts, all of one bucket, in their slots. Returns the state after each, (sequences, width)."""
        rows, length = self._config.prefill_rows, prefill_bucket(len(sequences[0].prompt.ids))
        x = torch.zeros(rows, length, self._x.shape[1])
        slots = torch.full((rows,), self._config.slots)  # the spare slot takes unused rows
        last = torch.zeros(rows, dtype=torch.int64)
        for row, sequence in enumerate(sequences):
            prompt = sequence.prompt
            x[row, : len(prompt.ids)] = self._embedding.embed_prompt(
                # torch.tensor copies: arrays that came from another process are read-only.
                torch.tensor(prompt.ids),
                torch.tensor(prompt.text_mask),
                None if prompt.speaker is None else torch.tensor(prompt.speaker),
                prompt.speaker_position,
            )
            slots[row] = slot_of(sequence)
            last[row] = len(prompt.ids) - 1
        hidden: NDArray[np.float32] = self._gpt.prefill(x, slots, last, self._cache)[: len(sequences)].numpy()
        return hidden

    @torch.inference_mode()
    def step(self, number: int, plan: Plan) -> None:
        """Makes step `number` of a round."""
        extent = ActiveExtent(plan.extent_slots, plan.extent_positions)
        with_text = any(sequence.prompt.head is Head.TEXT for sequence in plan.decode)
        state, used = self._state, slice(extent.slots)  # the slots beyond are idle and left as they are
        active, is_text = state.active[used], state.is_text[used]
        # 1) draw from the state of every used slot
        tokens, is_eos, finite = self._draw(used, with_text=with_text)
        # 2) find the slots that make this step
        emitted = active & ~is_eos & finite
        state.ended[used] |= active & is_eos & finite
        state.broken[used] |= active & ~finite
        state.out_hidden[number] = state.hidden
        state.out_tokens[number, used] = tokens
        state.out_emitted[number].zero_()
        state.out_emitted[number, used] = emitted
        # 3) feed the tokens back
        x = self._embedding.embed_codes(tokens if not with_text else tokens.where(~is_text[:, None], 0))
        if with_text:
            x = torch.where(is_text[:, None], self._embedding.embed_text(tokens[:, 0].where(is_text, 0)), x)
        self._x[used] = x
        hidden = self._gpt.decode(self._x, state.positions, self._cache, extent)[used]
        # 4) advance those slots
        state.hidden[used] = torch.where(emitted[:, None], hidden, state.hidden[used])
        state.positions[used] += emitted
        # A full slot's position stays in range; its sequence has ended by its step cap.
        state.positions.clamp_(max=self._config.positions - 1)
        state.steps[used] += emitted
        remember(state.recent_codes[used], tokens, emitted & ~is_text)
        if with_text:
            remember(state.recent_text[used], tokens[:, :1], emitted & is_text)
        state.active[used] = emitted & (state.steps[used] < state.max_steps[used])

    def _draw(self, used: slice, *, with_text: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Draws for the U used slots.

        Returns:
            tokens (U, 4) int64, True where they end the sequence (U,), True where all logits are finite (U,).
        """
        state = self._state
        params = RowParams(state.temperature[used], state.dropped_mass[used], state.top_k[used], state.penalty[used])
        from_noise, steps = state.from_noise[used], state.steps[used]
        too_early = (steps < state.min_steps[used])[:, None, None]
        place = steps.clamp(max=self._config.max_steps - 1)
        uniforms = state.uniforms[self._slot_index[used], place]  # (U, 4)
        # The heads see every slot: one shape of a matrix product is one order of summation. The rest is each row's own.
        logits = self._embedding.code_logits(state.hidden)[used]
        # A TEXT slot's end may lie beyond the codes; its row is overwritten below.
        eos = state.eos[used].clamp(max=self._embedding.code_vocab - 1).expand(-1, CODEBOOKS, 1)
        filtered = filter_logits(logits, state.recent_codes[used], params, eos=eos, eos_forbidden=too_early)
        tokens = draw(filtered, uniforms, state.code_noise[used], from_noise)
        is_eos = (tokens == eos[:, :, 0]).any(1)
        finite = logits.isfinite().flatten(1).all(1)
        if not with_text:
            return tokens, is_eos, finite
        is_text, eos = state.is_text[used], state.eos[used]
        logits = self._embedding.text_logits(state.hidden)[used]
        filtered = filter_logits(logits, state.recent_text[used], params, eos=eos, eos_forbidden=too_early)
        text = draw(filtered, uniforms[:, :1], state.text_noise[used], from_noise)  # (U, 1)
        tokens = torch.where(is_text[:, None], text, tokens)
        is_eos = torch.where(is_text, (text == eos[:, :, 0]).any(1), is_eos)
        return tokens, is_eos, torch.where(is_text, logits.isfinite().flatten(1).all(1), finite)
