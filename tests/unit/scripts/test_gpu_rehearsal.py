"""Every section of the GPU check with a GPU's own settings, on a device on paper: engines are sized, not computed."""

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from pipeline.checkpoint.weights import GptSpec
from pipeline.config import EngineConfig, VocoderConfig
from pipeline.engine.kv_cache import refuse_too_full, slot_bytes, slots_within_budget
from pipeline.errors import NonFiniteOutput
from pipeline.types import Lane
from scripts.evaluate.gpu_check import (
    functional,
    machine,
    parity,
    speech,
    timing,
)
from scripts.evaluate.gpu_check import sections as plan
from scripts.evaluate.gpu_check.__main__ import arguments
from scripts.evaluate.gpu_check.report import Report
from scripts.evaluate.gpu_check.runners import config_of
from scripts.evaluate.gpu_check.workload import Take

GIB = 1 << 30
SPEC = GptSpec(
    layers=20,
    width=768,
    heads=12,
    head_dim=64,
    mlp_width=3072,
    max_positions=4096,
    rope_theta=1e4,
    rms_eps=1e-5,
    audio_vocab=626,
    text_vocab=21178,
    codebooks=4,
)
CHECKPOINT = SimpleNamespace(gpt_spec=SPEC, root=None)
DEVICE = {"multi_processor_count": 132, "total_memory": 79 * GIB, "L2_cache_size": 50 << 20}
H100 = SimpleNamespace(name="NVIDIA H100 on paper", major=9, minor=0, **DEVICE)


def sized(config: EngineConfig) -> EngineConfig:
    """The configuration, if the GPU takes its cache as the engine sums it."""
    cache = slots_within_budget(config, SPEC) * slot_bytes(config, SPEC)
    if config.device == "cuda":
        refuse_too_full(cache, H100.total_memory - 2 * GIB, H100.total_memory, config)
    return config


class PaperEngine:
    """An engine whose sequences are numbers that follow from their request."""

    num_graphs = 2

    def __init__(self, config: EngineConfig, checkpoint: object, *, observer: Any = None, factory: object = None) -> None:
        self.config, self.observer = sized(config), observer

    def close(self) -> None: ...

    def drop_graphs(self) -> None: ...


class PaperVocoder:
    """A vocoder that answers each window with its own first numbers."""

    def __init__(self, config: VocoderConfig, checkpoint: object) -> None: ...

    def close(self) -> None: ...

    def warm_up(self) -> None: ...

    def decode_batch(self, windows: list[Any]) -> list[np.ndarray]:
        return [window.frames[0] for window in windows]


class PaperSteps:
    """The steps of a runner's slots: as many as were asked for."""

    def __init__(self, per_round: int) -> None:
        self._made = timing.ROUNDS * per_round

    def zero_(self) -> None: ...

    def __getitem__(self, slot: int) -> int:
        return self._made


class Tensor:
    """Takes whatever is written to it."""

    def fill_(self, *values: object) -> None: ...

    zero_ = normal_ = random_ = fill_

    def __setitem__(self, place: object, value: object) -> None: ...


def paper_runner(device: str, checkpoint: object, settings: dict[str, Any]) -> SimpleNamespace:
    config = sized(config_of(device, settings))
    state = SimpleNamespace(
        **{name: Tensor() for name in ("positions", "min_steps", "max_steps", "active")},
        steps=PaperSteps(config.steps_per_round),
    )
    nothing: Callable[..., None] = lambda *given, **named: None  # noqa: E731
    runner = {"_state": state, "_cache": SimpleNamespace(tensors=()), "_rounds": {}, "_prefills": {}}
    return SimpleNamespace(**runner, _round=nothing, _step=nothing, _prefill=nothing, _make_prompts=nothing)


def paper_take(number: int, steps: int) -> Take:
    return Take(np.full((steps, 4), number, np.float32), np.full((steps, 4), number, np.int64))


async def take(engine: PaperEngine, asked: Any, sampling: Any, on_block: Callable[[], None] = lambda: None) -> Take:
    if asked.speaker is not None and np.isnan(asked.speaker).any():
        raise NonFiniteOutput("not a number")
    assert len(asked.ids) + asked.max_steps <= engine.config.positions
    assert len(asked.ids) <= engine.config.max_prompt
    if asked.scheduling.lane is Lane.INTERACTIVE and engine.observer is not None:
        engine.observer.preempted()
    on_block()
    return paper_take(sampling.seed or 0, asked.max_steps)


def takes(engine: PaperEngine, numbers: list[int], width: int, steps: int) -> list[Take]:
    assert 48 + steps <= engine.config.positions
    return [paper_take(number, steps) for number in numbers]


async def closed_loop(engine: PaperEngine, decoder: object, width: int, slots: int, seconds: float) -> tuple[int, list[float]]:
    assert engine.config.slots == slots
    return 24_000, [0.1] * slots


@pytest.fixture
def paper(monkeypatch) -> None:
    for module in (timing, functional, parity, speech, machine):
        monkeypatch.setattr(module, "Engine", PaperEngine)
    for module in (speech, parity, machine):
        monkeypatch.setattr(module, "Vocoder", PaperVocoder)
    for module in (timing, functional, parity, speech):
        monkeypatch.setattr(module, "takes", takes)
    monkeypatch.setattr(functional, "take", take)
    monkeypatch.setattr(functional, "runner_class", lambda: None)
    monkeypatch.setattr(speech, "_closed_loop", closed_loop)
    monkeypatch.setattr(timing, "bare_runner", paper_runner)
    monkeypatch.setattr(timing, "mean_seconds", lambda device, work, times: 1e-3)
    monkeypatch.setattr(timing, "seconds_on", lambda device, work, **named: 1e-3)
    monkeypatch.setattr(timing, "kernels_of", lambda device, work: {"nodes": 184})
    real = torch.Tensor.to
    monkeypatch.setattr(torch.Tensor, "to", lambda self, *to, **named: self if "cuda" in to else real(self, *to, **named))
    monkeypatch.setattr(parity, "_along", lambda *given: torch.full((4, 4), 0.25))
    monkeypatch.setattr(timing, "use_own_stream", lambda **named: None)
    monkeypatch.setattr(timing.torch, "device", lambda name: name)
    monkeypatch.setattr(timing.tensor_cache, "zeros", lambda *given: SimpleNamespace(tensors=(), keys=None))
    monkeypatch.setattr(timing, "_all_layers", lambda *given: None)
    monkeypatch.setattr(timing, "_seconds", lambda device, work: 1e-5)
    monkeypatch.setattr(machine, "copy_bandwidth", lambda device: 3e12)
    monkeypatch.setattr(machine, "_measure_node", lambda report: None)
    monkeypatch.setattr(machine, "prepare_gpu", lambda **named: None)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda device: H100)
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda: (70 * GIB, H100.total_memory))
    monkeypatch.setattr(plan, "_kept", lambda args: CHECKPOINT)


def test_every_section_runs_to_its_end_with_the_gpus_own_settings(paper):
    known: dict[str, Any] = {}
    for section in plan.sections(arguments().parse_args([])).values():
        report = Report(known=known)
        report.section(section.name, lambda section=section, report=report: section.check(report))
        assert report.failed == {}, section.name
        assert report.all_hold, (section.name, report.promises)
        assert report.figures or report.promises, section.name
        known |= report.figures
    expected = {"copy_bandwidth", "kernels", "prefill_ms", "fixed_shape_cost", "start", "speech_64", "speech_128", "agreement"}
    assert expected | {f"step_{slots}_slots_auto" for slots in (1, 8, 32, 64, 128)} <= set(known)
    assert {f"step_64_slots_triton_split_{split}" for split in (128, 256, 512)} <= set(known)
    assert math.isclose(known["step_64_slots_auto"]["step_ms"], 1e3 * 1e-3 / 4)
