"""Job events: the progress of a job as server-sent events, which go on where a client stopped reading.

In:    the jobs of a caller, the last event that a client has seen
Out:   events, until the job has ended or this replica leaves
Owns:  nothing: every event follows from the state of the job, on any replica
Never: an event without a place to go on from, but for progress, which only counts when it is new

    job.status      the job, at first and when its status changes
    job.part        a part that is finished, in the order of the text; its id is <script>-<number>
    job.progress    how far the job is
    error           why nothing more is told: the job was deleted, the key was revoked, or this replica leaves
"""

import asyncio
import json
import re
import time
from collections.abc import AsyncGenerator, Callable

from pipeline.errors import Draining, StoreUnavailable
from serve.errors import ApiError, to_api_error
from serve.jobs.service import JobsOf
from serve.jobs.views import JobView
from serve.protocols.openai.schemas.jobs import part_reply, progress_of, view_reply
from serve.speech.job import RequestContext

LOOK_S = 0.5
MOST_PARTS = 1000  # that are told at once
QUIET_S = 15.0
"""after so long without an event, a comment keeps the connection open"""
END = "end"
_PLACE = re.compile(r"([^-]*)-([0-9]{1,9})")


async def job_events(
    jobs: JobsOf, context: RequestContext, is_leaving: Callable[[], bool], view: JobView, last: str
) -> AsyncGenerator[str, None]:
    """Yields events as text/event-stream, until the job has ended, is deleted, or the key of the caller is revoked.

    Args:
        context: of the request.
        is_leaving: True once this replica begins nothing new.
        last: the id of the last event that the client has seen; empty: it has seen none.
    """
    sent_parts, status, progress, script = parts_seen(view, last), None, None, view.job.record.script
    quiet_from = time.monotonic()
    while True:
        record = view.job.record
        if record.script != script:  # a part is spoken again: the places of those behind it change
            sent_parts, status, script = 0, None, record.script
        events = await asyncio.to_thread(_parts, view, sent_parts)
        if sent_parts + len(events) < view.track.parts:
            sent_parts += len(events)
            yield "".join(events)
            continue
        sent_parts = max(sent_parts, view.track.parts)
        now = await asyncio.to_thread(progress_of, view)
        if now != progress:
            progress = now
            events.append(_event("job.progress", now.model_dump_json()))
        if record.status is not status:
            status = record.status
            reply = await asyncio.to_thread(view_reply, view, jobs.keep_s)
            events.append(_event("job.status", reply.model_dump_json(), f"{script}-{END}" if record.is_finished else ""))
        if not events and time.monotonic() - quiet_from > QUIET_S:
            events = [": \n\n"]
        if events:
            quiet_from = time.monotonic()
            yield "".join(events)
        if record.is_finished:
            return
        await asyncio.sleep(LOOK_S)
        try:
            if is_leaving():
                raise to_api_error(Draining("this replica stops: connect again, with Last-Event-ID"))
            context.caller.check_key()
            view = await jobs.view(view.job.id)
        except StoreUnavailable:
            continue  # what was seen last stays; the store comes back
        except ApiError as refusal:
            yield _event("error", json.dumps({"status": refusal.spec.status, **refusal.body(context.request_id)}))
            return


def has_seen_the_end(view: JobView, last: str) -> bool:
    """True if a client has seen how the job ended, and nothing has changed since."""
    return view.job.record.is_finished and last == f"{view.job.record.script}-{END}"


def parts_seen(view: JobView, last: str) -> int:
    """Returns how many parts a client has seen, of this script."""
    match = _PLACE.fullmatch(last)
    return int(match[2]) + 1 if match is not None and match[1] == view.job.record.script else 0


def _parts(view: JobView, first: int) -> list[str]:
    """Returns the events of the next parts, at most MOST_PARTS. It takes a tenth of a second: call it in a thread."""
    numbers = range(first, min(first + MOST_PARTS, view.track.parts))
    parts = ((number, part_reply(view, number, {}).model_dump_json(exclude={"warnings", "state"})) for number in numbers)
    return [_event("job.part", part, f"{view.job.record.script}-{number}") for number, part in parts]


def _event(name: str, data: str, place: str = "") -> str:
    fields = {"event": name, "id": place, "data": data}
    return "".join(f"{field}: {value}\n" for field, value in fields.items() if value) + "\n"
