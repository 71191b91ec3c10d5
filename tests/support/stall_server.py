"""A server in a process of its own that says how much processor time it used: `python -m tests.support.stall_server FOLDER`.

Its answers to GET /process-time come from the event loop, as all others do: who asks all the time finds what keeps the loop, or
the interpreter lock, from answering.
"""

import gc
import sys
import time
from dataclasses import replace
from pathlib import Path

from starlette.types import ASGIApp, Receive, Scope, Send

from pipeline.types import SpeechText, SynthesisRequest
from serve.config.jobs import JobsConfig
from tests.support.fakes import FakeText, Speaker, make_jobs, make_services
from tests.support.live_server import serving

PROCESS_TIME = "/process-time"


class ElsewhereText(FakeText):
    """Text is normalised in another process, so here it costs what a short one does."""

    async def read(self, request: SynthesisRequest) -> SpeechText:
        return await super().read(replace(request, text="Hello there.", passages=()))


def telling_time(app: ASGIApp) -> ASGIApp:
    """Returns the application with GET /process-time [ns]."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != PROCESS_TIME:
            await app(scope, receive, send)
            return
        body = str(time.process_time_ns()).encode()
        head = [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        await send({"type": "http.response.body", "body": body})

    return answer


def main() -> None:
    services = make_services(Speaker(chunks=1))
    object.__setattr__(services, "text", ElsewhereText(Speaker()))
    object.__setattr__(services, "jobs", make_jobs(services.speech, JobsConfig(), Path(sys.argv[1])))
    with serving(services, wrap=telling_time) as live:
        gc.collect()
        gc.freeze()  # as an ingress replica does
        print(live.port, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
