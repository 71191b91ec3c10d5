"""Trace: one streamed request through the service in this process, with every function call recorded.

In:    the demo checkpoint
Out:   the files, functions and relays that the request passes; with --times, its first audio and its rate
Never: Ray's processes: the handles of the stages call engine, vocoder and front end here

A relay is an async generator, or the coroutine of a task, that hands the reply on: every block of steps passes it.
`python -m scripts.generate.trace_request [--names] [--times 20]`
"""

import argparse
import asyncio
import gc
import inspect
import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import ExitStack, aclosing
from dataclasses import replace
from pathlib import Path
from types import CodeType, FrameType, SimpleNamespace
from typing import Any

from fastapi import FastAPI

from pipeline.checkpoint.capabilities import read_capabilities
from pipeline.checkpoint.locate import DEMO_FOLDER
from pipeline.checkpoint.weights import open_checkpoint
from pipeline.engine.engine import Engine
from pipeline.text.frontend import LocalTextFrontend
from pipeline.types import Prompt, SamplingParams, StepBlock
from pipeline.vocoder.vocoder import Vocoder
from serve.config.app_config import AppConfig, read_app_config
from serve.ingress import ingress_setup
from serve.local.local_handle import LocalHandle
from serve.protocols.api import create_api
from serve.stages.replica_context import ReplicaContext

ROOT = Path(__file__).resolve().parents[2]
TEXT = "Hello there, how are you?"
FINGERPRINT = "trace"


class Recorder:
    """The code of pipeline/ and serve/ that runs while `is_on`, in this thread and in those that start after this."""

    def __init__(self) -> None:
        self.is_on = False
        self.functions: set[CodeType] = set()
        self.relays: set[CodeType] = set()
        threading.setprofile(self.record)

    def record(self, frame: FrameType, event: str, item: Any) -> None:
        """Records what Python's profiler reports."""
        if not self.is_on or not _is_ours(frame.f_code):
            return
        self.functions.add(frame.f_code)
        if event != "return" or type(item).__name__ != "async_generator_wrapped_value":
            return
        (value,) = gc.get_referents(item) or [None]
        if inspect.isasyncgen(value) or not (self.relays or isinstance(value, StepBlock)):
            return  # a stream of streams hands nothing on, and before the first block there is no reply
        self.relays.add(frame.f_code)
        consumer = root = frame.f_back
        while root is not None and _is_ours(root.f_code) and root.f_code.co_flags & inspect.CO_COROUTINE:
            root = root.f_back
        is_a_task = root is not None and root.f_code.co_filename == asyncio.events.__file__
        if consumer is not None and consumer is not root and is_a_task:
            self.relays.add(consumer.f_code)  # a task's own


def _is_ours(code: CodeType) -> bool:
    is_named = not code.co_name.startswith("<")  # a lambda or a comprehension is part of the function around it
    is_handle = code.co_filename.startswith(f"{ROOT}/serve/local/")  # the runtime's: another one has another
    return is_named and not is_handle and code.co_filename.startswith((f"{ROOT}/pipeline/", f"{ROOT}/serve/"))


def names(codes: set[CodeType]) -> list[str]:
    """Returns file and qualified name of each."""
    return sorted(f"{Path(code.co_filename).relative_to(ROOT)} {code.co_qualname}" for code in codes)


class Series:
    """A metric that nobody collects."""

    def inc(self, amount: float, tags: object) -> None:
        """Does nothing."""

    set = observe = inc


class Stage(SimpleNamespace):
    """A stage of some functions."""

    __hash__ = object.__hash__  # type: ignore[assignment]


def handles(config: AppConfig, opened: ExitStack) -> dict[str, LocalHandle]:
    """Returns stage -> a handle whose calls run in this process, until `opened` is closed."""
    version, checkpoint = config.versions[0], open_checkpoint(DEMO_FOLDER)
    settings = version.pipeline
    opened.callback((engine := Engine(settings.engine, checkpoint)).close)
    opened.callback((vocoder := Vocoder(settings.vocoder, checkpoint)).close)
    longest = settings.engine
    frontend = LocalTextFrontend(DEMO_FOLDER, max_prompt=longest.max_prompt, max_steps=longest.max_steps)

    def handle(**methods: Callable[..., Any]) -> LocalHandle:
        return LocalHandle(Stage(**methods))

    async def answer(value: object) -> object:
        return value

    async def generate(
        prompt: Prompt, sampling: SamplingParams, timeout_s: float, admitted: bool, *_: object
    ) -> AsyncGenerator[StepBlock, None]:
        async with aclosing(engine.generate(prompt, sampling, timeout_s=timeout_s, admitted=admitted)) as blocks:
            async for block in blocks:
                yield replace(block, fingerprint=FINGERPRINT)

    return {
        "TextNormalizer": handle(
            ask=lambda version, operation, *arguments, trace: getattr(frontend, operation)(*arguments),
            capabilities=lambda: answer({version.id: read_capabilities(DEMO_FOLDER)}),
        ),
        version.acoustic: handle(
            generate=generate,
            speakers=lambda: answer((checkpoint.gpt_spec.width, None)),
            fingerprint=lambda: answer(FINGERPRINT),
        ),
        version.vocoder: handle(traits=vocoder.traits, feed=lambda batch, trace: vocoder.feed(batch)),
    }


async def speak(api: FastAPI, text: str) -> tuple[float, float, bytes]:
    """Returns the times to the first and to the last bytes of a streamed mp3 [s], and the mp3."""
    scope = {"type": "http", "http_version": "1.1", "scheme": "http", "method": "POST", "query_string": b"", "root_path": ""}
    scope |= {"path": "/v1/audio/speech", "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")]}
    body = json.dumps({"input": text, "voice": "alloy", "response_format": "mp3", "seed": 1}).encode()
    requests, replies = [{"type": "http.request", "body": body, "more_body": False}], [(0.0, b"")]
    began = time.monotonic()

    async def receive() -> dict[str, Any]:
        return requests.pop() if requests else await asyncio.Future[dict[str, Any]]()  # the client stays

    async def send(message: Any) -> None:
        assert message.get("status", 200) == 200, message
        if message.get("body"):
            replies.append((time.monotonic() - began, message["body"]))

    await api(scope, receive, send)
    return replies[1][0], replies[-1][0], b"".join(piece for _, piece in replies)


async def trace_request(times: int = 0) -> tuple[Recorder, list[tuple[float, float, bytes]]]:
    """Speaks once to be warm, once recorded, and `times` times more, of which it returns the replies."""
    recorder = Recorder()
    with ExitStack() as opened:
        opened.callback(threading.setprofile, None)
        home = opened.enter_context(tempfile.TemporaryDirectory())
        folders = {"voices": {"store": f"{home}/store.sqlite"}, "jobs": {"folder": f"{home}/jobs"}, "keys": {"open": True}}
        config = read_app_config({**folders, "pipeline": {"checkpoint": "demo", "engine": {"threads": 1}}})
        context = ReplicaContext("trace", lambda metric: Series())
        parts = await ingress_setup.build_parts(context, config, handles(config, opened), None)
        api = create_api(lambda: parts.services)
        await speak(api, "Ready.")
        recorder.is_on = True
        sys.setprofile(recorder.record)
        await speak(api, TEXT)
        sys.setprofile(None)
        recorder.is_on = False
        return recorder, [await speak(api, f"{TEXT} {number}") for number in range(times)]


def main() -> None:
    """Prints the figures of a trace."""
    parser = argparse.ArgumentParser(description="Trace one streamed request in this process.")
    parser.add_argument("--names", action="store_true", help="print the functions and relays too")
    parser.add_argument("--times", type=int, default=0, help="replies to measure")
    arguments = parser.parse_args()
    recorder, replies = asyncio.run(trace_request(arguments.times))
    functions, relays = names(recorder.functions), names(recorder.relays)
    print(f"{len({name.split()[0] for name in functions})} files, {len(functions)} functions, {len(relays)} relays")
    if arguments.names:
        print(*functions, "", "relays:", *relays, sep="\n")
    if replies:
        first_s, last_s = (
            statistics.median(times) for times in zip(*((first, last) for first, last, _ in replies), strict=True)
        )
        print(f"medians of {len(replies)}: {1000 * first_s:.1f} ms to the first bytes, {1000 * last_s:.1f} ms to the last")


if __name__ == "__main__":
    main()
