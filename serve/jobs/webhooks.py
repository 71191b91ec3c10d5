"""Webhooks: tells a client's own server that a job has ended, signed as Standard Webhooks says.

In:    finished jobs that named an address
Out:   POST requests with webhook-id, webhook-timestamp and webhook-signature
Owns:  nothing: what was told, and when to try again, is in the record
Never: an address whose host and port the operator has not listed; a secret in a log or a reply; two messages of one key to one
       host at once

Each host has threads of its own, in which keys take turns, so that a receiver that hangs delays no other host. A message is
sent at least once, and always with the same id for the same end, so that receivers can drop repetitions.
"""

import base64
import hashlib
import hmac
import http.client
import json
import logging
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from urllib.parse import urlsplit

from serve.config.hosts import DEFAULT_PORTS, is_listed
from serve.config.jobs import JobsConfig
from serve.errors import bad_request
from serve.jobs.record import JobRecord, JobStatus, Webhook
from serve.jobs.records import Job, JobRecords
from serve.jobs.webhook_post import post

LOG = logging.getLogger("ray.serve.chattts")

TIMEOUT_S = 10.0
"""for a whole message"""
AT_ONCE = 2  # to one host: a key whose receiver hangs leaves a thread to the others
RETRIES_S = (5.0, 300.0, 1800.0, 7200.0, 18_000.0, 36_000.0)
"""from one attempt to the next; after the last one the message is given up [s]"""
SECRET_PREFIX = "whsec_"
Receiver = tuple[str, str]
"""a key, and the host and port that it wants told"""
_ENDS = (JobStatus.SUCCEEDED, JobStatus.FAILED, JobStatus.CANCELLED)


def checked_webhook(url: str, secret: str, hosts: Collection[str]) -> Webhook:
    """Returns the webhook of a request.

    Args:
        hosts: `host` or `host:port`, those that the operator allows.

    Raises:
        ApiError: 400
    """
    try:
        parts = urlsplit(url)
        is_allowed = parts.username is None and _is_listed(url, hosts)
    except ValueError:
        is_allowed = False
    if not is_allowed:
        allowed = ", ".join(hosts) or "none: this service sends no webhooks"
        message = f"webhook.url is http(s)://host[:port]/path of an allowed host and port: {allowed}"
        raise bad_request("invalid_webhook", message, param="webhook")
    try:
        key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except ValueError:
        key = b""
    if not 24 <= len(key) <= 64:
        message = f"webhook.secret is {SECRET_PREFIX} and 24 to 64 bytes in base64"
        raise bad_request("invalid_webhook", message, param="webhook")
    return Webhook(url=url, secret=secret)


@cache
def senders(host: str) -> ThreadPoolExecutor:
    """Returns the threads that send to a host; there are as many hosts as the operator lists."""
    return ThreadPoolExecutor(AT_ONCE, "webhooks")


def due(jobs: Iterable[Job], now: float, busy: Collection[Receiver] = ()) -> dict[Receiver, Job]:
    """Returns the jobs whose end is to be told now: of each receiver that is not busy the one that ended first."""
    first: dict[Receiver, Job] = {}
    for job in sorted(jobs, key=lambda job: job.record.changed_at):
        record = job.record
        if record.status in _ENDS and record.webhook is not None and _is_due(record, now):
            first.setdefault((record.tenant, ":".join(map(str, _address_of(record.webhook.url)))), job)
    return {receiver: job for receiver, job in first.items() if receiver not in busy}


def tell(job: Job, records: JobRecords, config: JobsConfig | None = None) -> None:
    """Sends the message of a job once, if no other replica does so at this moment.

    Args:
        config: which hosts are allowed now; None: any.

    Raises:
        StoreUnavailable
    """
    end = _end_of(job.record)

    def attempted(record: JobRecord) -> JobRecord | None:
        hook = record.webhook
        if hook is None or _end_of(record) != end or not _is_due(record, records.now()):
            return None
        attempts = hook.attempts + 1 if hook.end == end else 1
        wait_s = RETRIES_S[attempts - 1] if attempts <= len(RETRIES_S) else 0.0
        update = {"end": end, "attempts": attempts, "next_at": records.now() + wait_s, "is_told": attempts > len(RETRIES_S)}
        return record.model_copy(update={"webhook": hook.model_copy(update=update)})

    record = records.change(job.id, attempted)
    if record is None or record.webhook is None or not _send(job.id, record, records.now(), config):
        return

    def delivered(record: JobRecord) -> JobRecord | None:
        hook = record.webhook
        if hook is None or hook.end != end:
            return None
        return record.model_copy(update={"webhook": hook.model_copy(update={"is_told": True})})

    records.change(job.id, delivered)


def signature(secret: str, message_id: str, timestamp: int, body: bytes) -> str:
    """Returns the value of webhook-signature."""
    key = base64.b64decode(secret.removeprefix(SECRET_PREFIX))
    signed = hmac.new(key, f"{message_id}.{timestamp}.".encode() + body, hashlib.sha256).digest()
    return f"v1,{base64.b64encode(signed).decode()}"


def _send(job_id: str, record: JobRecord, now: float, config: JobsConfig | None) -> bool:
    """Returns True if the receiver has taken the message."""
    assert record.webhook is not None
    error = None if record.error is None else record.error.model_dump()
    data = {"id": job_id, "status": record.status.value, "title": record.title, "parts": record.parts, "error": error}
    message = {"type": f"audio.job.{record.status.value}", "timestamp": int(record.changed_at), "data": data}
    body, name = json.dumps(message).encode(), f"msg-{job_id}-{record.webhook.end}"
    headers = {
        "Content-Type": "application/json",
        "webhook-id": name,
        "webhook-timestamp": str(int(now)),
        "webhook-signature": signature(record.webhook.secret, name, int(now), body),
    }
    url = record.webhook.url
    if config is not None and not _is_listed(url, config.webhook_hosts):
        LOG.info("job %s: jobs.webhook_hosts does not list its webhook any more", job_id)
        return False
    try:
        may_be_near = config is None or _is_listed(url, config.webhook_near_hosts)
        status = post(url, body, headers, timeout_s=TIMEOUT_S, may_be_near=may_be_near)
    except (OSError, http.client.HTTPException, ValueError) as failed:
        LOG.info("job %s: its webhook does not answer (%s)", job_id, type(failed).__name__)
        return False
    if not 200 <= status < 300:
        LOG.info("job %s: its webhook answers %d", job_id, status)
        return False
    return True


def _is_listed(url: str, hosts: Collection[str]) -> bool:
    parts = urlsplit(url)
    if parts.scheme not in DEFAULT_PORTS:
        return False
    return is_listed(*_address_of(url), parts.scheme, hosts)


def _address_of(url: str) -> tuple[str, int]:
    """Returns host and port."""
    parts = urlsplit(url)
    return parts.hostname or "", DEFAULT_PORTS[parts.scheme] if parts.port is None else parts.port


def _is_due(record: JobRecord, now: float) -> bool:
    hook = record.webhook
    return hook is not None and (hook.end != _end_of(record) or (not hook.is_told and hook.next_at <= now))


def _end_of(record: JobRecord) -> str:
    """Returns a name for one end of a job: a job that is spoken again ends again."""
    return f"{record.status.value}-{round(1000 * record.changed_at)}"
