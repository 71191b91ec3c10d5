"""The pages: what they name exists, what they show parses."""

import json
import re
import shlex
import subprocess
import sys

import pytest

from scripts.bench.summary import summarise
from tests.support.pages import PAGES, ROOT

TEXT = "\n".join(PAGES.values())
MODULES = sorted(set(re.findall(r"python -m (scripts[\w.]+)", TEXT)))
LINKS = sorted(
    (page, link) for page, text in PAGES.items() for link in set(re.findall(r"\]\(([^)\s]+)\)", text)) if "://" not in link
)

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


PATHS = sorted(set(re.findall(r"`((?:pipeline|serve|configs|scripts|tests|k8s|docs)/[\w./-]+?)`", TEXT)))


@pytest.mark.parametrize("path", PATHS)
def test_named_files_exist(path):
    assert (ROOT / path).exists()


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub writes them."""
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title).strip().lower().replace(" ", "-") for title in titles}


@pytest.mark.parametrize(("page", "link"), LINKS)
def test_links_lead_somewhere(page, link):
    path, _, anchor = link.partition("#")
    target = (ROOT / page).parent / path if path else ROOT / page
    assert target.exists()
    if anchor:
        assert anchor in anchors(target.read_text())


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`(test_\w+)`", TEXT))))
def test_named_tests_exist(name):
    assert any(f"def {name}(" in source.read_text() for source in (ROOT / "tests").rglob("*.py"))


@pytest.mark.parametrize("target", sorted(set(re.findall(r"(?:`|^    )make ([a-z-]+)", TEXT, re.MULTILINE))))
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
    for line in re.findall(r"python -m (scripts[^\n`#]+)", TEXT):
        module, *words = shlex.split(line.strip())
        assert all(word in helps[module] for word in words if word.startswith("--")), line


def test_the_readme_is_one_page():
    assert len(PAGES["README.md"].splitlines()) <= 160


def test_the_readme_repeats_the_measured_factors():
    figures = {row["figure"]: row["measured"]["median"] for row in summarise()["figures"]}
    for name in ("rtf_one_request", "audio_rate_to_upstream"):
        assert f"{figures[name]:.1f} times" in PAGES["README.md"]


def test_every_shipped_configuration_is_described():
    for path in sorted((ROOT / "configs").glob("*.yaml")):
        assert f"configs/{path.name}" in PAGES["docs/configuration.md"], f"{path.name} is not described"
