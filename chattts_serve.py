"""Chattts serve: where the command `chattts-serve` enters, under a name that no other project has.

In:    the words of the command line, sys.path
Out:   the command's exit code; or the file that an import takes in place of this project's
Never: importing what may be somebody else's
"""

import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import PathFinder
from pathlib import Path

HERE = Path(__file__).resolve().parent
NAMES = ("pipeline", "serve")
BEGIN_OTHERS = {"start", "doctor"}  # processes of `start`, Ray's too, import from the current folder first


def hidden(places: Sequence[str]) -> Iterator[str]:
    """Yields a sentence for each package of this project that another one hides."""
    for name in NAMES:
        spec = PathFinder.find_spec(name, places)
        if spec is not None and spec.origin and Path(spec.origin).resolve().parents[1] != HERE:
            yield f"{name} is imported from {spec.origin}, which hides that of {HERE}"


def main() -> int:
    """Runs the command line; exit code 1 where another package hides one of this project's."""
    here = [""] if BEGIN_OTHERS.intersection(sys.argv[1:2]) else []
    if sentences := list(hidden([*here, *sys.path])):
        print(*sentences, "take it off PYTHONPATH, or go to another folder", sep="\n", file=sys.stderr)
        return 1
    from serve.commands.app import app

    app()
    return 0
