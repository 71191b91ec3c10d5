"""The GPU's runner through Triton's interpreter on a CPU, held against the CPU's own runner."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime.interpreter import GridExecutor

from pipeline.checkpoint.weights import Checkpoint
from pipeline.config import EngineConfig, VocoderConfig
from pipeline.engine.cpu_runner import CpuRunner
from pipeline.engine.engine import Engine
from pipeline.engine.gpu_runner import GpuRunner
from pipeline.errors import NonFiniteOutput
from pipeline.types import Head, Prompt, SamplingParams, SeedMode
from pipeline.vocoder.windowed.network import WindowCall, build_network
from scripts.evaluate.gpu_check.sequences import SharedCheckpoint
from tests.support.factories import Take, collect, make_prompt, make_speaker

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # NumPy's, of infinities that a GPU takes for granted
]

STEPS = 2  # the interpreter takes a tenth of a second for a draw
Requests = list[tuple[Prompt, SamplingParams]]


def run(demo, requests: Requests, factory=GpuRunner, **overrides: object) -> list[Take | BaseException]:
    settings = {"slots": 2, "threads": 1, "max_prompt": 64, "max_steps": 64, "steps_per_round": 2, "prefill_rows": 2}
    # Checked as for a GPU, whose place the interpreter takes.
    config = EngineConfig.varied(settings | {"device": "cuda"} | overrides).model_copy(update={"device": "cpu"})
    with closing(Engine(config, demo, factory=factory)) as engine:

        async def together() -> list[Take | BaseException]:
            return await asyncio.gather(
                *(collect(engine.generate(*request, timeout_s=250, admitted=True)) for request in requests),
                return_exceptions=True,
            )

        return asyncio.run(together())


@pytest.fixture(scope="module")
def shallow(demo) -> Checkpoint:
    """One layer of the model: what the runner does with it is the same for every layer, and the interpreter takes long."""
    return SharedCheckpoint.of(demo, 1)


@pytest.fixture(scope="module")
def requests(demo) -> Requests:
    """Three in two slots: both seed modes, a voice, a refine pass."""
    width = demo.gpt_spec.width
    return [
        (make_prompt(9, number=1, max_steps=STEPS), SamplingParams(seed=1, min_steps=STEPS)),
        (
            make_prompt(20, number=2, max_steps=STEPS + 1, speaker=make_speaker(2, width)),
            SamplingParams(seed=2, seed_mode=SeedMode.UPSTREAM, temperature=0.7, top_k=5),
        ),
        (
            make_prompt(10, number=3, head=Head.TEXT, eos_token=7, max_steps=STEPS),
            SamplingParams(seed=3, temperature=0.7, repetition_penalty=1.0),
        ),
    ]


@pytest.fixture(scope="module")
def expected(shallow, requests) -> Iterator[list[Take]]:
    return run(shallow, requests, CpuRunner)


@pytest.mark.parametrize("attention", [{}, pytest.param({"attention": "sdpa"}, marks=pytest.mark.nightly)])
def test_codes_are_the_cpus_and_states_agree(shallow, requests, expected, attention):
    for ours, take in zip(run(shallow, requests, **attention), expected, strict=True):
        np.testing.assert_array_equal(ours.codes, take.codes)
        assert ours.finish == take.finish
        assert np.abs(ours.hidden - take.hidden).max() < 1e-4


@pytest.mark.nightly
@pytest.mark.parametrize(
    "settings",
    [{}, {"weights": "int8", "kv": "int8"}, *({"attention_split": split} for split in (64, 256))],
    ids=["plain", "8 bits", "splits of 64", "splits of 256"],
)
def test_alone_equals_crowded_bit_for_bit_in_bfloat16(shallow, requests, settings):
    crowded = run(shallow, requests[:2], dtype="bfloat16", **settings)
    for request, take in zip(requests, crowded, strict=False):
        assert run(shallow, [request], dtype="bfloat16", **settings)[0].equals(take)


def test_a_cache_of_8_bits_is_that_of_the_cpus_torch(shallow, requests):
    for ours, take in zip(
        run(shallow, requests[:2], kv="int8"), run(shallow, requests[:2], CpuRunner, kv="int8", decode="torch"), strict=True
    ):
        np.testing.assert_array_equal(ours.codes, take.codes)
        assert np.abs(ours.hidden - take.hidden).max() < 5e-3  # a number at half a step may be rounded either way


def test_a_broken_row_ends_alone_and_its_slot_is_clean_for_the_next(shallow, requests, expected):
    poison = make_prompt(10, speaker=np.full(shallow.gpt_spec.width, np.nan, np.float16)), SamplingParams()
    first, *good = run(shallow, [poison, requests[0], requests[1]])
    assert isinstance(first, NonFiniteOutput)
    for ours, take in zip(good, expected, strict=False):
        np.testing.assert_array_equal(ours.codes, take.codes)


class Nodes(TorchDispatchMode):
    """Counts what would be nodes of a graph: operators of torch that compute, and kernels of ours."""

    def __init__(self) -> None:
        super().__init__()
        self.torch: list[str] = []
        self.kernels = 0

    def count(self, *args: object, **kwargs: object) -> None:
        """Takes the place of a kernel."""
        self.kernels += 1

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        views = {
            "unbind",
            "view",
            "select",
            "slice",
            "reshape",
            "t",
            "unsqueeze",
            "detach",
            "_unsafe_view",
            "empty",
            "new_empty",
            "split_with_sizes",
            "transpose",
            "chunk",
            "expand",
        }
        if func.overloadpacket.__name__ not in views:
            self.torch.append(func.overloadpacket.__name__)
        return result


def test_what_a_preemption_needs_was_pinned_at_the_start_whatever_its_length(shallow, monkeypatch):
    """torch gives pinned memory out again by its size, so every copy must have one of the sizes that `_pin` has asked for."""
    settings = {"device": "cuda", "slots": 2, "max_prompt": 64, "max_steps": 64, "max_preempted": 3}
    runner = GpuRunner(EngineConfig.varied(settings).model_copy(update={"device": "cpu"}), shallow)
    sizes: list[int] = []
    memory = GpuRunner._host_memory

    def noted(self: GpuRunner, like: torch.Tensor) -> torch.Tensor:
        sizes.append(like.numel())
        return torch.empty(like.numel(), dtype=like.dtype)

    assert memory(runner, torch.zeros(3, 2)).numel() == 6
    monkeypatch.setattr(GpuRunner, "_host_memory", noted)
    monkeypatch.setattr(runner, "_is_cuda", True)
    runner._pin()
    pinned, sizes[:] = Counter(sizes), []
    monkeypatch.setattr(runner, "_is_cuda", False)
    for length in (1, 37, 128):
        state = runner.preempt(1, length)
        assert [part.shape[2] for part in state.cached] == [length] * len(state.cached)
    assert pinned == Counter(sizes), "three sequences, of any length"


@pytest.mark.parametrize(("settings", "ours"), [({}, 4), ({"dtype": "bfloat16", "weights": "int8"}, 8)])
def test_a_step_is_eight_nodes_a_layer_and_four(demo, monkeypatch, settings, ours):
    config = EngineConfig.model_validate({"slots": 2, "max_prompt": 64, "max_steps": 64} | settings)
    runner, nodes = GpuRunner(config, demo), Nodes()
    monkeypatch.setattr(GridExecutor, "__call__", nodes.count)
    with torch.inference_mode(), nodes:
        runner._step(0, with_text=False)
    layers = demo.gpt_spec.layers
    assert nodes.kernels == ours * layers + 3, "two norms, attention, gate, int8's products; draw, advance, settle"
    assert len(nodes.torch) == (8 - ours) * layers + 1, f"four products a layer and the heads: {nodes.torch}"


@pytest.mark.parametrize(("settings", "ours"), [({}, 4), ({"kv": "int8"}, 4), ({"weights": "int8"}, 8)])
def test_a_prefill_is_nine_nodes_a_layer_and_four(demo, monkeypatch, settings, ours):
    """Each node costs its launch, whatever it computes."""
    settings = {"slots": 2, "max_prompt": 64, "max_steps": 64, "dtype": "bfloat16"} | settings
    runner, nodes = GpuRunner(EngineConfig.model_validate(settings), demo), Nodes()
    prompts = runner._make_prompts(32)
    monkeypatch.setattr(GridExecutor, "__call__", nodes.count)
    with torch.inference_mode(), nodes:
        runner._prefill(prompts)
    layers = demo.gpt_spec.layers
    assert nodes.kernels == ours * layers + 2, "two norms, rotation, gate, int8's products; embeddings, states"
    assert len(nodes.torch) == (9 - ours) * layers + 2, f"products, attention; the refine pass's end and memory: {nodes.torch}"


def test_the_nodes_of_a_window_are_those_of_its_layers_whatever_its_length(demo):
    counts = set()
    for chunk in (8, 48):
        config = VocoderConfig(method="windows")
        call, nodes = WindowCall(build_network(config, demo), rows=1, steps=chunk + 104, look_ahead=52), Nodes()
        with torch.inference_mode(), nodes:
            call._run(1)
        counts.add(len(nodes.torch))
    assert len(counts) == 1, "a longer window has larger nodes, not more"
    assert counts.pop() <= 201
