"""The GPU check's own logic, where there is no GPU: it runs on a bare machine, a section costs itself alone, it can say no."""

import json
import os
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import numpy as np
import pydantic
import pytest
import torch
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from pipeline.checkpoint.in_torch import in_torch
from pipeline.checkpoint.weights import Checkpoint
from pipeline.config import EngineConfig, PipelineConfig, VocoderConfig
from pipeline.engine import tensor_cache
from pipeline.model.gpt import Gpt
from scripts.evaluate.gpu_check import __main__ as gpu_check
from scripts.evaluate.gpu_check import bare_pydantic
from scripts.evaluate.gpu_check.equality import promise_equal
from scripts.evaluate.gpu_check.report import Report
from scripts.evaluate.gpu_check.sections import Section, sections
from scripts.evaluate.gpu_check.workload import Kept, Take

ROOT = Path(__file__).resolve().parents[3]
ON_A_BARE_MACHINE = {"torch", "numpy", "safetensors", "tokenizers", "pytest"}
"""distributions, and what they bring"""
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
    declared |= {"pydantic-core", "annotated-types"}
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
    assert {"pydantic", "pydantic_core", "ray", "yaml", "emoji", "av", "rich"} <= hidden
    assert not hidden & {"torch", "triton", "numpy", "safetensors", "tokenizers"}
    (tmp_path / "sitecustomize.py").write_text(HIDE.format(hidden=hidden))
    out = tmp_path / "results" / "here.json"
    path = {"PYTHONPATH": f"{tmp_path}:{ROOT}", "PATH": str(tmp_path)}  # no git either
    done = run(out, demo_root, "--only", "parity@1", "equal_bfloat16_*", "--commit", "abc", **path)
    assert done.returncode == 1, done.stdout + done.stderr
    result = json.loads(out.read_text())
    assert result["failed"] == {"parity": "took longer than 1 s"}
    assert {name: one["state"] for name, one in result["sections"].items()} == {"parity": "failed", "equal_bfloat16_2": "ran"}
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
    assert all(found["nodes"] > 0 for found in result["figures"]["kernels"].values())
    assert {"prefill_ms", "fixed_shape_cost", "attention_2_slots_900_positions"} <= set(result["figures"])
    assert result["figures"]["step_2_slots_auto_kv_int8"]["over_bfloat16"] > 0
    assert result["figures"]["speech_2"]["requests"] > 0
    assert result["figures"]["upstream_step_s"]["1"] > 0
    assert result["hardware"]["torch"]


def test_the_json_is_written_before_and_after_every_section(tmp_path, monkeypatch, demo_root):
    out, seen = tmp_path / "result.json", []

    def apart(section: Section, args: object) -> tuple[dict[str, object], str]:
        seen.append(json.loads(out.read_text())["sections"])
        if section.name == "second":
            raise KeyboardInterrupt
        return Report(figures={section.name: 1}).as_result(), ""

    monkeypatch.setattr(gpu_check, "run_apart", apart)
    args = gpu_check.arguments().parse_args(["--device", "cpu", "--checkpoint", str(demo_root), "--out", str(out)])
    wanted = [Section(name, 1, lambda report: None) for name in ("first", "second")]
    with pytest.raises(KeyboardInterrupt):
        gpu_check.run_all(wanted, args)
    assert [list(sections_so_far) for sections_so_far in seen] == [[], ["first"]]
    assert json.loads(out.read_text())["figures"] == {"first": 1}


def test_a_section_that_cannot_even_be_killed_costs_itself_alone(tmp_path, monkeypatch, demo_root):
    monkeypatch.setattr(gpu_check, "ENDED", 0.0)
    out = tmp_path / "result.json"
    args = gpu_check.arguments().parse_args(["--device", "cpu", "--checkpoint", str(demo_root), "--out", str(out)])
    found, _ = gpu_check.run_apart(Section("machine", 0, lambda report: None), args)
    assert found["failed"] == {"machine": "took longer than 0 s"}


def test_a_shallow_model_is_the_first_layers_of_the_whole_one(demo):
    shallow = Kept.of(demo, 1)
    assert (shallow.gpt_spec.layers, demo.gpt_spec.layers) == (1, 3)
    assert Kept.of(demo).gpt_spec == Kept.of(demo, 99).gpt_spec == demo.gpt_spec
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
    assert {"machine", "functional", "vocoder", "upstream", "speech_64", "speech_128"} <= set(every)
    assert {f"equal_{how}_{slots}" for how in ("bfloat16", "kv_int8") for slots in (8, 16, 64, 128)} <= set(every)
    found = gpu_check.chosen(every, ["vocoder", "equal_bfloat16_*@90"], parser)
    assert [(one.name, one.limit_s) for one in found[:2]] == [("vocoder", 240), ("equal_bfloat16_8", 90)]
    assert len(found) == 5
    assert gpu_check.chosen(every, None, parser) == list(every.values())
    for wrong in ("nothing", "parity@soon"):
        with pytest.raises(SystemExit):
            gpu_check.chosen(every, [wrong], parser)
        assert "allowed are NAME" in capsys.readouterr().err


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


@pytest.fixture(scope="module")
def bare() -> dict[str, type]:
    """pipeline/config.py read with the stand-in for pydantic."""
    names = ("BaseModel", "ValidationError", "model_validator", "field_validator")
    module = type(sys)("pydantic")
    module.__dict__.update({name: getattr(bare_pydantic, name) for name in names})
    module.__dict__.update({"ConfigDict": dict, "Field": bare_pydantic.FieldInfo})
    config = type(sys)("bare_config")
    real = sys.modules["pydantic"]
    sys.modules["pydantic"], sys.modules["bare_config"] = module, config
    try:
        exec(compile((ROOT / "pipeline/config.py").read_text(), "config.py", "exec"), config.__dict__)
    finally:
        sys.modules["pydantic"] = real
        del sys.modules["bare_config"]
    return config.__dict__


def test_without_pydantic_settings_have_the_same_defaults_and_properties(bare):
    assert bare["PipelineConfig"]().model_dump() == PipelineConfig().model_dump()
    given = {"device": "cuda", "slots": 64, "buffer_steps": 512}
    one, other = bare["EngineConfig"].model_validate(given), EngineConfig.model_validate(given)
    assert (one.model_dump(), one.positions, one.largest_block) == (other.model_dump(), other.positions, other.largest_block)
    assert bare["VocoderConfig"](chunk_steps=[8, 48]).chunk_steps == (8, 48)
    assert one.model_copy(update={"device": "cpu"}).device == "cpu"
    assert one == bare["EngineConfig"].model_validate(given)
    assert one != bare["EngineConfig"]()


def test_without_pydantic_the_same_settings_are_refused(bare):
    wrong = [
        ("EngineConfig", {"slotz": 1}),
        ("EngineConfig", {"slots": 0}),
        ("EngineConfig", {"slots": 513}),
        ("EngineConfig", {"device": "tpu"}),
        ("EngineConfig", {"weights": "int8"}),
        ("EngineConfig", {"buffer_steps": 4, "block_steps": 4}),
        ("VocoderConfig", {"chunk_steps": []}),
        ("VocoderConfig", {"method": "incremental", "device": "cuda"}),
        ("PipelineConfig", {"engine": {"dtype": "float16"}}),
    ]
    real = {"EngineConfig": EngineConfig, "VocoderConfig": VocoderConfig, "PipelineConfig": PipelineConfig}
    for name, settings in wrong:
        with pytest.raises(pydantic.ValidationError):
            real[name].model_validate(settings)
        with pytest.raises(ValueError, match=r"\w"):
            bare[name].model_validate(settings)
    with pytest.raises(ValueError, match="frozen"):
        bare["EngineConfig"]().slots = 4
