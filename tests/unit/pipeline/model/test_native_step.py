"""The native step against torch's sampler: the same tokens for any logits and any wishes, each row its own."""

from dataclasses import dataclass, replace
from functools import cache
from types import SimpleNamespace

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.checkpoint.weights import Checkpoint
from pipeline.model.cpu.native import NativeDecoder
from pipeline.model.cpu.native_step import HeadArrays, NativeStep, SlotArrays
from pipeline.model.cpu.packing import Weights
from pipeline.model.cpu.vocabulary import Heads
from pipeline.model.gpt import KeysValues
from pipeline.model.quantise import dequantise, quantise
from pipeline.model.sampling import RowParams, draw, filter_logits, penalty_powers
from pipeline.spec import CODEBOOKS, REPETITION_WINDOW
from scripts.evaluate.quality_gate import NativeGpt, as_array
from tests.support.effort import examples
from tests.support.machine import needs_native

SLOTS, STEPS, POSITIONS = 5, 8, 32
WIDTH = 128  # the demo's; heads of this many outputs are the identity: a state is its own logits
CODE_VOCAB, TEXT_VOCAB = WIDTH // CODEBOOKS, WIDTH

pytestmark = needs_native


@dataclass(frozen=True, eq=False)
class Vocabularies:
    """What a NativeStep takes of a Vocabulary, and its heads."""

    code_head: torch.Tensor
    text_head: torch.Tensor
    code_table: torch.Tensor
    text_table: torch.Tensor


@dataclass(frozen=True, eq=False)
class Bench:
    """A step and everything it works on: tensors of the memory of the arrays that it takes."""

    step: NativeStep
    decoder: NativeGpt
    vocabularies: Vocabularies
    slots: SimpleNamespace
    code: SimpleNamespace
    text: SimpleNamespace
    cache: KeysValues


@cache
def make_decoder(demo: Checkpoint, weights: Weights = "float32") -> NativeDecoder:
    spec = demo.gpt_spec
    return NativeDecoder(demo.gpt(), spec, positions=POSITIONS, rows=SLOTS, weights=weights, threads=1)


def make_bench(demo: Checkpoint, seed: int, **changes: torch.Tensor) -> Bench:
    """Five slots in the middle of their sequences; `changes` are SlotArrays of another kind."""
    generator, spec = torch.Generator().manual_seed(seed), demo.gpt_spec

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    def whole(low: int, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(low, high, shape, generator=generator)

    slots = {
        "temperature": torch.full((SLOTS,), 0.7),
        "dropped_mass": torch.full((SLOTS,), 0.3),
        "powers": penalty_powers(torch.full((SLOTS,), 1.05)),
        "uniforms": torch.rand(SLOTS, STEPS, CODEBOOKS, generator=generator),
        "top_k": torch.full((SLOTS,), 20),
        "min_steps": torch.zeros(SLOTS, dtype=torch.int64),
        "max_steps": torch.full((SLOTS,), STEPS),
        "eos": torch.full((SLOTS,), CODE_VOCAB - 1),
        "is_text": torch.zeros(SLOTS, dtype=torch.bool),
        "from_noise": torch.zeros(SLOTS, dtype=torch.bool),
        "hidden": normal(SLOTS, WIDTH),
        "positions": whole(0, POSITIONS - 1, SLOTS),
        "steps": whole(0, STEPS - 1, SLOTS),
        "active": torch.ones(SLOTS, dtype=torch.bool),
        "out_hidden": torch.zeros(2, SLOTS, WIDTH),
        "out_tokens": torch.zeros(2, SLOTS, CODEBOOKS, dtype=torch.int64),
        "out_emitted": torch.ones(2, SLOTS, dtype=torch.bool),
        "ended": torch.zeros(SLOTS, dtype=torch.bool),
        "broken": torch.zeros(SLOTS, dtype=torch.bool),
    } | changes
    vocabularies = Vocabularies(
        torch.eye(WIDTH), torch.eye(WIDTH), normal(CODEBOOKS, CODE_VOCAB, WIDTH), normal(TEXT_VOCAB, WIDTH)
    )
    code, text = (
        SimpleNamespace(
            noise=torch.empty(SLOTS, books, vocab).exponential_(1, generator=generator),
            recent=whole(0, vocab + 1, SLOTS, books, REPETITION_WINDOW),  # vocab: not yet used
        )
        for books, vocab in ((CODEBOOKS, CODE_VOCAB), (1, TEXT_VOCAB))
    )
    shape = (spec.layers, SLOTS, spec.heads, POSITIONS, spec.head_dim)
    cache, decoder = KeysValues(normal(*shape), normal(*shape)), make_decoder(demo)
    step = make_step(decoder, vocabularies, slots, code, text, cache)
    return Bench(step, NativeGpt(decoder), vocabularies, SimpleNamespace(**slots), code, text, cache)


def make_step(
    decoder: NativeDecoder,
    vocabularies: Vocabularies,
    slots: dict[str, torch.Tensor],
    code: SimpleNamespace,
    text: SimpleNamespace,
    cache: KeysValues,
) -> NativeStep:
    return NativeStep(
        decoder,
        SimpleNamespace(code_table=vocabularies.code_table.numpy(), text_table=vocabularies.text_table.numpy()),
        Heads(vocabularies.code_head.numpy(), vocabularies.text_head.numpy()),
        SlotArrays(**as_arrays(slots)),
        HeadArrays(**as_arrays(vars(code))),
        HeadArrays(**as_arrays(vars(text))),
        tuple(map(as_array, cache.tensors)),
    )


def as_arrays(tensors: dict[str, torch.Tensor]) -> dict[str, np.ndarray]:
    return {name: as_array(tensor) for name, tensor in tensors.items()}


def torch_draw(bench: Bench, *, text: bool) -> torch.Tensor:
    """What torch's sampler draws for every slot, taken as code or as text: (S, books)."""
    slots, head, books = bench.slots, bench.text if text else bench.code, 1 if text else CODEBOOKS
    column = (slice(None), None, None)
    logits = filter_logits(
        slots.hidden.view(SLOTS, books, -1),
        head.recent,
        RowParams(slots.temperature[column], slots.dropped_mass[column], slots.top_k[column], slots.powers[:, 1][column]),
        eos=slots.eos[column].expand(-1, books, 1),
        eos_forbidden=(slots.steps < slots.min_steps)[column],
    )
    uniforms = slots.uniforms[torch.arange(SLOTS), slots.steps.clamp(max=STEPS - 1)]
    return draw(logits, uniforms[:, :books], head.noise, slots.from_noise[:, None])


def per_slot(values: st.SearchStrategy[object]) -> st.SearchStrategy[list[object]]:
    return st.lists(values, min_size=SLOTS, max_size=SLOTS)


@settings(max_examples=examples(300))
@given(
    seed=st.integers(0, 2**20),
    temperatures=per_slot(st.sampled_from([0.01, 0.1, 0.3, 1.0, 2.0])),
    top_ps=per_slot(st.sampled_from([0.05, 0.3, 0.5, 0.7, 0.95, 1.0])),
    top_ks=per_slot(st.sampled_from([1, 2, 3, 5, 20, 31, 32, 626])),
    penalties=per_slot(st.sampled_from([0.5, 0.8, 1.0, 1.05, 2.0])),
    min_steps=per_slot(st.integers(0, STEPS)),
    from_noise=per_slot(st.booleans()),
    texts=per_slot(st.booleans()),
    levels=st.sampled_from([1, 2, 3, 10, 0]),
    size=st.sampled_from([1e-3, 1.0, 30.0]),
)
def test_native_draws_equal_torchs(
    demo, seed, temperatures, top_ps, top_ks, penalties, min_steps, from_noise, texts, levels, size
):
    """Random logits, and logits of few levels: ties in every filter. Equal logits, both zeros and the end among them."""
    generator = torch.Generator().manual_seed(seed + 1)
    hidden = torch.randn(SLOTS, WIDTH, generator=generator) * size
    if levels:
        hidden = torch.randint(-levels, levels + 1, (SLOTS, WIDTH), generator=generator).sign() * hidden.abs().amax() / levels
    bench = make_bench(
        demo,
        seed,
        hidden=hidden,
        temperature=torch.tensor(temperatures),
        dropped_mass=(1 - torch.tensor(top_ps, dtype=torch.float64)).float(),
        top_k=torch.tensor(top_ks),
        powers=penalty_powers(torch.tensor(penalties)),
        min_steps=torch.tensor(min_steps),
        from_noise=torch.tensor(from_noise),
        is_text=torch.tensor(texts),
    )
    is_text = torch.tensor(texts)
    tokens = torch.where(is_text[:, None], torch_draw(bench, text=True), torch_draw(bench, text=False))
    ended = (tokens == bench.slots.eos[:, None]).any(1)
    bench.step(1)
    assert torch.equal(bench.slots.out_tokens[1], tokens)
    assert torch.equal(bench.slots.ended, ended)
    assert torch.equal(bench.slots.out_emitted[1], ~ended)
    assert not bench.slots.broken.any()


def test_only_active_slots_advance(demo):
    bench = make_bench(demo, 3)
    slots = bench.slots
    slots.hidden[0, CODE_VOCAB - 1] = 100.0  # this one ends
    slots.hidden[1, 5] = torch.nan
    slots.active[2] = False
    slots.max_steps[3] = slots.steps[3] + 1  # this one is at its last step
    slots.min_steps[3] = STEPS
    slots.is_text[4], slots.eos[4] = True, 3
    before = {name: getattr(slots, name).clone() for name in SlotArrays.__slots__}
    recent = bench.code.recent.clone(), bench.text.recent.clone()
    tokens = torch.where(slots.is_text[:, None], torch_draw(bench, text=True), torch_draw(bench, text=False))
    x = bench.vocabularies.code_table[torch.arange(CODEBOOKS), tokens.clamp(max=CODE_VOCAB - 1)].sum(1)
    x[4] = bench.vocabularies.text_table[tokens[4, 0]]
    moved = torch.tensor([3, 4])
    cache = tuple(tensor.clone() for tensor in bench.cache.tensors)
    expected = bench.decoder(x[moved], moved, slots.positions[moved], cache)
    bench.step(0)

    assert slots.ended.tolist() == [True, False, False, False, False]
    assert slots.broken.tolist() == [False, True, False, False, False]
    assert slots.out_emitted[0].tolist() == [False, False, False, True, True]
    assert slots.out_emitted[1].all(), "the other step of the round is left alone"
    assert slots.active.tolist() == [False, False, False, False, True]
    assert torch.equal(slots.out_hidden[0, moved], before["hidden"][moved]), "the state the tokens were drawn from"
    assert torch.equal(slots.out_tokens[0, 3], tokens[3])
    assert torch.equal(slots.out_tokens[0, 4], tokens[4, :1].expand(CODEBOOKS)), "one token in every column"
    assert torch.allclose(slots.hidden[moved], expected, atol=1e-5)
    stay = torch.tensor([0, 2])
    for name in ("hidden", "positions", "steps"):
        assert torch.equal(getattr(slots, name)[stay], before[name][stay])
        assert not torch.equal(getattr(slots, name)[moved], before[name][moved])
    assert torch.equal(slots.steps[moved], before["steps"][moved] + 1)
    assert torch.equal(slots.positions[moved], before["positions"][moved] + 1)
    for head, old, slot, drawn in ((bench.code, recent[0], 3, tokens[3]), (bench.text, recent[1], 4, tokens[4, :1])):
        assert torch.equal(head.recent[slot], torch.cat([old[slot][:, 1:], drawn[:, None]], 1))
        others = torch.arange(SLOTS) != slot
        assert torch.equal(head.recent[others], old[others])


@settings(max_examples=examples(40))
@given(
    seed=st.integers(0, 2**20),
    watched=st.integers(0, SLOTS - 1),
    others=per_slot(st.sampled_from(["idle", "code", "text", "broken"])),
    is_text=st.booleans(),
)
def test_a_rows_bits_are_its_own_in_any_company(demo, seed, watched, others, is_text):
    alone, crowd = make_bench(demo, seed), make_bench(demo, seed)
    for slot, kind in enumerate(others):
        alone.slots.active[slot] = slot == watched
        crowd.slots.active[slot] = slot == watched or kind != "idle"
        for bench in (alone, crowd):
            bench.slots.is_text[slot] = is_text if slot == watched else kind == "text"
        if kind == "broken" and slot != watched:
            crowd.slots.hidden[slot] = torch.nan
    for number in (0, 1):
        alone.step(number)
        crowd.step(number)
    for name in SlotArrays.__slots__:
        mine, theirs = getattr(alone.slots, name), getattr(crowd.slots, name)
        part = (slice(None), watched) if name.startswith("out_") else watched
        assert torch.equal(mine[part], theirs[part]), name
    assert torch.equal(alone.cache.keys[:, watched], crowd.cache.keys[:, watched])


def test_heads_beside_weights_of_four_bits_have_eight(demo):
    """Rows of a head that hardly differ: rounding them decides what is drawn."""
    bench, generator = make_bench(demo, 2), torch.Generator().manual_seed(3)
    head = torch.randn(WIDTH, generator=generator) + 0.02 * torch.randn(WIDTH, WIDTH, generator=generator)
    exact, rounded = (
        torch_draw(make_bench(demo, 2, hidden=bench.slots.hidden @ weight.T), text=False)
        for weight in (head, dequantise(*quantise(head)))
    )
    cache = KeysValues(bench.cache.keys.bfloat16(), bench.cache.values.bfloat16())
    vocabularies = replace(bench.vocabularies, code_head=head)
    make_step(make_decoder(demo, "int4"), vocabularies, vars(bench.slots), bench.code, bench.text, cache)(0)
    assert torch.equal(bench.slots.out_tokens[0], rounded)
    assert not torch.equal(rounded, exact)


def test_a_full_slots_position_stays_in_range(demo):
    bench = make_bench(demo, 1)
    bench.slots.positions.fill_(POSITIONS - 1)
    bench.step(0)
    assert bench.slots.positions.max() == POSITIONS - 1


def test_a_step_without_active_slots_changes_nothing(demo):
    bench = make_bench(demo, 1, active=torch.zeros(SLOTS, dtype=torch.bool))
    hidden = bench.slots.hidden.clone()
    bench.step(0)
    assert not bench.slots.out_emitted[0].any()
    assert torch.equal(bench.slots.hidden, hidden)
