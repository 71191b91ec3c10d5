"""Read remote: has a service speak a book, and fetches the file.

In:    a file, the address of a service
Out:   the finished sound file
Owns:  nothing: the same command finds its job again by its idempotency key
Never: giving up while the service is away for a moment; a half-written file under its own name
"""

import argparse
import hashlib
import json
import time
from collections.abc import Callable
from typing import Any

import requests

LOOK_S = 1.0
RETRY_S = 5.0
AWAY_S = 600.0
"""how long a service may be away"""
BLOCK = 1 << 18
FIELDS = ("voice", "seed", "speed", "sample_rate", "bitrate")


class Refused(Exception):
    """What the service says against it."""


def read(args: argparse.Namespace, input_type: str, advance: Callable[[int, int], None]) -> float:
    """Sends the book, waits for it, writes the file, and deletes the job. Returns how long it is [s].

    Args:
        input_type: of the job.

    Raises:
        Refused
        OSError: the file cannot be read or written.
    """
    service = _Service(args.url, args.key)
    content = args.book.read_bytes()
    options = {name: value for name in FIELDS if (value := getattr(args, name)) is not None}
    kind = {"response_format": args.output.suffix.removeprefix("."), "input_type": input_type}
    fields = json.dumps({**options, **kind, **({"cast": args.cast} if args.cast else {})})
    key = hashlib.sha256(fields.encode() + content).hexdigest()
    form: dict[str, Any] = {"files": {"file": (args.book.name, content)}, "data": {"job": fields}}
    job = service.call("POST", "/v1/audio/jobs", headers={"Idempotency-Key": key}, **form).json()
    job_path = f"/v1/audio/jobs/{job['id']}"
    if job["status"] in ("paused", "failed", "cancelled"):
        service.call("POST", f"{job_path}/resume")
    while (job := service.call("GET", job_path).json())["status"] in ("queued", "running"):
        advance(job["progress"]["done"], job["parts"])
        time.sleep(LOOK_S)
    if job["status"] != "succeeded":
        raise Refused(f"the job is {job['status']}: {(job['error'] or {}).get('message', 'by somebody else')}")
    advance(job["parts"], job["parts"])
    draft = args.output.with_name(f".{args.output.name}.part")
    service.fetch(f"{job_path}/audio", draft)
    draft.replace(args.output)
    service.call("DELETE", job_path)
    return float(job["progress"]["playable_s"])


class _Service:
    """Calls of a service, again and again while it is away."""

    def __init__(self, url: str, key: str | None) -> None:
        self._url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}

    def call(self, method: str, path: str, *, headers: dict[str, str] | None = None, **how: Any) -> requests.Response:
        """Returns the reply of one call."""
        until = time.monotonic() + AWAY_S
        while True:
            try:
                reply = requests.request(
                    method, self._url + path, headers={**self._headers, **(headers or {})}, timeout=120, **how
                )
            except requests.RequestException as error:
                if time.monotonic() > until:
                    raise Refused(f"{self._url} does not answer: {error}") from None
                time.sleep(RETRY_S)
                continue
            if reply.status_code < 400:
                return reply
            if reply.status_code not in (429, 502, 503, 504) or time.monotonic() > until:
                raise Refused(_message(reply))
            time.sleep(float(reply.headers.get("Retry-After", RETRY_S)))

    def fetch(self, path: str, target: Any) -> None:
        """Writes the body of a reply to a file; goes on where a connection broke."""
        target.write_bytes(b"")
        size = None
        while size is None or target.stat().st_size < size:
            have = target.stat().st_size
            reply = self.call("GET", path, headers={"Range": f"bytes={have}-"}, stream=True)
            size = have + int(reply.headers["Content-Length"])
            try:
                with reply, target.open("ab") as file:
                    for piece in reply.iter_content(BLOCK):
                        file.write(piece)
            except requests.RequestException:
                time.sleep(RETRY_S)


def _message(reply: requests.Response) -> str:
    try:
        return str(reply.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"the service answers {reply.status_code}"
