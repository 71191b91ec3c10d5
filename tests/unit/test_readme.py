"""The README: what it names exists, what it shows parses."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
MODULES = sorted(set(re.findall(r"python -m (scripts[\w.]+)", README)))

HELP = """
import contextlib, io, json, runpy, sys, traceback

def said(module):
    sys.argv = [module, "--help"]
    with contextlib.redirect_stdout(io.StringIO()) as out:
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        except SystemExit as end:
            return out.getvalue() if not end.code else f"exit code {end.code}"
        except BaseException:
            return traceback.format_exc()
    return "it has not ended by itself"

print(json.dumps({module: said(module) for module in sys.argv[1:]}))
"""


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`((?:pipeline|serve|configs|scripts|tests)/[\w./-]+?)`", README))))
def test_named_files_exist(path):
    assert (ROOT / path).exists()


@pytest.mark.parametrize("path", sorted(set(re.findall(r"\]\(([\w./-]+)\)", README))))
def test_links_lead_somewhere(path):
    assert (ROOT / path).exists()


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`(test_\w+)`", README))))
def test_named_tests_exist(name):
    assert any(f"def {name}(" in source.read_text() for source in (ROOT / "tests").rglob("*.py"))


@pytest.mark.parametrize("target", sorted(set(re.findall(r"make ([a-z-]+)", README))))
def test_make_targets_exist(target):
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


@pytest.fixture(scope="module")
def helps() -> dict[str, str]:
    """module -> what it prints for --help; all in one process, because each brings seconds of imports."""
    done = subprocess.run([sys.executable, "-c", HELP, *MODULES], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("module", MODULES)
def test_scripts_start_and_explain_themselves(module, helps):
    assert "usage:" in helps[module], helps[module]


def test_shown_script_lines_name_real_options(helps):
    for line in re.findall(r"python -m (scripts[^\n`#]+)", README):
        module, *words = shlex.split(line.strip())
        assert all(word in helps[module] for word in words if word.startswith("--")), line


def test_every_shipped_configuration_is_described():
    for path in sorted((ROOT / "configs").glob("*.yaml")):
        assert f"configs/{path.name}" in README, f"{path.name} is not in the README"
