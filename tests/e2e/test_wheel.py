"""The service of an installed wheel, started outside the checkout by the one command that people type."""

import io
import tarfile
from pathlib import Path

import pytest
import requests

from tests.support.started import started
from tests.support.wheel import build_wheel, install_wheel

pytestmark = pytest.mark.nightly


@pytest.mark.timeout(1200)
def test_an_installed_wheel_serves_and_offers_its_source(home: Path, folder: Path, tmp_path: Path):
    prefix, elsewhere = tmp_path / "prefix", tmp_path / "elsewhere"
    environment = install_wheel(build_wheel(tmp_path), prefix)
    elsewhere.mkdir()
    program = (str(prefix / "bin/chattts-serve"), "start")
    paths = {name: environment[name] for name in ("PYTHONPATH", "PATH")}
    with started(home=home, folder=folder, program=program, where=elsewhere, **paths) as service:
        service.wait_until_ready()
        body = {"input": "Five one one.", "seed": 1, "response_format": "wav"}
        reply = requests.post(f"{service.url}/v1/audio/speech", json=body, timeout=120)
        assert (reply.status_code, reply.content[:4]) == (200, b"RIFF")
        archive = requests.get(f"{service.url}/source.tar.gz", timeout=60).content
        with tarfile.open(fileobj=io.BytesIO(archive)) as packed:
            names = set(packed.getnames())
        assert {"chattts-serve/serve/app.py", "chattts-serve/pyproject.toml", "chattts-serve/LICENSE"} <= names
        assert not [name for name in names if name.startswith("chattts-serve/tests/")], "it is the checkout that answers"
        service.process.terminate()
        assert service.exit_code() == 0
