"""The native decode step: torch's numbers, each row its own to the last bit."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.checkpoint.in_torch import in_torch
from pipeline.checkpoint.weights import Checkpoint, GptSpec
from pipeline.model.cpu import native
from pipeline.model.cpu.native import NativeDecoder
from pipeline.model.cpu.packing import Arithmetic, Weights
from pipeline.model.gpt import ActiveExtent, Gpt, KeysValues, rotary_tables
from pipeline.model.quantise import dequantise, quantise
from pipeline.native.compiler import NativeUnavailable
from pipeline.native.instructions import Instructions, usable
from pipeline.native.memory import BFLOAT16
from scripts.evaluate.quality_gate import NativeGpt
from tests.support.effort import examples
from tests.support.four_bit import FourBitLinear
from tests.support.machine import needs_instructions, needs_native, needs_tiles

SAME_BITS = {"bfloat16": (Instructions.AVX2,), "int4": (Instructions.AVX2, Instructions.AMX)}
"""weights -> instructions that compute them as AVX-512 does, to the last bit: see below"""
SLOTS, POSITIONS = 11, 200  # more slots than the eight rows one block holds


def make_gpt(demo: Checkpoint, weights: Weights | None, *, dtype: torch.dtype, tensors=None, product=None) -> Gpt | NativeGpt:
    if weights is not None:
        return make_native(demo, weights)
    tensors = in_torch(demo.gpt()) if tensors is None else tensors
    return Gpt(
        tensors, demo.gpt_spec, positions=POSITIONS, rows=SLOTS, device=torch.device("cpu"), dtype=dtype, product=product
    )


def make_cache(demo: Checkpoint, dtype: torch.dtype, seed: int = 0, spec: GptSpec | None = None) -> KeysValues:
    """Full of numbers of a type; int8 ones have scales."""
    spec, generator = spec or demo.gpt_spec, torch.Generator().manual_seed(seed)
    shape = (spec.layers, SLOTS, spec.heads, POSITIONS, spec.head_dim)
    keys, values = (torch.randn(shape, generator=generator) for _ in range(2))
    if dtype is not torch.int8:
        return KeysValues(keys.to(dtype), values.to(dtype))
    (keys, key_scales), (values, value_scales) = quantise(keys), quantise(values)
    return KeysValues(keys, values, key_scales, value_scales)


def numbers_of(decoder: NativeGpt) -> torch.dtype:
    """What a cache holds that is not int8."""
    return torch.float32 if decoder.decoder.cache_dtype == np.float32 else torch.bfloat16


def make_x(demo: Checkpoint, seed: int) -> torch.Tensor:
    return torch.randn(SLOTS, demo.gpt_spec.width, generator=torch.Generator().manual_seed(seed))


def make_native(
    demo: Checkpoint, weights: Weights, instructions: Instructions | None = None, *, spec: GptSpec | None = None
) -> NativeGpt:
    decoder = NativeDecoder(
        demo.gpt(),
        spec or demo.gpt_spec,
        positions=POSITIONS,
        rows=SLOTS,
        weights=weights,
        threads=2,
        instructions=instructions,
    )
    return NativeGpt(decoder)


@pytest.fixture(
    scope="module",
    params=[
        ("float32", None),
        *(
            pytest.param((weights, instructions), marks=needs_instructions(instructions))
            for instructions in (Instructions.AVX512_VNNI, Instructions.AVX2, Instructions.NEON, Instructions.AMX)
            for weights in ("bfloat16", "int8", "int4")
            if instructions not in SAME_BITS.get(weights, ())
        ),
    ],
    ids=lambda way: f"{way[0]}-{way[1]}",
)
def decoder(request: pytest.FixtureRequest, demo: Checkpoint) -> NativeGpt:
    weights, instructions = request.param
    return make_native(demo, weights, instructions)


@pytest.fixture(scope="module", params=["dtype", "int8"], ids=lambda kv: f"kv-{kv}")
def cache_dtype(request: pytest.FixtureRequest, decoder: NativeGpt) -> torch.dtype:
    """What the cache holds: numbers of the decoder's own type, or int8."""
    return numbers_of(decoder) if request.param == "dtype" else torch.int8


@needs_native
def test_float32_is_torchs_step(demo):
    positions = torch.arange(SLOTS) * 19
    mine, theirs = make_cache(demo, torch.float32), make_cache(demo, torch.float32)
    with torch.inference_mode():
        steps = [
            make_gpt(demo, weights, dtype=torch.float32).decode(
                make_x(demo, 1), positions, cache, ActiveExtent(SLOTS, POSITIONS)
            )
            for weights, cache in (("float32", mine), (None, theirs))
        ]
    assert (steps[0] - steps[1]).abs().max() < 1e-5
    assert (mine.keys - theirs.keys).abs().max() < 1e-5
    assert (mine.values - theirs.values).abs().max() < 1e-5
    assert not torch.equal(theirs.keys, make_cache(demo, torch.float32).keys), "the step has written something"


@needs_native
def test_bfloat16_is_nearer_to_float32_than_torchs_bfloat16(demo):
    positions = torch.arange(SLOTS) * 19
    x = make_x(demo, 1)
    with torch.inference_mode():
        exact = make_gpt(demo, None, dtype=torch.float32).decode(
            x,
            positions,
            KeysValues(*(part.float() for part in make_cache(demo, torch.bfloat16).tensors)),
            ActiveExtent(SLOTS, 200),
        )
        errors = [
            (make_gpt(demo, weights, dtype=torch.bfloat16).decode(x, positions, cache, ActiveExtent(SLOTS, 200)) - exact)
            .abs()
            .mean()
            for weights, cache in (("bfloat16", make_cache(demo, torch.bfloat16)), (None, make_cache(demo, torch.bfloat16)))
        ]
    assert errors[0] < errors[1]


@needs_native
def test_int8_is_exactly_the_rounded_weights(demo):
    """Held against torch in float32 on the dequantised weights: what is left is the cache's bfloat16."""
    rounded = {
        name: dequantise(*quantise(tensor)) if "_proj" in name else tensor for name, tensor in in_torch(demo.gpt()).items()
    }
    positions, x = torch.arange(SLOTS) * 19, make_x(demo, 1)
    exact_cache = KeysValues(*(part.float() for part in make_cache(demo, torch.bfloat16).tensors))
    with torch.inference_mode():
        step = make_gpt(demo, "int8", dtype=torch.bfloat16).decode(
            x, positions, make_cache(demo, torch.bfloat16), ActiveExtent(SLOTS, 200)
        )
        exact = make_gpt(demo, None, dtype=torch.float32, tensors=rounded).decode(
            x, positions, exact_cache, ActiveExtent(SLOTS, 200)
        )
    assert (step - exact).abs().max() < 5e-3


@needs_native
def test_int4_is_its_slow_twin(demo):
    """Both round weights and inputs alike. What is left: the cache's bfloat16, and inputs that it moves to the next integer."""
    positions, x = torch.arange(SLOTS) * 19, make_x(demo, 1)

    def float32_cache() -> KeysValues:
        return KeysValues(*(part.float() for part in make_cache(demo, torch.bfloat16).tensors))

    with torch.inference_mode():
        step = make_gpt(demo, "int4", dtype=torch.bfloat16).decode(
            x, positions, make_cache(demo, torch.bfloat16), ActiveExtent(SLOTS, 200)
        )
        twin, exact = (
            make_gpt(demo, None, dtype=torch.float32, product=product).decode(x, positions, cache, ActiveExtent(SLOTS, 200))
            for product, cache in ((FourBitLinear, float32_cache()), (None, float32_cache()))
        )
    assert (step - twin).norm() < 1e-2 * twin.norm()
    assert (step - twin).norm() < 0.1 * (exact - twin).norm(), "the rounding of the weights is the twin's"


@needs_native
@settings(max_examples=examples(40))
@given(
    rows=st.permutations(range(SLOTS)).flatmap(lambda order: st.integers(1, SLOTS).map(lambda count: order[:count])),
    places=st.lists(st.integers(0, POSITIONS - 1), min_size=SLOTS, max_size=SLOTS),
    seed=st.integers(0, 1000),
    broken=st.booleans(),
)
def test_a_rows_bits_are_its_own_in_any_company(decoder, cache_dtype, demo, rows, places, seed, broken):
    """Alone, beside any others, finite or not, in any order, on any number of threads."""
    watched, dtype = rows[0], cache_dtype
    x, positions, slots = make_x(demo, seed), torch.tensor(places), torch.tensor(rows)
    alone_cache, crowd_cache = make_cache(demo, dtype, seed), make_cache(demo, dtype, seed)
    alone = decoder(x[watched : watched + 1], slots[:1], positions[watched : watched + 1], alone_cache.tensors)[0]
    noisy = x.clone()
    if broken:
        noisy[torch.arange(SLOTS) != watched] = torch.nan
    threads = decoder.decoder.model.threads
    try:
        decoder.decoder.model.threads = 1
        crowd = decoder(noisy[slots], slots, positions[slots], crowd_cache.tensors)
    finally:
        decoder.decoder.model.threads = threads
    assert torch.equal(crowd[0], alone)
    assert alone.isfinite().all()
    for first, other in zip(alone_cache.tensors, crowd_cache.tensors, strict=True):
        assert torch.equal(first[:, watched], other[:, watched]), "and so is what it keeps"
    if broken and len(rows) > 1:
        assert crowd[1].isnan().all(), "the neighbours really were broken"


@needs_native
@settings(max_examples=examples(20))
@given(
    length=st.integers(1, POSITIONS),
    cuts=st.lists(st.integers(1, POSITIONS), max_size=3),
    seed=st.integers(0, 1000),
    beside=st.integers(0, 40),
)
def test_a_prompts_bits_do_not_depend_on_the_cuts_or_on_who_is_read_beside_it(
    decoder, cache_dtype, demo, length, cuts, seed, beside
):
    """All positions at once, more of them than the scratch has rows, or some after the others, down to one by one."""
    x = torch.randn(length, demo.gpt_spec.width, generator=torch.Generator().manual_seed(seed))
    places, slot = torch.arange(length), torch.full((length,), 3)
    whole_cache, cut_cache = (make_cache(demo, cache_dtype, seed) for _ in range(2))
    whole = decoder(
        torch.cat([x, x[:beside]]),
        torch.cat([slot, torch.full_like(slot[:beside], 5)]),
        torch.cat([places, places[:beside]]),
        whole_cache.tensors,
    )[:length]
    edges = sorted({0, length, *(cut for cut in cuts if cut < length), *range(max(length - 3, 0), length)})
    parts = [slice(*edge) for edge in pairwise(edges)]
    cut = torch.cat([decoder(x[part], slot[part], places[part], cut_cache.tensors) for part in parts])
    assert torch.equal(whole, cut)
    for first, other in zip(whole_cache.tensors, cut_cache.tensors, strict=True):
        assert torch.equal(first[:, 3], other[:, 3])


@needs_native
def test_prefill_is_torchs_prefill(demo):
    x = torch.randn(2, 40, demo.gpt_spec.width, generator=torch.Generator().manual_seed(2))
    slots, last = torch.tensor([7, 2]), torch.tensor([39, 11])
    caches = [make_cache(demo, torch.float32) for _ in range(2)]
    with torch.inference_mode():
        mine, theirs = (
            make_gpt(demo, weights, dtype=torch.float32).prefill(x, slots, last, cache)
            for weights, cache in zip(("float32", None), caches, strict=True)
        )
    assert (mine - theirs).abs().max() < 1e-5
    assert (caches[0].keys[:, 7, :, :40] - caches[1].keys[:, 7, :, :40]).abs().max() < 1e-5
    assert (caches[0].values[:, 2, :, :12] - caches[1].values[:, 2, :, :12]).abs().max() < 1e-5


@needs_tiles
@pytest.mark.parametrize("weights", ["bfloat16", "int8"])
@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e3])
def test_tiles_lose_less_than_a_bfloat16_activation_would(demo, weights, scale):
    """Sixteen bits of every input: the states are float32's to 1e-3 of their size, whatever the size of the inputs."""
    slots, positions = torch.arange(SLOTS), torch.arange(SLOTS) * 19
    states = [
        make_native(demo, weights, instructions)(
            make_x(demo, 1) * scale, slots, positions, make_cache(demo, torch.bfloat16).tensors
        )
        for instructions in (Instructions.AMX, Instructions.AVX512_VNNI)
    ]
    assert not torch.equal(*states), "another arithmetic"
    assert (states[0] - states[1]).norm() < 1e-3 * states[1].norm()


def states_and_cache(decoder: NativeGpt, demo: Checkpoint, cache_dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """Of a step of all slots, and what it has kept."""
    cache = make_cache(demo, cache_dtype)
    states = decoder(make_x(demo, 1), torch.arange(SLOTS), torch.arange(SLOTS) * 19, cache.tensors)
    return states, *cache.tensors


@needs_instructions(Instructions.AVX512)
@pytest.mark.parametrize("weights", ["float32", "bfloat16", "int8", "int4"])
@pytest.mark.parametrize("cache_dtype", ["dtype", "int8"])
def test_avx2_has_the_bits_of_avx512(demo, weights, cache_dtype):
    dtype = torch.float32 if weights == "float32" else torch.bfloat16
    sets = [item for item in usable() if item is not Instructions.AMX]
    assert len(sets) > 1
    decoders = (make_native(demo, weights, instructions) for instructions in sets)
    first, *others = (states_and_cache(decoder, demo, torch.int8 if cache_dtype == "int8" else dtype) for decoder in decoders)
    for other in others:
        assert all(map(torch.equal, first, other))


@needs_native
@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e3])
def test_integers_lose_less_than_a_bfloat16_activation_would(demo, scale, monkeypatch):
    """Beside int8 weights an input has sixteen bits: the states are float32's to 1e-3 of their size, whatever that is."""
    states = []
    for kind in (Arithmetic.PAIRS_INT8, Arithmetic.PLAIN_INT8):
        monkeypatch.setattr(native, "arithmetic", lambda weights, instructions, kind=kind: kind)
        decoder = make_native(demo, "int8")
        cache = make_cache(demo, torch.bfloat16)
        states.append(decoder(make_x(demo, 1) * scale, torch.arange(SLOTS), torch.arange(SLOTS) * 19, cache.tensors))
    assert not torch.equal(*states), "another arithmetic"
    assert (states[0] - states[1]).norm() < 1e-3 * states[1].norm()


@needs_native
@settings(max_examples=examples(20))
@given(position=st.integers(0, POSITIONS - 1), seed=st.integers(0, 1000))
def test_what_lies_behind_a_rows_position_is_never_seen(decoder, cache_dtype, demo, position, seed):
    clean, dirty = make_cache(demo, cache_dtype, seed), make_cache(demo, cache_dtype, seed)
    for part in dirty.tensors:
        part[:, :, :, position:] = torch.nan if part.is_floating_point() else -128
    positions, x = torch.full((3,), position), make_x(demo, seed)[:3]
    states = [decoder(x, torch.arange(3), positions, cache.tensors) for cache in (clean, dirty)]
    assert torch.equal(*states)
    assert states[0].isfinite().all()


@needs_native
def test_rows_that_are_not_asked_for_keep_their_cache(decoder, cache_dtype, demo):
    before, after = (make_cache(demo, cache_dtype) for _ in range(2))
    decoder(make_x(demo, 3)[:1], torch.tensor([4]), torch.tensor([7]), after.tensors)
    for first, other in zip(before.tensors, after.tensors, strict=True):
        changed = (first != other).flatten(2).any(2).any(0)
        assert changed.tolist() == [slot == 4 for slot in range(SLOTS)]


def slow_twin(tensors: dict[str, torch.Tensor], spec: GptSpec, x: torch.Tensor, positions: torch.Tensor, cache: KeysValues):
    """A step of slots 0, 1, ... whose keys and values are in the cache already, in float64, as its definition reads."""
    x, tensors = x.double(), {name: tensor.double() for name, tensor in tensors.items()}
    tables = rotary_tables(POSITIONS, spec.head_dim, spec.rope_theta, x.device)
    cos, sin = (table[positions][:, None].double() for table in tables)

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return torch.nn.functional.rms_norm(x, (spec.width,), tensors[f"{name}.weight"], spec.rms_eps)

    for index, layer_cache in enumerate(cache.layers()):
        layer = f"layers.{index}"
        query = norm(x, f"{layer}.input_layernorm") @ tensors[f"{layer}.self_attn.q_proj.weight"].T
        query = query.view(len(x), spec.heads, spec.head_dim)
        query = query * cos + query.roll(spec.head_dim // 2, -1) * sin
        attended = torch.empty_like(query)
        for slot, position in enumerate(positions.tolist()):
            keys, values = (dequantise(part.numbers, part.scales)[slot, :, : position + 1].double() for part in layer_cache)
            scores = (keys @ query[slot, :, :, None])[..., 0] / spec.head_dim**0.5
            attended[slot] = (scores.softmax(-1)[:, None] @ values)[:, 0]
        x = x + attended.flatten(1) @ tensors[f"{layer}.self_attn.o_proj.weight"].T
        normed = norm(x, f"{layer}.post_attention_layernorm")
        gate, up = (normed @ tensors[f"{layer}.mlp.{part}_proj.weight"].T for part in ("gate", "up"))
        x = x + (torch.nn.functional.silu(gate) * up) @ tensors[f"{layer}.mlp.down_proj.weight"].T
    return norm(x, "norm")


places_of_slots = st.lists(st.integers(0, POSITIONS - 1), min_size=SLOTS, max_size=SLOTS)


@pytest.fixture(scope="module", params=[32, 64], ids=lambda size: f"heads-of-{size}")
def exact_decoder(request: pytest.FixtureRequest, demo: Checkpoint) -> NativeGpt:
    """The demo's weights in float32 as heads of either size."""
    spec = replace(demo.gpt_spec, heads=demo.gpt_spec.width // request.param, head_dim=request.param)
    return make_native(demo, "float32", spec=spec)


@needs_native
@settings(max_examples=examples(20))
@given(places=places_of_slots, seed=st.integers(0, 1000))
def test_a_cache_of_int8_is_attended_to_as_the_numbers_it_stands_for(exact_decoder, demo, places, seed):
    """Held against float64: what is left are float32's roundings and the 16 bits of a query."""
    spec, positions, x = exact_decoder.decoder.spec, torch.tensor(places), make_x(demo, seed)
    cache = make_cache(demo, torch.int8, seed, spec)
    states = exact_decoder(x, torch.arange(SLOTS), positions, cache.tensors)
    assert (states - slow_twin(in_torch(demo.gpt()), spec, x, positions, cache)).abs().max() < 2e-4


@needs_native
@settings(max_examples=examples(40))
@given(
    places=places_of_slots,
    seed=st.integers(0, 1000),
    size=st.sampled_from([0.0, 1e-30, 1e-3, 1.0, 1e4]),
    bad=st.sampled_from([None, torch.nan, torch.inf, -torch.inf]),
)
def test_what_is_kept_in_int8_is_quantises_to_the_last_bit(exact_decoder, demo, places, seed, size, bad):
    """The same step over a cache of float32 shows what there was to round; of the first layer, where both know the same."""
    spec, positions, x = exact_decoder.decoder.spec, torch.tensor(places), make_x(demo, seed) * size
    if bad is not None:
        x[1, 5] = bad
    exact, rounded = (make_cache(demo, dtype, seed, spec) for dtype in (torch.float32, torch.int8))
    for cache in (exact, rounded):
        exact_decoder(x, torch.arange(SLOTS), positions, cache.tensors)
    for numbers, layer_cache in zip(next(exact.layers()), next(rounded.layers()), strict=True):
        for slot, position in enumerate(places):
            place = slot, slice(None), position
            if bad is not None and slot == 1:
                assert not dequantise(layer_cache.numbers[place], layer_cache.scales[place]).isfinite().any()
                continue
            expected = quantise(numbers.numbers[place])
            assert torch.equal(layer_cache.numbers[place], expected[0])
            assert torch.equal(layer_cache.scales[place], expected[1])


@needs_native
def test_a_number_that_is_not_finite_is_seen_by_who_looks_at_it_and_by_nobody_else(decoder, demo):
    cache, x = make_cache(demo, torch.int8), make_x(demo, 4)
    cache.key_scales[0, 3, 0, 10] = torch.nan
    cache.value_scales[0, 5, 1, 10] = torch.nan
    states = decoder(x, torch.arange(SLOTS), torch.full((SLOTS,), 20), cache.tensors)
    assert states.isnan().all(1).tolist() == [slot in (3, 5) for slot in range(SLOTS)]
    cache.key_scales[0, 3, 0, 10] = 1.0
    assert decoder(x, torch.arange(SLOTS), torch.full((SLOTS,), 9), cache.tensors)[5].isfinite().all()


@needs_native
def test_a_cache_it_does_not_know_is_refused(decoder, demo):
    own, rounded = make_cache(demo, numbers_of(decoder)), make_cache(demo, torch.int8)
    for tensors in (
        rounded.tensors[:2],
        (*own.tensors, *rounded.tensors[2:]),
        rounded.tensors[:3],
        (*rounded.tensors[:3], rounded.value_scales[:, :, :, :-1].contiguous()),
    ):
        with pytest.raises(AssertionError, match=r"a cache of|of keys and of values"):
            decoder.cache(*tensors)


@pytest.mark.parametrize(("changes", "reason"), [
    ({"head_dim": 48}, "head size 48"), ({"width": 96}, "width 96"), ({"mlp_width": 100}, "MLP width 100"),
    ({"heads": 3}, "3 heads of size"), ({"head_dim": 64}, "heads of size 64 are not as wide as the model"),
])  # fmt: skip
def test_dimensions_it_does_not_take_are_refused(demo, changes, reason):
    with pytest.raises(NativeUnavailable, match=reason):
        NativeDecoder({}, replace(demo.gpt_spec, **changes), positions=4, rows=2, weights="float32", threads=1)


@needs_native
@pytest.mark.slow
@pytest.mark.parametrize("mlp_width", [64, 128])
def test_an_mlp_narrower_than_the_model_changes_no_number_with_the_threads(demo, mlp_width):
    """The memory in which a thread keeps a product's inputs is as wide as the widest of them."""
    spec = replace(demo.gpt_spec, width=256, heads=8, head_dim=32, mlp_width=mlp_width, layers=2)
    chance = np.random.default_rng(1)

    def weight(*shape: int) -> np.ndarray:
        return (chance.standard_normal(shape) * 0.05).astype(np.float32)

    tensors = {"norm.weight": np.ones(256, np.float32)}
    for layer in range(2):
        at = f"layers.{layer}"
        tensors |= {f"{at}.{name}_layernorm.weight": np.ones(256, np.float32) for name in ("input", "post_attention")}
        tensors |= {f"{at}.self_attn.{part}_proj.weight": weight(256, 256) for part in "qkvo"}
        tensors |= {f"{at}.mlp.{part}_proj.weight": weight(mlp_width, 256) for part in ("gate", "up")}
        tensors[f"{at}.mlp.down_proj.weight"] = weight(256, mlp_width)
    embeddings = chance.standard_normal((128, 256)).astype(np.float32)
    states = []
    for threads in (1, 4):
        decoder = NativeDecoder(tensors, spec, positions=160, rows=2, weights="int8", threads=threads)
        cache = tuple(np.zeros((2, 2, 8, 160, 32), BFLOAT16) for _ in range(2))
        states += [decoder.prefill([embeddings], [0], cache) for _ in range(10)]
    assert all(np.array_equal(state, states[0]) for state in states)
