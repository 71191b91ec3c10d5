"""Jobs in a process that can be killed: the runner over a whole pipeline of random weights, as one replica has it."""

import asyncio
import multiprocessing
from multiprocessing.process import BaseProcess
from pathlib import Path

from pipeline.config import PipelineConfig
from pipeline.store.open import open_store
from serve.commands.say import open_pipeline
from serve.config.jobs import JobsConfig
from serve.jobs.record import UNFINISHED
from serve.jobs.runner import JobRunner
from serve.jobs.service import JobService
from serve.speech.speech_services import SpeechServices
from tests.support.fakes import Speaker, make_speech_services
from tests.support.waiting import until

CONFIG = JobsConfig.varied({"lease_s": 0.5, "parallel": 2})
PRELOADED = ["tests.support.job_process"]


def make_service(folder: Path, url: str, speech: SpeechServices | None = None) -> JobService:
    """The jobs of a store and a folder."""
    return JobService(CONFIG, open_store(url), folder / "jobs", speech or make_speech_services(Speaker()))


def start(folder: Path, url: str) -> BaseProcess:
    """A replica that speaks jobs until none is unfinished; forked, so that it begins within a fraction of a second."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    process = context.Process(target=_run, args=(folder, url), daemon=True)
    process.start()
    return process


def _run(folder: Path, url: str) -> None:
    asyncio.run(_speak_all(folder, url))


async def _speak_all(folder: Path, url: str) -> None:
    async with open_pipeline(PipelineConfig(checkpoint="small-random")) as local:
        speech = make_speech_services(Speaker(), stream=local.synthesizer.stream)
        service = make_service(folder, url, speech)
        running = asyncio.create_task(JobRunner(service, speech, look_s=0.05).run())
        await until(lambda: all(job.record.status not in UNFINISHED for job in service.records.refresh().values()), 500.0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
