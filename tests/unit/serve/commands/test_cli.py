"""The command line `chattts-serve`: every command is reached, and help loads nothing heavy."""

import itertools
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from pipeline.config import EngineConfig
from pipeline.engine.kv_cache import refuse_too_full, slots_within_budget
from pipeline.errors import ConfigError
from serve.commands import commands
from serve.commands.app import app
from serve.commands.commands import COMMANDS, GROUPS, Command
from serve.commands.config_path import DEFAULT, SHIPPED, config_path
from serve.commands.launch import container
from serve.commands.operate import size
from serve.commands.operate.size import FIRST_AUDIO_GOAL_MS, choose
from serve.config.app_config import PROJECT
from serve.config.config_file import check_file
from serve.simulation.roofline import GIB, HEADS, LAYERS, WIDTH, Card, needed_bytes, step_ms

HEAVY = ("torch", "ray", "serve.errors", "pipeline", "numpy", "pydantic", "rich")


def test_help_names_every_command_and_loads_nothing_heavy():
    code = f"""
import sys
from serve.commands.app import app
try:
    app(["--help"])
except SystemExit as end:
    assert not end.code
print("loaded", *(name for name in {HEAVY} if name in sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, check=True)
    *text, loaded = done.stdout.splitlines()
    assert loaded == "loaded"
    for name in {command.name.split()[0] for command in COMMANDS} | set(GROUPS):
        assert any(f" {name} " in line for line in text), name
    assert not any(line.startswith("  ") and line.endswith("...") for line in text), "a help text is cut off"
    assert "0 fine, 1 failed, 2 wrong usage" in " ".join(" ".join(text).split())


@pytest.mark.parametrize("name", ["pipeline", "serve"])
@pytest.mark.parametrize(("words", "on_path"), [("doctor", True), ("start", True), ("start", False), ("env", False)])
def test_a_package_that_hides_ours_is_named(name: str, words: str, on_path: bool, tmp_path: Path):
    shadow = tmp_path / name / "__init__.py"
    shadow.parent.mkdir()
    shadow.touch()
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path)] * on_path + [str(PROJECT)])}
    command = [sys.executable, "-P", "-c", "import sys; from chattts_serve import main; sys.exit(main())", *words.split()]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    if words == "env":  # begins no other process
        assert done.returncode == 0, done.stderr
    else:
        assert (done.returncode, done.stdout) == (1, "")
        assert f"{name} is imported from {shadow}, which hides that of {PROJECT}" in done.stderr


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_a_command_explains_itself_under_its_name(command: Command):
    result = CliRunner().invoke(app, [*command.name.split(), "--help"])
    assert result.exit_code == 0, result.output
    assert result.output.startswith(f"usage: chattts-serve {command.name} ")
    for verb in command.verbs:
        assert verb in result.output


@pytest.mark.parametrize("group", GROUPS)
def test_a_group_lists_its_commands(group: str):
    result = CliRunner().invoke(app, [group, "--help"])
    assert result.exit_code == 0
    for command in COMMANDS:
        if command.name.startswith(f"{group} "):
            assert command.name.split()[1] in result.output


def test_words_reach_the_command_as_they_were_typed(monkeypatch: pytest.MonkeyPatch):
    calls: list[list[str]] = []

    def run(command: Command, arguments: list[str]) -> int:
        calls.append([command.name, *arguments])
        return 3

    monkeypatch.setattr("serve.commands.app.run", run)
    result = CliRunner().invoke(app, ["say", "-o", "x.wav", "--", "--5 degrees"])
    assert result.exit_code == 3
    assert calls == [["say", "-o", "x.wav", "--", "--5 degrees"]]


@pytest.mark.parametrize("words", [["sing"], ["weights", "melt"], ["say"], ["keys", "add"]])
def test_wrong_usage_is_exit_code_2(words: list[str]):
    assert CliRunner().invoke(app, words).exit_code == 2


@pytest.mark.parametrize(
    ("name", "meanings"),
    [("size", ("3 there is no GPU",)), ("weights fetch", ("3 wrong bytes", "5 disk"))],
)
def test_a_command_with_more_exit_codes_lists_them_in_its_help(name: str, meanings: tuple[str, ...]):
    text = " ".join(CliRunner().invoke(app, [*name.split(), "--help"]).output.split())
    assert "Exit codes: 0 " in text
    assert all(meaning in text for meaning in meanings)


SPEAKING = [("say", "hello"), ("read", "BOOK"), ("size",)]


@pytest.mark.parametrize("words", SPEAKING, ids=" ".join)
@pytest.mark.parametrize(
    ("place", "reason"),
    [("none/x.wav", "there is no folder"), ("folder.wav", "is a folder"), ("file/x.wav", "there is no folder")],
)
def test_a_bad_place_is_refused_before_any_work(words, place, reason, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "folder.wav").mkdir()
    (tmp_path / "file").write_text("text")
    (tmp_path / "book.txt").write_text("text")
    name, *arguments = [word.replace("BOOK", str(tmp_path / "book.txt")) for word in words]
    command = next(command for command in COMMANDS if command.name == name)
    with pytest.raises(SystemExit) as end:
        commands.run(command, [*arguments, "-o", str(tmp_path / place)])
    assert end.value.code == 2
    assert reason in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (OSError(28, "No space left on device", "/data/x"), "chattts-serve doctor: /data/x: No space left on device"),
        (ConnectionError("nobody answers"), "chattts-serve doctor: nobody answers"),
    ],
)
def test_what_the_system_refuses_is_one_line(error, line, monkeypatch, capsys: pytest.CaptureFixture[str]):
    def fail(arguments: list[str]) -> int:
        raise error

    monkeypatch.setattr("serve.commands.doctor.main", fail)
    doctor = next(command for command in COMMANDS if command.name == "doctor")
    assert commands.run(doctor, []) == 1
    assert capsys.readouterr().err.splitlines() == [line]


def test_a_closed_pipe_is_no_traceback():
    command = f"set -o pipefail; {sys.executable} -m serve.commands config show dev | head -1"
    done = subprocess.run(["bash", "-c", command], cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.stderr == ""


def test_the_version_is_that_of_the_installed_package():
    result = CliRunner().invoke(app, ["--version"])
    assert result.exit_code == 0
    assert result.output.startswith("chattts-serve ")


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "serve.commands.weights.convert_voice", raising=False)
    convert = next(command for command in COMMANDS if command.name == "weights convert")
    assert commands.run(convert, []) == 1
    assert "pip install 'chattts-serve[torch]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "expected"),
    [("", {"start", "keys", "weights"}), ("keys ", {"add", "list", "revoke"}), ("config check ", {"dev", "gpu"})],
)
def test_a_shell_completes_commands_verbs_and_configurations(words: str, expected: set[str]):
    environment = {"_CHATTTS_SERVE_COMPLETE": "complete_bash", "COMP_WORDS": f"chattts-serve {words}", "COMP_CWORD": ""}
    environment["COMP_CWORD"] = str(len(words.split()) + 1)
    result = CliRunner().invoke(app, [], prog_name="chattts-serve", env=environment)
    assert expected <= set(result.output.split())


def test_a_configuration_is_found_by_path_or_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert {config_path(name) for name in ("dev", "dev.yaml", "configs/dev.yaml")} == {DEFAULT}
    assert check_file(config_path("cpu")).path == SHIPPED["cpu"]
    assert config_path("voices") == Path("voices")
    assert config_path("else/dev.yaml") == Path("else/dev.yaml")
    (tmp_path / "dev.yaml").write_text("")
    assert config_path("dev.yaml") == Path("dev.yaml")


# What is chosen for a GPU fits it, is called predicted, and the file it is written to is one that the service starts with.

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
        properties = {"name": card, "major": capability[0], "minor": capability[1], "total_memory": int(gib * GIB)}
        properties |= {"multi_processor_count": multiprocessors, "memory_clock_rate": memory_clock, "memory_bus_width": bus}
        device = SimpleNamespace(**properties | {"clock_rate": clock} | changes)
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
