"""Clients of other projects, unmodified, do what the pages say against a whole service as `make serve` starts it.

They live in environments of their own; programs that are no packages are replayed in tests/unit/test_docs_examples.py.
"""

import json
import re
import subprocess
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from serve.config.app_config import PROJECT
from tests.support.foreign import CALLS_TABLE, REQUIREMENTS, RIVA, make_calls, python_of_clients, run_javascript
from tests.support.pages import PAGES, section, table
from tests.support.ports import free_port
from tests.support.started import PATIENT, started, with_listeners

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800)]

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


@pytest.fixture(scope="module")
def places(home: Path, folder: Path) -> Iterator[Places]:
    grpc, wyoming = free_port(), free_port()
    with started(home=home, folder=folder, changes=with_listeners(grpc, wyoming), **PATIENT) as service:
        service.wait_until_ready()
        yield Places({8000: service.port, 9000: grpc, 10200: wyoming})


def is_audio(sizes: list[int]) -> None:
    assert sum(sizes) > LEAST / 4, "MP3 is smaller than samples"


def expressions() -> dict[str, str]:
    """What is written for each client: the page's constructors, and Home Assistant's fields as the package takes them."""
    clients = {}
    for row, _ in table(PAGE, "LiveKit and Pipecat"):
        program, _, code = row.partition(" `")
        clients[f"{program} {code.partition('(')[0]}"] = code.rstrip("`")
    host, port = (re.findall(r"`([^`]+)`", row[1])[-1] for row in table(PAGE, "Home Assistant"))
    return {**clients, "wyoming": f"AsyncTcpClient(*'{host}:{port}'.split(':'))"}


def test_the_clients_of_the_page_speak_as_it_says(places: Places):
    """Every client of the page that is made by one expression."""
    texts = {name: places.put_into(code) for name, code in expressions().items()}
    command = [python_of_clients(REQUIREMENTS), str(FOLLOWED)]
    done = subprocess.run(command, input=json.dumps(texts), capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stderr[-2000:]
    clients = json.loads(done.stdout.splitlines()[-1])
    assert clients.keys() == texts.keys()
    assert len(clients) == 10
    assert all(isinstance(audio, int) and audio > LEAST for audio in clients.values()), clients


@pytest.mark.parametrize("client", tomllib.loads(CALLS_TABLE.read_text()))
def test_every_call_of_a_client_gives_what_its_documentation_says(places: Places, client: str):
    http, grpc, wyoming = (f"localhost:{places.ports[port]}" for port in (8000, 9000, 10200))
    done = make_calls(client, "--url", f"http://{http}", "--grpc", grpc, "--wyoming", f"tcp://{wyoming}")
    assert done.returncode == 0, f"{done.stdout[-6000:]}{done.stderr[-2000:]}"


@pytest.mark.parametrize("page", PYTHON_PAGES)
def test_the_first_example_of_a_client_runs_as_it_is_written(places: Places, tmp_path: Path, page: str):
    code = places.put_into(re.findall(r"```python\n(.*?)```", PAGES[page], re.DOTALL)[0])
    python = python_of_clients(RIVA if page == "docs/grpc.md" else REQUIREMENTS)
    done = subprocess.run([python, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    is_audio([path.stat().st_size for path in tmp_path.iterdir()] or [int(line) for line in done.stdout.split()])


@pytest.mark.parametrize("number", range(4))
def test_javascript_runs_as_it_is_written(places: Places, tmp_path: Path, number: int):
    assert len(JAVASCRIPT) == 4
    done = run_javascript(places.put_into(JAVASCRIPT[number]), folder=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    is_audio([path.stat().st_size for path in tmp_path.iterdir()])
