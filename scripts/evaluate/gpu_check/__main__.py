"""GPU check: proves what the engine and the vocoder promise on the device at hand, and measures both. `make gpu-check`.

In:    a device, a checkpoint, names of sections; README.md has the plan of a first half hour
Out:   one line per section and a short table; a JSON file with hardware, commit and all findings, written after each of them,
       which several calls fill; a log of everything printed beside it; exit code 0 when every promise holds and every section
       ran
Never: what a bare machine lacks, beyond NEEDED: no git, no network. torch, before it is known that nothing is missing

Aims are figures that the project wants to reach on one large GPU; a missed aim is no failure. Parity is checked against
the same engine on the CPU in float32, which tests/parity checks against the ChatTTS package. With --device cpu the same
sections rehearse on a CPU, kernels in Triton's interpreter; --layers 1 makes that affordable.
"""

import argparse
import ctypes
import importlib
import importlib.util
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

from scripts.bench.record import RESULTS, ROOT

NEEDED = ("torch", "triton", "numpy", "safetensors", "tokenizers", "pydantic")
LACKING = """\
not installed for {python}: {lacking}
`make gpu-wheels`, where there is a network, fetches what a machine with torch may lack. Here, then:
    python3 -m pip install --no-index --find-links gpu-wheels {lacking}"""
EXIT_LACKING = 4
PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
FOLDER = "OUT"
"""variable that names the folder from which a lent machine brings files back"""
KEPT = ROOT / ".gpu-check" / "gpu.json"
"""where such a machine, which empties that folder before every call, keeps the findings"""


def main() -> int:
    """Exit code: 0 every promise holds, 1 one does not or a section failed, 2 wrong usage, 3 no CUDA device, 4 a package."""
    parser = arguments()
    args = parser.parse_args()
    if args.child:
        end_with(args.parent)
    if lacking := " ".join(name for name in NEEDED if not is_installed(name)):
        print(LACKING.format(lacking=lacking, python=sys.executable), file=sys.stderr)
        return EXIT_LACKING
    return int(importlib.import_module("scripts.evaluate.gpu_check.call").run(args, parser))


def arguments() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    parser = argparse.ArgumentParser(description="Prove the promises of engine and vocoder on a device, and measure both.")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--checkpoint", default="full-random")
    parser.add_argument("--steps", type=int, default=160, help="steps of every sequence compared")
    parser.add_argument("--layers", type=int, help="layers of the model to keep, for a rehearsal on a CPU (default: all)")
    parser.add_argument("--slots", type=int, nargs="+", default=[1, 8, 32, 64, 128], help="slot counts to measure")
    parser.add_argument(
        "--splits", type=int, nargs="+", default=[128, 256, 512], help="lengths of attention's splits to compare"
    )
    parser.add_argument("--seconds", type=float, default=20.0, help="duration of the speech load [s]")
    parser.add_argument("--only", nargs="+", metavar="NAME[@SECONDS]", help="sections to run, such as parity 'equal_*@90'")
    parser.add_argument(
        "--within",
        type=float,
        metavar="SECONDS",
        help="run what has not run yet, the most valuable first, and start nothing that would not end within this time",
    )
    parser.add_argument("--list", action="store_true", help="print the sections, their time limits and what they usually take")
    parser.add_argument("--commit", help="the commit of this code, on a machine without git")
    parser.add_argument(
        "-o", "--out", type=Path, help=f"the JSON file; one of the same commit, device and checkpoint is continued (${FOLDER})"
    )
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--parent", type=int, help=argparse.SUPPRESS)
    return parser


def is_installed(package: str) -> bool:
    """True if the package can be imported; it is not."""
    with suppress(ModuleNotFoundError):
        return importlib.util.find_spec(package) is not None
    return False


def places(args: argparse.Namespace) -> tuple[Path, ...]:
    """Returns the files that hold the findings; the first one that exists is continued."""
    if args.out:
        return (args.out.absolute(),)  # sections run in another folder
    folder = os.environ.get(FOLDER)
    return (Path(folder).absolute() / KEPT.name, KEPT) if folder else (RESULTS / KEPT.name,)


def end_with(parent: int) -> None:
    """Has the kernel end this process as soon as its parent ends, however that ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it has ended before
        sys.exit(1)


if __name__ == "__main__":
    sys.exit(main())
