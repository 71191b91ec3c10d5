"""What is chosen for a GPU fits it, is called predicted, and the file it is written to is one that the service starts with."""

import itertools
from dataclasses import replace
from types import SimpleNamespace

import pytest

from pipeline.config import EngineConfig
from pipeline.engine.kv_cache import refuse_too_full, slots_within_budget
from pipeline.errors import ConfigError
from pipeline.model.gpu.roofline import GIB, HEADS, LAYERS, WIDTH, Card, needed_bytes, step_ms
from serve.commands.launch import container
from serve.commands.operate import size
from serve.commands.operate.size import FIRST_AUDIO_GOAL_MS, choose
from serve.config.config_file import check_file

H100 = Card("H100", 79.0, 3350e9, 67.0)
SLOW = Card("slow", 24.0, 50e9, 5.0)
SPEC = SimpleNamespace(layers=LAYERS, heads=HEADS, head_dim=WIDTH // HEADS, max_positions=4096)


def test_a_step_of_64_slots_on_an_h100_is_above_its_roofline_and_near_the_estimate():
    engine = EngineConfig(device="cuda", dtype="bfloat16", slots=64, kv_budget_mib=8192)
    assert 0.52 < step_ms(engine, H100) < 1.35
    assert step_ms(engine.model_copy(update={"kv": "int8"}), H100) < step_ms(engine, H100)


def test_memory_limits_the_slots_and_a_card_too_small_for_any_gets_none():
    small = replace(H100, memory_gib=6.0)
    assert choose(small).engine.slots < choose(H100).engine.slots
    assert choose(small).memory_share <= 0.85
    assert choose(replace(H100, memory_gib=2.0)) is None


def test_a_slow_card_rounds_to_8_bits_before_it_misses_the_goal():
    slow, slowest = (choose(replace(SLOW, memory_rate=rate)) for rate in (300e9, 50e9))
    assert slow.reaches_goal
    assert slow.first_audio_ms <= FIRST_AUDIO_GOAL_MS
    assert not slowest.reaches_goal
    assert (slow.engine.weights, slow.engine.kv, slow.engine.slots) == ("int8", "int8", 16)
    assert (slowest.engine.weights, slowest.engine.slots) == ("int8", 8)
    assert "later than the goal of 150" in str(slowest)


def test_without_a_gpu_it_says_why_and_what_to_do(monkeypatch, capsys):
    monkeypatch.setattr(size.torch.cuda, "is_available", lambda: False)
    assert size.main([]) == size.EXIT_NO_GPU
    assert "configs/cpu.yaml" in capsys.readouterr().err


PAPER = {  # name -> capability, GiB, multiprocessors, memory clock [kHz], bus [bit], clock [kHz]; true memory bandwidth [GB/s]
    "NVIDIA A10": ((8, 6), 22.5, 72, 6_251_000, 384, 1_695_000, 600),
    "NVIDIA A10G": ((8, 6), 22.1, 80, 6_251_000, 384, 1_710_000, 600),
    "NVIDIA L4": ((8, 9), 22.2, 58, 6_251_000, 192, 2_040_000, 300),
    "NVIDIA L40S": ((8, 9), 44.4, 142, 9_001_000, 384, 2_520_000, 864),
    "NVIDIA GeForce RTX 4090": ((8, 9), 23.5, 128, 10_501_000, 384, 2_520_000, 1008),
    "NVIDIA GeForce RTX 4090 Laptop GPU": ((8, 9), 15.7, 76, 9_001_000, 256, 2_040_000, 576),
    "NVIDIA GeForce RTX 5090": ((12, 0), 31.4, 170, 14_001_000, 512, 2_407_000, 1792),
    "NVIDIA GeForce RTX 3060": ((8, 6), 11.8, 28, 7_501_000, 192, 1_777_000, 360),
    "NVIDIA A100-SXM4-80GB": ((8, 0), 79.2, 108, 1_593_000, 5120, 1_410_000, 2039),
    "NVIDIA A100-SXM4-40GB": ((8, 0), 39.4, 108, 1_215_000, 5120, 1_410_000, 1555),
    "NVIDIA A100-SXM4-80GB MIG 1g.10gb": ((8, 0), 9.5, 14, 1_593_000, 5120, 1_410_000, 255),
    "NVIDIA A100-SXM4-40GB MIG 3g.20gb": ((8, 0), 19.5, 42, 1_215_000, 5120, 1_410_000, 777),
    "NVIDIA H100 80GB HBM3": ((9, 0), 79.1, 132, 2_619_000, 5120, 1_980_000, 3350),
    "NVIDIA H100 PCIe": ((9, 0), 79.1, 114, 1_593_000, 5120, 1_755_000, 2039),
    "NVIDIA H100 80GB HBM3 MIG 1g.10gb": ((9, 0), 9.6, 16, 2_619_000, 5120, 1_980_000, 419),
    "NVIDIA H100 80GB HBM3 MIG 2g.20gb": ((9, 0), 19.6, 32, 2_619_000, 5120, 1_980_000, 838),
    "NVIDIA H200": ((9, 0), 139.8, 132, 3_201_000, 6144, 1_980_000, 4917),
    "NVIDIA H200 MIG 1g.18gb": ((9, 0), 16.5, 16, 3_201_000, 6144, 1_980_000, 614),
    "NVIDIA B200": ((10, 0), 178.3, 148, 3_996_000, 8192, 1_965_000, 8184),
    "NVIDIA Of Tomorrow": ((13, 0), 400.0, 300, 8_000_000, 16384, 3_000_000, 32768),
    "Tiny of the lab": ((8, 6), 5.9, 4, 1_000_000, 64, 900_000, 16),
}


@pytest.fixture
def on_paper(monkeypatch):
    """Puts a card of PAPER into this machine."""

    def put(card: str, **changes: object) -> None:
        capability, gib, multiprocessors, memory_clock, bus, clock, _ = PAPER[card]
        found = {"name": card, "major": capability[0], "minor": capability[1], "total_memory": int(gib * GIB)}
        found |= {"multi_processor_count": multiprocessors, "memory_clock_rate": memory_clock, "memory_bus_width": bus}
        device = SimpleNamespace(**found | {"clock_rate": clock} | changes)
        monkeypatch.setattr(size.torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(size.torch.cuda, "get_device_properties", lambda number: device)
        monkeypatch.setattr(container, "sees_gpu", lambda: True)

    return put


@pytest.mark.parametrize(("name", "cores"), zip(PAPER, itertools.cycle([4, 16, 96, 8])))
def test_what_is_written_for_any_card_is_what_the_service_starts_with(name, cores, on_paper, tmp_path, monkeypatch, capsys):
    on_paper(name)
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    monkeypatch.setenv("CHATTTS_HOME", str(tmp_path))
    assert size.card_here().memory_rate / 1e9 == pytest.approx(PAPER[name][-1], rel=0.02)
    assert size.main(["-o", str(tmp_path / "size.yaml")]) == 0
    for path in (tmp_path / "size.yaml", container.prepared({"CHATTTS_CHECKPOINT": "full-random"})):
        checked = check_file(path)
        assert checked.app.source == str(path)
        pipeline, ingress = checked.app.pipeline, checked.deployment("Ingress")["num_replicas"]
        engine = pipeline.engine
        gib = PAPER[name][1] * GIB
        assert needed_bytes(pipeline) <= engine.gpu_memory_share * gib
        assert slots_within_budget(engine, SPEC) == engine.slots + 1
        admitted = ingress * checked.app.limits.max_in_flight
        assert engine.slots + engine.max_waiting - ingress < admitted <= engine.slots + engine.max_waiting
        assert ingress * 2 + 1 + 3 <= max(cores, 6), "a replica that finds no core never starts"
    assert "predicted: " in capsys.readouterr().out
    faster = replace(size.card_here(), memory_rate=2 * size.card_here().memory_rate)
    assert choose(faster).engine.slots >= engine.slots
    assert choose(faster).audio_s_per_s > choose(size.card_here()).audio_s_per_s


def test_a_card_that_is_too_old_or_does_not_describe_itself_is_refused(on_paper, capsys):
    on_paper("NVIDIA A10", name="Tesla T4", major=7, minor=5)
    assert size.main([]) == 1
    assert "compute capability 7.5" in capsys.readouterr().err
    on_paper("NVIDIA A10", memory_clock_rate=0)
    assert size.main([]) == 1
    assert "tells no clock rates" in capsys.readouterr().err


def test_a_result_that_the_service_would_refuse_is_not_written(on_paper, monkeypatch, tmp_path, capsys):
    on_paper("NVIDIA H100 80GB HBM3")
    monkeypatch.setattr(size, "derive", lambda document, choice: None)
    assert size.main(["-o", str(tmp_path / "size.yaml")]) == 1
    assert "AcousticModel.max_ongoing_requests: 512 is below" in capsys.readouterr().err
    assert not (tmp_path / "size.yaml").exists()


def test_a_cache_that_would_fill_the_gpu_is_refused_with_both_numbers():
    config = EngineConfig(device="cuda")
    refuse_too_full(4 * GIB, 9 * GIB, 10 * GIB, config)
    with pytest.raises(ConfigError, match=r"6144 MiB, 90% of the GPU's 10240 MiB .*\(3072 MiB are already\).*allows 85%"):
        refuse_too_full(6 * GIB, 7 * GIB, 10 * GIB, config)
    refuse_too_full(6 * GIB, 7 * GIB, 10 * GIB, config.model_copy(update={"gpu_memory_share": 0.95}))
