"""The GPU's kernels in Triton's interpreter, each against its twin: torch's operators, or slow ones in reference.py."""

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.checkpoint.in_torch import in_torch
from pipeline.engine import tensor_cache
from pipeline.engine.gpu_prompts import empty_prompts
from pipeline.model.embedding import Embedding
from pipeline.model.gpt import ActiveExtent, Cached, Gpt, KeysValues, rotary_tables
from pipeline.model.gpu.gpu_gpt import GpuGpt, sdpa
from pipeline.model.gpu.kernels import layer, prompt, step
from pipeline.model.gpu.kernels.attention import Attention, Shape, chosen_shape
from pipeline.model.gpu.kernels.prompt import FLOAT_FIELDS, PLACE_FIELDS, SETTINGS, Prompts
from pipeline.model.linear import QuantisedLinear
from pipeline.model.quantise import quantise
from serve.config.app_config import PROJECT
from tests.support import reference
from tests.support.effort import examples
from tests.support.slot_state import VOCAB, WIDTH, make_state

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # NumPy's, of infinities that a GPU takes for granted
]

CPU = torch.device("cpu")
SLOTS, HEADS, HEAD_DIM, POSITIONS = 3, 2, 16, 320
DTYPES = [torch.float32, torch.bfloat16]
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 3e-2}  # of an angle of hundreds in float32; of the cache's dtype
KVS = ["dtype", "int8"]


def cached(numbers: torch.Tensor, kv: str) -> Cached:
    return Cached(numbers, None) if kv == "dtype" else Cached(*quantise(numbers))


def tensors(cache: Cached) -> list[torch.Tensor]:
    return [tensor for tensor in (cache.numbers, cache.scales) if tensor is not None]


def exact(cache: Cached) -> torch.Tensor:
    """What the cache stands for."""
    return cache.read(ActiveExtent(SLOTS, POSITIONS), torch.float32).double()


class Case:
    """One attention call: a cache full of ordinary numbers, one row a slot."""

    def __init__(
        self, dtype: torch.dtype, positions: list[int], *, split: int, kv: str = "dtype", seed: int = 0, block: int = 64
    ) -> None:
        generator = torch.Generator().manual_seed(seed)

        def random(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator).to(dtype)

        self.qkv = random(SLOTS, 3 * HEADS * HEAD_DIM)
        self.keys, self.values = (cached(random(SLOTS, HEADS, POSITIONS, HEAD_DIM), kv) for _ in range(2))
        self.positions = torch.tensor(positions, dtype=torch.int32)
        self.busy = torch.ones(SLOTS, dtype=torch.int32)
        self.attention = Attention.allocate(
            slots=SLOTS, heads=HEADS, head_dim=HEAD_DIM, positions=POSITIONS, shape=Shape(split, block), device=CPU
        )

    def run(self, *, twin: bool = False) -> torch.Tensor:
        result = torch.full((SLOTS, HEADS * HEAD_DIM), torch.nan, dtype=self.qkv.dtype)
        rotation = rotary_tables(POSITIONS, HEAD_DIM, 10_000.0, CPU)
        attend = sdpa if twin else self.attention
        attend(self.qkv, rotation, self.positions, self.busy, self.keys, self.values, result)
        return result


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("split", [64, 128, POSITIONS])
@pytest.mark.parametrize("positions", [[0, 1, 63], [64, 65, 127], [128, 200, 319]])
@pytest.mark.parametrize("kv", KVS)
def test_attention_equals_its_slow_twin_and_writes_the_new_position_alone(dtype, split, positions, kv):
    case = Case(dtype, positions, split=split, kv=kv)
    before = [tensor.clone() for cache in (case.keys, case.values) for tensor in tensors(cache)]
    result = case.run().double().view(SLOTS, HEADS, HEAD_DIM).numpy()
    for slot, position in enumerate(positions):
        for head in range(HEADS):
            q, k, _ = case.qkv[slot].double().view(3, HEADS, HEAD_DIM)[:, head].numpy()
            q, k = (torch.from_numpy(reference.rotate(vector, position)).to(dtype).double().numpy() for vector in (q, k))
            half = 0 if case.keys.scales is None else float(case.keys.scales[slot, head, position]) / 2
            keys, values = (exact(cache)[slot, head, : position + 1].numpy() for cache in (case.keys, case.values))
            np.testing.assert_allclose(keys[position], k, atol=TOLERANCE[dtype] + half)
            value = cached(case.qkv[slot].view(3, HEADS, HEAD_DIM)[2, head], kv)
            for written, row in zip(tensors(case.values), tensors(value), strict=True):
                assert torch.equal(written[slot, head, position], row), "bit for bit what torch rounds it to"
            np.testing.assert_allclose(result[slot, head], reference.attend(q, keys, values), atol=TOLERANCE[dtype])
    after = [tensor for cache in (case.keys, case.values) for tensor in tensors(cache)]
    for tensor, old in zip(after, before, strict=True):
        for slot, position in enumerate(positions):
            tensor[slot, :, position] = old[slot, :, position]
        assert torch.equal(tensor, old), "nothing else was written"


@settings(max_examples=examples(10))
@given(
    positions=st.lists(st.integers(0, POSITIONS - 1), min_size=SLOTS, max_size=SLOTS),
    seed=st.integers(0, 2**20),
    kv=st.sampled_from(KVS),
)
def test_attention_agrees_with_torchs(positions, seed, kv):
    ours, twins = (Case(torch.float32, positions, split=128, kv=kv, seed=seed) for _ in range(2))
    torch.testing.assert_close(ours.run(), twins.run(twin=True), rtol=1e-4, atol=1e-4)
    for mine, theirs in ((ours.keys, twins.keys), (ours.values, twins.values)):
        torch.testing.assert_close(exact(mine), exact(theirs), rtol=0, atol=1e-5 if kv == "dtype" else 0.04)


@pytest.mark.parametrize("block", [16, 32, 128])
def test_another_shape_sums_in_another_order_and_the_same(block):
    usual, other, twin = (Case(torch.float32, [0, 130, 319], split=100, block=size) for size in (64, block, 64))
    result, expected = other.run(), twin.run(twin=True)
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)
    assert not torch.equal(result, usual.run()), "the last bits are others, so the shape is the configuration's"


@pytest.mark.parametrize("kv", KVS)
@pytest.mark.parametrize("part", [0, 1, 2])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_what_is_not_finite_is_seen_by_its_own_slot_and_head_alone(kv, part, bad):
    clean, spoiled = (Case(torch.bfloat16, [3, 70, 5], split=64, kv=kv) for _ in range(2))
    spoiled.qkv.view(SLOTS, 3, HEADS, HEAD_DIM)[1, part, 1, 7] = bad
    first, other = (case.run().view(SLOTS, HEADS, HEAD_DIM) for case in (clean, spoiled))
    assert not other[1, 1].isfinite().all()
    other[1, 1] = first[1, 1]
    assert torch.equal(first, other)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("split", [64, POSITIONS])
@pytest.mark.parametrize("kv", KVS)
def test_a_slot_attends_as_if_alone_and_never_reads_past_its_end(dtype, split, kv):
    """Bit for bit, whatever the neighbours hold, wherever they are, whatever lies behind the slot's own end."""
    alone, crowded = (
        Case(dtype, [100, 0, 0], split=split, kv=kv),
        Case(dtype, [100, 319, 7], split=split, kv=kv, seed=9),
    )
    alone.busy[1:] = 0
    crowded.qkv[0] = alone.qkv[0]
    crowded.qkv[1:] = torch.nan
    for mine, theirs in ((alone.keys, crowded.keys), (alone.values, crowded.values)):
        for own, others in zip(tensors(mine), tensors(theirs), strict=True):
            others.fill_(torch.nan if others.is_floating_point() else 99)
            others[0, :, :100] = own[0, :, :100]
    first, other = alone.run(), crowded.run()
    assert torch.equal(first[0], other[0])
    assert first[0].isfinite().all()
    assert other[1:].isnan().all(), "the neighbours really were broken"
    assert (first[1:] == 0).all(), "idle slots see nothing"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kv", KVS)
def test_a_slot_attends_alike_in_any_slot(dtype, kv):
    first = Case(dtype, [90, 200, 31], split=64, kv=kv)
    moved = Case(dtype, [31, 90, 200], split=64, kv=kv)
    moved.qkv = first.qkv.roll(1, 0)
    for mine, theirs in ((first.keys, moved.keys), (first.values, moved.values)):
        for own, others in zip(tensors(mine), tensors(theirs), strict=True):
            others.copy_(own.roll(1, 0))
    assert torch.equal(first.run().roll(1, 0), moved.run())


def test_splits_follow_from_the_configuration():
    assert chosen_shape(1, 12, 1536).split == 128
    assert chosen_shape(16, 12, 1536).split == 1536
    assert chosen_shape(1, 12, 64).split == 64


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("parts", [0, 1, 3])
def test_add_norm_is_torchs(dtype, parts):
    generator = torch.Generator().manual_seed(1)
    x, weight = torch.randn(5, WIDTH, generator=generator), torch.randn(WIDTH, generator=generator)
    delta = torch.randn(parts, 5, WIDTH, generator=generator).to(dtype) if parts else None
    summed = x.clone()
    for part in delta if delta is not None else ():
        summed += part
    expected = torch.nn.functional.rms_norm(summed, (WIDTH,), weight, 1e-6)
    residual, normed = x.clone(), torch.empty(5, WIDTH, dtype=dtype)
    layer.add_norm(residual, delta, weight, normed, eps=1e-6)
    assert torch.equal(residual, summed)
    torch.testing.assert_close(normed, expected.to(dtype), rtol=1e-2 if dtype is torch.bfloat16 else 1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_gate_is_torchs(dtype):
    gate_up = (3 * torch.randn(4, 2 * 1100, generator=torch.Generator().manual_seed(2))).to(dtype)
    gated = torch.empty(4, 1100, dtype=dtype)
    layer.gate(gate_up, gated)
    gate, up = gate_up.float().chunk(2, -1)
    torch.testing.assert_close(gated, (torch.nn.functional.silu(gate) * up).to(dtype))


def test_advance_says_who_moves_and_embeds_what_was_drawn():
    generator = torch.Generator().manual_seed(5)
    codes, texts = torch.randn(4, VOCAB, WIDTH, generator=generator), torch.randn(200, WIDTH, generator=generator)
    state = make_state(6)
    # who:          runs   idle   drew the end   not finite   ended and not finite   a refine pass
    state.active[:] = torch.tensor([1, 0, 1, 1, 1, 1])
    state.ends[2, 1] = state.ends[4, 0] = 1
    state.finite[3, 2] = state.finite[4, 3] = 0
    state.is_text[5] = 1
    state.tokens[:] = torch.randint(0, VOCAB, (6, 4), generator=generator)
    state.tokens[5] = 150
    state.steps[:] = torch.tensor([3, 3, 3, 3, 3, 18])
    before, residual = state.recent.clone(), torch.full((6, WIDTH), torch.nan)
    step.advance(state, 1, codes, texts, residual, with_text=True)
    assert state.emitted.tolist() == [1, 0, 0, 0, 0, 1]
    assert state.out_emitted.tolist() == [[0] * 6, [1, 0, 0, 0, 0, 1]]
    assert state.ended.tolist() == [0, 0, 1, 0, 0, 0]
    assert state.broken.tolist() == [0, 0, 0, 1, 1, 0]
    assert torch.equal(state.out_hidden[1], state.hidden)
    assert torch.equal(state.out_tokens[1], state.tokens)
    assert not state.out_hidden[0].any()
    before[0, :, 3] = state.tokens[0]
    assert torch.equal(state.recent, before), "only who moves remembers, and text is not a code"
    summed = sum(codes[book][state.tokens[:5, book].long()] for book in range(4))
    torch.testing.assert_close(residual[:5], summed)
    assert torch.equal(residual[5], texts[150])
    again = torch.empty_like(residual)
    step.advance(state, 0, codes, texts, again[:5], with_text=False)
    assert torch.equal(again[:5], residual[:5]), "the same bits with and without the text's branch"


@pytest.mark.parametrize("parts", [1, 2])
def test_settle_moves_who_has_made_the_step_and_nobody_else(parts):
    state = make_state(4)
    before = state.hidden.clone()
    state.emitted[:] = torch.tensor([1, 0, 1, 1])
    state.steps[:] = torch.tensor([2, 2, 7, 0])
    state.positions[:] = torch.tensor([5, 5, 30, 31])
    x, delta = torch.randn(4, WIDTH), torch.randn(parts, 4, WIDTH).bfloat16()
    weight = torch.randn(WIDTH)
    step.settle(state, x, delta, weight, eps=1e-6, positions=32)
    expected = torch.nn.functional.rms_norm(x + delta.float().sum(0), (WIDTH,), weight, 1e-6)
    torch.testing.assert_close(state.hidden[[0, 2, 3]], expected[[0, 2, 3]])
    assert torch.equal(state.hidden[1], before[1])
    assert state.steps.tolist() == [3, 2, 8, 1]
    assert state.positions.tolist() == [6, 5, 31, 31], "a full slot stays in range"
    assert state.active.tolist() == [1, 0, 0, 1], "the step cap of 8 is reached"


@pytest.mark.skipif(sys.platform != "linux", reason="Triton's compiler comes with torch on Linux only")
@pytest.mark.parametrize(
    "capabilities", [["90"], pytest.param(["80", "86", "89", "100", "120"], marks=pytest.mark.nightly)], ids=["H100", "others"]
)
def test_every_kernel_compiles_to_machine_code(tmp_path, capabilities):
    """The interpreter takes more than the compiler does; ptxas comes with Triton, so this needs no GPU."""
    environment = os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "tests.support.compile_kernels", *capabilities]
    done = subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == (17 + 8 + 4 + 2 + 8) * len(capabilities)


# A prefill on a GPU, through Triton's interpreter: against the embedding and the layers that torch computes.


SPARE, ROWS, LENGTH = 3, 3, 32


def make_prompts(width: int, **columns: list[int]) -> Prompts:
    prompts = empty_prompts(ROWS, LENGTH, width, 8, spare=SPARE, device=CPU)
    for name, values in columns.items():
        prompts.numbers[:, PLACE_FIELDS.index(name)] = torch.tensor(values)
    return prompts


def test_rows_begin_with_their_text_their_codes_or_the_voice(demo):
    embedding, width = Embedding(in_torch(demo.embed()), device=CPU), demo.gpt_spec.width
    generator = torch.Generator().manual_seed(0)
    prompts = make_prompts(width, speaker_at=[1, -1, 0])
    prompts.tokens[..., :4] = torch.randint(0, embedding.code_vocab, (ROWS, LENGTH, 4), generator=generator)
    prompts.tokens[:, ::3, 4] = 1
    prompts.tokens[:, 0, 0] = embedding.text_vocab - 1
    prompts.speakers.normal_(generator=generator)
    prompts.speakers[2] = torch.nan
    residual = torch.full((ROWS * LENGTH, width), torch.nan)
    prompt.embed(prompts, embedding.code_table, embedding.text_table, residual)
    for row, place in enumerate([1, None, 0]):
        ids, is_text = prompts.tokens[row, :, :4], prompts.tokens[row, :, 4].bool()
        expected = embedding.embed_prompt(ids, is_text, None, None)
        if place is not None:
            expected[place] = prompts.speakers[row]
        torch.testing.assert_close(residual.view(ROWS, LENGTH, -1)[row], expected, equal_nan=True)


@pytest.mark.parametrize("kv", ["dtype", "int8"])
@pytest.mark.parametrize("weights", ["dtype", pytest.param("int8", marks=pytest.mark.nightly)])
def test_layers_are_torchs_and_fill_the_slots_of_the_prompts_alone(demo, kv, weights):
    spec = demo.gpt_spec
    settings = {"positions": 64, "rows": SPARE, "device": CPU, "dtype": torch.float32}
    slow = Gpt(in_torch(demo.gpt()), spec, **settings, product=QuantisedLinear if weights == "int8" else None)
    fast = GpuGpt(in_torch(demo.gpt()), spec, **settings, weights=weights, attention="triton")
    prompts = make_prompts(spec.width, slot=[2, SPARE, 0], last=[31, 0, 11])
    x = torch.randn(ROWS, LENGTH, spec.width, generator=torch.Generator().manual_seed(1))
    ours, twins = (filled(tensor_cache.zeros(spec, SPARE + 1, 64, torch.float32, kv, CPU)) for _ in range(2))
    residual = x.reshape(-1, spec.width).clone()
    with torch.inference_mode():
        delta = fast.run_prompts(residual, prompts, ours)
        expected = slow.prefill(x, prompts.number("slot"), prompts.number("last"), twins)
    state = make_state(SPARE + 1)
    state = replace(state, hidden=torch.zeros(SPARE + 1, spec.width))
    prompt.admit(prompts, state, residual, delta, fast.final_norm, eps=fast.rms_eps)
    torch.testing.assert_close(state.hidden[[2, SPARE, 0]], expected, rtol=1e-4, atol=1e-4)
    for mine, theirs in zip(ours.tensors, twins.tensors, strict=True):
        assert torch.equal(mine[:, 1], theirs[:, 1]), "nobody's slot is as it was"
        assert torch.equal(mine[..., LENGTH:] if mine.ndim == 4 else mine[:, :, :, LENGTH:], beyond(theirs))
        # A number at half a step may be rounded either way.
        torch.testing.assert_close(mine.double(), theirs.double(), rtol=1e-4, atol=1.0 if mine.dtype is torch.int8 else 1e-4)


def filled(cache: KeysValues) -> KeysValues:
    for tensor in cache.tensors:
        tensor.fill_(7)
    return cache


def beyond(tensor: torch.Tensor) -> torch.Tensor:
    """The positions behind the prompts, of every slot."""
    return tensor[:, :, :, LENGTH:]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_slot_begins_with_its_prompts_settings_and_last_state(dtype):
    settings = {name: [number + 10, 0, number + 20] for number, name in enumerate(SETTINGS)}
    prompts = make_prompts(WIDTH, slot=[2, SPARE, 0], last=[31, 0, 11], **settings)
    generator = torch.Generator().manual_seed(2)
    for tensor in (prompts.floats, prompts.uniforms):
        tensor.uniform_(generator=generator)
    residual = torch.randn(ROWS * LENGTH, WIDTH, generator=generator)
    delta = torch.randn(ROWS * LENGTH, WIDTH, generator=generator).to(dtype)
    weight = torch.randn(WIDTH, generator=generator)
    state = make_state(SPARE + 1)
    before = {name: getattr(state, name).clone() for name in state.__dataclass_fields__}
    prompt.admit(prompts, state, residual, delta, weight, eps=1e-6)
    sums = (residual + delta.float()).view(ROWS, LENGTH, WIDTH)
    for row, (slot, last) in enumerate(((2, 31), (SPARE, 0), (0, 11))):
        expected = torch.nn.functional.rms_norm(sums[row, last], (WIDTH,), weight, 1e-6)
        torch.testing.assert_close(state.hidden[slot], expected)
        assert (state.positions[slot], state.steps[slot]) == (last + 1, 0)
        assert [getattr(state, name)[slot] for name in FLOAT_FIELDS] == prompts.floats[row].tolist()
        assert [int(getattr(state, name)[slot]) for name in SETTINGS] == [settings[name][row] for name in SETTINGS]
        assert torch.equal(state.uniforms[slot], prompts.uniforms[row])
        assert (state.recent[slot] == VOCAB).all()
        for name in ("hidden", "positions", "steps", "uniforms", "recent", *FLOAT_FIELDS, *SETTINGS):
            before[name][slot] = getattr(state, name)[slot]
    for name, old in before.items():
        assert torch.equal(getattr(state, name), old), f"{name}: nothing else was written"
