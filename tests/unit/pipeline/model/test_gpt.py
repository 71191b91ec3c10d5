"""The decoder stack's promises on a CPU: a row is its own, whatever the extent, the slot and the neighbours."""

import pytest
import torch

from pipeline.checkpoint.in_torch import in_torch
from pipeline.checkpoint.weights import Checkpoint
from pipeline.model.embedding import Embedding
from pipeline.model.gpt import ActiveExtent, Gpt, KeysValues
from pipeline.model.linear import Linear
from pipeline.model.quantise import quantise

SLOTS, POSITIONS = 4, 640
DTYPES = [torch.float32, torch.bfloat16]
CACHES = [(torch.float32, "dtype"), (torch.bfloat16, "dtype"), (torch.bfloat16, "int8")]


def make_gpt(demo: Checkpoint, dtype: torch.dtype) -> Gpt:
    return Gpt(in_torch(demo.gpt()), demo.gpt_spec, positions=POSITIONS, rows=SLOTS, device=torch.device("cpu"), dtype=dtype)


def make_cache(demo: Checkpoint, dtype: torch.dtype, kv: str = "dtype", *, seed: int = 0) -> KeysValues:
    """A cache full of ordinary numbers, so that what should be masked is there to be seen."""
    spec, generator = demo.gpt_spec, torch.Generator().manual_seed(seed)
    shape = (spec.layers, SLOTS, spec.heads, POSITIONS, spec.head_dim)
    keys, values = (torch.randn(shape, generator=generator).to(dtype) for _ in range(2))
    if kv == "dtype":
        return KeysValues(keys, values)
    (keys, key_scales), (values, value_scales) = quantise(keys), quantise(values)
    return KeysValues(keys, values, key_scales, value_scales)


def inputs(demo: Checkpoint, seed: int = 1) -> torch.Tensor:
    return torch.randn(SLOTS, demo.gpt_spec.width, generator=torch.Generator().manual_seed(seed))


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "kv"), CACHES)
@pytest.mark.parametrize("position", [0, 1, 62, 63, 64, 65, 130, 319, 511, 512, 600])
def test_the_extent_changes_no_bit_of_the_rows_within(demo, dtype, kv, position):
    gpt, x = make_gpt(demo, dtype), inputs(demo)
    positions = torch.tensor([position, 5, 17, 600])
    with torch.inference_mode():
        whole = gpt.decode(x, positions, make_cache(demo, dtype, kv), ActiveExtent(SLOTS, POSITIONS))
        for slots in (1, 2, SLOTS):
            for reach in {(position // 64 + 1) * 64, (position // 64 + 2) * 64, 576, POSITIONS}:
                if position < reach <= POSITIONS:
                    part = gpt.decode(x, positions, make_cache(demo, dtype, kv), ActiveExtent(slots, reach))
                    assert torch.equal(part[0], whole[0]), f"extent {slots} x {reach}"


@pytest.mark.parametrize(("dtype", "kv"), CACHES)
def test_neighbours_and_what_the_slot_held_before_change_no_bit(demo, dtype, kv):
    gpt, x = make_gpt(demo, dtype), inputs(demo)
    positions = torch.tensor([40, 40, 40, 40])
    cache, other = make_cache(demo, dtype, kv), make_cache(demo, dtype, kv, seed=9)
    for mine, theirs in zip(cache.tensors, other.tensors, strict=True):
        theirs[:, 0, :, :40] = mine[:, 0, :, :40]  # slot 0 alike as far as it is read; everything else is another's
    noisy = x.clone()
    noisy[1:] = torch.nan
    with torch.inference_mode():
        alone = gpt.decode(x, positions, cache, ActiveExtent(SLOTS, 64))
        crowded = gpt.decode(noisy, positions, other, ActiveExtent(SLOTS, 64))
    assert torch.equal(alone[0], crowded[0])
    assert crowded[1:].isnan().all(), "the neighbours really were broken"


def test_decoding_step_by_step_equals_prefilling_at_once(demo):
    gpt, spec = make_gpt(demo, torch.float32), demo.gpt_spec
    x = torch.randn(1, 32, spec.width, generator=torch.Generator().manual_seed(2))
    with torch.inference_mode():
        prefilled = gpt.prefill(x, torch.tensor([2]), torch.tensor([31]), make_cache(demo, torch.float32))
        cache = make_cache(demo, torch.float32)
        for position in range(32):
            stepped = gpt.decode(
                x[0, position].expand(SLOTS, -1), torch.full((SLOTS,), position), cache, ActiveExtent(SLOTS, 64)
            )
    assert (stepped[2] - prefilled[0]).abs().max() < 1e-4


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_cache_of_int8_is_near_one_of_the_models_dtype(demo, dtype):
    """Written by a prompt, read and written by the steps after it."""
    gpt, width = make_gpt(demo, dtype), demo.gpt_spec.width
    prompt = torch.randn(1, 32, width, generator=torch.Generator().manual_seed(6))
    steps = torch.randn(12, SLOTS, width, generator=torch.Generator().manual_seed(7))
    variants = []
    for kv in ("dtype", "int8"):
        cache = make_cache(demo, dtype, kv)
        with torch.inference_mode():
            states = [gpt.prefill(prompt, torch.tensor([2]), torch.tensor([31]), cache)[0]]
            for number, x in enumerate(steps):
                states.append(gpt.decode(x, torch.full((SLOTS,), 32 + number), cache, ActiveExtent(SLOTS, 64))[2])
        variants.append(torch.stack(states))
    exact, rounded = variants
    assert torch.equal(exact[0], rounded[0]), "a prompt attends to its own numbers before they are rounded"
    assert 0 < (exact - rounded).norm() / exact.norm() < 0.01


def test_padding_behind_a_prompt_is_never_seen(demo):
    gpt, spec = make_gpt(demo, torch.float32), demo.gpt_spec
    x = torch.randn(1, 32, spec.width, generator=torch.Generator().manual_seed(3))
    other = x.clone()
    other[:, 20:] = 100.0
    with torch.inference_mode():
        states = [
            gpt.prefill(prompt, torch.tensor([1]), torch.tensor([19]), make_cache(demo, torch.float32)) for prompt in (x, other)
        ]
    assert torch.equal(*states)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 3, 8])
def test_equal_rows_have_equal_products_in_every_place(dtype, rows):
    """A kernel that takes six rows at a time and sums up the rest in another order would tie a voice's bits to its slot."""
    weight = torch.randn(768, 768).to(dtype)
    product = Linear(weight, rows=rows)(torch.randn(1, 768).to(dtype).repeat(rows, 1))
    assert torch.equal(product, product[:1].expand_as(product))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 3, 8, 40])
def test_a_packed_product_is_the_plain_one(dtype, rows):
    generator = torch.Generator().manual_seed(4)
    weight, x = (torch.randn(shape, generator=generator).to(dtype) for shape in ((96, 64), (rows, 64)))
    expected = x.double() @ weight.double().T
    assert (Linear(weight, rows=8)(x).double() - expected).abs().max() < (0.2 if dtype is torch.bfloat16 else 1e-4)


def test_heads_are_folded_once_and_right(demo):
    tensors = in_torch(demo.embed())
    embedding = Embedding(tensors, device=torch.device("cpu"))
    hidden = inputs(demo)
    gain, direction = (tensors[f"head_code.2.parametrizations.weight.original{part}"] for part in (0, 1))
    expected = hidden @ (gain * direction / direction.norm(dim=1, keepdim=True)).T
    assert torch.allclose(embedding.code_logits(hidden)[:, 2], expected, atol=1e-4)
    codes = torch.tensor([[1, 2, 3, 4], [0, 624, 625, 9]])
    summed = sum(tensors[f"emb_code.{book}.weight"][codes[:, book]] for book in range(4))
    assert torch.allclose(embedding.embed_codes(codes), summed, atol=1e-6)
