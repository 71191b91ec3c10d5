"""Webhooks: the end of a job is told once it is taken, signed, to allowed hosts alone."""

import base64
import hashlib
import hmac
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import requests

from serve.jobs import webhooks
from tests.support.fakes import Speaker
from tests.support.jobs import living
from tests.support.live_server import Live, error_of
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

KEY = b"k" * 32
SECRET = f"whsec_{base64.b64encode(KEY).decode()}"


@dataclass
class Receiver:
    """A client's own server, with the answers it gives one after the other; the last one again and again."""

    url: str = ""
    answers: list[int] = field(default_factory=lambda: [204])
    messages: list[tuple[dict[str, str], bytes]] = field(default_factory=list)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    received = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status = received.answers.pop(0) if len(received.answers) > 1 else received.answers[0]
            received.messages.append(({name.lower(): value for name, value in self.headers.items()}, body))
            self.send_response(status)
            if status == 302:
                self.send_header("Location", f"{received.url}/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    received.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield received
    server.shutdown()
    thread.join()
    server.server_close()


def allowed(receiver: Receiver) -> dict[str, tuple[str, ...]]:
    """The configuration that lets messages go to it."""
    hosts = (receiver.url.removeprefix("http://"),)
    return {"webhook_hosts": hosts, "webhook_near_hosts": hosts}


def create(live: Live, url: str, secret: str = SECRET) -> requests.Response:
    body = {"input": "Some words.", "seed": 1, "webhook": {"url": url, "secret": secret}}
    return requests.post(f"{live.url}/v1/audio/jobs", json=body, timeout=60)


def test_the_end_is_told_signed_and_once(tmp_path: Path, receiver: Receiver):
    with living(tmp_path, Speaker(chunks=1), runners=2, **allowed(receiver)) as live:
        job = create(live, f"{receiver.url}/hook").json()
        assert SECRET not in json.dumps(job)
        wait_until(lambda: receiver.messages)
        wait_until(lambda: live.services.jobs.records.read(job["id"]).record.webhook.is_told)
        ((headers, body),) = receiver.messages
        message = json.loads(body)
        assert (message["type"], message["data"]["id"]) == ("audio.job.succeeded", job["id"])
        signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
        assert headers["webhook-signature"] == f"v1,{base64.b64encode(hmac.new(KEY, signed, hashlib.sha256).digest()).decode()}"
        one = f"{live.url}/v1/audio/jobs/{job['id']}"
        assert SECRET not in requests.get(one, timeout=60).text
        requests.post(f"{one}/parts/0", json={"seed": 2}, timeout=60).raise_for_status()
        wait_until(lambda: len(receiver.messages) == 2)
        assert receiver.messages[1][0]["webhook-id"] != headers["webhook-id"], "a job that is spoken again ends again"


def test_a_message_that_is_not_taken_comes_again_with_its_id(
    tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(webhooks, "RETRIES_S", (0.01,) * 3)
    receiver.answers = [500, 302, 200]
    with living(tmp_path, Speaker(chunks=1), **allowed(receiver)) as live:
        job = create(live, receiver.url).json()
        wait_until(lambda: len(receiver.messages) == 3)
        wait_until(lambda: live.services.jobs.records.read(job["id"]).record.webhook.is_told)
        assert len({headers["webhook-id"] for headers, _ in receiver.messages}) == 1


def test_only_allowed_hosts_are_told(tmp_path: Path):
    with living(tmp_path, speaks=False, webhook_hosts=("hooks.example.com", "hooks.example.com:8443")) as live:
        for url in (
            "http://127.0.0.1/x",
            "https://hooks.example.com@127.0.0.1/x",
            "https://me@hooks.example.com/x",
            "ftp://hooks.example.com/x",
            "https://hooks.example.com.evil.org/",
            "https://[::1",
            "https://hooks.example.com:8444/x",
            "http://hooks.example.com:443/x",
            "https://hooks.example.com:99999/x",
            "nothing",
        ):
            assert error_of(create(live, url))["code"] == "invalid_webhook", url
        assert error_of(create(live, "https://hooks.example.com/x", "whsec_short"))["code"] == "invalid_webhook"
        assert create(live, "https://hooks.example.com:8443/x?y=1").status_code == 202
    with living(tmp_path / "off", speaks=False) as live:
        assert "sends no webhooks" in error_of(create(live, "https://hooks.example.com/x"))["message"]
