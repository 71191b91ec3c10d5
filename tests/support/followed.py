"""What the pages tell to write for clients, followed to the letter by unmodified packages in environments of their own."""

import json
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from serve.config.app_config import PROJECT
from tests.support.foreign import REQUIREMENTS, RIVA, python_of_clients, run_javascript
from tests.support.pages import PAGES, section, table

PAGE = "docs/clients.md"
PYTHON_PAGES = tuple(f"docs/{name}.md" for name in ("api", "quickstart", "elevenlabs", "deepgram", "grpc"))
FOLLOWED = PROJECT / "tests/foreign/page.py"
LEAST = 10_000  # bytes of samples of a sentence
JAVASCRIPT = re.findall(r"```js\n(.*?)```", section(PAGE, "JavaScript"), re.DOTALL)


@dataclass(frozen=True)
class Places:
    """Where the servers are that the pages name."""

    ports: dict[int, int]
    """the page's -> ours"""

    def put_into(self, text: str) -> str:
        """Returns a text with these places in it."""
        for port, ours in self.ports.items():
            text = re.sub(rf"\b(localhost|127\.0\.0\.1):{port}\b", f"127.0.0.1:{ours}", text)
        return text


def expressions() -> dict[str, str]:
    """What is written for each client: the page's constructors, and Home Assistant's fields as the package takes them."""
    found = {}
    for row, _ in table(PAGE, "LiveKit and Pipecat"):
        program, _, code = row.partition(" `")
        found[f"{program} {code.partition('(')[0]}"] = code.rstrip("`")
    host, port = (re.findall(r"`([^`]+)`", row[1])[-1] for row in table(PAGE, "Home Assistant"))
    return {**found, "wyoming": f"AsyncTcpClient(*'{host}:{port}'.split(':'))"}


def constructors_speak(places: Places) -> None:
    """Every client of the page that is made by one expression is heard."""
    said = {name: places.put_into(code) for name, code in expressions().items()}
    command = [python_of_clients(REQUIREMENTS), str(FOLLOWED)]
    done = subprocess.run(command, input=json.dumps(said), capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found.keys() == said.keys()
    assert len(found) == 6
    assert all(isinstance(audio, int) and audio > LEAST for audio in found.values()), found


def first_example_runs(places: Places, page: str, folder: Path) -> None:
    """The first Python of a page writes or tells audio, as it is written."""
    code = places.put_into(re.findall(r"```python\n(.*?)```", PAGES[page], re.DOTALL)[0])
    python = python_of_clients(RIVA if page == "docs/grpc.md" else REQUIREMENTS)
    done = subprocess.run([python, "-c", code], cwd=folder, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    _is_audio([path.stat().st_size for path in folder.iterdir()] or [int(line) for line in done.stdout.split()])


def javascript_runs(places: Places, number: int, folder: Path) -> None:
    """One of the page's pieces of JavaScript writes audio, as it is written."""
    done = run_javascript(places.put_into(JAVASCRIPT[number]), folder=folder)
    assert done.returncode == 0, done.stderr[-2000:]
    _is_audio([path.stat().st_size for path in folder.iterdir()])


def _is_audio(sizes: list[int]) -> None:
    assert sum(sizes) > LEAST / 4, "MP3 is smaller than samples"
