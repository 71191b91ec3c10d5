"""The front end in a process of its own: the same answers, limits that hold, a death that costs one question at most.

On both event loops: Ray and uvicorn run uvloop, whose pipes to a dead process fail in other ways than asyncio's own.
"""

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import uvloop

from pipeline.errors import EngineDead, NoSpeakableText, TextTooHard, WorkerDied
from pipeline.text.frontend import LocalTextFrontend
from pipeline.text.isolation import isolated_frontend as isolation
from pipeline.text.isolation import isolated_frontend as module
from pipeline.text.isolation.isolated_frontend import IsolatedFrontend
from pipeline.types import SynthesisRequest, Voice
from tests.support.waiting import until

pytestmark = pytest.mark.slow

VOICES = {"v": Voice("v", None)}
LONG = "1,234.5 on 2026-11-21, " * 2000  # half a second of work
PATIENCE_S = 60.0

Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=[uvloop.new_event_loop, asyncio.new_event_loop], ids=["uvloop", "asyncio"])
def run(request: pytest.FixtureRequest) -> Run:
    def to_its_end(work: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(work)

    return to_its_end


def request(text: str) -> SynthesisRequest:
    return SynthesisRequest("r", text, "v")


def isolated(root: Path) -> IsolatedFrontend:
    return IsolatedFrontend(root, max_prompt=256, max_steps=512)


async def read_text(frontend: IsolatedFrontend, text: str = "hi") -> str:
    return (await frontend.read(request(text))).segments[0].text


def pid(frontend: IsolatedFrontend) -> int:
    assert frontend._child is not None
    return frontend._child.pid


def state(process: int) -> str:
    """As the kernel has it: R, S, T (stopped), Z; empty: gone."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2][0]
    except OSError:
        return ""


def test_it_answers_as_the_front_end_itself(demo_root, run):
    async def ask() -> None:
        theirs_from = isolated(demo_root)
        ours_from = LocalTextFrontend(demo_root, max_prompt=256, max_steps=512)
        text = request("Hello there, 2 of you! 他说：“你好。”")
        assert await theirs_from.read(text) == await ours_from.read(text)
        theirs, ours = await theirs_from.plan(text, VOICES), await ours_from.plan(text, VOICES)
        assert [prompt.ids.tolist() for prompt in theirs.prompts] == [prompt.ids.tolist() for prompt in ours.prompts]
        with pytest.raises(NoSpeakableText):
            await theirs_from.read(request("?!"))
        assert theirs_from.stats().answers == 3
        busy_s = theirs_from.stats().busy_s
        assert busy_s > 0
        await theirs_from.check_health()
        assert (theirs_from.stats().answers, theirs_from.stats().busy_s) == (4, busy_s), "a health check is no work"

    run(ask())


def test_a_text_that_takes_too_long_is_refused_and_the_next_one_read(demo_root, run, monkeypatch):
    async def ask() -> None:
        monkeypatch.setattr(isolation, "CPU_S_PER_1000_CHARS", 0.0005)
        frontend = isolated(demo_root)
        with pytest.raises(TextTooHard) as refused:
            # The kernel looks at processor time a hundred times a second.
            await frontend.read(request(LONG))
        assert refused.value.param == "input"
        monkeypatch.setattr(isolation, "CPU_S_PER_1000_CHARS", 5.0)
        assert await read_text(frontend) == "hi"

    run(ask())


def test_a_worker_the_kernel_ends_for_its_processor_time_is_the_texts_fault(demo_root, run):
    async def ask() -> None:
        frontend = isolated(demo_root)
        await frontend.check_health()
        os.kill(pid(frontend), signal.SIGSTOP)
        reading = asyncio.create_task(frontend.read(request("hi")))
        await until(lambda: frontend.stats().asked_s > 0)
        os.kill(pid(frontend), signal.SIGPROF)
        os.kill(pid(frontend), signal.SIGCONT)
        with pytest.raises(TextTooHard):
            await reading
        assert await read_text(frontend) == "hi"

    run(ask())


def test_cancelled_callers_disturb_no_other_and_leave_no_answer_in_the_pipe(demo_root, run):
    async def ask() -> None:
        frontend = isolated(demo_root)
        calls = [asyncio.create_task(read_text(frontend, f"number {index}")) for index in range(6)]
        await until(lambda: frontend.stats().waiting == 5)
        calls[0].cancel()
        calls[3].cancel()
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert [answer for answer in answers if isinstance(answer, str)] == [
            "number one",
            "number two",
            "number four",
            "number five",
        ]
        assert frontend.stats().waiting == 0
        assert frontend.stats().answers == 5, "the one that was being read, and the four that stayed"

    run(ask())


def test_an_idle_worker_that_was_killed_is_replaced_unnoticed(demo_root, run):
    """As the kernel does when memory is short."""

    async def ask() -> None:
        frontend = isolated(demo_root)
        assert await read_text(frontend) == "hi"
        for deaths in range(1, 4):
            killed = pid(frontend)
            os.kill(killed, signal.SIGKILL)
            await until(lambda killed=killed: state(killed) == "" and frontend._child.returncode is not None)
            assert await read_text(frontend) == "hi"
            assert pid(frontend) != killed
            assert frontend.stats().restarts == deaths

    run(ask())


def test_a_worker_killed_at_the_moment_of_asking_costs_one_question_at_most(demo_root, run):
    async def ask() -> None:
        frontend = isolated(demo_root)
        for deaths in range(1, 4):
            await read_text(frontend)
            os.kill(pid(frontend), signal.SIGKILL)
            with suppress(WorkerDied):  # a 503, and serve/stages/stage_clients.py tries again: never the client's fault
                await read_text(frontend)
            assert await read_text(frontend) == "hi"
            assert frontend.stats().restarts == deaths

    run(ask())


def test_a_worker_killed_in_the_middle_of_an_answer_names_itself_once(demo_root, run):
    async def ask() -> None:
        frontend = isolated(demo_root)
        named = set()
        for _ in range(2):
            await frontend.check_health()
            os.kill(pid(frontend), signal.SIGSTOP)
            reading = asyncio.create_task(frontend.read(request("hi")))
            others = [asyncio.create_task(read_text(frontend, f"number {index}")) for index in range(3)]
            await until(lambda: frontend.stats().waiting == 3)
            os.kill(pid(frontend), signal.SIGKILL)
            with pytest.raises(WorkerDied) as died:
                await reading
            named.add(died.value.worker)
            assert await asyncio.gather(*others) == ["number zero", "number one", "number two"]
        assert len(named) == 2

    run(ask())


def test_a_stopped_worker_is_killed_and_replaced(demo_root, run, monkeypatch):
    async def ask() -> None:
        monkeypatch.setattr(isolation, "HANG_S", 0.5)
        frontend = isolated(demo_root)
        assert await read_text(frontend) == "hi"
        stopped = pid(frontend)
        os.kill(stopped, signal.SIGSTOP)
        await until(lambda: state(stopped) == "T")
        with pytest.raises(WorkerDied, match="gave no answer in"):
            await read_text(frontend)
        assert state(stopped) == ""
        monkeypatch.setattr(isolation, "HANG_S", PATIENCE_S)
        assert await read_text(frontend) == "hi"
        assert frontend.stats().restarts == 1

    run(ask())


def test_the_health_check_finds_an_idle_worker_that_is_stopped(demo_root, run, monkeypatch):
    async def ask() -> None:
        monkeypatch.setattr(isolation, "HANG_S", 0.5)
        frontend = isolated(demo_root)
        await frontend.check_health()
        stopped = pid(frontend)
        os.kill(stopped, signal.SIGSTOP)
        with pytest.raises(EngineDead):
            await frontend.check_health()
        assert state(stopped) == ""
        monkeypatch.setattr(isolation, "HANG_S", PATIENCE_S)
        await frontend.check_health()
        assert pid(frontend) != stopped

    run(ask())


def test_the_health_check_does_not_wait_behind_a_long_reading(demo_root, run, monkeypatch):
    async def ask() -> None:
        monkeypatch.setattr(isolation, "HANG_S", PATIENCE_S)
        frontend = isolated(demo_root)
        await frontend.check_health()
        os.kill(pid(frontend), signal.SIGSTOP)
        reading = asyncio.create_task(read_text(frontend))
        await until(lambda: frontend.stats().asked_s > 0)
        await frontend.check_health()
        assert not reading.done()
        assert frontend.trouble == ""
        await until(lambda: "has not answered" in frontend.trouble)
        os.kill(pid(frontend), signal.SIGCONT)
        assert await reading == "hi"
        assert frontend.trouble == ""

    run(ask())


def test_workers_that_die_one_after_the_other_fail_every_health_check(demo_root, run, monkeypatch):
    async def ask() -> None:
        frontend = isolated(demo_root)
        monkeypatch.setattr(module, "WORKER", "no.such.module")
        for _ in range(module.MOST_FAILURES):
            with pytest.raises(EngineDead) as failure:
                await read_text(frontend)
            assert not isinstance(failure.value, WorkerDied), "no text was inside"
        # Even while a question is under way.
        async with frontend._turn:
            with pytest.raises(EngineDead):
                await frontend.check_health()
        monkeypatch.undo()
        await frontend.check_health()

    run(ask())


def test_deaths_leave_no_file_open_and_no_process_behind(demo_root, run):
    async def ask() -> None:
        frontend = isolated(demo_root)
        await frontend.check_health()
        files, pids = len(os.listdir("/proc/self/fd")), []
        for _ in range(4):
            pids.append(pid(frontend))
            os.kill(pids[-1], signal.SIGKILL)
            while True:
                try:
                    await frontend.check_health()
                    break
                except EngineDead:
                    continue
        await until(lambda: len(os.listdir("/proc/self/fd")) <= files)
        assert [state(process) for process in pids] == [""] * 4

    run(ask())
