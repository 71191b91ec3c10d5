"""GpuRunner: runs a plan as two CUDA graphs, one for new prompts, one for a round of steps; nothing waits for the host.

In:    newly scheduled sequences; the slots that decode
Out:   RoundOutput, of the round that was launched longest ago
Owns:  the thread's stream, the model, the KV cache, the per-slot tensors (gpu_state.py), the graphs, the pinned buffers
Never: the reasons for a plan, queues, readers

    prefill   prompts -- one copy --> [ embed, layers, write the slots' state ]      one graph per prompt bucket
    launch    active slots -- one copy --> [ K x (heads, draw, advance, layers, settle) ] -- copies --> pinned, event
    read      wait for the event, copy out of the pinned buffers

The engine launches round n + 1 before it reads round n, so the GPU works while the host delivers. So a sequence that
has ended in round n is in round n + 1 as well: its rows change their own slot only, and are never delivered.
Whether a sequence ends within a round (EOS, step cap, non-finite values) is decided on the device.

The runner is created and used on one thread. On a CPU the same code runs eagerly through Triton's interpreter, for tests.
"""

from collections import deque
from collections.abc import Sequence as Ordered
from dataclasses import dataclass
from functools import partial

import torch

from pipeline.checkpoint.in_torch import in_torch
from pipeline.checkpoint.weights import Checkpoint
from pipeline.config import EngineConfig
from pipeline.engine import tensor_cache
from pipeline.engine.device import PreemptedSlot, RoundOutput
from pipeline.engine.gpu_prompts import empty_prompts, fill
from pipeline.engine.gpu_state import empty_state, split_numbers
from pipeline.engine.scheduler import PREFILL_BUCKET, Plan, prefill_bucket
from pipeline.engine.sequence import Sequence, slot_of
from pipeline.engine.tensor_cache import DTYPES
from pipeline.model.embedding import Embedding
from pipeline.model.gpu.gpu_gpt import GpuGpt
from pipeline.model.gpu.graphs import record, use_own_stream
from pipeline.model.gpu.kernels import prompt, step
from pipeline.model.gpu.kernels.prompt import Prompts
from pipeline.model.gpu.prepare import prepare_gpu
from pipeline.model.sampling import RowParams, draw, filter_logits, remember, upstream_noise
from pipeline.spec import CODEBOOKS
from pipeline.types import Head, SeedMode

LONGEST_GRAPHED = 512
"""length of the longest prompt bucket that has a graph; longer prompts run eagerly [positions]"""


@dataclass(frozen=True, slots=True, eq=False)
class _ResultBuffer:
    """The host memory that receives one round's results."""

    hidden: torch.Tensor  # (K, S, width) float32
    numbers: torch.Tensor  # as GpuState.out_numbers
    arrived: torch.cuda.Event | None


def rows_of_products(config: EngineConfig) -> set[int]:
    """Returns the numbers of rows of a step's products and of the shortest and the longest prefill's."""
    longest = prefill_bucket(config.max_prompt)
    return {config.slots, config.prefill_rows * PREFILL_BUCKET, config.prefill_rows * longest}


class GpuRunner:
    """The device side of the engine on a GPU."""

    rounds_ahead = 1
    """rounds that may be launched before the one before them is read"""

    def __init__(self, config: EngineConfig, checkpoint: Checkpoint) -> None:
        if config.threads is not None:
            torch.set_num_threads(config.threads)  # counts for the thread that calls it
        self._config = config
        self._device = device = torch.device(config.device)
        self._is_cuda = device.type == "cuda"
        dtype, spec = DTYPES[config.dtype], checkpoint.gpt_spec
        if self._is_cuda:
            use_own_stream(urgent=True)
            prepare_gpu(rows=rows_of_products(config), dtype=dtype)
        self._gpt = GpuGpt(
            in_torch(checkpoint.gpt()),
            spec,
            positions=config.positions,
            rows=config.slots,
            device=device,
            dtype=dtype,
            weights=config.weights,
            attention="sdpa" if config.attention == "sdpa" else "triton",
            split=config.attention_split,
        )
        self._embedding = Embedding(in_torch(checkpoint.embed()), device=device)
        self._cache = tensor_cache.allocate(config, spec, device)
        self._width, self._code_vocab, self._text_vocab = spec.width, self._embedding.code_vocab, self._embedding.text_vocab
        self._state = empty_state(
            config, width=spec.width, code_vocab=self._code_vocab, text_vocab=self._text_vocab, device=device
        )
        self._residual = torch.zeros(config.slots, spec.width, device=device)
        # Unused rows of a prefill call write into the spare slot.
        self._spare = config.slots if config.prefill_rows > 1 else 0
        self._prompts: dict[int, Prompts] = {}
        self._prefills: dict[int, torch.cuda.CUDAGraph] = {}
        self._rounds: dict[bool, torch.cuda.CUDAGraph] = {}
        self._dropped: list[torch.cuda.CUDAGraph] = []
        self._free = deque(self._result_buffer() for _ in range(1 + self.rounds_ahead))
        self._in_flight: deque[_ResultBuffer] = deque()
        self._pin()
        self._record()

    @torch.inference_mode()
    def prefill(self, sequences: Ordered[Sequence]) -> None:
        """Computes the prompts of newly scheduled sequences, all of one bucket, in their slots."""
        length = prefill_bucket(len(sequences[0].prompt.ids))
        graph = self._prefills.get(length)
        prompts = self._prompts[length] if graph else self._make_prompts(length)
        for values, target in fill(prompts, sequences, spare=self._spare):
            self._send(values, target)
        if graph:
            graph.replay()
        else:
            self._prefill(prompts)
        for sequence in sequences:
            if sequence.sampling.seed_mode is SeedMode.UPSTREAM:
                noise = self._state.text_noise if sequence.prompt.head is Head.TEXT else self._state.noise
                self._send(upstream_noise(sequence.sampling.seed, *noise.shape[1:]), noise[slot_of(sequence)])

    def _make_prompts(self, length: int) -> Prompts:
        config = self._config
        return empty_prompts(config.prefill_rows, length, self._width, config.max_steps, spare=self._spare, device=self._device)

    def _prefill(self, prompts: Prompts) -> None:
        """Embeds the prompts, runs the layers, and writes the settings and states of their slots."""
        state, slots = self._state, prompts.number("slot")
        rows, length, _ = prompts.tokens.shape
        residual = torch.empty(rows * length, self._width, device=self._device)
        prompt.embed(prompts, self._embedding.code_table, self._embedding.text_table, residual)
        delta = self._gpt.run_prompts(residual, prompts, self._cache)
        prompt.admit(prompts, state, residual, delta, self._gpt.final_norm, eps=self._gpt.rms_eps)
        state.text_eos[slots] = prompts.number("text_eos")
        state.recent_text.index_fill_(0, slots, self._text_vocab)

    @torch.inference_mode()
    def launch(self, plan: Plan) -> None:
        """Starts one round: `steps_per_round` steps in which the plan's decoding slots advance until they end."""
        active = torch.zeros(self._config.slots, dtype=torch.int32)
        active[[slot_of(sequence) for sequence in plan.decode]] = 1
        self._send(active, self._state.active[: self._config.slots])
        with_text = any(sequence.prompt.head is Head.TEXT for sequence in plan.decode)
        if graph := self._rounds.get(with_text):
            graph.replay()
        else:
            self._round(with_text=with_text)
        buffer = self._free.popleft()
        buffer.hidden.copy_(self._state.out_hidden, non_blocking=True)
        buffer.numbers.copy_(self._state.out_numbers, non_blocking=True)
        if buffer.arrived is not None:
            buffer.arrived.record()
        self._in_flight.append(buffer)

    def read(self) -> RoundOutput:
        """Waits for the round launched longest ago and returns its results."""
        buffer = self._in_flight.popleft()
        if buffer.arrived is not None:
            buffer.arrived.synchronize()
        # Copies: the round after the next one lands in the same buffers.
        hidden, numbers = buffer.hidden.numpy().copy(), buffer.numbers.clone()
        self._free.append(buffer)
        tokens, emitted, ended, broken = split_numbers(numbers, self._config.steps_per_round, self._config.slots)
        return RoundOutput(
            hidden=hidden,
            tokens=tokens.long().numpy(),
            emitted=emitted.bool().numpy(),
            ended=ended.bool().numpy(),
            broken=broken.bool().numpy(),
        )

    def _round(self, *, with_text: bool) -> None:
        self._state.ended.zero_()
        self._state.broken.zero_()
        for number in range(self._config.steps_per_round):
            self._step(number, with_text=with_text)

    def _step(self, number: int, *, with_text: bool) -> None:
        state, slots = self._state, self._config.slots
        step.draw(self._embedding.code_logits(state.hidden[:slots]), state)
        if with_text:
            self._draw_text()
        tables = self._embedding.code_table, self._embedding.text_table
        step.advance(state, number, *tables, self._residual, with_text=with_text)
        if with_text:
            moved = (state.emitted & state.is_text[:slots]).bool()
            remember(state.recent_text[:slots], state.tokens[:, :1].long(), moved)
        delta = self._gpt.run_layers(self._residual, state.positions, state.emitted, self._cache)
        step.settle(
            state,
            self._residual,
            delta,
            self._gpt.final_norm,
            eps=self._gpt.rms_eps,
            positions=self._config.positions,
        )

    def _draw_text(self) -> None:
        """Draws the refine pass's tokens, and overwrites tokens, ends and finiteness of its rows."""
        state, slots = self._state, self._config.slots

        def column(values: torch.Tensor) -> torch.Tensor:
            return values[:slots, None, None]

        params = RowParams(
            temperature=column(state.temperature),
            dropped_mass=column(state.dropped_mass),
            top_k=column(state.top_k).long(),
            repetition_penalty=column(state.penalty),
        )
        too_early = column(state.steps) < column(state.min_steps)
        eos = column(state.text_eos)
        logits = self._embedding.text_logits(state.hidden[:slots])
        filtered = filter_logits(logits, state.recent_text[:slots], params, eos=eos, eos_forbidden=too_early)
        place = state.steps[:slots].long().clamp(max=self._config.max_steps - 1)
        uniforms = state.uniforms[:slots].gather(1, place[:, None, None].expand(-1, 1, CODEBOOKS))[:, 0, :1]
        tokens = draw(filtered, uniforms, state.text_noise, state.from_noise[:slots, None].bool())  # (S, 1)
        is_text = state.is_text[:slots, None].bool()
        state.tokens.copy_(torch.where(is_text, tokens.int(), state.tokens))
        state.ends.copy_(torch.where(is_text, (tokens == eos[:, :, 0]).int(), state.ends))
        state.finite.copy_(torch.where(is_text, logits.isfinite().flatten(1).all(1, keepdim=True).int(), state.finite))

    def _record(self) -> None:
        """Records the rounds, with and without the text head, and a prefill for each usual length; does nothing on a CPU."""
        if not self._is_cuda:
            return
        longest = prefill_bucket(min(self._config.max_prompt, LONGEST_GRAPHED))
        with torch.inference_mode():
            for with_text in (False, True):
                self._rounds[with_text] = record(partial(self._round, with_text=with_text))
            # Prefills run one at a time and keep results in the slots' tensors only: they share their memory.
            pool = torch.cuda.graph_pool_handle()
            for length in range(longest, 0, -PREFILL_BUCKET):
                self._prompts[length] = prompts = self._make_prompts(length)
                self._prefills[length] = record(partial(self._prefill, prompts), pool=pool)

    @property
    def num_graphs(self) -> int:
        """Number of rounds held as CUDA graphs; 0 on a CPU."""
        return len(self._rounds)

    def drop_graphs(self) -> None:
        """Replays the CUDA graphs no more; later rounds run eagerly, which is slower. A round in flight still has its own."""
        self._dropped += [*self._rounds.values(), *self._prefills.values()]
        self._rounds, self._prefills = {}, {}

    @torch.inference_mode()
    def preempt(self, slot: int, length: int) -> PreemptedSlot:
        """Returns a copy of the slot's state and of the first `length` positions of its cache.

        The stream copies after the slot's last round and before its next owner's prefill.
        """
        cached = tuple(self._fetch(tensor[:, slot, :, :length], tensor[:, slot]) for tensor in self._cache.tensors)
        return PreemptedSlot(
            cached, tuple(self._fetch(row, row) for row in (tensor[slot] for tensor in self._state.persistent()))
        )

    @torch.inference_mode()
    def restore(self, slot: int, preempted: object) -> None:
        """Writes what `preempt` returned into any slot."""
        assert isinstance(preempted, PreemptedSlot)
        for tensor, block in zip(self._cache.tensors, preempted.cached, strict=True):
            tensor[:, slot, :, : block.shape[2]].copy_(block, non_blocking=True)
        for tensor, row in zip(self._state.persistent(), preempted.state, strict=True):
            tensor[slot].copy_(row, non_blocking=True)

    def _fetch(self, values: torch.Tensor, most: torch.Tensor) -> torch.Tensor:
        """Starts a copy to pinned memory and returns it; it must not be read before the stream has reached this point.

        The memory is as large as that of the whole slot, `most`: torch gives out again what `_pin` has pinned, by its size.
        """
        target = self._host_memory(most)[: values.numel()].view(values.shape)
        target.copy_(values, non_blocking=True)
        return target

    def _host_memory(self, like: torch.Tensor) -> torch.Tensor:
        return torch.empty(like.numel(), dtype=like.dtype, pin_memory=self._is_cuda)

    def _pin(self) -> None:
        """Pins the memory of every sequence that may be preempted: the first ones would stop everybody's rounds for it."""
        if self._is_cuda:
            whole = [tensor[:, 0] for tensor in self._cache.tensors] + [tensor[0] for tensor in self._state.persistent()]
            pinned = [self._host_memory(row) for row in whole for _ in range(self._config.max_preempted)]
            del pinned  # torch keeps it

    @torch.inference_mode()
    def reset_slot(self, slot: int) -> None:
        """Zeroes the cache and the state that a broken sequence left: an idle slot must be finite too."""
        tensor_cache.scrub(self._cache, slot)
        self._state.hidden[slot].zero_()

    @property
    def kv_bytes(self) -> int:
        """Size of the KV cache [bytes]."""
        return self._cache.nbytes

    def _send(self, values: torch.Tensor, target: torch.Tensor) -> None:
        """Copies to the device without waiting: from pinned memory, which torch keeps until the copy is done."""
        target.copy_(values.pin_memory() if self._is_cuda else values, non_blocking=True)

    def _result_buffer(self) -> _ResultBuffer:
        return _ResultBuffer(
            hidden=torch.zeros_like(self._state.out_hidden, device="cpu", pin_memory=self._is_cuda),
            numbers=torch.zeros_like(self._state.out_numbers, device="cpu", pin_memory=self._is_cuda),
            # Blocking: a waiting thread sleeps, and its core is free for the event loop.
            arrived=torch.cuda.Event(blocking=True) if self._is_cuda else None,  # type: ignore[no-untyped-call]
        )
