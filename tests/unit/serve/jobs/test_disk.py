"""A full disk: what should be kept is a 507, what is spoken waits and says for what, and goes on once there is space."""

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from pipeline.books import assemble, shelf
from serve.errors import to_api_error
from tests.support.fakes import Speaker
from tests.support.jobs import living
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow


class Disk:
    """Takes everything, or nothing."""

    def __init__(self) -> None:
        self.error: int | None = None

    def write(self) -> None:
        if self.error is not None:
            raise OSError(self.error, "no room")


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    found, write, fsync = Disk(), shelf.write_durably, assemble.os.fsync

    def write_or_not(*args: Any, **names: Any) -> None:
        found.write()
        write(*args, **names)

    def sync_or_not(descriptor: int) -> None:
        found.write()
        fsync(descriptor)

    monkeypatch.setattr("serve.jobs.held.FIRST_RETRY_S", 0.05)
    monkeypatch.setattr("serve.jobs.held.LONGEST_RETRY_S", 0.05)
    monkeypatch.setattr(shelf, "write_durably", write_or_not)
    monkeypatch.setattr(assemble.os, "fsync", sync_or_not)
    yield found
    found.error = None


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT])
def test_jobs_wait_for_space_and_new_ones_are_refused(tmp_path: Path, disk: Disk, error: int):
    body = {"input": "One.\n\nTwo.\n\nThree.", "seed": 1, "response_format": "flac"}
    with living(tmp_path, Speaker(chunks=2, pause_s=0.05), parallel=1) as live:
        url = f"{live.url}/v1/audio/jobs"

        def progress(job: str) -> dict[str, Any]:
            found: dict[str, Any] = requests.get(f"{url}/{job}", timeout=60).json()
            return {"status": found["status"], **found["progress"]}

        job = requests.post(url, json=body, timeout=60).json()["id"]
        wait_until(lambda: progress(job)["done"] == 1)
        disk.error = error
        wait_until(lambda: progress(job)["waiting_for"] == "disk")
        assert (progress(job)["status"], progress(job)["eta_s"]) == ("running", None)
        wait_until(lambda: live.services.jobs.waiting_for_disk == 1)
        for path, sent in (("", body), (f"/{job}/parts/0", {"seed": 2})):
            reply = requests.post(f"{url}{path}", json=sent, timeout=60)
            assert (reply.status_code, reply.json()["error"]["code"]) == (507, "store_full"), reply.text
        assert [one["id"] for one in requests.get(url, timeout=60).json()["data"]] == [job]
        disk.error = None
        wait_until(lambda: progress(job)["status"] == "succeeded")
        assert progress(job)["waiting_for"] is None
        assert live.services.jobs.waiting_for_disk == 0


def test_a_file_that_cannot_be_kept_is_made_once_there_is_space(tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch):
    with living(tmp_path, Speaker(chunks=1)) as live:
        url = f"{live.url}/v1/audio/jobs"
        monkeypatch.setattr(shelf, "write_durably", shelf.write_durably)
        made = assemble.assemble
        monkeypatch.setattr("serve.jobs.finishing.assemble", lambda *args: (disk.write(), made(*args)))
        write = shelf.write_durably

        def last_part(path: Path, *args: Any, **names: Any) -> None:
            write(path, *args, **names)
            if path.suffix == ".pcm":
                disk.error = errno.ENOSPC

        monkeypatch.setattr(shelf, "write_durably", last_part)
        job = requests.post(url, json={"input": "One.", "seed": 1, "response_format": "flac"}, timeout=60).json()["id"]
        wait_until(lambda: requests.get(f"{url}/{job}", timeout=60).json()["progress"]["waiting_for"] == "disk")
        disk.error = None
        wait_until(lambda: requests.get(f"{url}/{job}", timeout=60).json()["status"] == "succeeded")


@pytest.mark.parametrize(("error", "status"), [(errno.ENOSPC, 507), (errno.EDQUOT, 507), (errno.EIO, 500)])
def test_every_protocol_says_that_the_disk_is_full(error: int, status: int):
    assert to_api_error(OSError(error, "x")).spec.status == status
