"""Sections: what the check consists of, in order; correctness comes first, because time may run out.

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
from pipeline.checkpoint.weights import open_checkpoint
from pipeline.paths import cache_home
from scripts.bench.record import step_figure
from scripts.evaluate.gpu_check.attention import measure_attention
from scripts.evaluate.gpu_check.equality import check_equality
from scripts.evaluate.gpu_check.functional import check_functional
from scripts.evaluate.gpu_check.machine import measure_machine
from scripts.evaluate.gpu_check.parity import check_agreement, check_parity
from scripts.evaluate.gpu_check.report import Report
from scripts.evaluate.gpu_check.speech import measure_speech
from scripts.evaluate.gpu_check.timing import (
    measure_equality_cost,
    measure_nodes,
    measure_prefill,
    measure_rounds,
    measure_steps,
)
from scripts.evaluate.gpu_check.upstream import measure_upstream
from scripts.evaluate.gpu_check.vocoder import check_vocoder
from scripts.evaluate.gpu_check.workload import BFLOAT16, EIGHT_BITS, FLOAT32, Format, Kept, decodable

EQUAL_SLOTS = (8, 16, 64, 128)
"""cuBLAS chooses kernels by the number of rows; with 8 slots attention is split, and the sequences are longer than a split"""
FUNCTIONAL_STEPS = 48
INTERPRETED_STEPS = 2  # Triton's interpreter takes a tenth of a second for a draw
REHEARSED_S = 900
"""the shortest time limit on a CPU, which Triton's interpreter keeps busy: it ends what hangs"""

Check = Callable[[Report], None]


@dataclass(frozen=True, slots=True)
class Section:
    """One part of the check."""

    name: str
    limit_s: int
    """longest duration [s]"""
    check: Check


def sections(args: argparse.Namespace) -> dict[str, Section]:
    """Returns every section for this device, by name, in order."""
    device, is_gpu = args.device, args.device == "cuda"
    found: list[Section] = []

    def add(name: str, limit_s: int, check: Callable[..., None], *more: object, **named: object) -> None:
        found.append(Section(name, limit(limit_s), partial(_with_checkpoint, args, check, more, named)))

    def limit(seconds: int) -> int:
        return seconds if is_gpu else max(seconds, REHEARSED_S)

    found.append(Section("machine", limit(120), lambda report: measure_machine(report, device)))
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
        found.append(Section(f"steps_{slots}", limit(150), partial(_steps, args, slots)))
    for slots in sorted({min(args.slots), max(args.slots)}):
        found.append(Section(f"attention_{slots}", limit(300), partial(_attention, args, slots)))
    for slots in (64, 128) if is_gpu else [max(args.slots)]:
        add(f"speech_{slots}", 120, measure_speech, device, slots, args.seconds)
    add("rounds", 200, measure_rounds, device, 64 if is_gpu else max(args.slots))
    add("cost_of_equality", 120, measure_equality_cost, device)
    add("upstream", 240, lambda report, checkpoint: measure_upstream(report, checkpoint.root, device, args.steps))
    return {section.name: section for section in found}


def _short(how: Format) -> str:
    return how.name.replace(" and ", "_").replace(" ", "_")


def _kept(args: argparse.Namespace) -> Kept:
    return Kept.of(open_checkpoint(resolve(args.checkpoint, cache_home())), args.layers)


def _with_checkpoint(
    args: argparse.Namespace, check: Callable[..., None], more: tuple[object, ...], named: dict[str, object], report: Report
) -> None:
    check(report, _kept(args), *more, **named)


def _steps(args: argparse.Namespace, slots: int, report: Report) -> None:
    """Times a step of this many slots in every format."""
    checkpoint = _kept(args)
    for how in (BFLOAT16, *(how for how in EIGHT_BITS if how in decodable(args.device))):
        measure_steps(report, checkpoint, args.device, slots, how=how)
    if slots == max(args.slots):
        largest = report.figures[step_figure(slots)]
        report.aim(f"roofline fraction, {slots} slots", largest["roofline"], 0.6, at_least=True)


def _attention(args: argparse.Namespace, slots: int, report: Report) -> None:
    """Times the attention alone in every shape, then a step with every kind of attention."""
    checkpoint = _kept(args)
    measure_attention(report, checkpoint, args.device, slots)
    if args.device == "cpu":
        return  # steps there are another runner's
    for attention, split in (("sdpa", None), ("triton", 64), ("triton", 128), ("triton", 256), ("triton", 1024)):
        measure_steps(report, checkpoint, args.device, slots, attention, split)


def resolved(checkpoint: str) -> Path:
    """Returns the checkpoint's folder, generated if it is a random one: once, before the sections' time limits count."""
    return resolve(checkpoint, cache_home())
