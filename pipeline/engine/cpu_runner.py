"""CpuRunner: runs a plan on a CPU and returns plain numpy.

In:    newly scheduled sequences; the slots that decode
Out:   RoundOutput
Owns:  the model, the KV cache, the per-slot tensors (cpu_state.py)
Never: the reasons for a plan, queues, readers

One step of all slots, of which only the active ones advance:

    hidden --heads--> logits --filter, draw--> tokens --embed--> Gpt.decode --> hidden
       '--------- emitted with the tokens ---------'

A step starts from the state that prefill or the previous step left, so prefill never samples and every draw has
one shape (slots, ...). Inactive rows go through the same arithmetic and change nothing. `steps_per_round` steps run between two
synchronisations with the host; whether a sequence ends within a round (EOS, step cap, non-finite values) is decided on the
device.
"""

import logging
from collections.abc import Sequence as Ordered
from functools import partial

import torch

from pipeline.checkpoint.weights import Checkpoint
from pipeline.config import EngineConfig
from pipeline.engine import kv_cache
from pipeline.engine.cpu_state import empty_state
from pipeline.engine.device import DTYPES, PreemptedSlot, RoundOutput, remember
from pipeline.engine.scheduler import Plan, prefill_bucket
from pipeline.engine.sequence import Sequence, slot_of
from pipeline.errors import ConfigError
from pipeline.model.cpu.native_step import NativeStep
from pipeline.model.cpu.packing import Weights
from pipeline.model.embedding import Embedding
from pipeline.model.gpt import ActiveExtent, Gpt
from pipeline.model.sampling import draw, filter_logits
from pipeline.native.compiler import NativeUnavailable
from pipeline.spec import CODEBOOKS
from pipeline.types import Head

logger = logging.getLogger(__name__)

ROUNDED: dict[str, Weights] = {"int8": torch.int8, "int4": "int4"}
"""engine.weights -> how native code reads the weights"""


class CpuRunner:
    """The engine's arithmetic on a CPU; pipeline/engine/gpu_runner.py is a GPU's. It is created and used on one thread."""

    rounds_ahead = 0

    def __init__(self, config: EngineConfig, checkpoint: Checkpoint) -> None:
        self._config = config
        self._device = device = torch.device(config.device)
        spec = checkpoint.gpt_spec
        self._gpt = _build_gpt(config, checkpoint)
        self._embedding = Embedding(checkpoint.embed(), device=device)
        self._cache = kv_cache.allocate(config, spec, DTYPES[config.dtype], device)
        self._state = empty_state(
            config,
            width=spec.width,
            code_vocab=self._embedding.code_vocab,
            text_vocab=self._embedding.text_vocab,
            device=device,
        )
        self._x = torch.zeros(config.slots, spec.width, device=device)  # the embeddings that the step feeds back
        self._slot_index = torch.arange(config.slots, device=device)
        # The fast twin of the step, on the same tensors.
        decoder = self._gpt.native
        self._native = decoder and NativeStep(decoder, self._embedding, *self._state.native(), self._cache)

    @torch.inference_mode()
    def prefill(self, sequences: Ordered[Sequence]) -> None:
        """Computes the prompts of newly scheduled sequences, all of one bucket, in their slots."""
        rows, length = self._config.prefill_rows, prefill_bucket(len(sequences[0].prompt.ids))
        x = torch.zeros(rows, length, self._state.hidden.shape[1], device=self._device)
        slots = torch.full((rows,), self._config.slots, device=self._device)  # the spare slot takes unused rows
        last = torch.zeros(rows, dtype=torch.int64, device=self._device)
        for row, sequence in enumerate(sequences):
            prompt = sequence.prompt
            x[row, : len(prompt.ids)] = self._embedding.embed_prompt(
                # torch.tensor copies: arrays that came from another process are read-only.
                torch.tensor(prompt.ids, device=self._device),
                torch.tensor(prompt.text_mask, device=self._device),
                None if prompt.speaker is None else torch.tensor(prompt.speaker, device=self._device),
                prompt.speaker_position,
            )
            slots[row] = slot_of(sequence)
            last[row] = len(prompt.ids) - 1
        hidden = self._gpt.prefill(x, slots, last, self._cache)
        for row, sequence in enumerate(sequences):
            self._state.occupy(sequence, hidden[row])

    @torch.inference_mode()
    def launch(self, plan: Plan) -> None:
        """Runs one round: `steps_per_round` steps in which the plan's decoding slots advance until they end."""
        active = torch.zeros(self._config.slots, dtype=torch.bool)
        active[[slot_of(sequence) for sequence in plan.decode]] = True
        self._state.active.copy_(active)
        with_text = any(sequence.prompt.head is Head.TEXT for sequence in plan.decode)
        self._round(ActiveExtent(plan.extent_slots, plan.extent_positions), with_text=with_text)

    def read(self) -> RoundOutput:
        """Returns copies of the round's results; the next round overwrites the originals."""
        state = self._state
        return RoundOutput(
            hidden=state.out_hidden.numpy().copy(),
            tokens=state.out_tokens.numpy().copy(),
            emitted=state.out_emitted.numpy().copy(),
            ended=state.ended.numpy().copy(),
            broken=state.broken.numpy().copy(),
        )

    @torch.inference_mode()
    def preempt(self, slot: int, length: int) -> PreemptedSlot:
        """Returns a copy of the slot's state and of the first `length` positions of its cache."""
        cached = tuple(tensor[:, slot, :, :length].clone() for tensor in self._cache.tensors)
        return PreemptedSlot(cached, tuple(tensor[slot].clone() for tensor in self._state.kept()))

    @torch.inference_mode()
    def restore(self, slot: int, preempted: object) -> None:
        """Writes what `preempt` returned into any slot."""
        assert isinstance(preempted, PreemptedSlot)
        for tensor, kept in zip(self._cache.tensors, preempted.cached, strict=True):
            tensor[:, slot, :, : kept.shape[2]] = kept
        for tensor, row in zip(self._state.kept(), preempted.state, strict=True):
            tensor[slot] = row

    @torch.inference_mode()
    def reset_slot(self, slot: int) -> None:
        """Zeroes the cache and the state that a broken sequence left: an idle slot must be finite too."""
        kv_cache.scrub(self._cache, slot)
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
        return self._cache.nbytes

    def _round(self, extent: ActiveExtent, *, with_text: bool) -> None:
        self._state.ended.zero_()
        self._state.broken.zero_()
        for step in range(self._config.steps_per_round):
            self._step(step, extent, with_text=with_text)

    def _step(self, step: int, extent: ActiveExtent, *, with_text: bool) -> None:
        if self._native:
            self._native(step)
            return
        state, used = self._state, slice(extent.slots)  # the slots beyond are idle and left as they are
        active, is_text = state.active[used], state.is_text[used]
        # 1) draw from the state of every used slot
        tokens, is_eos, finite = self._draw(used, with_text=with_text)
        # 2) find the slots that make this step
        emitted = active & ~is_eos & finite
        state.ended[used] |= active & is_eos & finite
        state.broken[used] |= active & ~finite
        state.out_hidden[step] = state.hidden
        state.out_tokens[step, used] = tokens
        state.out_emitted[step].zero_()
        state.out_emitted[step, used] = emitted
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
        state, params = self._state, self._state.params(used)
        from_noise, steps = state.from_noise[used], state.steps[used]
        too_early = (steps < state.min_steps[used])[:, None, None]
        place = steps.clamp(max=self._config.max_steps - 1)
        uniforms = state.uniforms[self._slot_index[used], place]  # (U, 4)
        # The heads see every slot: one shape of a matrix product is one order of summation. The rest is each row's own.
        logits = self._embedding.code_logits(state.hidden)[used]
        # A TEXT slot's end may lie beyond the codes; its row is overwritten below.
        eos = state.eos[used].clamp(max=self._embedding.code_vocab - 1).expand(-1, CODEBOOKS, 1)
        kept = filter_logits(logits, state.recent_codes[used], params, eos=eos, eos_forbidden=too_early)
        tokens = draw(kept, uniforms, state.code_noise[used], from_noise)
        is_eos = (tokens == eos[:, :, 0]).any(1)
        finite = logits.isfinite().flatten(1).all(1)
        if not with_text:
            return tokens, is_eos, finite
        is_text, eos = state.is_text[used], state.eos[used]
        logits = self._embedding.text_logits(state.hidden)[used]
        kept = filter_logits(logits, state.recent_text[used], params, eos=eos, eos_forbidden=too_early)
        text = draw(kept, uniforms[:, :1], state.text_noise[used], from_noise)  # (U, 1)
        tokens = torch.where(is_text[:, None], text, tokens)
        is_eos = torch.where(is_text, (text == eos[:, :, 0]).any(1), is_eos)
        return tokens, is_eos, torch.where(is_text, logits.isfinite().flatten(1).all(1), finite)


def _build_gpt(config: EngineConfig, checkpoint: Checkpoint) -> Gpt:
    """Builds the decoder stack; it decodes natively unless torch is configured or native code is unavailable.

    Raises:
        ConfigError: native decoding is configured and this machine cannot do it.
    """
    dtype = DTYPES[config.dtype]
    build = partial(
        Gpt,
        checkpoint.gpt(),
        checkpoint.gpt_spec,
        positions=config.positions,
        rows=config.slots,
        device=torch.device(config.device),
        dtype=dtype,
    )
    if config.device != "cpu" or config.decode == "torch":
        return build()
    try:
        return build(native=ROUNDED.get(config.weights, dtype))
    except NativeUnavailable as reason:
        if config.decode == "native" or config.weights != "dtype":
            raise ConfigError(
                f"engine.decode {config.decode} with engine.weights {config.weights} decodes natively, which here is "
                f"impossible: {reason}; set decode to torch and weights to dtype"
            ) from reason
        logger.warning("decoding with torch's operations, which takes several times as long: %s (engine.decode)", reason)
        return build()
