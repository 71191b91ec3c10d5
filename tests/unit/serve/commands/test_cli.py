"""The command line `chattts-serve`: every command is reached, and help loads nothing heavy."""

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from serve.commands import commands
from serve.commands.app import app
from serve.commands.commands import COMMANDS, GROUPS, Command
from serve.commands.config_path import DEFAULT, SHIPPED, config_path
from serve.config.app_config import PROJECT
from serve.config.config_file import check_file

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


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_a_command_explains_itself_under_its_name(command: Command):
    found = CliRunner().invoke(app, [*command.name.split(), "--help"])
    assert found.exit_code == 0, found.output
    assert found.output.startswith(f"usage: chattts-serve {command.name} ")
    for verb in command.verbs:
        assert verb in found.output


@pytest.mark.parametrize("group", GROUPS)
def test_a_group_lists_its_commands(group: str):
    found = CliRunner().invoke(app, [group, "--help"])
    assert found.exit_code == 0
    for command in COMMANDS:
        if command.name.startswith(f"{group} "):
            assert command.name.split()[1] in found.output


def test_words_reach_the_command_as_they_were_typed(monkeypatch: pytest.MonkeyPatch):
    given: list[list[str]] = []

    def run(command: Command, arguments: list[str]) -> int:
        given.append([command.name, *arguments])
        return 3

    monkeypatch.setattr("serve.commands.app.run", run)
    found = CliRunner().invoke(app, ["say", "-o", "x.wav", "--", "--5 degrees"])
    assert found.exit_code == 3
    assert given == [["say", "-o", "x.wav", "--", "--5 degrees"]]


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


def test_who_reads_no_further_is_no_traceback():
    command = f"set -o pipefail; {sys.executable} -m serve.commands config show dev | head -1"
    done = subprocess.run(["bash", "-c", command], cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.stderr == ""


def test_the_version_is_that_of_the_installed_package():
    found = CliRunner().invoke(app, ["--version"])
    assert found.exit_code == 0
    assert found.output.startswith("chattts-serve ")


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
    found = CliRunner().invoke(app, [], prog_name="chattts-serve", env=environment)
    assert expected <= set(found.output.split())


def test_a_configuration_is_found_by_path_or_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert {config_path(name) for name in ("dev", "dev.yaml", "configs/dev.yaml")} == {DEFAULT}
    assert check_file(config_path("cpu")).path == SHIPPED["cpu"]
    assert config_path("voices") == Path("voices")
    assert config_path("else/dev.yaml") == Path("else/dev.yaml")
    (tmp_path / "dev.yaml").write_text("")
    assert config_path("dev.yaml") == Path("dev.yaml")
