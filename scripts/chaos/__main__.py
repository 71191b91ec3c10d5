"""`python -m scripts.chaos`: chaos from a seed; the report is JSON, and the exit code says whether all was well.

In:    options
Out:   a report on stdout or in a file; exit code 1 if a promise was broken
Never: another cluster of this machine
"""

import argparse
import asyncio
import contextlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from scripts.chaos.nodes import Front, three_nodes
from scripts.chaos.run import chaos, summary
from serve.commands import say
from serve.config.app_config import PROJECT

TRANSCRIPT = "Five one one, two five five. Nine eight seven, six three four."
CHANGES: dict[str, dict[str, Any]] = {
    "pipeline": {
        "checkpoint": "small-random",  # steps that cost little: faults and traffic are what is tested
        "engine": {"slots": 4, "threads": 1, "max_waiting": 16},
        "vocoder": {"threads": 1},
    },
    "keys": {"open": True},  # a service that does not know where it listens asks for keys behind HAProxy
    "limits": {"max_in_flight": 32, "first_audio_timeout_s": 120.0, "start_timeout_s": 300},
}


def main() -> int:
    """Runs and reports."""
    parser = argparse.ArgumentParser(prog="python -m scripts.chaos", description="Traffic of every kind while faults happen.")
    parser.add_argument("--minutes", type=float, default=60.0, help="of traffic and faults")
    parser.add_argument("--seed", type=int, help="what is drawn follows from it; default: another one each time")
    parser.add_argument("--out", type=Path, help="a file for the report; default: stdout")
    parser.add_argument("--plain", action="store_true", help="Serve's own proxy in front, without HAProxy")
    options = parser.parse_args()
    seed = int(time.time()) if options.seed is None else options.seed
    with three_nodes(Front.PROXY if options.plain else Front.HAPROXY, PROJECT / "configs/dev.yaml", CHANGES) as nodes:
        report = asyncio.run(chaos(nodes, seed, options.minutes * 60, recording(nodes.folder / "voice.wav"), TRANSCRIPT))
    report["machine"] = _machine()
    text = json.dumps(report, indent=1) + "\n"
    if options.out is None:
        print(text)
    else:
        options.out.write_text(text, encoding="utf-8")
    print(summary(report), file=sys.stderr)
    return int(bool(report["failures"]))


def recording(path: Path) -> bytes:
    """Returns a wav file in which the demo voice says the transcript."""
    with contextlib.redirect_stdout(sys.stderr):
        say.main([TRANSCRIPT, "--seed", "5", "-o", str(path)])
    return path.read_bytes()


def _machine() -> dict[str, Any]:
    return {"cores": len(os.sched_getaffinity(0)), "date": time.strftime("%Y-%m-%d")}


if __name__ == "__main__":
    sys.exit(main())
