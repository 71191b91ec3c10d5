"""Functional: the same bits in every company, and what happens to sequences that are preempted, cut or broken.

In:    a checkpoint, a device, a format
Out:   promises
Never: time
"""

import asyncio
from contextlib import closing
from dataclasses import replace

import numpy as np

from pipeline.checkpoint.weights import Checkpoint, GptSpec
from pipeline.config import EngineConfig
from pipeline.engine.engine import Engine
from pipeline.engine.observer import EngineObserver, NullEngineObserver
from pipeline.errors import NonFiniteOutput
from pipeline.types import Head, Lane, Prompt, SamplingParams, SchedulingParams, SeedMode
from scripts.evaluate.gpu_check.parity import common_steps
from scripts.evaluate.gpu_check.report import Report
from scripts.evaluate.gpu_check.runners import config_of, runner_class
from scripts.evaluate.gpu_check.sequences import Format, Take, prompt, take, takes

SHAPE = {"slots": 2, "steps_per_round": 2, "prefill_rows": 2, "block_steps": 1}
LENGTHS = {"cuda": {"max_prompt": 640, "max_steps": 256}, "cpu": {"max_prompt": 128, "max_steps": 64}}
"""on a CPU nothing is recorded, so there a long prompt need not be longer than the longest recorded one"""
LONG_PROMPT = {"cuda": 600, "cpu": 100}
"""positions; on a GPU beyond the longest prompt with a graph"""

URGENT_STEPS = 4  # of the sequence that takes a slot

Requests = dict[str, tuple[Prompt, SamplingParams]]


class Preemptions(NullEngineObserver):
    """Counts preemptions."""

    def __init__(self) -> None:
        self.count = 0

    def preempted(self) -> None:
        self.count += 1


def check_functional(report: Report, checkpoint: Checkpoint, device: str, steps: int) -> None:
    """Checks each request for the CPU's codes and for the same bits in company, then a preemption for no changed bit."""
    requests, spec, preemptions = _requests(checkpoint.gpt_spec, steps, LONG_PROMPT[device]), checkpoint.gpt_spec, Preemptions()
    longer = steps + 6 if device == "cpu" else min(5 * steps, 240)
    with closing(_engine(checkpoint, "cpu", SHAPE | LENGTHS[device])) as engine:
        expected = {name: asyncio.run(take(engine, *request)) for name, request in requests.items()}
    with closing(_engine(checkpoint, device, SHAPE | LENGTHS[device], preemptions)) as engine:
        alone = {name: asyncio.run(take(engine, *request)) for name, request in requests.items()}
        crowded, broken = asyncio.run(_together(engine, requests, spec))
        interrupted = asyncio.run(_interrupted(engine, spec, longer))
        undisturbed = [asyncio.run(take(engine, *request)) for request in _bulk(spec, longer)]
    for name in requests:
        same = common_steps(expected[name].codes, alone[name].codes)
        report.promise(f"{name}: codes on the device = on the CPU", same == steps, f"first {same} of {steps} steps")
        equal = alone[name].equals(crowded[name])
        report.promise(f"{name}: alone = in company", equal, "bit-equal" if equal else "other bits")
    report.promise("a row that is not finite ends alone", broken, "NonFiniteOutput" if broken else "it went on")
    equal = all(ours.equals(other) for ours, other in zip(interrupted, undisturbed, strict=True))
    detail = f"{preemptions.count} preempted, {'bit-equal' if equal else 'other bits'}"
    report.promise("a preempted sequence keeps its bits", equal and preemptions.count > 0, detail)


def _engine(checkpoint: Checkpoint, device: str, shape: dict[str, int], observer: EngineObserver | None = None) -> Engine:
    """Returns the CPU's engine if there is no observer, else the GPU's; on a CPU through Triton's interpreter."""
    if observer is None:
        return Engine(EngineConfig.varied(shape), checkpoint)
    return Engine(config_of(device, shape | {"kv_budget_mib": 32768}), checkpoint, observer=observer, factory=runner_class())


def _requests(spec: GptSpec, steps: int, long_prompt: int) -> Requests:
    long = prompt(9, spec.width, steps)
    long = replace(long, ids=np.resize(long.ids, (long_prompt, 4)), text_mask=np.ones(long_prompt, np.bool_))
    text = replace(prompt(3, spec.width, steps), head=Head.TEXT, eos_token=7, speaker=None, speaker_position=None)
    upstream = SeedMode.UPSTREAM
    return {
        "seed_mode upstream": (prompt(1, spec.width, steps), SamplingParams(seed=5, seed_mode=upstream, min_steps=steps)),
        "refine": (text, SamplingParams(seed=6, temperature=0.7, repetition_penalty=1.0, min_steps=steps)),
        "refine, upstream": (text, SamplingParams(seed=6, seed_mode=upstream, temperature=0.7, min_steps=steps)),
        "long prompt, eager": (long, SamplingParams(seed=7, min_steps=steps)),
    }


async def _together(engine: Engine, requests: Requests, spec: GptSpec) -> tuple[dict[str, Take], bool]:
    """Returns every take beside a request whose voice is not a number, and whether that request was ended."""
    poison = replace(prompt(4, spec.width, 8), speaker=np.full(spec.width, np.nan, np.float16))
    jobs = [asyncio.create_task(take(engine, *request)) for request in requests.values()]
    bad = asyncio.create_task(take(engine, poison, SamplingParams()))
    outputs = dict(zip(requests, [await job for job in jobs], strict=True))
    try:
        await bad
    except NonFiniteOutput:
        return outputs, True
    return outputs, False


def _bulk(spec: GptSpec, steps: int) -> list[tuple[Prompt, SamplingParams]]:
    patient = replace(prompt(11, spec.width, steps), scheduling=SchedulingParams(lane=Lane.BULK))
    return [(patient, SamplingParams(seed=seed, min_steps=steps)) for seed in (1, 2)]


async def _interrupted(engine: Engine, spec: GptSpec, steps: int) -> list[Take]:
    """Returns two bulk sequences, one of which gives its slot to an interactive one."""
    has_block = asyncio.Event()
    jobs = [asyncio.create_task(take(engine, *request, on_block=has_block.set)) for request in _bulk(spec, steps)]
    await has_block.wait()
    urgent = replace(prompt(12, spec.width, URGENT_STEPS), scheduling=SchedulingParams(lane=Lane.INTERACTIVE))
    await take(engine, urgent, SamplingParams(seed=3, min_steps=URGENT_STEPS))
    return [await job for job in jobs]


def check_equality(
    report: Report, checkpoint: Checkpoint, device: str, how: Format, slots: int, steps: int, split: int | None = None
) -> None:
    """Checks for the same bits alone, crowded, in reused slots, in another engine, captured or eager.

    Args:
        split: positions of a split of attention; None: the engine's own choice.
    """
    name, place = (how.name, f"{slots} slots") if split is None else (how.name, f"{slots} slots, splits of {split}")
    width, numbers = checkpoint.gpt_spec.width, list(range(slots * 2))
    config = EngineConfig.varied(
        how.settings(device)
        | {"slots": slots, "max_prompt": 64, "max_steps": 256}
        | {"steps_per_round": 4, "prefill_rows": 4, "kv_budget_mib": 32768, "attention_split": split}
    )
    with closing(Engine(config, checkpoint)) as engine:
        beyond = min(len(prompt(number, width, steps).ids) for number in numbers) + steps
        report.figure(f"{name}, {place}: positions", beyond, f"every sequence is {beyond} positions long or longer")
        alone = [takes(engine, [number], width, steps)[0] for number in numbers[:8]]
        graphs = engine.num_graphs
        for situation, order in (("crowded", numbers), ("in other slots", numbers[::-1])):
            crowded = dict(zip(order, takes(engine, order, width, steps), strict=True))
            promise_equal(report, f"{name}: alone = {situation} ({place})", alone, [crowded[n] for n in numbers[:8]])
        if device == "cuda":
            report.promise(f"{name}: rounds are captured ({place})", graphs == 2, f"{graphs} CUDA graphs")
            engine.drop_graphs()
            promise_equal(report, f"{name}: captured = eager ({place})", alone, takes(engine, numbers[:8], width, steps))
    del engine  # its memory, before the next one takes its own
    with closing(Engine(config, checkpoint)) as engine:
        promise_equal(report, f"{name}: another engine = this one ({place})", alone, takes(engine, numbers[:8], width, steps))


def promise_equal(report: Report, name: str, expected: list[Take], actual: list[Take]) -> None:
    equal = sum(ours.equals(other) for ours, other in zip(expected, actual, strict=True))
    report.promise(name, equal == len(expected), f"{equal} of {len(expected)} bit-equal")
