"""The native decode step: torch's numbers, each row its own to the last bit."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.model import native
from pipeline.model.gpt import Extent, Gpt, KeysValues
from pipeline.model.native import quantise
from pipeline.model.weights import Checkpoint
from pipeline.native.build import NativeUnavailable
from tests.machine import needs_native

SLOTS, POSITIONS = 11, 200  # more slots than the eight rows one block holds
WEIGHTS = [torch.float32, torch.bfloat16, torch.int8]


def make_gpt(demo: Checkpoint, weights: torch.dtype | None, *, dtype: torch.dtype, tensors=None) -> Gpt:
    tensors = demo.gpt() if tensors is None else tensors
    return Gpt(tensors, demo.gpt_spec, positions=POSITIONS, rows=SLOTS, device=torch.device("cpu"), dtype=dtype, native=weights)


def cache_type(weights: torch.dtype) -> torch.dtype:
    return torch.float32 if weights is torch.float32 else torch.bfloat16


def make_cache(demo: Checkpoint, dtype: torch.dtype, seed: int = 0) -> KeysValues:
    spec, generator = demo.gpt_spec, torch.Generator().manual_seed(seed)
    shape = (spec.layers, SLOTS, spec.heads, POSITIONS, spec.head_dim)
    return KeysValues(*(torch.randn(shape, generator=generator).to(dtype) for _ in range(2)))


def make_x(demo: Checkpoint, seed: int) -> torch.Tensor:
    return torch.randn(SLOTS, demo.gpt_spec.width, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module", params=WEIGHTS, ids=str)
def decoder(request: pytest.FixtureRequest, demo: Checkpoint) -> Gpt:
    return make_gpt(demo, request.param, dtype=cache_type(request.param))


@needs_native
def test_float32_is_torchs_step(demo):
    positions = torch.arange(SLOTS) * 19
    mine, theirs = make_cache(demo, torch.float32), make_cache(demo, torch.float32)
    with torch.inference_mode():
        steps = [
            make_gpt(demo, weights, dtype=torch.float32).decode(make_x(demo, 1), positions, cache, Extent(SLOTS, POSITIONS))
            for weights, cache in ((torch.float32, mine), (None, theirs))
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
            x, positions, KeysValues(*(part.float() for part in _parts(make_cache(demo, torch.bfloat16)))), Extent(SLOTS, 200)
        )
        errors = [
            (make_gpt(demo, weights, dtype=torch.bfloat16).decode(x, positions, cache, Extent(SLOTS, 200)) - exact).abs().mean()
            for weights, cache in ((torch.bfloat16, make_cache(demo, torch.bfloat16)), (None, make_cache(demo, torch.bfloat16)))
        ]
    assert errors[0] < errors[1]


@needs_native
def test_int8_is_exactly_the_rounded_weights(demo):
    """Held against torch in float32 on the dequantised weights: what is left is the cache's bfloat16."""
    rounded = {
        name: (lambda q, s: q * s[:, None])(*quantise(tensor)) if "_proj" in name else tensor
        for name, tensor in demo.gpt().items()
    }
    positions, x = torch.arange(SLOTS) * 19, make_x(demo, 1)
    exact_cache = KeysValues(*(part.float() for part in _parts(make_cache(demo, torch.bfloat16))))
    with torch.inference_mode():
        step = make_gpt(demo, torch.int8, dtype=torch.bfloat16).decode(
            x, positions, make_cache(demo, torch.bfloat16), Extent(SLOTS, 200)
        )
        exact = make_gpt(demo, None, dtype=torch.float32, tensors=rounded).decode(x, positions, exact_cache, Extent(SLOTS, 200))
    assert (step - exact).abs().max() < 5e-3


def _parts(cache: KeysValues) -> tuple[torch.Tensor, torch.Tensor]:
    return cache.keys, cache.values


@needs_native
@settings(max_examples=60, deadline=None)
@given(
    rows=st.permutations(range(SLOTS)).flatmap(lambda order: st.integers(1, SLOTS).map(lambda count: order[:count])),
    places=st.lists(st.integers(0, POSITIONS - 1), min_size=SLOTS, max_size=SLOTS),
    seed=st.integers(0, 1000),
    broken=st.booleans(),
)
def test_a_rows_bits_are_its_own_in_any_company(decoder, demo, rows, places, seed, broken):
    """Alone, beside any others, finite or not, in any order, on any number of threads."""
    watched, step = rows[0], decoder._native
    dtype = make_cache_type(decoder)
    x, positions = make_x(demo, seed), torch.tensor(places)
    alone_cache, crowd_cache = make_cache(demo, dtype, seed), make_cache(demo, dtype, seed)
    alone = step(x, torch.tensor([watched]), positions, *_parts(alone_cache))
    noisy = x.clone()
    if broken:
        noisy[torch.arange(SLOTS) != watched] = torch.nan
    threads = step._threads
    try:
        step._threads = 1
        crowd = step(noisy, torch.tensor(rows), positions, *_parts(crowd_cache))
    finally:
        step._threads = threads
    assert torch.equal(crowd[watched], alone[watched])
    assert alone[watched].isfinite().all()
    for one, other in zip(_parts(alone_cache), _parts(crowd_cache), strict=True):
        assert torch.equal(one[:, watched], other[:, watched]), "and so is what it keeps"
    if broken and len(rows) > 1:
        assert crowd[rows[1]].isnan().all(), "the neighbours really were broken"


def make_cache_type(decoder: Gpt) -> torch.dtype:
    return decoder._native._cache_dtype


@needs_native
@settings(max_examples=30, deadline=None)
@given(position=st.integers(0, POSITIONS - 1), seed=st.integers(0, 1000))
def test_what_lies_behind_a_rows_position_is_never_seen(decoder, demo, position, seed):
    dtype = make_cache_type(decoder)
    clean, dirty = make_cache(demo, dtype, seed), make_cache(demo, dtype, seed)
    for part in _parts(dirty):
        part[:, :, :, position:] = torch.nan
    positions = torch.full((SLOTS,), position)
    x = make_x(demo, seed)
    steps = [decoder.decode(x, positions, cache, Extent(3, POSITIONS)) for cache in (clean, dirty)]
    assert torch.equal(steps[0][:3], steps[1][:3])
    assert steps[0][:3].isfinite().all()


@needs_native
def test_rows_that_are_not_asked_for_keep_their_cache(decoder, demo):
    dtype = make_cache_type(decoder)
    before, after = make_cache(demo, dtype), make_cache(demo, dtype)
    out = decoder._native(make_x(demo, 3), torch.tensor([4]), torch.full((SLOTS,), 7), *_parts(after))
    for one, other in zip(_parts(before), _parts(after), strict=True):
        changed = (one != other).flatten(2).any(2).any(0)
        assert changed.tolist() == [slot == 4 for slot in range(SLOTS)]
    assert not out[torch.arange(SLOTS) != 4].any()
    assert not decoder._native(make_x(demo, 3), torch.arange(0), torch.zeros(SLOTS, dtype=torch.int64), *_parts(after)).any()


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**20), scale=st.sampled_from([0.0, 1e-30, 1e-3, 1.0, 1e4]))
def test_quantised_weights_are_within_half_a_step_of_their_own_output(seed, scale):
    weight = torch.randn(6, 40, generator=torch.Generator().manual_seed(seed)) * scale
    weight[2] = 0
    quantised, scales = quantise(weight)
    assert quantised.dtype is torch.int8
    assert quantised.min() >= -127
    assert ((weight - quantised * scales[:, None]).abs() <= 0.5001 * scales[:, None]).all()


def test_dimensions_it_does_not_take_are_refused(demo):
    odd = demo.gpt_spec.__class__(**{name: getattr(demo.gpt_spec, name) for name in demo.gpt_spec.__slots__} | {"head_dim": 48})
    with pytest.raises(NativeUnavailable, match="head size 48"):
        native.NativeDecoder({}, odd, rotary=(torch.zeros(4, 48), torch.zeros(4, 48)), rows=2, weights=torch.float32)
