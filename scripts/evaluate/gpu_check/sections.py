"""Sections: what the check consists of, the most valuable first, because time may run out.

In:    a name; the options of the command line
Out:   Section
Owns:  the list of sections, and how long each may take
Never: processes, files: __main__.py runs each section in a process of its own
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pipeline.checkpoint.locate import resolve
from pipeline.checkpoint.weights import Checkpoint, open_checkpoint
from pipeline.paths import cache_home
from scripts.bench.record import step_figure
from scripts.evaluate.gpu_check.functional import check_equality, check_functional
from scripts.evaluate.gpu_check.machine import measure_machine, measure_start
from scripts.evaluate.gpu_check.parity import check_agreement, check_parity, check_vocoder
from scripts.evaluate.gpu_check.report import Report
from scripts.evaluate.gpu_check.sequences import BFLOAT16, EIGHT_BITS, FLOAT32, Format, SharedCheckpoint, decodable
from scripts.evaluate.gpu_check.speech import measure_speech
from scripts.evaluate.gpu_check.timing import (
    measure_attention,
    measure_equality_cost,
    measure_nodes,
    measure_prefill,
    measure_rounds,
    measure_steps,
)

EQUAL_SLOTS = (8, 16, 64, 128)
"""cuBLAS chooses kernels by the number of rows; with 8 slots attention is split, and the sequences are longer than a split"""
FUNCTIONAL_STEPS = 48
INTERPRETED_STEPS = 2  # Triton's interpreter takes a tenth of a second for a draw
REHEARSED_S = 900
"""the shortest time limit on a CPU, which Triton's interpreter keeps busy: it ends what hangs"""

SPLIT_SLOTS = 64
"""slots at which a long neighbour's attention is the tail of a step"""
FIRST = (
    *("machine", "parity", "equal_float32_16", "equal_bfloat16_8", "equal_bfloat16_64", "functional", "vocoder", "nodes"),
    *("steps_1", "steps_64", "steps_128", "prefill", "speech_64", "speech_128", "rounds"),
    *("equal_bfloat16_128", "equal_weights_int8_64", "equal_kv_int8_64", "equal_weights_kv_int8_64", "agreement"),
    *("splits", "attention_64", "cost_of_equality", "start"),
)
"""what is worth most: promises first, then the figures that the documents wait for, then what decides about levers"""
USUAL_S = {
    "machine": 10,
    "parity": 30,
    "functional": 18,
    "vocoder": 12,
    "agreement": 18,
    "nodes": 20,
    "prefill": 15,
    "steps_1": 18,
    "steps_8": 20,
    "steps_32": 22,
    "steps_64": 25,
    "steps_128": 22,
    "rounds": 18,
    "start": 60,
    "speech_64": 35,
    "speech_128": 35,
    "cost_of_equality": 45,
    "splits": 100,
    "attention_64": 90,
    **{f"equal_{how}_{slots}": 16 for how in ("float32", "bfloat16") for slots in EQUAL_SLOTS},
}
"""on an H100, where measured; `start`, `cost_of_equality`, `splits` and `attention_*` are estimates"""

Check = Callable[[Report], None]


@dataclass(frozen=True, slots=True)
class Section:
    """One part of the check."""

    name: str
    limit_s: int
    """longest duration [s]"""
    usual_s: int
    """what it is expected to take on an H100, with its imports and its checkpoint [s]; no card has run it"""
    check: Check


def sections(args: argparse.Namespace) -> dict[str, Section]:
    """Returns every section for this device, by name, the most valuable first."""
    device, is_gpu = args.device, args.device == "cuda"
    result: dict[str, Section] = {}

    def add(name: str, limit_s: int, check: Callable[..., None], *more: object) -> None:
        add_bare(name, limit_s, partial(_with_checkpoint, args, check, more))

    def add_bare(name: str, limit_s: int, check: Check) -> None:
        result[name] = Section(name, limit_s if is_gpu else max(limit_s, REHEARSED_S), USUAL_S.get(name, limit_s // 4), check)

    add_bare("machine", 120, lambda report: measure_machine(report, device))
    add("parity", 240, check_parity, device, args.steps)
    for how in (FLOAT32, BFLOAT16, *decodable(device)):
        for slots in EQUAL_SLOTS if is_gpu else [max(args.slots)]:
            add(f"equal_{_short(how)}_{slots}", 240, check_equality, device, how, slots, args.steps)
    add("functional", 240, check_functional, device, FUNCTIONAL_STEPS if is_gpu else INTERPRETED_STEPS)
    add("vocoder", 240, check_vocoder, device)
    add("agreement", 240, check_agreement, device, args.steps)
    add("nodes", 200, measure_nodes, device)
    add("prefill", 150, measure_prefill, device)
    for slots in args.slots:
        add(f"steps_{slots}", 150, _steps, args, slots)
    for slots in sorted({min(args.slots), max(args.slots), SPLIT_SLOTS if is_gpu else max(args.slots)}):
        add(f"attention_{slots}", 300, _attention, args, slots)
    add("splits", 240, _splits, args, SPLIT_SLOTS if is_gpu else max(args.slots))
    for slots in (64, 128) if is_gpu else [max(args.slots)]:
        add(f"speech_{slots}", 120, measure_speech, device, slots, args.seconds)
    add("rounds", 200, measure_rounds, device, 64 if is_gpu else max(args.slots))
    add("cost_of_equality", 120, measure_equality_cost, device)
    add("start", 150, measure_start, device)
    first = [name for name in FIRST if name in result]
    return {name: result[name] for name in (*first, *(name for name in result if name not in first))}


def _short(how: Format) -> str:
    return how.name.replace(" and ", "_").replace(" ", "_")


def _shared_checkpoint(args: argparse.Namespace) -> SharedCheckpoint:
    return SharedCheckpoint.of(open_checkpoint(resolve(args.checkpoint, cache_home())), args.layers)


def _with_checkpoint(args: argparse.Namespace, check: Callable[..., None], more: tuple[object, ...], report: Report) -> None:
    check(report, _shared_checkpoint(args), *more)


def _steps(report: Report, checkpoint: Checkpoint, args: argparse.Namespace, slots: int) -> None:
    """Times a step of this many slots in every format."""
    for how in (BFLOAT16, *(how for how in EIGHT_BITS if how in decodable(args.device))):
        measure_steps(report, checkpoint, args.device, slots, how=how)
    fraction = report.figures[step_figure(slots)].get("roofline")
    if slots == max(args.slots) and fraction is not None:
        report.aim(f"roofline fraction, {slots} slots", fraction, 0.6, at_least=True)


def _attention(report: Report, checkpoint: Checkpoint, args: argparse.Namespace, slots: int) -> None:
    """Times the attention alone in every shape, then a step with torch's."""
    measure_attention(report, checkpoint, args.device, slots)
    if args.device == "cuda":  # steps on a CPU are another runner's
        measure_steps(report, checkpoint, args.device, slots, "sdpa")


def _splits(report: Report, checkpoint: Checkpoint, args: argparse.Namespace, slots: int) -> None:
    """Times a step with attention in splits of each length, as long as its bits are still the same in every company."""
    if args.device == "cpu":
        report.figure(
            "splits", None, "left out: steps on a CPU are another runner's; tests/unit/pipeline/model tries the kernel"
        )
        return
    measure_steps(report, checkpoint, args.device, slots)
    for split in args.splits:
        measure_steps(report, checkpoint, args.device, slots, "triton", split)
        check_equality(report, checkpoint, args.device, BFLOAT16, slots, args.steps, split)


def resolved(checkpoint: str) -> Path:
    """Returns the checkpoint's folder, generated if it is a random one: once, before the sections' time limits count."""
    return resolve(checkpoint, cache_home())
