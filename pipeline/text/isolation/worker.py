"""Worker: the child process of isolation/isolated_frontend.py; answers calls on its pipes and ends with its parent.

In:    messages on stdin: the front end's arguments, then one (limit_s, method, arguments) per call
Out:   messages on stdout: None once it is ready, then the result of each call or the SynthesisError in its place
Owns:  one LocalTextFrontend, this process's timers
Never: a client's text on stderr

Two timers of processor time: at the limit an exception ends Python code, at twice the limit the kernel ends the process,
which also ends a library's code.
"""

import os
import pickle
import signal
import sys
from collections.abc import Coroutine
from types import FrameType
from typing import Any, BinaryIO

from pipeline.errors import EngineFault, SynthesisError, TextTooHard
from pipeline.text.frontend import LocalTextFrontend

FRAME = 4


class _TimeIsUpError(BaseException):
    """Raised by the timer; a BaseException, so that no handler catches it by accident."""


def main() -> None:
    """Answers calls until the parent closes the pipe."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output of a library must not mix with the answers
    questions = sys.stdin.buffer
    signal.signal(signal.SIGVTALRM, _stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    setup = _receive(questions)
    assert setup is not None
    checkpoint, limits, max_prompt, max_steps = pickle.loads(setup)  # noqa: S301  # written by our own parent
    frontend = LocalTextFrontend(checkpoint, limits, max_prompt=max_prompt, max_steps=max_steps)
    _send(answers, None)
    while (question := _receive(questions)) is not None:
        _send(answers, _answer(frontend, question))


def _answer(frontend: LocalTextFrontend, question: bytes) -> object:
    limit_s, name, arguments = pickle.loads(question)  # noqa: S301  # written by our own parent
    try:
        signal.setitimer(signal.ITIMER_PROF, 2 * limit_s)
        signal.setitimer(signal.ITIMER_VIRTUAL, limit_s)
        try:
            return _finished(getattr(frontend, name)(*arguments))
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            signal.setitimer(signal.ITIMER_PROF, 0)
    except SynthesisError as error:
        return error
    except _TimeIsUpError:
        return TextTooHard(
            f"reading this text took more than its {limit_s:g} s of processor time: send it in smaller pieces", param="input"
        )
    except Exception as error:
        frame = error.__traceback__
        while frame is not None and frame.tb_next is not None:
            frame = frame.tb_next
        place = "" if frame is None else f"{frame.tb_frame.f_code.co_filename}:{frame.tb_lineno}"
        print(f"text worker: {type(error).__name__} at {place}", file=sys.stderr, flush=True)
        return EngineFault(f"reading the text failed ({type(error).__name__})")


def _finished(work: Coroutine[Any, Any, object]) -> object:
    """Returns the result of a coroutine that never waits, without the cost of an event loop per call."""
    try:
        work.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("the front end never waits")


def _stop(number: int, frame: FrameType | None) -> None:
    raise _TimeIsUpError


def _send(stream: BinaryIO, answer: object) -> None:
    data = pickle.dumps(answer)
    stream.write(len(data).to_bytes(FRAME) + data)
    stream.flush()


def _receive(stream: BinaryIO) -> bytes | None:
    head = stream.read(FRAME)
    return stream.read(int.from_bytes(head)) if len(head) == FRAME else None


if __name__ == "__main__":
    main()
