"""docs/clients.md followed to the letter: its clients, unmodified and in environments of their own, speak as it says.

The servers are those of one ingress replica with the demo voice; tests/e2e/test_doors.py has the gRPC and Wyoming of a whole
service. Programs that are no Python packages are replayed in tests/unit/test_clients_page.py.
"""

import asyncio
import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from serve.config.app_config import PROJECT, LimitsConfig
from serve.config.doors import WyomingConfig
from serve.doors.wyoming.listener import WyomingListener
from serve.http.services import Services
from tests.support.demo_voice import demo_speaker
from tests.support.fakes import make_services
from tests.support.foreign import REQUIREMENTS, RIVA, python_of_clients
from tests.support.live_server import serving
from tests.support.pages import PAGES, table
from tests.support.ports import free_port
from tests.support.riva_server import riva_serving

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800)]

PAGE = "docs/clients.md"
FOLLOWED = PROJECT / "tests/foreign/page.py"
LEAST = 10_000  # bytes of samples of a sentence


@dataclass(frozen=True)
class Places:
    """Servers, in place of those that the pages name."""

    services: Services
    ports: dict[int, int]
    """the page's -> ours"""

    def put_into(self, text: str) -> str:
        for port, ours in self.ports.items():
            text = re.sub(rf"\b(localhost|127\.0\.0\.1):{port}\b", f"127.0.0.1:{ours}", text)
        return text


@pytest.fixture(scope="module")
def places() -> Iterator[Places]:
    with ExitStack() as opened:
        services = make_services(opened.enter_context(demo_speaker()), LimitsConfig(first_audio_timeout_s=120))
        http = opened.enter_context(serving(services)).port
        grpc = int(opened.enter_context(riva_serving(services)).partition(":")[2])
        yield Places(services, {8000: http, 9000: grpc, 10200: free_port()})


def expressions() -> dict[str, str]:
    """What is written for each client: the page's constructors, and Home Assistant's fields as the package takes them."""
    found = {}
    for row, _ in table(PAGE, "LiveKit and Pipecat"):
        program, _, code = row.partition(" `")
        found[f"{program} {code.partition('(')[0]}"] = code.rstrip("`")
    host, port = (re.findall(r"`([^`]+)`", row[1])[-1] for row in table(PAGE, "Home Assistant"))
    return {**found, "wyoming": f"AsyncTcpClient(*'{host}:{port}'.split(':'))"}


def test_the_clients_of_the_page_speak_as_it_says(places: Places):
    said = {name: places.put_into(code) for name, code in expressions().items()}
    command = [python_of_clients(REQUIREMENTS), str(FOLLOWED)]

    async def follow() -> subprocess.CompletedProcess[str]:
        listener = WyomingListener(WyomingConfig(port=places.ports[10200]), places.services)
        await listener.start()
        try:
            return await asyncio.to_thread(
                subprocess.run, command, input=json.dumps(said), capture_output=True, text=True, check=False, timeout=900
            )
        finally:
            await listener.stop()

    done = asyncio.run(follow())
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found.keys() == said.keys()
    assert len(found) == 6
    assert all(isinstance(audio, int) and audio > LEAST for audio in found.values()), found


@pytest.mark.parametrize("page", [f"docs/{name}.md" for name in ("api", "quickstart", "elevenlabs", "deepgram", "grpc")])
def test_the_first_example_of_a_client_runs_as_it_is_written(places: Places, tmp_path: Path, page: str):
    code = places.put_into(re.findall(r"```python\n(.*?)```", PAGES[page], re.DOTALL)[0])
    python = python_of_clients(RIVA if page == "docs/grpc.md" else REQUIREMENTS)
    done = subprocess.run([python, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    sizes = [path.stat().st_size for path in tmp_path.iterdir()] or [int(line) for line in done.stdout.split()]
    assert sum(sizes) > LEAST / 4, "MP3 is smaller than samples"
