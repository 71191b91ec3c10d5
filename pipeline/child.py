"""Child: what a module answers to some bytes, in a process of its own.

In:    the name of a module, bytes for its standard input: one question, or one after another in frames
Out:   the bytes of its standard output
Owns:  the process, until it has answered or timed out; a WarmChild's until it has failed, was given much or is idle
Never: reading untrusted bytes in this process: a reader that crashes, hangs or needs too much memory ends alone

To start Python and import readers of documents takes half a second; to ask a WarmChild that runs takes a millisecond.
"""

import asyncio
import contextlib
import resource
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO

FOLDER = Path(__file__).resolve().parents[1]

FRAME = 8  # bytes of the length before each message
IDLE_S = 300.0  # without a question, after which a process ends
MUCH_BYTES = 1 << 20
"""a process that was given more at once is not kept: its memory would not shrink"""
END_S = 0.5  # time to end after the last question, before it is killed
ATTEMPTS = 2  # a process may end because it was not asked, at the moment at which it is


class ChildFailed(Exception):
    """The process crashed, or reached its limits of memory and time."""


async def ask_child(module: str, content: bytes, *, timeout_s: float) -> bytes:
    """Returns the answer of a module that is run as a program.

    Raises:
        ChildFailed
        TimeoutError
        OSError: no process can be started now.
    """
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module), cwd=FOLDER, stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        async with asyncio.timeout(timeout_s):
            answer, _ = await child.communicate(content)
    finally:
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        await child.wait()
    if child.returncode != 0:
        raise ChildFailed
    return answer


class WarmChild:
    """A process that is started by the first question, and again after it has ended. It is asked by one thread at a time."""

    def __init__(self, module: str, *, timeout_s: float) -> None:
        """
        Args:
            module: run as a program; it calls answer_questions().
            timeout_s: wall-clock time for one answer.
        """
        self._command = (sys.executable, "-m", module)
        self._timeout_s = timeout_s
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, question: bytes) -> bytes:
        """Returns the answer; blocks until it is there.

        Raises:
            ChildFailed: the process crashed, or reached a limit.
            OSError: no process can be started now.
        """
        for _ in range(ATTEMPTS):
            process = self._process or subprocess.Popen(
                self._command, cwd=FOLDER, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
            self._process = process
            answer = self._exchange(process, question)
            if answer is not None and len(question) + len(answer) <= MUCH_BYTES:
                return answer
            self.end()
            if answer is not None:
                return answer
            if process.returncode != 0:
                break
        raise ChildFailed

    def end(self) -> None:
        """Ends the process, if there is one."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        try:
            process.wait(timeout=END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()

    def __del__(self) -> None:
        self.end()

    def _exchange(self, process: subprocess.Popen[bytes], question: bytes) -> bytes | None:
        """Returns the answer; None: the process has ended."""
        assert process.stdin is not None
        assert process.stdout is not None
        timer = threading.Timer(self._timeout_s, process.kill)
        timer.start()
        try:
            _send(process.stdin, question)
            return _receive(process.stdout)
        except BrokenPipeError:
            return None
        finally:
            timer.cancel()


def answer_questions(answer: Callable[[bytes], bytes], *, memory: int, cpu_s: int) -> None:
    """Answers the questions of the parent, each within `cpu_s`, until it asks none any more.

    Args:
        memory: of this process [bytes].
        cpu_s: processor time for one answer; the kernel ends a process that takes more.
    """
    questions, answers = sys.stdin.buffer, sys.stdout.buffer
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    most = resource.getrlimit(resource.RLIMIT_CPU)[1]
    while select.select([questions], [], [], IDLE_S)[0] and (question := _receive(questions)) is not None:
        used = resource.getrusage(resource.RUSAGE_SELF)
        resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime) + 1 + cpu_s, most))
        _send(answers, answer(question))


def _send(stream: IO[bytes], message: bytes) -> None:
    stream.write(len(message).to_bytes(FRAME))
    stream.write(message)
    stream.flush()


def _receive(stream: IO[bytes]) -> bytes | None:
    """Returns a message; None at the end of the stream."""
    head = stream.read(FRAME)
    size = int.from_bytes(head)
    message = stream.read(size) if len(head) == FRAME else b""
    return message if len(head) == FRAME and len(message) == size else None
