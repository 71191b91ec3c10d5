"""Engine: ChatTTS's own decode loop against ours, in turns. `python -m scripts.bench.engine`

In:    a checkpoint of real dimensions (full-random)
Out:   a table; one JSON line; results/engine.json
Owns:  a process a side; one of them works at a time

U1, U8  the ChatTTS package, batch of 1 and of 8, float32, its defaults, refine and vocoder left out on all sides
P1, P8  our engine in bfloat16, one and eight requests in eight slots
Lengths are forced, so that random weights do the same work on both sides: 46.875 steps are a second of audio.
"""

import argparse
import asyncio
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import ChatTTS
import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from pipeline.checkpoints import cache_home, resolve
from pipeline.config import EngineConfig
from pipeline.engine.engine import Engine
from pipeline.model.spec import STEPS_PER_SECOND
from pipeline.model.weights import open_checkpoint
from pipeline.text.tokenizer import PromptTokenizer
from pipeline.types import SamplingParams, Segment, Voice
from scripts.bench.record import publish
from scripts.bench.upstream import load_chat

SENTENCE = "the quick brown fox jumps over the lazy dog and then it sleeps under a tree"


def text(number: int) -> str:
    """A text of its own for every request."""
    return " ".join(np.random.default_rng(number).permutation(SENTENCE.split()))


def serve_upstream(root: Path, work: Connection) -> None:
    """A process of the package's own: (batch, steps) in, seconds out."""
    chat = load_chat(root)
    while (order := work.recv()) is not None:
        batch, steps = order
        params = ChatTTS.Chat.InferCodeParams(max_new_token=steps, min_new_token=steps, show_tqdm=False)
        began = time.perf_counter()
        list(chat._infer_code([text(number) for number in range(batch)], False, torch.device("cpu"), True, params))
        work.send(time.perf_counter() - began)


def serve_engine(root: Path, work: Connection) -> None:
    """A process of ours: (requests, steps) in, seconds out."""
    config = EngineConfig(slots=8, dtype="bfloat16", max_prompt=128, max_steps=512)
    tokenizer = PromptTokenizer(root, max_prompt=config.max_prompt)
    with closing(Engine(config, open_checkpoint(root))) as engine:

        async def one(number: int, steps: int) -> None:
            segment, voice = Segment(text(number), 0, is_last=True), Voice("none", None)
            prompt = tokenizer.code_prompt(segment, voice, speed_token=5, max_steps=steps)
            sampling = SamplingParams(seed=number, min_steps=steps)
            async for _ in engine.generate(prompt, sampling, timeout_s=600, admitted=True):
                pass

        async def together(requests: int, steps: int) -> None:
            await asyncio.gather(*(one(number, steps) for number in range(requests)))

        while (order := work.recv()) is not None:
            began = time.perf_counter()
            asyncio.run(together(*order))
            work.send(time.perf_counter() - began)


@contextmanager
def process(target: Callable[[Path, Connection], None], root: Path) -> Iterator[Callable[[int, int], float]]:
    """One system in a process of its own, so that neither side's threads are in the other's way."""
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    worker = multiprocessing.get_context("spawn").Process(target=target, args=(root, theirs), daemon=True)
    worker.start()

    def run(requests: int, steps: int) -> float:
        ours.send((requests, steps))
        seconds: float = ours.recv()
        return seconds

    try:
        yield run
    finally:
        ours.send(None)
        worker.join(timeout=30)


def main() -> int:
    """Measure in turns."""
    parser = argparse.ArgumentParser(description="The decode loop of the ChatTTS package against ours.")
    parser.add_argument("--checkpoint", default="full-random")
    parser.add_argument("--steps", type=int, default=188, help="188 steps are four seconds of audio")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    root, console = resolve(args.checkpoint, cache_home()), Console()
    with process(serve_upstream, root) as upstream, process(serve_engine, root) as engine:
        systems = {"U1": (upstream, 1), "P1": (engine, 1), "U8": (upstream, 8), "P8": (engine, 8)}
        times: dict[str, list[float]] = {name: [] for name in systems}
        for run, requests in systems.values():
            run(requests, 16)
        for turn in range(args.rounds):
            for name, (run, requests) in systems.items():
                with console.status(f"{name}, round {turn + 1} of {args.rounds}"):
                    times[name].append(run(requests, args.steps))
    audio_s = args.steps / STEPS_PER_SECOND
    figures = {
        name: {
            "step_ms": 1e3 * statistics.median(seconds) / args.steps,
            "rtf": statistics.median(seconds) / audio_s,
            "audio_s_per_s": systems[name][1] * audio_s / statistics.median(seconds),
        }
        for name, seconds in times.items()
    }
    ratios = {
        "one request, U1 / P1": statistics.median(u / p for u, p in zip(times["U1"], times["P1"], strict=True)),
        "eight, batched, U8 / P8": statistics.median(u / p for u, p in zip(times["U8"], times["P8"], strict=True)),
        "eight, one after another, 8 U1 / P8": statistics.median(
            8 * u / p for u, p in zip(times["U1"], times["P8"], strict=True)
        ),
    }
    table = Table("system", "ms a step", "real-time factor", "audio s a second", title=f"decode loop, {args.checkpoint}")
    for name, row in figures.items():
        table.add_row(name, f"{row['step_ms']:.1f}", f"{row['rtf']:.2f}", f"{row['audio_s_per_s']:.2f}")
    console.print(table)
    for name, ratio in ratios.items():
        console.print(f"{name}: {ratio:.2f} x")
    publish(
        "engine", {"checkpoint": args.checkpoint, "steps": args.steps, "figures": figures, "ratios": ratios, "seconds": times}
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
