"""A prefill on a GPU, through Triton's interpreter: against the embedding and the layers that torch computes."""

from dataclasses import replace

import pytest
import torch

from pipeline.checkpoint.in_torch import in_torch
from pipeline.engine import tensor_cache
from pipeline.engine.gpu_prompts import empty_prompts
from pipeline.model.embedding import Embedding
from pipeline.model.gpt import Gpt, KeysValues
from pipeline.model.gpu.gpu_gpt import GpuGpt
from pipeline.model.gpu.kernels import prompt
from pipeline.model.gpu.kernels.prompt import FLOAT_FIELDS, PLACE_FIELDS, SETTINGS, Prompts
from pipeline.model.linear import QuantisedLinear
from tests.support.slot_state import VOCAB, WIDTH, make_state

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # NumPy's, of infinities that a GPU takes for granted
]

CPU = torch.device("cpu")
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
