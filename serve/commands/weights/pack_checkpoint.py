"""Pack checkpoint: writes a checkpoint with smaller files. `chattts-serve pack demo OUT --weights int8 --vocoder small`

In:    a checkpoint, the number format of its weights, the size of its vocoder
Out:   an absent or empty folder in the same layout, with SHA256SUMS
Owns:  what is rounded: what the engine rounds itself with the same `engine.weights`, and nothing else
Never: the forms of packed tensors (pipeline/checkpoint/packed_tensors.py)
"""

import argparse
import json
import shutil
import sys
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pipeline.bfloat16 import rounded
from pipeline.checkpoint.layout import EMBED_FILE, GPT_FILE, VOCODER_FILES
from pipeline.checkpoint.locate import resolve
from pipeline.checkpoint.manifest import file_sha256, verify_files, write_manifest
from pipeline.checkpoint.packed_tensors import widen_int8
from pipeline.checkpoint.weights import Checkpoint, open_checkpoint
from pipeline.errors import CheckpointError
from pipeline.model.cpu import four_bit
from pipeline.model.cpu.native import SOURCE
from pipeline.model.cpu.quantise_numpy import quantise
from pipeline.model.cpu.vocabulary import folded, norms
from pipeline.native.compiler import NativeUnavailable, library
from pipeline.paths import cache_home
from pipeline.spec import CODEBOOKS, VocoderSize

Arrays = dict[str, tuple[str, NDArray[Any]]]
"""name -> type in safetensors' words, numbers"""
WEIGHTS = ("bf16", "int8", "int4")
HEADS = ("head_text", *(f"head_code.{book}" for book in range(CODEBOOKS)))


def pack(root: Path, out: Path, weights: Literal["bf16", "int8", "int4"], vocoder: VocoderSize) -> None:
    """Writes the checkpoint.

    Raises:
        CheckpointError: a file is missing or damaged, or there is no small vocoder.
        NativeUnavailable: int4 is rounded by the engine's own code, which cannot be compiled here.
    """
    verify_files(root)
    checkpoint = open_checkpoint(root)
    dropped = {file for files in VOCODER_FILES.values() for file in files} - set(checkpoint.vocoder_files(vocoder))
    packed = {GPT_FILE: _gpt(checkpoint, weights), EMBED_FILE: _embed(checkpoint, weights)}
    files = sorted(str(path.relative_to(root)) for path in (root / "asset").rglob("*") if path.is_file())
    for file in (file for file in files if file not in dropped):
        (out / file).parent.mkdir(parents=True, exist_ok=True)
        if file in packed:
            _write(out / file, packed[file])
        else:
            shutil.copyfile(root / file, out / file)
        (out / file).chmod(0o644)
    write_manifest(out, {file: file_sha256(out / file) for file in files if file not in dropped})


def _write(path: Path, arrays: Arrays) -> None:
    """Writes a safetensors file; the library's writers know no bfloat16 in numpy."""
    ends = [0, *accumulate(array.nbytes for _, array in arrays.values())]
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    for (name, (kind, array)), place in zip(arrays.items(), pairwise(ends), strict=True):
        header[name] = {"dtype": kind, "shape": array.shape, "data_offsets": place}
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    with path.open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for _, array in arrays.values():
            file.write(np.ascontiguousarray(array).data)


def _gpt(checkpoint: Checkpoint, weights: str) -> Arrays:
    arrays: Arrays = {}
    for name, tensor in checkpoint.gpt().items():
        if "_proj" not in name:
            arrays[name] = ("F32", tensor)
        elif weights == "bf16":
            arrays[name] = ("BF16", rounded(tensor))
        elif weights == "int8":
            arrays |= _int8(name, tensor)
        else:
            codes, scales = four_bit.rounded(np.ascontiguousarray(tensor), library(SOURCE), threads=1)
            pairs = codes[:, ::2] | codes[:, 1::2] << 4
            arrays |= {f"{name}.int4": ("U8", pairs), f"{name}.scale": ("BF16", scales)}
    return arrays


def _int8(name: str, tensor: NDArray[np.float32]) -> Arrays:
    numbers, scales = quantise(tensor)
    return {f"{name}.int8": ("I8", numbers), f"{name}.scale": ("F32", scales)}


def _embed(checkpoint: Checkpoint, weights: str) -> Arrays:
    """Returns tables, of which equal rows are stored once, and heads, which the engine rounds beside weights of 4 bits."""
    tensors, arrays = checkpoint.embed(), Arrays()
    if weights == "int4":
        for head in HEADS:
            whole = folded(tensors, head)
            if np.isfinite(whole).all() and whole.any(axis=1).all():
                at = f"{head}.parametrizations.weight.original"
                del tensors[f"{at}0"], tensors[f"{at}1"]
                own = _int8(f"{at}1", whole)
                arrays |= own | {f"{at}0": ("F32", norms(widen_int8(own[f"{at}1.int8"][1], own[f"{at}1.scale"][1])))}
    for name, tensor in tensors.items():
        rows, index = np.unique(tensor, axis=0, return_inverse=True)
        if 2 * len(rows) <= len(tensor) and tensor.shape[1] > 1:
            arrays |= {f"{name}.rows": _narrowest(rows), f"{name}.index": ("I32", index.astype(np.int32).reshape(-1))}
        else:
            arrays[name] = _narrowest(tensor)
    return arrays


def _narrowest(tensor: NDArray[np.float32]) -> tuple[str, NDArray[Any]]:
    """Returns a tensor in 16 bits if they hold all of it."""
    half = tensor.astype(np.float16)
    return ("F16", half) if np.array_equal(half, tensor) else ("F32", tensor)


def main(arguments: list[str] | None = None) -> int:
    """Exit code: 0 written, 1 impossible here, 2 refused."""
    parser = argparse.ArgumentParser(prog="chattts-serve pack", description="Write a checkpoint with smaller files.")
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="as pipeline.checkpoint")
    parser.add_argument("out", type=Path, metavar="OUT", help="an empty or absent folder")
    parser.add_argument(
        "--weights",
        choices=WEIGHTS,
        default="bf16",
        help="engine.weights; bf16: engine.dtype bfloat16",
    )
    parser.add_argument("--vocoder", choices=tuple(VOCODER_FILES), default="full", help="as pipeline.vocoder.size")
    options = parser.parse_args(arguments)
    if options.out.exists() and (not options.out.is_dir() or any(options.out.iterdir())):
        print(f"{options.out} is not an empty folder; name an empty or a new one", file=sys.stderr)
        return 2
    try:
        pack(resolve(options.checkpoint, cache_home()), options.out, options.weights, options.vocoder)
    except (CheckpointError, NativeUnavailable) as error:
        print(error, file=sys.stderr)
        return 1
    print(options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
