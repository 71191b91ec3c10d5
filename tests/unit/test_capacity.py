"""Capacity: what is computed follows from what was measured or given, and says which; nothing else is claimed."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.config import EngineConfig, VocoderConfig
from scripts.bench.record import RESULTS
from scripts.operate.capacity import (
    GIVEN,
    MISSING,
    PARTS,
    Asked,
    Figure,
    between,
    follows,
    inputs,
    quota_lines,
    step_time,
    vocoder_rate,
)
from scripts.operate.gpu_memory import kv_cache_bytes
from serve.config.app_config import PROJECT

GPU = EngineConfig(device="cuda", dtype="bfloat16", slots=64, kv_budget_mib=8192)
CPU = EngineConfig(dtype="bfloat16", slots=8)
GPU_RESULT = {
    "hardware": {"device": "a GPU", "cores": 8, "cpu": "x", "commit": "abc"},
    "figures": {
        "step_64_slots_auto": {"step_ms": 4.0},
        "vocoder_float32": {"call_ms": {"1": 3.0, "8": 8.192}},
    },
}


def value(figures: list[Figure], name: str) -> float | None:
    (found,) = [figure for figure in figures if figure.name == name]
    return found.value


def told(engine: EngineConfig, asked: Asked, folder: Path = RESULTS) -> list[Figure]:
    return follows(engine, *inputs(engine, VocoderConfig(), asked, folder), asked)


def test_the_cache_takes_what_the_formula_of_the_readme_says():
    assert kv_cache_bytes(GPU) == 64 * 1536 * 60 * 1024
    assert kv_cache_bytes(EngineConfig(slots=1)) == 2 * 1536 * 60 * 1024, "float32 takes twice as much"
    rounded = GPU.model_copy(update={"kv": "int8"})
    assert kv_cache_bytes(rounded) == 64 * 1536 * 51 * 1024 * 10 // 16, "31.875 KiB: a byte a number, 4 for each scale"


def test_a_step_that_was_measured_is_named_with_file_machine_and_commit(tmp_path: Path):
    (tmp_path / "gpu.json").write_text(json.dumps(GPU_RESULT))
    step = step_time(GPU, tmp_path)
    assert (step.value, step.origin) == (4.0, "measured: gpu.json, a GPU, commit abc")
    rate = vocoder_rate(VocoderConfig(device="cuda", rows=8), tmp_path)
    assert rate.value == pytest.approx(8 * 48 / 46.875 / 0.008192) == 1000
    assert rate.origin.startswith("measured: gpu.json")


@pytest.mark.parametrize("file", ["b1.json", "bfloat16/b1.json"])
def test_the_cpu_figure_is_the_one_in_the_results(file: str):
    measured = json.loads((RESULTS / file).read_text())
    changes = measured["options"]["service"]["changes"]
    engine = CPU.model_copy(update={part: changes.get(f"pipeline.engine.{part}", "dtype") for part in PARTS})
    step = step_time(engine, RESULTS)
    assert step.value == measured["decode_8"]["step_ms"]["in_process"]["median"]
    assert file in step.origin
    assert "on a line between 1 and 8" in step_time(engine.model_copy(update={"slots": 4}), RESULTS).origin


CPU_RESULT = {
    "hardware": {"cores": 2, "cpu": "a CPU", "commit": "abc"},
    "options": {"service": {"checkpoint": "full-random", "changes": {}}},
    "vocoder": {"core_s_per_audio_s": {"in_process": {"median": 0.125}}},
}


def test_a_vocoder_on_a_cpu_makes_what_its_threads_core_seconds_allow(tmp_path: Path):
    assert vocoder_rate(VocoderConfig(), tmp_path).value is None, "no file, no figure"
    (tmp_path / "b1.json").write_text(json.dumps(CPU_RESULT))
    rate = vocoder_rate(VocoderConfig(threads=2), tmp_path)
    assert rate.value == 16
    assert rate.origin.startswith("measured: b1.json, 2 cores, a CPU, commit abc, 0.125 core-seconds")
    assert vocoder_rate(VocoderConfig(), tmp_path).value == 16, "torch's own choice: every core"
    assert vocoder_rate(VocoderConfig(device="cuda"), tmp_path).value is None, "a CPU says nothing about a GPU"
    small = CPU_RESULT | {"options": {"service": {"checkpoint": "small-random", "changes": {}}}}
    (tmp_path / "b1.json").write_text(json.dumps(small))
    assert vocoder_rate(VocoderConfig(), tmp_path).value is None, "another model's figure"


@pytest.mark.parametrize(
    "engine",
    [
        GPU,
        EngineConfig(dtype="bfloat16", slots=9),
        EngineConfig(slots=8),
        EngineConfig(dtype="bfloat16", decode="torch", kv="int8"),
    ],
    ids=["no gpu.json", "beyond the points", "another format", "another cache"],
)
def test_what_nobody_measured_is_unknown_and_so_is_all_that_rests_on_it(engine: EngineConfig, tmp_path: Path):
    folder = tmp_path if engine.device == "cuda" else RESULTS
    assert step_time(engine, folder).value is None
    assert step_time(engine, folder).origin.startswith(MISSING)
    figures = told(engine, Asked(price=2.0, tenants=(("a", 3),)), folder)
    assert {figure.name for figure in figures if figure.value is None} == {
        "an acoustic replica generates", "streams it keeps up with", "vocoders beside it", "acoustic replicas",
        "an hour of audio costs",
    }  # fmt: skip


def test_a_measurement_of_a_cpu_is_not_taken_for_a_gpu(tmp_path: Path):
    (tmp_path / "gpu.json").write_text(json.dumps(GPU_RESULT | {"hardware": {"device": "cpu", "commit": "abc"}}))
    assert step_time(GPU, tmp_path).value is None
    assert vocoder_rate(VocoderConfig(device="cuda"), tmp_path).value is None


def test_a_gpus_step_with_8_bits_is_not_taken_for_one_without(tmp_path: Path):
    result = GPU_RESULT["figures"] | {"step_64_slots_auto_weights_int8": {"step_ms": 3.0}}
    result |= {"step_64_slots_auto_kv_int8": {"step_ms": 2.0}}
    (tmp_path / "gpu.json").write_text(json.dumps(GPU_RESULT | {"figures": result}))
    assert step_time(GPU, tmp_path).value == 4.0
    assert step_time(GPU.model_copy(update={"weights": "int8"}), tmp_path).value == 3.0
    assert step_time(GPU.model_copy(update={"kv": "int8"}), tmp_path).value == 2.0
    assert step_time(GPU.model_copy(update={"weights": "int8", "kv": "int8"}), tmp_path).value is None
    assert step_time(GPU.model_copy(update={"dtype": "float32"}), tmp_path).value is None


def test_a_worked_example():
    asked = Asked(step_ms=4.0, vocoder_rate=1000, utilisation=0.5, price=3.0, tenants=(("a", 200), ("b", 100)), talking=0.5)
    step, rate = inputs(GPU, VocoderConfig(), asked, RESULTS)
    assert step.origin.startswith(GIVEN)
    assert rate.origin.startswith(GIVEN)
    figures = follows(GPU, step, rate, asked)
    made = 64 / 0.004 / 46.875
    assert value(figures, "an acoustic replica generates") == pytest.approx(made)
    assert value(figures, "streams it keeps up with") == pytest.approx(made / 2)
    assert value(figures, "vocoders beside it") == pytest.approx(made / 1000)
    assert value(figures, "acoustic replicas") == 1
    assert value(figures, "an hour of audio costs") == pytest.approx(3.0 * (1 + made / 1000) / (made / 2))
    assert quota_lines(asked)[0] == "chattts-serve keys add a --streams 200 --audio-s-a-minute 12000"


@given(st.floats(0.1, 1000), st.floats(0.05, 1), st.integers(1, 512), st.floats(0.1, 10_000))
def test_replicas_always_carry_their_tenants(step_ms: float, utilisation: float, slots: int, streams: float):
    asked = Asked(step_ms=step_ms, utilisation=utilisation, tenants=(("a", streams),))
    figures = told(EngineConfig(slots=slots), asked)
    replicas, each = value(figures, "acoustic replicas"), value(figures, "streams it keeps up with")
    assert replicas is not None
    assert each is not None
    assert (replicas - 1) * each < streams * (1 + 1e-9)
    assert replicas * each >= streams * (1 - 1e-9)


@given(st.dictionaries(st.integers(1, 64), st.floats(1, 100), min_size=1, max_size=5), st.integers(1, 80))
def test_between_two_points_lies_between_them_and_beyond_is_nothing(points: dict[int, float], at: int):
    found = between(points, at)
    assert (found is None) == (not min(points) <= at <= max(points))
    if found is not None:
        assert min(points.values()) - 1e-9 <= found <= max(points.values()) + 1e-9


def run(*words: str) -> tuple[int, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "scripts.operate.capacity", *words], cwd=PROJECT, capture_output=True, text=True
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
def test_the_command_says_what_it_does_not_know():
    code, said = run("configs/gpu.yaml", "--results", "/nowhere")
    assert code == 3
    assert "not measured: `make gpu-check` on such a GPU, or --step-ms" in said
    code, said = run("configs/gpu.yaml", "--step-ms", "5", "--price", "2", "--json")
    assert code == 0
    assert {figure["name"] for figure in json.loads(said)["figures"]} >= {"KV cache", "an hour of audio costs"}
    assert run("configs/gpu.yaml", "--step-ms", "0")[0] == 2
