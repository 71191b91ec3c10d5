"""CpuRunner: turns a plan into tensors, runs it, and returns plain numpy.

In:    newly scheduled sequences; the slots that decode
Out:   RoundOutput
Owns:  the model, the KV cache and every per-slot tensor
Never: why this plan, queues, readers

One step of all slots, of which only the active ones advance:

    hidden --heads--> logits --filter, draw--> tokens --embed--> Gpt.decode --> hidden
       '--------- emitted with the tokens ---------'

A step starts from the state that prefill or the step before left, so prefill never samples and every draw happens in
the one shape (slots, ...). Inactive rows go through the same arithmetic and change nothing. Between two synchronisations
with the host `steps_per_round` steps run; which sequences end within a round (EOS, step cap, non-finite values) is decided
on the device.
"""

import logging
from collections.abc import Sequence as Ordered
from dataclasses import fields
from functools import partial

import torch

from pipeline.checkpoint.weights import Checkpoint
from pipeline.config import EngineConfig
from pipeline.engine import kv_cache
from pipeline.engine.device import DTYPES, PreemptedSlot, RoundOutput, remember
from pipeline.engine.scheduler import Plan, prefill_bucket
from pipeline.engine.sequence import Sequence
from pipeline.errors import ConfigError
from pipeline.model.cpu.native import NativeDecoder
from pipeline.model.cpu.native_step import HeadTensors, NativeStep, SlotTensors
from pipeline.model.embedding import Embedding
from pipeline.model.gpt import ActiveExtent, Gpt
from pipeline.model.sampling import RowParams, counter_uniforms, draw, filter_logits, penalty_powers, upstream_noise
from pipeline.native.compiler import NativeUnavailable
from pipeline.spec import CODEBOOKS, REPETITION_WINDOW
from pipeline.types import Head, SeedMode

logger = logging.getLogger(__name__)


class CpuRunner:
    """The engine's arithmetic on a CPU; pipeline/engine/gpu_runner.py is a GPU's. Made and used on one thread."""

    rounds_ahead = 0

    def __init__(self, config: EngineConfig, checkpoint: Checkpoint) -> None:
        self._config = config
        self._device = device = torch.device(config.device)
        dtype = DTYPES[config.dtype]
        spec = checkpoint.gpt_spec
        slots, steps = config.slots, config.steps_per_round
        self._gpt = _build_gpt(config, checkpoint)
        self._embedding = Embedding(checkpoint.embed(), device=device)
        self._cache = kv_cache.allocate(config, spec, dtype, device)
        code_vocab, text_vocab = self._embedding.code_vocab, self._embedding.text_vocab

        def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        # What a slot is: written at prefill, constant afterwards.
        self._params = RowParams(
            temperature=zeros(slots, 1, 1, dtype=torch.float32).fill_(1.0),
            dropped_mass=zeros(slots, 1, 1, dtype=torch.float32),
            top_k=zeros(slots, 1, 1).fill_(code_vocab),
            repetition_penalty=zeros(slots, 1, 1, dtype=torch.float32).fill_(1.0),
        )
        self._powers = penalty_powers(self._params.repetition_penalty.flatten())  # the native step's
        self._min_steps = zeros(slots)
        self._max_steps = zeros(slots)
        self._is_text = zeros(slots, dtype=torch.bool)
        self._eos = zeros(slots, 1, 1).fill_(code_vocab - 1)
        self._from_noise = zeros(slots, 1, dtype=torch.bool)
        self._uniforms = zeros(slots, config.max_steps, CODEBOOKS, dtype=torch.float32).fill_(0.5)
        self._code_noise = zeros(slots, CODEBOOKS, code_vocab, dtype=torch.float32).fill_(1.0)
        self._text_noise = zeros(slots, 1, text_vocab, dtype=torch.float32).fill_(1.0)
        # Where a slot is: advanced by every step it is active in.
        self._hidden = zeros(slots, spec.width, dtype=torch.float32)
        self._x = zeros(slots, spec.width, dtype=torch.float32)  # what the step feeds back
        self._positions = zeros(slots)
        self._steps = zeros(slots)
        self._active = zeros(slots, dtype=torch.bool)
        self._recent_codes = zeros(slots, CODEBOOKS, REPETITION_WINDOW).fill_(code_vocab)
        self._recent_text = zeros(slots, 1, REPETITION_WINDOW).fill_(text_vocab)
        # What the host reads after a round.
        self._out_hidden = zeros(steps, slots, spec.width, dtype=torch.float32)
        self._out_tokens = zeros(steps, slots, CODEBOOKS)
        self._out_emitted = zeros(steps, slots, dtype=torch.bool)
        self._ended = zeros(slots, dtype=torch.bool)
        self._broken = zeros(slots, dtype=torch.bool)
        self._slot_index = torch.arange(slots, device=device)
        self._native = None if self._gpt.native is None else self._make_native(self._gpt.native)

    def _make_native(self, decoder: NativeDecoder) -> NativeStep:
        """The fast twin of `_step`, on the same tensors."""
        return NativeStep(
            decoder,
            self._embedding,
            SlotTensors(
                temperature=self._params.temperature,
                dropped_mass=self._params.dropped_mass,
                powers=self._powers,
                uniforms=self._uniforms,
                top_k=self._params.top_k,
                min_steps=self._min_steps,
                max_steps=self._max_steps,
                eos=self._eos,
                is_text=self._is_text,
                from_noise=self._from_noise,
                hidden=self._hidden,
                positions=self._positions,
                steps=self._steps,
                active=self._active,
                out_hidden=self._out_hidden,
                out_tokens=self._out_tokens,
                out_emitted=self._out_emitted,
                ended=self._ended,
                broken=self._broken,
            ),
            HeadTensors(self._code_noise, self._recent_codes),
            HeadTensors(self._text_noise, self._recent_text),
            self._cache,
        )

    @torch.inference_mode()
    def prefill(self, sequences: Ordered[Sequence]) -> None:
        """Read the prompts of newly placed sequences, all of one bucket, into their slots."""
        rows, length = self._config.prefill_rows, prefill_bucket(len(sequences[0].prompt.ids))
        x = torch.zeros(rows, length, self._hidden.shape[1], device=self._device)
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
            assert sequence.slot is not None
            slots[row] = sequence.slot
            last[row] = len(prompt.ids) - 1
        hidden = self._gpt.prefill(x, slots, last, self._cache)
        for row, sequence in enumerate(sequences):
            self._occupy(sequence, hidden[row])

    @torch.inference_mode()
    def launch(self, plan: Plan) -> None:
        """Run one round: `steps_per_round` steps in which the plan's decoding slots advance until they end."""
        active = torch.zeros(self._config.slots, dtype=torch.bool)
        active[[sequence.slot for sequence in plan.decode]] = True
        self._active.copy_(active)
        with_text = any(sequence.prompt.head is Head.TEXT for sequence in plan.decode)
        self._round(ActiveExtent(plan.extent_slots, plan.extent_positions), with_text=with_text)

    def read(self) -> RoundOutput:
        """What the round has made, out of the buffers the next one overwrites."""
        return RoundOutput(
            hidden=self._out_hidden.numpy().copy(),
            tokens=self._out_tokens.numpy().copy(),
            emitted=self._out_emitted.numpy().copy(),
            ended=self._ended.numpy().copy(),
            broken=self._broken.numpy().copy(),
        )

    @torch.inference_mode()
    def preempt(self, slot: int, length: int) -> PreemptedSlot:
        """See DeviceRunner."""
        cached = tuple(tensor[:, slot, :, :length].clone() for tensor in self._cache.tensors)
        return PreemptedSlot(cached, tuple(tensor[slot].clone() for tensor in self._of_slots()))

    @torch.inference_mode()
    def restore(self, slot: int, preempted: object) -> None:
        """See DeviceRunner."""
        assert isinstance(preempted, PreemptedSlot)
        for tensor, kept in zip(self._cache.tensors, preempted.cached, strict=True):
            tensor[:, slot, :, : kept.shape[2]] = kept
        for tensor, row in zip(self._of_slots(), preempted.state, strict=True):
            tensor[slot] = row

    def _of_slots(self) -> tuple[torch.Tensor, ...]:
        """Every tensor with a row a slot that outlives a step."""
        return (
            *(getattr(self._params, field.name) for field in fields(RowParams)),
            *(self._min_steps, self._max_steps, self._is_text, self._eos, self._from_noise, self._powers),
            *(self._uniforms, self._code_noise, self._text_noise),
            *(self._hidden, self._positions, self._steps, self._recent_codes, self._recent_text),
        )

    @torch.inference_mode()
    def reset_slot(self, slot: int) -> None:
        """Remove what a broken sequence left in its slot: not even garbage may be non-finite."""
        kv_cache.scrub(self._cache, slot)
        self._hidden[slot] = 0

    @property
    def num_graphs(self) -> int:
        return 0

    def drop_graphs(self) -> None:
        """There are none."""

    @property
    def kv_bytes(self) -> int:
        return self._cache.nbytes

    def _occupy(self, sequence: Sequence, hidden: torch.Tensor) -> None:
        """Write everything a slot is, and the state it starts from; hidden (width,)."""
        slot, prompt, sampling = sequence.slot, sequence.prompt, sequence.sampling
        assert slot is not None
        is_text = prompt.head is Head.TEXT
        self._params.temperature[slot] = sampling.temperature
        self._params.dropped_mass[slot] = 1 - sampling.top_p
        self._params.top_k[slot] = sampling.top_k
        self._params.repetition_penalty[slot] = sampling.repetition_penalty
        self._powers[slot] = penalty_powers(torch.tensor(sampling.repetition_penalty))
        self._min_steps[slot] = sampling.min_steps
        self._max_steps[slot] = sequence.max_steps
        self._is_text[slot] = is_text
        self._from_noise[slot] = sampling.seed_mode is SeedMode.UPSTREAM
        self._eos[slot] = self._embedding.code_vocab - 1
        if is_text:
            assert prompt.eos_token is not None, "a TEXT prompt names its end"
            self._eos[slot] = prompt.eos_token
        if sampling.seed_mode is SeedMode.UPSTREAM:
            noise = self._text_noise if is_text else self._code_noise
            noise[slot] = upstream_noise(sampling.seed, *noise.shape[1:])
        else:
            uniforms = counter_uniforms(sampling, prompt.head, prompt.segment.index, sequence.max_steps)
            self._uniforms[slot, : sequence.max_steps] = torch.from_numpy(uniforms)
        self._hidden[slot] = hidden
        self._positions[slot] = len(prompt.ids)
        self._steps[slot] = 0
        self._recent_codes[slot] = self._embedding.code_vocab
        self._recent_text[slot] = self._embedding.text_vocab

    def _round(self, extent: ActiveExtent, *, with_text: bool) -> None:
        self._ended.zero_()
        self._broken.zero_()
        for step in range(self._config.steps_per_round):
            self._step(step, extent, with_text=with_text)

    def _step(self, step: int, extent: ActiveExtent, *, with_text: bool) -> None:
        if self._native:
            self._native(step)
            return
        used = slice(extent.slots)  # the slots beyond are idle and left as they are
        is_text = self._is_text[used]
        # 1) draw from the state every slot is in
        tokens, is_eos, finite = self._draw(used, with_text=with_text)
        # 2) who has made a step
        emitted = self._active[used] & ~is_eos & finite
        self._ended[used] |= self._active[used] & is_eos & finite
        self._broken[used] |= self._active[used] & ~finite
        self._out_hidden[step] = self._hidden
        self._out_tokens[step, used] = tokens
        self._out_emitted[step].zero_()
        self._out_emitted[step, used] = emitted
        # 3) feed the tokens back
        x = self._embedding.embed_codes(tokens if not with_text else tokens.where(~is_text[:, None], 0))
        if with_text:
            x = torch.where(is_text[:, None], self._embedding.embed_text(tokens[:, 0].where(is_text, 0)), x)
        self._x[used] = x
        hidden = self._gpt.decode(self._x, self._positions, self._cache, extent)[used]
        # 4) only who has made a step moves on
        self._hidden[used] = torch.where(emitted[:, None], hidden, self._hidden[used])
        self._positions[used] += emitted
        # A full slot's position stays in range; its sequence has ended by its step cap.
        self._positions.clamp_(max=self._config.positions - 1)
        self._steps[used] += emitted
        remember(self._recent_codes[used], tokens, emitted & ~is_text)
        if with_text:
            remember(self._recent_text[used], tokens[:, :1], emitted & is_text)
        self._active[used] = emitted & (self._steps[used] < self._max_steps[used])

    def _draw(self, used: slice, *, with_text: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Of the used slots U: tokens (U, 4), whether they end the sequence (U,), whether the numbers were finite (U,)."""
        params = RowParams(*(getattr(self._params, field.name)[used] for field in fields(RowParams)))
        from_noise = self._from_noise[used]
        too_early = (self._steps[used] < self._min_steps[used])[:, None, None]
        place = self._steps[used].clamp(max=self._config.max_steps - 1)
        uniforms = self._uniforms[self._slot_index[used], place]  # (U, 4)
        # The heads see every slot: one shape of a matrix product is one order of summation. The rest is each row's own.
        logits = self._embedding.code_logits(self._hidden)[used]
        # A TEXT slot's end may lie beyond the codes; its row is overwritten below.
        eos = self._eos[used].clamp(max=self._embedding.code_vocab - 1).expand(-1, CODEBOOKS, 1)
        kept = filter_logits(logits, self._recent_codes[used], params, eos=eos, eos_forbidden=too_early)
        tokens = draw(kept, uniforms, self._code_noise[used], from_noise)
        is_eos = (tokens == eos[:, :, 0]).any(1)
        finite = logits.isfinite().flatten(1).all(1)
        if not with_text:
            return tokens, is_eos, finite
        is_text, eos = self._is_text[used], self._eos[used]
        logits = self._embedding.text_logits(self._hidden)[used]
        kept = filter_logits(logits, self._recent_text[used], params, eos=eos, eos_forbidden=too_early)
        text = draw(kept, uniforms[:, :1], self._text_noise[used], from_noise)  # (U, 1)
        tokens = torch.where(is_text[:, None], text, tokens)
        is_eos = torch.where(is_text, (text == eos[:, :, 0]).any(1), is_eos)
        return tokens, is_eos, torch.where(is_text, logits.isfinite().flatten(1).all(1), finite)


def _build_gpt(config: EngineConfig, checkpoint: Checkpoint) -> Gpt:
    """The stack, decoding as configured.

    Raises:
        ConfigError: native decoding is asked for and this machine cannot do it.
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
        return build(native=torch.int8 if config.weights == "int8" else dtype)
    except NativeUnavailable as reason:
        if config.decode == "native" or config.weights == "int8":
            raise ConfigError(
                f"engine.decode {config.decode} with engine.weights {config.weights} decodes natively, and here that is "
                f"impossible: {reason}; set decode to torch and weights to dtype"
            ) from reason
        logger.warning("decoding with torch's operations, which is slower: %s (engine.decode)", reason)
        return build()
