"""The end of a job is reported once it is taken, signed, to allowed hosts alone; on a full disk a job waits and goes on."""

import base64
import contextlib
import errno
import hashlib
import hmac
import http.client
import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests

from pipeline.books import assemble, job_files
from pipeline.store.open import open_store
from serve.config.jobs import JobsConfig
from serve.errors import to_api_error
from serve.jobs import webhooks
from serve.jobs.record import JobStatus, Webhook
from serve.jobs.records import JobRecords
from serve.jobs.webhook_post import post
from serve.jobs.webhooks import due, senders, tell
from tests.support.fakes import Speaker
from tests.support.jobs import job_record, living
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
        job_url = f"{live.url}/v1/audio/jobs/{job['id']}"
        assert SECRET not in requests.get(job_url, timeout=60).text
        requests.post(f"{job_url}/parts/0", json={"seed": 2}, timeout=60).raise_for_status()
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
            "https://hooks.example.com:0/x",
            "ftp://hooks.example.com:8443/x",
            "nothing",
        ):
            assert error_of(create(live, url))["code"] == "invalid_webhook", url
        assert error_of(create(live, "https://hooks.example.com/x", "whsec_short"))["code"] == "invalid_webhook"
        assert create(live, "https://hooks.example.com:8443/x?y=1").status_code == 202
    with living(tmp_path / "off", speaks=False) as live:
        assert "sends no webhooks" in error_of(create(live, "https://hooks.example.com/x"))["message"]


@pytest.fixture
def drip() -> Iterator[str]:
    """A receiver whose reply never ends."""
    listener, is_over = socket.create_server(("127.0.0.1", 0)), threading.Event()

    def serve() -> None:
        with contextlib.suppress(OSError):
            client, _ = listener.accept()
            client.sendall(b"HTTP/1.1 200 OK\r\nX: ")
            while not is_over.wait(0.02):
                client.sendall(b"a")

    thread = threading.Thread(target=serve)
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
    is_over.set()
    listener.close()
    thread.join()


def test_a_reply_that_drips_is_given_up_in_time(drip: str):
    with pytest.raises((OSError, http.client.HTTPException)):
        post(drip, b"{}", {}, timeout_s=0.3, may_be_near=True)


def test_receivers_that_never_answer_hold_up_no_other(tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(webhooks, "TIMEOUT_S", 60.0)
    silent = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
    *silent_hosts, host = (
        f"127.0.0.1:{port}" for port in (*(listener.getsockname()[1] for listener in silent), urlsplit(receiver.url).port)
    )
    names = (*silent_hosts, host)
    config = JobsConfig(webhook_hosts=names, webhook_near_hosts=names)
    store = open_store(str(tmp_path / "store.sqlite"))
    records = JobRecords(store)
    receivers = [
        *(("a", name) for name in (*silent_hosts, *silent_hosts)),
        ("b", silent_hosts[0]),
        ("c", silent_hosts[0]),
        ("b", host),
    ]
    for number, (tenant, name) in enumerate(receivers):
        hook = Webhook(url=f"http://{name}/", secret=SECRET)
        records.create(f"job-{number}", job_record(tenant=tenant, status=JobStatus.CANCELLED, holder=hook.url, webhook=hook))
    busy: set[tuple[str, str]] = set()
    sending = []
    for _ in range(3):
        for receiver_key, job in due(records.refresh().values(), records.now(), busy).items():
            busy.add(receiver_key)
            sending.append(senders(receiver_key[1]).submit(tell, job, records, config))
    wait_until(lambda: receiver.messages)
    assert busy == set(receivers), "one message of a key to a host at once"
    assert len(sending) == len(busy)
    assert not any(future.done() for future in sending[: len(silent)])
    for future in silent:
        future.settimeout(0)
        with contextlib.suppress(BlockingIOError):
            while True:
                future.accept()[0].close()
        future.close()
    for future in sending:
        future.result(60)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0", "2130706433", "127.1"])
def test_the_address_that_is_asked_is_checked(receiver: Receiver, host: str):
    with pytest.raises(OSError, match=r"near_hosts|Errno|known"):
        post(f"http://{host}:{urlsplit(receiver.url).port}/", b"{}", {}, timeout_s=5.0, may_be_near=False)
    assert not receiver.messages


# A full disk: what should be kept is a 507, what is spoken waits and says for what, and goes on once there is space.


class Disk:
    """Takes everything, or nothing."""

    def __init__(self) -> None:
        self.error: int | None = None

    def write(self) -> None:
        if self.error is not None:
            raise OSError(self.error, "no room")


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    opened, write, fsync = Disk(), job_files.write_durably, assemble.os.fsync

    def write_or_not(*args: Any, **names: Any) -> None:
        opened.write()
        write(*args, **names)

    def sync_or_not(descriptor: int) -> None:
        opened.write()
        fsync(descriptor)

    monkeypatch.setattr("serve.jobs.active_job.FIRST_RETRY_S", 0.05)
    monkeypatch.setattr("serve.jobs.active_job.LONGEST_RETRY_S", 0.05)
    monkeypatch.setattr(job_files, "write_durably", write_or_not)
    monkeypatch.setattr(assemble.os, "fsync", sync_or_not)
    yield opened
    opened.error = None


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT])
def test_jobs_wait_for_space_and_new_ones_are_refused(tmp_path: Path, disk: Disk, error: int):
    body = {"input": "One.\n\nTwo.\n\nThree.", "seed": 1, "response_format": "flac"}
    with living(tmp_path, Speaker(chunks=2, pause_s=0.05), parallel=1) as live:
        url = f"{live.url}/v1/audio/jobs"

        def progress(job: str) -> dict[str, Any]:
            document: dict[str, Any] = requests.get(f"{url}/{job}", timeout=60).json()
            return {"status": document["status"], **document["progress"]}

        job = requests.post(url, json=body, timeout=60).json()["id"]
        wait_until(lambda: progress(job)["done"] == 1)
        disk.error = error
        wait_until(lambda: progress(job)["waiting_for"] == "disk")
        assert (progress(job)["status"], progress(job)["eta_s"]) == ("running", None)
        wait_until(lambda: live.services.jobs.waiting_for_disk == 1)
        for path, fields in (("", body), (f"/{job}/parts/0", {"seed": 2})):
            reply = requests.post(f"{url}{path}", json=fields, timeout=60)
            assert (reply.status_code, reply.json()["error"]["code"]) == (507, "store_full"), reply.text
        assert [entry["id"] for entry in requests.get(url, timeout=60).json()["data"]] == [job]
        disk.error = None
        wait_until(lambda: progress(job)["status"] == "succeeded")
        assert progress(job)["waiting_for"] is None
        assert live.services.jobs.waiting_for_disk == 0


def test_a_file_that_cannot_be_kept_is_made_once_there_is_space(tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch):
    with living(tmp_path, Speaker(chunks=1)) as live:
        url = f"{live.url}/v1/audio/jobs"
        monkeypatch.setattr(job_files, "write_durably", job_files.write_durably)
        original = assemble.assemble
        monkeypatch.setattr("serve.jobs.finishing.assemble", lambda *args: (disk.write(), original(*args)))
        write = job_files.write_durably

        def last_part(path: Path, *args: Any, **names: Any) -> None:
            write(path, *args, **names)
            if path.suffix == ".pcm":
                disk.error = errno.ENOSPC

        monkeypatch.setattr(job_files, "write_durably", last_part)
        job = requests.post(url, json={"input": "One.", "seed": 1, "response_format": "flac"}, timeout=60).json()["id"]
        wait_until(lambda: requests.get(f"{url}/{job}", timeout=60).json()["progress"]["waiting_for"] == "disk")
        disk.error = None
        wait_until(lambda: requests.get(f"{url}/{job}", timeout=60).json()["status"] == "succeeded")


@pytest.mark.parametrize(("error", "status"), [(errno.ENOSPC, 507), (errno.EDQUOT, 507), (errno.EIO, 500)])
def test_every_protocol_says_that_the_disk_is_full(error: int, status: int):
    assert to_api_error(OSError(error, "x")).spec.status == status
