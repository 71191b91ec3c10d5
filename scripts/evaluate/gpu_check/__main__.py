"""GPU check: proves what the engine and the vocoder promise on the device at hand, and measures both. `make gpu-check`.

In:    a device, a checkpoint
Out:   one line per promise, figure and aim for people; a JSON file with hardware, commit and all of it; exit code 0 when every
       promise holds and every section ran
Owns:  one engine at a time
Never: Ray, HTTP, rich, which the machine may lack; it needs torch, numpy, safetensors, tokenizers and pydantic

A section that fails is reported, and the others go on. Aims are figures that the project wants to reach on one large GPU; a
missed aim is not a failure. Parity is checked against the same engine on the CPU in float32, which tests/parity checks
against the ChatTTS package. If that package can be imported, its own decode loop is timed as well.
"""

import argparse
import json
import sys
from functools import partial
from pathlib import Path

import torch

from pipeline.checkpoint.locate import resolve
from pipeline.checkpoint.weights import open_checkpoint
from pipeline.paths import cache_home
from scripts.bench.memory_bandwidth import copy_bandwidth
from scripts.bench.record import RESULTS, hardware, step_figure
from scripts.evaluate.gpu_check.equality import check_equality
from scripts.evaluate.gpu_check.parity import check_agreement, check_parity
from scripts.evaluate.gpu_check.report import Report
from scripts.evaluate.gpu_check.timing import (
    measure_equality_cost,
    measure_nodes,
    measure_rounds,
    measure_speech,
    measure_steps,
    measure_upstream,
)
from scripts.evaluate.gpu_check.vocoder import check_vocoder
from scripts.evaluate.gpu_check.workload import BFLOAT16, FLOAT32, Kept, decodable

EXIT_NO_DEVICE = 3


def main() -> int:
    """Exit code: 0 every promise holds, 1 one does not or a section failed, 2 wrong usage, 3 no CUDA device."""
    args = parsed()
    if args.device == "cuda" and not torch.cuda.is_available():
        print("no CUDA device: run this on a GPU machine, or try it with --device cpu --checkpoint demo", file=sys.stderr)
        return EXIT_NO_DEVICE
    report, root = Report(), resolve(args.checkpoint, cache_home())
    checkpoint = Kept.of(open_checkpoint(root))
    check_promises(report, checkpoint, args)
    measure_decoding(report, checkpoint, args)
    crowd = 64 if 64 in args.slots else max(args.slots)
    report.section("rounds", lambda: measure_rounds(report, checkpoint, args.device, crowd))
    report.section("speech", lambda: measure_speech(report, checkpoint, args.device, crowd, args.seconds))
    report.section("upstream", lambda: measure_upstream(report, root, args.device, args.steps))
    largest = report.figures.get(step_figure(max(args.slots)))
    if isinstance(largest, dict):
        report.aim(f"roofline fraction, {max(args.slots)} slots", largest["roofline"], 0.4, at_least=True)
    name = torch.cuda.get_device_name() if args.device == "cuda" else "cpu"
    result = {"hardware": hardware() | {"device": name}, "checkpoint": args.checkpoint, "promises": report.promises}
    result |= {"aims": report.aims, "failed": report.failed, "figures": report.figures}
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result))
    return 0 if report.all_hold else 1


def parsed() -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description="Prove the promises of engine and vocoder on a device, and measure both.")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--checkpoint", default="full-random")
    parser.add_argument("--steps", type=int, default=64, help="steps of every sequence compared")
    parser.add_argument("--slots", type=int, nargs="+", default=[1, 8, 32, 64, 128], help="slot counts to measure")
    parser.add_argument("--seconds", type=float, default=20.0, help="duration of the speech load [s]")
    parser.add_argument("-o", "--output", type=Path, default=RESULTS / "gpu.json")
    return parser.parse_args()


def check_promises(report: Report, checkpoint: Kept, args: argparse.Namespace) -> None:
    """Runs the sections that prove something: parity, equality, the vocoder's samples, the quality of fast formats."""
    device = args.device
    report.section("parity", lambda: check_parity(report, checkpoint, device, args.steps))
    for how in (FLOAT32, BFLOAT16, *decodable(device)):
        slots = min(16, max(args.slots))
        report.section(f"equality {how.name}", partial(check_equality, report, checkpoint, device, how, slots, args.steps))
    report.section("vocoder", lambda: check_vocoder(report, checkpoint, device))
    report.section("agreement", lambda: check_agreement(report, checkpoint, device, args.steps))


def measure_decoding(report: Report, checkpoint: Kept, args: argparse.Namespace) -> None:
    """Runs the sections that time decode steps, in every format and with every kind of attention."""
    device = args.device
    bandwidth = copy_bandwidth(device)
    report.figure("copy_bandwidth", bandwidth, f"{bandwidth / 1e9:.0f} GB/s, reads and writes")
    for slots in args.slots:
        for how in (BFLOAT16, *decodable(device)):
            work = partial(measure_steps, report, checkpoint, device, slots, how=how)
            report.section(f"step, {slots} slots, {how.name}", work)
    if device != "cuda":
        return
    for slots in sorted({min(args.slots), max(args.slots)}):
        for attention, split in (("sdpa", None), ("triton", 64), ("triton", 128), ("triton", 256), ("triton", 1024)):
            name = f"attention {attention} {split or ''}, {slots} slots"
            report.section(name, partial(measure_steps, report, checkpoint, device, slots, attention, split))
    report.section("nodes", lambda: measure_nodes(report, checkpoint))
    report.section("cost of equality", lambda: measure_equality_cost(report, checkpoint))


if __name__ == "__main__":
    sys.exit(main())
