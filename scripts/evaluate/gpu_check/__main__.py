"""GPU check: proves what the engine and the vocoder promise on the device at hand, and measures both. `make gpu-check`.

In:    a device, a checkpoint, names of sections
Out:   one line per section and a short table; a JSON file with hardware, commit and all findings, written after every section;
       a log of everything printed beside it; exit code 0 when every promise holds and every section ran
Owns:  one process per section, with a time limit: a CUDA error or a hang costs its own section alone
Never: what a bare machine lacks: it needs torch, triton, numpy, safetensors and tokenizers; no git, no pydantic, no network

Aims are figures that the project wants to reach on one large GPU; a missed aim is no failure. Parity is checked against
the same engine on the CPU in float32, which tests/parity checks against the ChatTTS package. If that package can be imported,
its own decode loop is timed as well. With --device cpu the same sections rehearse on a CPU, kernels in
Triton's interpreter; --layers 1 makes that affordable.
"""

import argparse
import fnmatch
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from scripts.bench.record import RESULTS, ROOT, hardware
from scripts.evaluate.gpu_check import bare_pydantic

bare_pydantic.install()

from scripts.evaluate.gpu_check.report import Report  # noqa: E402
from scripts.evaluate.gpu_check.sections import Section, resolved, sections  # noqa: E402

EXIT_NO_DEVICE = 3
TAIL = 1500  # characters of a failed section's output that are shown
ENDED = 5.0  # seconds for a killed section to end


def main() -> int:
    """Exit code: 0 every promise holds, 1 one does not or a section failed, 2 wrong usage, 3 no CUDA device."""
    parser = arguments()
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        print("no CUDA device: run this on a GPU machine, or try it with --device cpu --checkpoint demo", file=sys.stderr)
        return EXIT_NO_DEVICE
    every = sections(args)
    if args.list:
        print(*(f"{section.name}@{section.limit_s}" for section in every.values()))
        return 0
    if args.child:
        return run_here(every[args.child], args)
    return run_all(chosen(every, args.only, parser), args)


def arguments() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    parser = argparse.ArgumentParser(description="Prove the promises of engine and vocoder on a device, and measure both.")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--checkpoint", default="full-random")
    parser.add_argument("--steps", type=int, default=160, help="steps of every sequence compared")
    parser.add_argument("--layers", type=int, help="layers of the model to keep, for a rehearsal on a CPU (default: all)")
    parser.add_argument("--slots", type=int, nargs="+", default=[1, 8, 32, 64, 128], help="slot counts to measure")
    parser.add_argument("--seconds", type=float, default=20.0, help="duration of the speech load [s]")
    parser.add_argument("--only", nargs="+", metavar="NAME[@SECONDS]", help="sections to run, such as parity 'equal_*@90'")
    parser.add_argument("--list", action="store_true", help="print the sections and their time limits")
    parser.add_argument("--commit", help="the commit of this code, on a machine without git")
    parser.add_argument("-o", "--out", type=Path, default=RESULTS / "gpu.json", help="the JSON file")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--known", type=Path, help=argparse.SUPPRESS)
    return parser


def chosen(every: dict[str, Section], only: list[str] | None, parser: argparse.ArgumentParser) -> list[Section]:
    """Returns the sections that `--only` names, in their own order within a pattern; all of them without it."""
    if not only:
        return list(every.values())
    found: dict[str, Section] = {}
    for wanted in only:
        pattern, _, limit = wanted.partition("@")
        names = fnmatch.filter(every, pattern)
        if not names or (limit and not limit.isdecimal()):
            parser.error(f"--only {wanted}: no such section; allowed are NAME or NAME@SECONDS of {', '.join(every)}")
        for name in names:
            found[name] = Section(name, int(limit or every[name].limit_s), every[name].check)
    return list(found.values())


def run_here(section: Section, args: argparse.Namespace) -> int:
    """Runs one section in this process, and writes its findings."""
    report = Report(known=json.loads(args.known.read_text())["figures"])
    report.section(section.name, lambda: section.check(report))
    write(args.out, report.as_result())
    return 0 if report.all_hold else 1


def run_all(wanted: list[Section], args: argparse.Namespace) -> int:
    """Runs each section in a process of its own, writes the findings after each, and prints a table at the end."""
    resolved(args.checkpoint)
    name = torch.cuda.get_device_name() if args.device == "cuda" else "cpu"
    machine = hardware() | {"device": name} | ({"commit": args.commit} if args.commit else {})
    result: dict[str, Any] = {"hardware": machine, "checkpoint": args.checkpoint, "layers": args.layers, "sections": {}}
    result |= Report().as_result()
    log = args.out.with_suffix(".log")
    args.out.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("")
    for section in wanted:
        write(args.out, result)
        began = time.perf_counter()
        found, output = run_apart(section, args)
        for part in ("promises", "aims", "failed", "figures"):
            result[part] |= found[part]
        state = "failed" if found["failed"] else "ran"
        result["sections"][section.name] = {"state": state, "took_s": round(time.perf_counter() - began, 1)}
        with log.open("a") as file:
            file.write(output)
        print(line(section.name, result["sections"][section.name], found), flush=True)
        if found["failed"]:
            print(output[-TAIL:], flush=True)
    write(args.out, result)
    show(result, args.out)
    return int(bool(result["failed"]) or not all(promise["holds"] for promise in result["promises"].values()))


def run_apart(section: Section, args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Runs one section in a new process. Returns its findings, and what it printed."""
    part = args.out.with_name(f".{args.out.stem}-{section.name}.json")
    part.unlink(missing_ok=True)
    command = [sys.executable, "-m", "scripts.evaluate.gpu_check", "--child", section.name, "--known", str(args.out)]
    command += ["--device", args.device, "--checkpoint", args.checkpoint, "--steps", str(args.steps), "--out", str(part)]
    command += ["--seconds", str(args.seconds), "--slots", *map(str, args.slots)]
    command += ["--layers", str(args.layers)] if args.layers else []
    environment = os.environ | {"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}
    if args.device == "cpu":
        environment["TRITON_INTERPRET"] = "1"
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=section.limit_s)
        why = f"ended with code {process.returncode} without findings"
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output = last_output(process)
        why = f"took longer than {section.limit_s} s"
    if not part.exists():
        return Report(failed={section.name: why}).as_result(), output
    found: dict[str, Any] = json.loads(part.read_text())
    part.unlink()
    return found, output


def last_output(process: subprocess.Popen[str]) -> str:
    """Returns what a killed process has printed. One that waits for its GPU's driver does not end, and is left alone."""
    try:
        output, _ = process.communicate(timeout=ENDED)
    except subprocess.TimeoutExpired as late:
        return late.output.decode(errors="replace") if late.output else ""
    return output


def write(path: Path, result: dict[str, Any]) -> None:
    """Writes a JSON file whole, or not at all."""
    draft = path.with_name(f"{path.name}.draft")
    draft.write_text(json.dumps(result, indent=2, default=str) + "\n")
    draft.replace(path)


def line(name: str, ran: dict[str, Any], found: dict[str, Any]) -> str:
    """Returns one section's line: how it ended, how long it took, which promises do not hold."""
    broken = [what for what, promise in found["promises"].items() if not promise["holds"]]
    held = f"{len(found['promises']) - len(broken)} of {len(found['promises'])} promises hold" if found["promises"] else ""
    parts = [held, *(f"NO {what}" for what in broken), *found["failed"].values()]
    return f"{name:32} {ran['state']:7} {ran['took_s']:6.1f} s  {'; '.join(part for part in parts if part)}"


def show(result: dict[str, Any], path: Path) -> None:
    """Prints the aims and the sums, short: a tool that runs this elsewhere may return the last lines only."""
    print()
    for what, aim in result["aims"].items():
        print(f"aim {'reached' if aim['reached'] else 'missed '}  {what}: {aim['value']:.4g}, wanted {aim['aim']:g}")
    held = sum(promise["holds"] for promise in result["promises"].values())
    failed = f"; failed: {', '.join(result['failed'])}" if result["failed"] else ""
    print(f"{held} of {len(result['promises'])} promises hold, {len(result['sections'])} sections{failed}; {path}")


if __name__ == "__main__":
    sys.exit(main())
