"""Every curl example of these pages, run against the service as it is written there."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.support.cluster import Cluster
from tests.support.pages import PAGES, code_blocks, section
from tests.support.services import needed_program

PLACES = (
    ("docs/quickstart.md", None),
    ("docs/api.md", None),
    ("docs/text.md", None),
    ("docs/audio.md", None),
    ("docs/voices.md", None),
    ("docs/operations.md", "Keys"),
    ("docs/reliability.md", None),
)
"""page, section; None: the whole page"""
QUIET = 'curl() { command curl --silent --show-error --fail-with-body "$@"; }\n'


def examples(page: str, title: str | None) -> list[str]:
    """The blocks with a curl in them, other commands left out."""
    text = PAGES[page] if title is None else section(page, title)
    found = [re.findall(r"^curl(?:.*\\\n)*.*$", block, re.MULTILINE) for block in code_blocks(text)]
    return ["\n".join(block) for block in found if block]


EXAMPLES = [(page, block) for page, title in PLACES for block in examples(page, title)]


def test_there_are_examples():
    assert sum(page == "docs/text.md" for page, _ in EXAMPLES) >= 4
    assert {page for page, _ in EXAMPLES} == {page for page, _ in PLACES}


@pytest.mark.parametrize(("page", "block"), EXAMPLES, ids=[f"{Path(page).stem}-{i}" for i, (page, _) in enumerate(EXAMPLES)])
def test_examples_do_what_they_show(cluster: Cluster, tmp_path: Path, page: str, block: str):
    needed_program("curl", "curl")
    if "@me.wav" in block:
        flite = needed_program("flite", "flite")
        said = "Good morning. This is the voice that I would like to hear from now on."
        subprocess.run([flite, "-voice", "slt", "-t", said, str(tmp_path / "me.wav")], check=True)
    script = "KEY=ck-nobodys\n" + QUIET + block.replace("localhost:8000", f"127.0.0.1:{cluster.port}")
    done = subprocess.run(["bash", "-e", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    for name in re.findall(r"-o (\S+)", block):
        assert (tmp_path / name).stat().st_size > 100, f"{name} has no sound in it"
