"""The README: what it names exists, what it shows parses."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


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


@pytest.mark.parametrize("module", sorted(set(re.findall(r"python -m (scripts[\w.]+)", README))))
def test_scripts_start_and_explain_themselves(module):
    done = subprocess.run([sys.executable, "-m", module, "--help"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "usage:" in done.stdout


def test_shown_script_lines_name_real_options():
    for line in re.findall(r"python -m (scripts[^\n`#]+)", README):
        module, *words = shlex.split(line.strip())
        options = [word for word in words if word.startswith("--")]
        if options:
            said = subprocess.run([sys.executable, "-m", module, "--help"], cwd=ROOT, capture_output=True, text=True)
            assert all(option in said.stdout for option in options), line


def test_every_shipped_configuration_is_described():
    for path in sorted((ROOT / "configs").glob("*.yaml")):
        assert f"configs/{path.name}" in README, f"{path.name} is not in the README"
