"""What is chosen for a GPU: it fits, it is called predicted until it is measured, and the file it is written to is valid."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from pipeline.config import EngineConfig
from pipeline.engine.kv_cache import refuse_too_full
from pipeline.errors import ConfigError
from scripts.operate import capacity, fit
from scripts.operate.gpu_sizes import CARDS, FIRST_AUDIO_GOAL_MS, GIB, PREDICTED, Card, card_named, choose, step_ms, table
from serve.config.config_file import check_file

H100 = card_named("NVIDIA H100 80GB HBM3")


def test_a_card_is_recognised_by_whole_words_of_its_name():
    names = {
        "NVIDIA A10": "A10",
        "NVIDIA L4": "L4",
        "NVIDIA L40S": "L40S",
        "NVIDIA GeForce RTX 4090": "RTX 4090",
        "NVIDIA A100-SXM4-80GB": "A100",
        "NVIDIA H200": "H200",
        "NVIDIA A10G": None,
        "NVIDIA GeForce RTX 4090 Laptop GPU": None,
        "cpu": None,
    }
    assert {name: card.name if (card := card_named(name)) else None for name in names} == names


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name)
def test_every_choice_is_valid_fits_and_is_called_predicted(tmp_path, card):
    choice = choose(card, tmp_path)
    EngineConfig.model_validate(choice.engine)
    assert choice.origin == PREDICTED
    assert choice.memory_share <= 0.85
    assert choice.first_audio_ms <= FIRST_AUDIO_GOAL_MS
    assert choice.engine["slots"] >= 16
    faster = choose(replace(card, bandwidth=2 * card.bandwidth), tmp_path)
    assert faster.engine["slots"] >= choice.engine["slots"]
    assert faster.audio_s_per_s > choice.audio_s_per_s


def test_a_step_of_64_slots_on_an_h100_is_above_its_roofline_and_near_the_estimate():
    engine = EngineConfig(device="cuda", dtype="bfloat16", slots=64, kv_budget_mib=8192)
    assert 0.52 < step_ms(engine, H100) < 1.35
    assert step_ms(engine.model_copy(update={"kv": "int8"}), H100) < step_ms(engine, H100)


def test_memory_limits_the_slots_and_a_card_too_small_for_any_gets_none(tmp_path):
    small = replace(H100, memory_gib=6.0)
    assert choose(small, tmp_path).engine["slots"] < choose(H100, tmp_path).engine["slots"]
    assert choose(small, tmp_path).memory_share <= 0.85
    assert choose(small, tmp_path, share=0.7).memory_share <= 0.7
    assert choose(replace(H100, memory_gib=2.0), tmp_path) is None


def test_a_slow_card_rounds_to_8_bits_before_it_misses_the_goal(tmp_path):
    choice = choose(card_named("NVIDIA L4"), tmp_path)
    assert (choice.engine["weights"], choice.engine["kv"]) == ("int8", "int8")
    slowest = choose(Card("slow", 24.0, 50e9, 5.0), tmp_path)
    assert not slowest.reaches_goal
    assert (slowest.engine["weights"], slowest.engine["slots"]) == ("int8", 8)


def test_a_measured_step_of_that_card_replaces_the_prediction(tmp_path):
    result = {"hardware": {"device": "NVIDIA H100 PCIe"}, "figures": {"step_128_slots_auto": {"step_ms": 1.5}}}
    (tmp_path / "gpu-h100.json").write_text(json.dumps(result))
    choice = choose(H100, tmp_path)
    assert (choice.step_ms, choice.origin) == (1.5, "measured: gpu-h100.json")
    assert choose(card_named("NVIDIA H200"), tmp_path).origin == PREDICTED
    assert sum("measured: " in line for line in table(tmp_path)) == 1


def test_the_written_configuration_is_valid_and_names_itself(tmp_path, capsys):
    out = tmp_path / "here.yaml"
    assert fit.main(["--gpu", "A10", "-o", str(out)]) == 0
    checked = check_file(out)
    engine = checked.app.pipeline.engine
    assert (engine.device, engine.slots, engine.dtype) == ("cuda", 16, "bfloat16")
    assert checked.app.source == str(out)
    assert PREDICTED in capsys.readouterr().out
    assert fit.main(["--gpu", "A10"]) == 0
    assert "slots: 16" in capsys.readouterr().out


def test_without_a_gpu_it_says_why_and_what_to_do(monkeypatch, capsys):
    monkeypatch.setattr(fit.torch.cuda, "is_available", lambda: False)
    assert fit.main([]) == fit.EXIT_NO_GPU
    assert "--gpu" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "major", "bandwidth"), [("NVIDIA A10G", 8, 600e9), ("Tesla T4", 7, None)])
def test_a_card_outside_the_table_describes_itself_and_an_old_one_is_refused(monkeypatch, capsys, name, major, bandwidth):
    found = SimpleNamespace(
        name=name,
        major=major,
        minor=6 if major == 8 else 5,
        total_memory=22 * GIB,
        memory_clock_rate=6_251_000,
        memory_bus_width=384,
        multi_processor_count=80,
        clock_rate=1_710_000,
    )
    monkeypatch.setattr(fit.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(fit.torch.cuda, "get_device_properties", lambda number: found)
    if bandwidth is None:
        assert fit.main([]) == 1
        assert "compute capability 7.5" in capsys.readouterr().err
        return
    card = fit.card_here()
    assert card.memory_gib == 22.0
    assert card.bandwidth == pytest.approx(bandwidth, rel=0.01)
    assert card.tflops == pytest.approx(35.0, rel=0.01)


def test_a_cache_that_would_fill_the_gpu_is_refused_with_both_numbers():
    config = EngineConfig(device="cuda")
    refuse_too_full(4 * GIB, 9 * GIB, 10 * GIB, config)
    with pytest.raises(ConfigError, match=r"6144 MiB, 90% of the GPU's 10240 MiB .*\(3072 MiB are already\).*allows 85%"):
        refuse_too_full(6 * GIB, 7 * GIB, 10 * GIB, config)
    refuse_too_full(6 * GIB, 7 * GIB, 10 * GIB, config.model_copy(update={"gpu_memory_share": 0.95}))


def test_capacity_prints_the_same_table_for_a_gpu_alone(capsys):
    capacity.main(["gpu"])
    shown = capsys.readouterr().out
    assert all(line in shown for line in table(capacity.RESULTS))
    capacity.main(["cpu"])
    assert "| H200 |" not in capsys.readouterr().out


def test_the_page_on_operations_has_the_same_table():
    page = (fit.FOLDER.parent / "docs/operations.md").read_text(encoding="utf-8")
    assert "\n".join(table(capacity.RESULTS)) in page
