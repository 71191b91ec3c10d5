"""Call: one call of the check: chooses sections, runs each in a process of its own, keeps what they find.

In:    the options of the command line; what an earlier call has found
Out:   the files; lines for people
Owns:  one process at a time: a CUDA error or a hang costs its own section alone, and none is left when this one ends
Never: a CUDA context of its own: it would take memory beside every section
"""

import argparse
import fnmatch
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from scripts.bench.record import ROOT, hardware
from scripts.evaluate.gpu_check.__main__ import places
from scripts.evaluate.gpu_check.findings import Findings, add, read
from scripts.evaluate.gpu_check.report import Report
from scripts.evaluate.gpu_check.sections import Section, resolved, sections

EXIT_NO_DEVICE = 3
TAIL = 1500  # characters of a failed section's output that are shown
STACKS_S = 2.0  # between SIGABRT, at which a section writes the stacks of its threads, and SIGKILL
ENDED_S = 3.0  # for a killed section to end
STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def run(args: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Runs what the command line asks for. Returns the exit code."""
    every = sections(args)
    if args.list:
        print(*(f"{section.name}@{section.limit_s}, usually {section.usual_s} s" for section in every.values()), sep="\n")
        return 0
    if args.device == "cuda" and not torch.cuda.is_available():
        print("no CUDA device: run this on a GPU machine, or try it with --device cpu --checkpoint demo", file=sys.stderr)
        return EXIT_NO_DEVICE
    if args.child:
        return run_here(every[args.child], args)
    return run_all(chosen(every, args.only, parser), args)


def chosen(every: dict[str, Section], only: list[str] | None, parser: argparse.ArgumentParser) -> list[Section]:
    """Returns the sections that `--only` names, in their own order within a pattern; all of them without it."""
    if not only:
        return list(every.values())
    result: dict[str, Section] = {}
    for choice in only:
        pattern, _, limit = choice.partition("@")
        names = fnmatch.filter(every, pattern)
        if not names or (limit and not limit.isdecimal()):
            parser.error(f"--only {choice}: no such section; allowed are NAME or NAME@SECONDS of {', '.join(every)}")
        for name in names:
            result[name] = Section(name, int(limit or every[name].limit_s), every[name].usual_s, every[name].check)
    return list(result.values())


def run_here(section: Section, args: argparse.Namespace) -> int:
    """Runs one section in this process, and writes each finding."""
    report = Report(known=read(args.out)["figures"], on_finding=lambda report: add(args.out, section.name, report))
    report.section(section.name, lambda: section.check(report))
    return 0 if report.all_hold else 1


@contextmanager
def stoppable() -> Iterator[None]:
    """Signals that stop a process end it by way of its `finally` clauses meanwhile; one that is ignored stays so."""
    before = {number: signal.getsignal(number) for number in STOPPING}
    handled = {number: handler for number, handler in before.items() if handler not in (signal.SIG_IGN, None)}
    for number in handled:
        signal.signal(number, _stop)
    try:
        yield
    finally:
        for number, handler in handled.items():
            signal.signal(number, handler)


@stoppable()
def run_all(queue: list[Section], args: argparse.Namespace) -> int:
    """Runs each section in a process of its own, and prints a table at the end."""
    began = time.monotonic()
    resolved(args.checkpoint)
    findings = Findings.begin(places(args), described(args))
    for section in queue:
        limit_s: float = section.limit_s
        if args.within is not None:
            left_s = args.within - (time.monotonic() - began) - STACKS_S - ENDED_S
            if section.name in findings.ran or left_s < section.usual_s:
                continue
            limit_s = min(limit_s, left_s)
        findings.start(section.name)
        started = time.perf_counter()
        why, output = run_apart(section, limit_s, findings.path, args)
        outcome = findings.end(section.name, why, time.perf_counter() - started)
        print(line(section.name, outcome), flush=True)
        if outcome["failed"]:
            print(output[-TAIL:], flush=True)
    result = findings.result()
    show(result, findings.path, [section.name for section in queue if section.name not in result["sections"]])
    return int(bool(result["failed"]) or not all(promise["holds"] for promise in result["promises"].values()))


def _stop(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)  # run_apart ends its section on the way out


def described(args: argparse.Namespace) -> dict[str, Any]:
    """Returns what findings are of: those of another machine, commit or model are not continued."""
    name = "cpu"
    if args.device == "cuda":
        ask = [sys.executable, "-c", "import torch; print(torch.cuda.get_device_name())"]
        name = subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip()
    machine = hardware() | {"device": name} | ({"commit": args.commit} if args.commit else {})
    return {"hardware": machine, "checkpoint": args.checkpoint, "layers": args.layers}


def run_apart(section: Section, limit_s: float, out: Path, args: argparse.Namespace) -> tuple[str | None, str]:
    """Runs one section in a new process. Returns why it failed, None: it says so itself; and what it printed."""
    command = [sys.executable, "-m", "scripts.evaluate.gpu_check", "--child", section.name, "--parent", str(os.getpid())]
    command += ["--device", args.device, "--checkpoint", args.checkpoint, "--steps", str(args.steps), "--out", str(out)]
    command += ["--seconds", str(args.seconds), "--slots", *map(str, args.slots), "--splits", *map(str, args.splits)]
    command += ["--layers", str(args.layers)] if args.layers else []
    environment = os.environ | {"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}
    if args.device == "cpu":
        environment["TRITON_INTERPRET"] = "1"
    log = out.with_suffix(".log")
    with log.open("ab") as file:
        start = file.tell()
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT, process_group=0)
    why: str | None = None
    try:
        code = process.wait(max(limit_s - STACKS_S, limit_s / 2))
        if code not in (0, 1):
            why = f"ended with code {code}"
    except subprocess.TimeoutExpired:
        why = f"took longer than {limit_s:g} s"
        process.send_signal(signal.SIGABRT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(STACKS_S)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):  # one that waits for its GPU's driver does not end, and is left alone
            process.wait(ENDED_S)
    return why, log.read_bytes()[start:].decode(errors="replace")


def line(name: str, outcome: dict[str, Any]) -> str:
    """Returns one section's line: how it ended, how long it took, which promises do not hold."""
    broken = [promise_name for promise_name, promise in outcome["promises"].items() if not promise["holds"]]
    summary = (
        f"{len(outcome['promises']) - len(broken)} of {len(outcome['promises'])} promises hold" if outcome["promises"] else ""
    )
    parts = [summary, *(f"NO {promise_name}" for promise_name in broken), outcome["failed"] or ""]
    return f"{name:32} {outcome['state']:7} {outcome['took_s']:6.1f} s  {'; '.join(part for part in parts if part)}"


def show(result: dict[str, Any], path: Path, remaining: list[str]) -> None:
    """Prints the aims and the sums, short: a tool that runs this elsewhere may return the last lines only."""
    print()
    for aim_name, aim in result["aims"].items():
        print(f"aim {'reached' if aim['reached'] else 'missed '}  {aim_name}: {aim['value']:.4g}, wanted {aim['aim']:g}")
    num_holding = sum(promise["holds"] for promise in result["promises"].values())
    failed = f"; failed: {', '.join(result['failed'])}" if result["failed"] else ""
    waiting = f"; not run: {', '.join(remaining)}" if remaining else ""
    print(
        f"{num_holding} of {len(result['promises'])} promises hold, {len(result['sections'])} sections{failed}{waiting}; {path}"
    )
