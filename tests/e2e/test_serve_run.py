"""`serve run` itself, as an operator types it: a right file speaks, a wrong file is refused with the key's path."""

import contextlib
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import av
import numpy as np
import pytest
import requests

from scripts.train_demo.recogniser import Recogniser, mistakes
from scripts.train_demo.sentences import words_of
from serve.config.app_config import PROJECT
from tests.support.cluster import ENVIRONMENT, free_port
from tests.support.signals import as_in_a_terminal
from tests.support.waiting import is_ready

pytestmark = pytest.mark.nightly

START_TIMEOUT_S = 180.0


@contextlib.contextmanager
def serve_run(text: str) -> Iterator[tuple[subprocess.Popen, Path]]:
    """Run a configuration in a Ray cluster of its own; yields the process and its log."""
    # Short: Ray puts sockets below it, and a socket's path may have 107 characters.
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        config, log = Path(folder) / "config.yaml", Path(folder) / "log"
        config.write_text(text.replace("source: configs/dev.yaml", f"source: {config}"))
        command = shutil.which("serve", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
        assert command is not None
        environment = {**os.environ, **ENVIRONMENT, "RAY_TMPDIR": folder}
        with log.open("w") as output:
            process = subprocess.Popen(
                [command, "run", str(config)],
                cwd=PROJECT,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                preexec_fn=as_in_a_terminal,
            )
            try:
                yield process, log
            finally:
                process.send_signal(signal.SIGINT)
                try:
                    process.wait(timeout=60)
                except subprocess.TimeoutExpired:
                    process.kill()


def dev_config(port: int) -> str:
    return (PROJECT / "configs/dev.yaml").read_text().replace("port: 8000", f"port: {port}")


def wait_for(condition, process: subprocess.Popen, log: Path) -> float:
    began = time.monotonic()
    while not condition():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() - began < START_TIMEOUT_S, log.read_text()
        time.sleep(0.2)
    return time.monotonic() - began


def test_a_right_file_speaks(capsys):
    port = free_port()
    url = f"http://127.0.0.1:{port}"

    with serve_run(dev_config(port)) as (process, log):
        start_s = wait_for(lambda: is_ready(url), process, log)
        with capsys.disabled():
            print(f"\n  serve run: ready after {start_s:.1f} s")
        text = "Three five three six five eight five six."
        reply = requests.post(f"{url}/v1/audio/speech", json={"input": text, "seed": 1}, timeout=60)
        assert reply.status_code == 200
        assert reply.headers["Content-Type"] == "audio/mpeg"
        with av.open(io.BytesIO(reply.content)) as file:
            resampler = av.AudioResampler("flt", "mono", 24_000)
            frames = [part.to_ndarray()[0] for frame in file.decode(audio=0) for part in resampler.resample(frame)]
        transcript = Recogniser().transcribe(np.concatenate(frames), 24_000, "digits")
        assert mistakes(words_of(text), transcript) <= 3, transcript
        assert "can run any code as this user" in log.read_text(), "Ray asks for no token here"
        page = requests.get(url, headers={"Accept": "text/html"}, timeout=10).text
        (script,) = re.findall(r'<script type="module" src="(.+?)">', page)
        assert "import " in requests.get(f"{url}/{script}", timeout=10).text


@pytest.mark.parametrize(
    ("right", "wrong", "words"),
    [
        ("max_ongoing_requests: 96", "max_ongoing_request: 96", "deployments[2].max_ongoing_request: unknown key"),
    ],
)
def test_a_wrong_file_is_refused(right: str, wrong: str, words: str):
    text = dev_config(free_port())
    assert right in text
    with serve_run(text.replace(right, wrong)) as (process, log):
        wait_for(lambda: "DEPLOY_FAILED" in log.read_text() or words in log.read_text(), process, log)
        wait_for(lambda: words in log.read_text(), process, log)


def test_a_damaged_checkpoint_is_named_and_nothing_becomes_ready(tmp_path: Path, demo_root: Path):
    """One flipped bit loads without complaint anywhere but here."""
    damaged = tmp_path / "checkpoint"
    shutil.copytree(demo_root, damaged)
    weights = damaged / "asset/gpt/model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    port = free_port()
    text = dev_config(port).replace("checkpoint: demo", f"checkpoint: {damaged}")
    with serve_run(text) as (process, log):
        wait_for(
            lambda: "CheckpointError" in log.read_text() and "asset/gpt/model.safetensors" in log.read_text(), process, log
        )
        output = log.read_text()
        assert "expected" in output
        assert "found" in output
        assert not is_ready(f"http://127.0.0.1:{port}")
