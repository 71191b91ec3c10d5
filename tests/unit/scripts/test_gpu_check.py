"""The GPU check's own logic, where there is no GPU: it runs on a bare machine, a section costs itself alone, it can say no."""

import argparse
import json
import math
import os
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import packages_distributions
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from pipeline.checkpoint.in_torch import in_torch
from pipeline.checkpoint.weights import Checkpoint, GptSpec
from pipeline.config import EngineConfig, VocoderConfig
from pipeline.engine import tensor_cache
from pipeline.engine.kv_cache import refuse_too_full, slot_bytes, slots_within_budget
from pipeline.errors import NonFiniteOutput
from pipeline.model.gpt import Gpt
from pipeline.types import Lane
from scripts.evaluate.gpu_check import __main__ as gpu_check
from scripts.evaluate.gpu_check import (
    call,
    functional,
    machine,
    parity,
    speech,
    timing,
)
from scripts.evaluate.gpu_check import sections as plan
from scripts.evaluate.gpu_check.__main__ import arguments
from scripts.evaluate.gpu_check.findings import add, read
from scripts.evaluate.gpu_check.functional import promise_equal
from scripts.evaluate.gpu_check.report import Report
from scripts.evaluate.gpu_check.runners import config_of
from scripts.evaluate.gpu_check.sections import FIRST, USUAL_S, Section, sections
from scripts.evaluate.gpu_check.sequences import SharedCheckpoint, Take
from serve.commands.launch.processes import processes
from tests.support.signals import as_in_a_terminal
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[3]
ON_A_BARE_MACHINE = {"torch", "numpy", "safetensors", "tokenizers", "pydantic", "pytest"}
"""distributions, and what they bring; of these a machine that is lent has all but pydantic, which `make gpu-wheels` fetches"""
HIDE = """
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {hidden!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Hidden())
"""


def hidden_modules() -> set[str]:
    """The modules of every package that this project declares and a bare machine lacks."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *(line for lines in project["optional-dependencies"].values() for line in lines)]
    declared = {canonicalize_name(Requirement(line).name) for line in lines} - ON_A_BARE_MACHINE - {project["name"]}
    owners = packages_distributions().items()
    return {module for module, names in owners if {canonicalize_name(name) for name in names} & declared}


def run(out: Path, demo_root: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    options = ["--device", "cpu", "--checkpoint", str(demo_root), "--layers", "1"]
    options += ["--slots", "2", "--steps", "8", "--seconds", "1"]
    command = [sys.executable, "-m", "scripts.evaluate.gpu_check", *options, "--out", str(out), *arguments]
    return subprocess.run(command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_on_a_bare_machine_each_section_is_kept_and_a_late_one_costs_itself_alone(tmp_path, demo_root):
    hidden = hidden_modules()
    assert {"ray", "yaml", "emoji", "av", "rich"} <= hidden
    assert not hidden & set(gpu_check.NEEDED)
    (tmp_path / "sitecustomize.py").write_text(HIDE.format(hidden=hidden))
    out = tmp_path / "results" / "here.json"
    path = {"PYTHONPATH": f"{tmp_path}:{ROOT}", "PATH": str(tmp_path)}  # no git either
    done = run(out, demo_root, "--only", "parity@1", "equal_bfloat16_*", "--commit", "abc", **path)
    assert done.returncode == 1, done.stdout + done.stderr
    result = json.loads(out.read_text())
    assert result["failed"] == {"parity": "took longer than 1 s"}
    assert {name: section["state"] for name, section in result["sections"].items()} == {
        "parity": "failed",
        "equal_bfloat16_2": "ran",
    }
    assert len(result["promises"]) == 3
    assert all(promise["holds"] for promise in result["promises"].values())
    assert (result["hardware"]["commit"], result["hardware"]["device"]) == ("abc", "cpu")
    assert "-- equal_bfloat16_2" in out.with_suffix(".log").read_text()
    assert done.stdout.splitlines()[-1] == f"3 of 3 promises hold, 2 sections; failed: parity; {out}"
    assert len(done.stdout) < 4000


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_every_section_runs_and_writes_its_figures(tmp_path, demo_root):
    out = tmp_path / "result.json"
    done = run(out, demo_root)
    result = json.loads(out.read_text())
    assert done.returncode == 0, done.stdout
    assert all(promise["holds"] for promise in result["promises"].values())
    expected = {"kv int8: alone = crowded (2 slots)", "weights and kv int8: keeps the distribution"}
    expected |= {"a preempted sequence keeps its bits", "a row that is not finite ends alone", "refine: alone = in company"}
    assert expected <= set(result["promises"])
    assert result["failed"] == {}
    assert result["figures"]["step_2_slots_auto"]["step_ms"] > 0
    assert all(kernel["nodes"] > 0 for kernel in result["figures"]["kernels"].values())
    assert {"prefill_ms", "fixed_shape_cost", "attention_2_slots_900_positions"} <= set(result["figures"])
    assert result["figures"]["step_2_slots_auto_kv_int8"]["over_bfloat16"] > 0
    assert result["figures"]["speech_2"]["requests"] > 0
    assert result["hardware"]["torch"]


def small(tmp_path: Path, demo_root: Path, *more: str) -> argparse.Namespace:
    words = ["--device", "cpu", "--checkpoint", str(demo_root), "--layers", "1", "--slots", "2", "--steps", "8"]
    return gpu_check.arguments().parse_args([*words, "--out", str(tmp_path / "gpu.json"), *more])


def paper_section(name: str, usual_s: int = 1) -> Section:
    return Section(name, 60, usual_s, lambda report: None)


@pytest.fixture
def apart(monkeypatch):
    """Sections that run at once, here, and find a figure of their own name; `broken` ends in the middle."""
    ran: list[str] = []

    def run_apart(section: Section, limit_s: float, out: Path, args: object) -> tuple[str | None, str]:
        ran.append(section.name)
        report = Report(on_finding=lambda report: add(out, section.name, report))
        report.promise(f"{section.name} holds", True, "")
        report.figure(section.name, limit_s, "")
        return ("ended with code -9" if section.name == "broken" else None), "its output"

    monkeypatch.setattr(call, "run_apart", run_apart)
    return ran


def test_calls_add_up_and_run_only_what_has_not_run(tmp_path, demo_root, apart):
    sections = [paper_section("first"), paper_section("broken"), paper_section("long", usual_s=500), paper_section("last")]
    within = small(tmp_path, demo_root, "--within", "100")
    assert call.run_all(sections, within) == 1
    assert apart == ["first", "broken", "last"], "nothing is started that would not end"
    result = read(tmp_path / "gpu.json")
    assert result["failed"] == {"broken": "ended with code -9"}
    assert {"first", "broken", "last"} == set(result["figures"]), "what a broken section had found is kept"
    assert {name: section["state"] for name, section in result["sections"].items()} == {
        "first": "ran",
        "broken": "failed",
        "last": "ran",
    }
    apart.clear()
    call.run_all(sections, small(tmp_path, demo_root, "--within", "600"))
    assert apart == ["broken", "long"]
    apart.clear()
    call.run_all(sections[:1], small(tmp_path, demo_root))
    assert apart == ["first"], "what is named runs again"
    assert set(read(tmp_path / "gpu.json")["figures"]) == {"first", "broken", "long", "last"}


def test_findings_of_something_else_are_set_aside(tmp_path, demo_root, apart):
    call.run_all([paper_section("first")], small(tmp_path, demo_root, "--commit", "abc"))
    call.run_all([paper_section("second")], small(tmp_path, demo_root, "--commit", "def"))
    assert set(read(tmp_path / "gpu.json")["figures"]) == {"second"}
    assert set(read(tmp_path / "gpu-before.json")["figures"]) == {"first"}


def test_a_machine_that_empties_its_folder_keeps_the_findings(tmp_path, demo_root, apart, monkeypatch):
    monkeypatch.setattr(gpu_check, "KEPT", tmp_path / "kept" / "gpu.json")
    words = ["--device", "cpu", "--checkpoint", str(demo_root)]
    for number, name in enumerate(("first", "second")):
        monkeypatch.setenv("OUT", str(tmp_path / f"out-{number}"))
        call.run_all([paper_section(name)], gpu_check.arguments().parse_args(words))
    assert set(read(tmp_path / "out-1" / "gpu.json")["figures"]) == {"first", "second"}


def processes_of(out: Path) -> list[int]:
    """The sections that run for this file."""
    return [process.pid for process in processes() if str(out) in process.command() and "--child" in process.command()]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL])
def test_whatever_ends_a_call_ends_its_section(tmp_path, demo_root, number):
    out = tmp_path / "gpu.json"
    command = [sys.executable, "-m", "scripts.evaluate.gpu_check", "--device", "cpu", "--checkpoint", str(demo_root)]
    command += ["--layers", "1", "--slots", "2", "--steps", "2000", "--only", "equal_float32_2", "--out", str(out)]
    parent = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, start_new_session=True, preexec_fn=as_in_a_terminal)
    try:
        wait_until(lambda: bool(processes_of(out)), timeout_s=120)
        os.killpg(parent.pid, number)
        parent.wait(60)
        wait_until(lambda: not processes_of(out), timeout_s=60)
    finally:
        parent.kill()
        parent.wait()
    assert read(out)["sections"]["equal_float32_2"]["state"] == "running", "the next call says that it was cut off"


def test_a_section_that_hangs_leaves_the_stacks_of_its_threads(tmp_path, demo_root, monkeypatch):
    monkeypatch.setattr(call, "STACKS_S", 20.0)
    args = small(tmp_path, demo_root)
    hangs = [sys.executable, "-c", "import sys, time; print('begun', flush=True); time.sleep(600)"]
    real = subprocess.Popen
    monkeypatch.setattr(call.subprocess, "Popen", lambda command, **named: real(hangs, **named))
    why, output = call.run_apart(paper_section("machine"), 8.0, tmp_path / "gpu.json", args)
    assert why == "took longer than 8 s"
    assert "begun" in output
    assert "Fatal Python error: Aborted" in output
    assert "most recent call first" in output


def test_what_lacks_is_said_before_anything_is_loaded(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(HIDE.format(hidden={"pydantic", "tokenizers"}))
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "scripts.evaluate.gpu_check"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == gpu_check.EXIT_LACKING
    assert "--find-links gpu-wheels tokenizers pydantic" in done.stderr
    assert "| torch" not in done.stderr


def test_a_shallow_model_is_the_first_layers_of_the_whole_one(demo):
    shallow = SharedCheckpoint.of(demo, 1)
    assert (shallow.gpt_spec.layers, demo.gpt_spec.layers) == (1, 3)
    assert SharedCheckpoint.of(demo).gpt_spec == SharedCheckpoint.of(demo, 99).gpt_spec == demo.gpt_spec
    spec = {"positions": 8, "rows": 1, "device": torch.device("cpu"), "dtype": torch.float32}
    x = torch.randn(1, 4, demo.gpt_spec.width, generator=torch.Generator().manual_seed(0))
    place = torch.tensor([0]), torch.tensor([3])

    def state(checkpoint: Checkpoint) -> torch.Tensor:
        cache = tensor_cache.zeros(checkpoint.gpt_spec, 1, 8, torch.float32, "dtype", torch.device("cpu"))
        return Gpt(in_torch(checkpoint.gpt()), checkpoint.gpt_spec, **spec).prefill(x, *place, cache)

    assert torch.isfinite(state(shallow)).all()
    assert not torch.allclose(state(shallow), state(demo))


def test_sections_are_chosen_by_name_pattern_and_limit(capsys):
    parser = gpu_check.arguments()
    every = sections(parser.parse_args(["--device", "cuda"]))
    assert {"machine", "functional", "vocoder", "speech_64", "speech_128"} <= set(every)
    assert {f"equal_{how}_{slots}" for how in ("bfloat16", "kv_int8") for slots in (8, 16, 64, 128)} <= set(every)
    chosen = call.chosen(every, ["vocoder", "equal_bfloat16_*@90"], parser)
    assert [(section.name, section.limit_s) for section in chosen[:2]] == [("vocoder", 240), ("equal_bfloat16_8", 90)]
    assert len(chosen) == 5
    assert call.chosen(every, None, parser) == list(every.values())
    assert list(every)[: len(FIRST)] == list(FIRST), "every name of the order is a section"
    assert set(USUAL_S) <= set(every), "no estimate is of a section that does not exist"
    for wrong in ("nothing", "parity@soon"):
        with pytest.raises(SystemExit):
            call.chosen(every, [wrong], parser)
        assert "allowed are NAME" in capsys.readouterr().err


def test_the_plan_of_the_first_half_hour_is_the_checks_own():
    """Its commands parse, each of its calls fits, and its seconds are the estimates by which sections are started."""
    page = (ROOT / "scripts/evaluate/gpu_check/README.md").read_text()
    parser = gpu_check.arguments()
    every = sections(parser.parse_args([]))
    commands = re.findall(r"scripts\.evaluate\.gpu_check (.*?)(?:  #|\n)", page)
    assert [parser.parse_args(words.split()).within for words in commands] == [570.0]
    planned: list[str] = []
    for cells in re.findall(r"^\| \d \| (`.*?) \| (\d+) \|", page, re.MULTILINE):
        names = re.findall(r"`(.*?)`", cells[0])
        usual_s = sum(every[name].usual_s for name in names)
        assert usual_s == int(cells[1]) < 570
        planned += names
    assert planned == list(FIRST)
    deciding = re.findall(r"^- `(.*?)`", page.partition("## What a figure decides")[2], re.MULTILINE)
    assert deciding
    assert set(deciding) <= set(every)


@pytest.mark.parametrize("handler", [signal.SIG_DFL, signal.SIG_IGN, lambda number, frame: None])
@pytest.mark.parametrize("ending", ["returns", "raises"])
def test_a_call_leaves_the_handlers_of_signals_as_they_were(handler, ending):
    before = {number: signal.signal(number, handler) for number in call.STOPPING}
    try:
        with suppress(ValueError), call.stoppable():
            for number in call.STOPPING:
                assert (signal.getsignal(number) is signal.SIG_IGN) == (handler is signal.SIG_IGN)
                assert handler is signal.SIG_IGN or signal.getsignal(number) is call._stop
            if ending == "raises":
                raise ValueError
        assert {signal.getsignal(number) for number in call.STOPPING} == {handler}
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def test_all_of_a_call_is_stoppable(tmp_path, demo_root, monkeypatch):
    handlers = []
    monkeypatch.setattr(call, "run_apart", lambda *named: handlers.append(signal.getsignal(signal.SIGTERM)) or (None, ""))
    before = signal.getsignal(signal.SIGTERM)
    call.run_all([paper_section("first")], small(tmp_path, demo_root))
    assert handlers == [call._stop]
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_single_bit_is_a_no():
    take = Take(np.ones((3, 2), np.float32), np.ones((3, 4), np.int64))
    other = Take(np.nextafter(take.hidden, 2), take.codes)
    report = Report()
    promise_equal(report, "equal", [take], [other])
    assert not report.all_hold
    assert report.promises["equal"]["detail"] == "0 of 1 bit-equal"


def test_without_a_gpu_it_says_so(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["gpu_check"])
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert gpu_check.main() == 3
    assert "no CUDA device" in capsys.readouterr().err


def test_a_section_that_fails_is_said_and_the_next_one_runs(capsys):
    report, ran = Report(), []

    def fail() -> None:
        raise ValueError("no such kernel")

    report.section("first", fail)
    report.section("second", lambda: ran.append("second"))
    assert ran == ["second"]
    assert report.failed == {"first": "ValueError: no such kernel"}
    assert not report.all_hold
    assert "no such kernel" in capsys.readouterr().err


def test_an_aim_that_is_missed_is_no_failure():
    report = Report()
    report.aim("audio-s/s", 400, 500, at_least=True)
    report.aim("p95", 100, 150, at_least=False)
    assert [aim["reached"] for aim in report.aims.values()] == [False, True]
    assert report.all_hold


# Every section of the GPU check with a GPU's own settings, on a device on paper: engines are sized, not computed.

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
        self._steps = timing.ROUNDS * per_round

    def zero_(self) -> None: ...

    def __getitem__(self, slot: int) -> int:
        return self._steps


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
    nothing: Callable[..., None] = lambda *arguments, **named: None  # noqa: E731
    runner = {"_state": state, "_cache": SimpleNamespace(tensors=()), "_rounds": {}, "_prefills": {}}
    return SimpleNamespace(**runner, _round=nothing, _step=nothing, _prefill=nothing, _make_prompts=nothing)


def paper_take(number: int, steps: int) -> Take:
    return Take(np.full((steps, 4), number, np.float32), np.full((steps, 4), number, np.int64))


async def take(engine: PaperEngine, prompt: Any, sampling: Any, on_block: Callable[[], None] = lambda: None) -> Take:
    if prompt.speaker is not None and np.isnan(prompt.speaker).any():
        raise NonFiniteOutput("not a number")
    assert len(prompt.ids) + prompt.max_steps <= engine.config.positions
    assert len(prompt.ids) <= engine.config.max_prompt
    if prompt.scheduling.lane is Lane.INTERACTIVE and engine.observer is not None:
        engine.observer.preempted()
    on_block()
    return paper_take(sampling.seed or 0, prompt.max_steps)


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
    monkeypatch.setattr(parity, "_along", lambda *arguments: torch.full((4, 4), 0.25))
    monkeypatch.setattr(timing, "use_own_stream", lambda **named: None)
    monkeypatch.setattr(timing.torch, "device", lambda name: name)
    monkeypatch.setattr(timing.tensor_cache, "zeros", lambda *arguments: SimpleNamespace(tensors=(), keys=None))
    monkeypatch.setattr(timing, "_all_layers", lambda *arguments: None)
    monkeypatch.setattr(timing, "_seconds", lambda device, work: 1e-5)
    monkeypatch.setattr(machine, "copy_bandwidth", lambda device: 3e12)
    monkeypatch.setattr(machine, "_measure_node", lambda report: None)
    monkeypatch.setattr(machine, "prepare_gpu", lambda **named: None)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda device: H100)
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda: (70 * GIB, H100.total_memory))
    monkeypatch.setattr(plan, "_shared_checkpoint", lambda args: CHECKPOINT)


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
