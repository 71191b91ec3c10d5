"""Jobs: a server whose jobs are spoken by a Speaker."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from serve.config.app_config import LimitsConfig
from serve.config.jobs import JobsConfig
from serve.jobs.record import JobRecord, JobStatus, Output
from serve.jobs.runner import JobRunner
from tests.support.fakes import Speaker, make_jobs, make_services
from tests.support.live_server import Live, serving


@contextlib.contextmanager
def living(
    folder: Path, speaker: Speaker | None = None, *, speaks: bool = True, runners: int = 1, look_s: float = 0.02, **config: Any
) -> Iterator[Live]:
    """A server whose jobs are spoken, in a loop of their own."""
    services = make_services(speaker or Speaker(chunks=2), LimitsConfig(max_in_flight=8))
    service = make_jobs(services.speech, JobsConfig.varied({"lease_s": 0.5, **config}), folder)
    object.__setattr__(services, "jobs", service)

    async def speak() -> None:
        await asyncio.gather(*(JobRunner(service, services.speech, look_s=look_s).run() for _ in range(runners)))

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    running = asyncio.run_coroutine_threadsafe(speak(), loop) if speaks else None
    try:
        with serving(services) as live:
            yield live
    finally:
        if running is not None:
            running.cancel()
            with contextlib.suppress(BaseException):
                asyncio.run_coroutine_threadsafe(asyncio.sleep(0.05), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def job_record(**fields: Any) -> JobRecord:
    """A job that waits, with these fields."""
    times, names = {"created_at": 1.0, "changed_at": 1.0}, {"script": "x", "model": "m", "voice": "v"}
    sizes = {"seed": 1, "parts": 1, "characters": 1, "predicted_s": 1.0, "size": 1}
    output = Output(container="wav", sample_rate=24_000)
    plain = {"tenant": "anna", "status": JobStatus.QUEUED, "output": output, **times, **names, **sizes}
    return JobRecord.model_validate(plain | fields)
