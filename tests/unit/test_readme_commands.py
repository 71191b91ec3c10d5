"""Commands of the pages: each is understood by the tool it calls, and what can run here runs."""

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest
import ray.scripts.scripts
import ray.serve.scripts
from packaging.requirements import Requirement

from scripts.cli.commands import COMMANDS
from tests.support.pages import PAGES, ROOT, commands, section

pytestmark = pytest.mark.slow

CLICK = {"ray": ray.scripts.scripts.cli, "serve": ray.serve.scripts.cli}

# Runs modules of ours, each up to where its own parser has taken the words: JSON lines in, what was wrong with each out.
PARSE = """
import argparse, contextlib, io, json, runpy, sys

parse = argparse.ArgumentParser.parse_args

class Taken(BaseException):
    pass

def parse_and_end(self, *words):
    parse(self, *words)
    raise Taken

argparse.ArgumentParser.parse_args = parse_and_end
for line in sys.stdin:
    module, *words = json.loads(line)
    sys.argv = [module, *words]
    wrong = "it has parsed nothing"
    with contextlib.redirect_stderr(io.StringIO()) as said:
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        except Taken:
            wrong = ""
        except SystemExit:
            wrong = said.getvalue()
    print("taken", json.dumps(wrong), flush=True)
"""


SCRIPTS = commands("chattts-serve", "python -m")
RAYS = commands("ray", "serve")


def module_and_words(line: str) -> list[str]:
    """The module a command line of ours runs, and the words its parser gets."""
    tool, *words = shlex.split(line)
    if tool == "python":
        return words[1:]
    found = [command for command in COMMANDS if words[: len(command.name.split())] == command.name.split()]
    assert len(found) == 1, f"{line}: no such command"
    return [found[0].module, *words[len(found[0].name.split()) :]]


def run(module: str, *words: str, home: Path) -> str:
    """What a script of ours prints."""
    environment = {**os.environ, "CHATTTS_HOME": str(home)}
    command = [sys.executable, "-m", module, *words]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def scripts_of(title: str) -> list[str]:
    """The commands of one section, on whichever page it is."""
    page = next(page for page, text in PAGES.items() if re.search(rf"^##+ {title}$", text, re.MULTILINE))
    return [
        re.sub(r"\s+#.*$", "", line) for line in re.findall(r"^    (chattts-serve .*)$", section(page, title), re.MULTILINE)
    ]


def test_the_pages_show_what_this_file_tests():
    assert len(SCRIPTS) >= 20
    assert {line.split()[1] for line in RAYS} >= {"start", "get-auth-token", "deploy", "shutdown", "status", "run"}


def wrong_in(lines: list[str]) -> dict[str, str]:
    """line -> what its script's own parser says against it; empty: nothing."""
    given = "".join(json.dumps(module_and_words(line)) + "\n" for line in lines)
    command = [sys.executable, "-c", PARSE]
    done = subprocess.run(command, cwd=ROOT, input=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line.removeprefix("taken ")) for line in done.stdout.splitlines() if line.startswith("taken ")]
    return dict(zip(lines, answers, strict=True))


def test_scripts_of_ours_take_their_words():
    own_options = ("chattts-serve --help", "chattts-serve --install-completion")
    found = wrong_in([line for line in SCRIPTS if line not in own_options])
    assert len(found) >= 20
    assert {line: wrong for line, wrong in found.items() if wrong} == {}


def test_a_word_a_script_does_not_know_is_found():
    (wrong,) = wrong_in(["chattts-serve drain configs/dev.yaml --grade 3"]).values()
    assert "unrecognized arguments: --grade" in wrong


@pytest.mark.parametrize("line", RAYS)
def test_rays_own_command_takes_its_words(line: str):
    """Parsed by click, called by nobody."""
    tool, *words = shlex.split(line)
    group = CLICK[tool]
    with group.make_context(tool, list(words), resilient_parsing=False) as context:
        name, command, rest = group.resolve_command(context, words)
        assert command is not None
        if rest:
            with command.make_context(name, rest, parent=context):
                pass


def test_a_word_rays_command_does_not_know_is_found():
    with pytest.raises(click.exceptions.UsageError):
        test_rays_own_command_takes_its_words("ray start --heat --port 6379")
    with pytest.raises(click.exceptions.UsageError):
        test_rays_own_command_takes_its_words("serve redeploy x.yaml")


@pytest.mark.parametrize("line", commands("pip install"))
def test_what_pip_is_asked_for_is_offered(line: str):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = Requirement(re.sub(r"^\.", project["name"], shlex.split(line)[-1]))  # `.` is the checkout
    assert wanted.name == project["name"]
    assert wanted.extras <= set(project["optional-dependencies"])


def test_keys_are_made_shown_and_revoked_as_written(tmp_path: Path):
    adding, listing, revoking = (module_and_words(line) for line in scripts_of("Keys"))
    key = run(*adding, home=tmp_path).strip()
    (shown_key,) = run(*listing, home=tmp_path).splitlines()
    key_id = shown_key.split()[0]
    assert key_id in key
    run(*(key_id if re.fullmatch(r"[a-z0-9]{10}", word) else word for word in revoking), home=tmp_path)
    assert key_id not in run(*listing, home=tmp_path)


@pytest.mark.parametrize("line", [line for line in SCRIPTS if "config check " in line or "config show " in line])
def test_configurations_are_checked_and_shown(line: str, tmp_path: Path):
    run(*module_and_words(line), home=tmp_path)
