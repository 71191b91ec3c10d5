"""Every curl example of these sections of the README, run against the service as it is written there."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.support.cluster import Cluster
from tests.support.services import needed_program

README = (Path(__file__).resolve().parents[2] / "README.md").read_text()
SECTIONS = ("Text", "Sound", "Voices", "Keys", "Lanes")
QUIET = 'curl() { command curl --silent --show-error --fail-with-body "$@"; }\n'


def blocks(section: str) -> list[str]:
    """The indented blocks with a curl in them, other commands left out."""
    found = re.search(rf"^##+ {section}\n(.*?)(?=^##|\Z)", README, re.MULTILINE | re.DOTALL)
    if found is None:
        return []
    code = re.findall(r"(?:^    .*\n)+", found[1], re.MULTILINE)
    commands = [
        re.findall(r"^curl(?:.*\\\n)*.*$", re.sub(r"^    ", "", block, flags=re.MULTILINE), re.MULTILINE) for block in code
    ]
    return ["\n".join(block) for block in commands if block]


EXAMPLES = [(section, block) for section in SECTIONS for block in blocks(section)]


def test_there_are_examples():
    assert sum(section == "Text" for section, _ in EXAMPLES) >= 4
    assert {section for section, _ in EXAMPLES} == set(SECTIONS)


@pytest.mark.parametrize(("section", "block"), EXAMPLES, ids=[f"{section}-{i}" for i, (section, _) in enumerate(EXAMPLES)])
def test_examples_do_what_they_show(cluster: Cluster, tmp_path: Path, section: str, block: str):
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
