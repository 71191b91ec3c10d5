"""Pack: the states of a training in half precision, in files small enough for a machine that gives back small ones.

In:    a folder of a training
Out:   trained.00, trained.01, ..., and back
Owns:  the size of a part
Never: optimisers

    python -m scripts.train_demo.pack $CHATTTS_HOME/train OUT
    python -m scripts.train_demo.pack OUT $CHATTTS_HOME/train --unpack
"""

import argparse
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from scripts.train_demo.files import save

STATES = ("gpt.pt", "vocoder.pt", "coder.pt")
LARGE = ("model", "critic")
PART_BYTES = 15 << 20


def pack(folder: Path, out: Path) -> None:
    """Writes the parts, without the optimisers' states."""
    states = {name: torch.load(folder / name, map_location="cpu") for name in STATES if (folder / name).exists()}
    light = {name: _changed(state, Tensor.half) for name, state in states.items()}
    memory = io.BytesIO()
    torch.save({"states": light, "logs": {path.name: path.read_text() for path in folder.glob("*.jsonl")}}, memory)
    whole = memory.getvalue()
    for place, begin in enumerate(range(0, len(whole), PART_BYTES)):
        (out / f"trained.{place:02d}").write_bytes(whole[begin : begin + PART_BYTES])


def unpack(out: Path, folder: Path) -> None:
    """Writes the states and the logs from the parts."""
    whole = b"".join(path.read_bytes() for path in sorted(out.glob("trained.*")))
    packed = torch.load(io.BytesIO(whole), map_location="cpu")
    folder.mkdir(parents=True, exist_ok=True)
    for name, state in packed["states"].items():
        save(folder / name, _changed(state, Tensor.float))
    for name, lines in packed["logs"].items():
        (folder / name).write_text(lines)


def _changed(state: dict[str, Any], change: Callable[[Tensor], Tensor]) -> dict[str, Any]:
    """Returns a state with the change made to its large parts, and without its optimisers."""
    plain = {key: value for key, value in state.items() if key != "optimisers"}
    return plain | {key: {name: change(value) for name, value in plain[key].items()} for key in LARGE if key in plain}


def main() -> None:
    """Packs, or unpacks."""
    parser = argparse.ArgumentParser(description="Pack the states of a training into small files.")
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--unpack", action="store_true")
    args = parser.parse_args()
    (unpack if args.unpack else pack)(args.source, args.target)


if __name__ == "__main__":
    main()
