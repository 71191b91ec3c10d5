"""The door dies while somebody listens: the rest is asked for, and is the rest to the byte. Late: it breaks the cluster."""

import hashlib
import json
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import requests

from tests.support.cluster import LONG_SPEECH, Cluster
from tests.support.door_process import say_live
from tests.support.waiting import is_ready, wait_until

TEXT = "Many words follow one another here, and this is sentence number {}. "
BODY: dict[str, Any] = json.loads(LONG_SPEECH)


def kill_ingress(cluster: Cluster) -> None:
    cluster.kill_replica("chattts", "Ingress")


def kill_proxy(cluster: Cluster) -> None:
    """Serve's own HTTP server."""
    (pid,) = [int(one) for one in os.listdir("/proc") if one.isdigit() and is_proxy(cluster, int(one))]
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not is_proxy(cluster, pid), 5.0)


def is_proxy(cluster: Cluster, pid: int) -> bool:
    with suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as command, open(f"/proc/{pid}/environ", "rb") as environment:
        return command.read().startswith(b"ray::ProxyActor") and str(cluster.temp_dir).encode() in environment.read()
    return False


@pytest.mark.parametrize("container", ["wav", "flac", "mp3", "opus"])
def test_a_reply_goes_on_when_the_ingress_was_killed(cluster: Cluster, container: str):
    goes_on(cluster, kill_ingress, container, by_key=False)


@pytest.mark.parametrize("kill", [kill_ingress, kill_proxy])
def test_a_reply_goes_on_by_its_key(cluster: Cluster, kill: Callable[[Cluster], None]):
    goes_on(cluster, kill, "mp3", by_key=True)


def goes_on(cluster: Cluster, kill: Callable[[Cluster], None], container: str, *, by_key: bool) -> None:
    body = {**BODY, "response_format": container}
    url, key = cluster.url("/v1/audio/speech"), {"Idempotency-Key": f"{kill.__name__}-{container}"}
    twin = requests.post(url, json=body, timeout=120).content
    reply = requests.post(url, json=body, headers=key if by_key else {}, stream=True, timeout=120)
    heard = b""
    killed = False
    with suppress(requests.RequestException):
        for piece in reply.iter_content(4096):
            heard += piece
            if not killed:
                kill(cluster)
                killed = True
    assert killed
    assert 0 < len(heard) < len(twin), "the body was cut"
    wait_until(lambda: is_ready(cluster.url()), 120.0)
    named = key if by_key else {"X-Resume": reply.headers["X-Resume"]}
    digest = {"X-Resume-Digest": hashlib.sha256(heard).hexdigest()}
    rest = requests.post(url, json=body, headers={**named, **digest, "Range": f"bytes={len(heard)}-"}, timeout=120)
    assert rest.status_code == 206, rest.text
    assert heard + rest.content == twin


@pytest.mark.parametrize("kill", [kill_ingress, kill_proxy])
def test_say_goes_on_by_itself(cluster: Cluster, kill: Callable[[Cluster], None], capsys):
    text = "".join(map(TEXT.format, range(16)))
    twin = say_live(cluster.url(), text)
    heard = twin.stdout.read()
    assert twin.wait(60) == 0
    saying = say_live(cluster.url(), text)
    begun = saying.stdout.read(48_000)
    kill(cluster)
    died = time.monotonic()
    begun += saying.stdout.read()
    took_s = time.monotonic() - died
    assert saying.wait(60) == 0, saying.stderr.read()
    assert begun == heard
    said = saying.stderr.read().decode()
    assert said, "it was told of the lost connection"
    with capsys.disabled():
        print(f"\n  {kill.__name__}: {said.splitlines()[0]}; all said {took_s:.1f} s after it")
