"""Convert voice: turns a .pt speaker file into a speaker string. `chattts-serve weights convert voice.pt --name anna`

In:    a file of torch.save: an embedding, or a speaker string
Out:   the speaker string, alone or as an entry for configs/voices.yaml
Never: pickled code: weights-only loading accepts tensors and plain values and refuses everything else

The service itself reads no .pt file; a speaker string holds all of a voice.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from pipeline.voices.catalogue import VoiceCatalogue
from pipeline.voices.strings import decode_embedding, encode_embedding

MAX_FILE_BYTES = 1 << 20
DEFAULT_WIDTH = 768


class NoSpeaker(Exception):
    """The file holds no speaker."""


def read_speaker(path: Path, width: int) -> NDArray[np.float16]:
    """Returns the embedding (width,) float16 of a .pt file.

    Raises:
        NoSpeaker: the file holds something else; the message names it.
    """
    try:
        size = path.stat().st_size
        if size > MAX_FILE_BYTES:
            raise NoSpeaker(f"{path}: {size} bytes; a speaker has a few thousand, the limit is {MAX_FILE_BYTES}")
        content = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise NoSpeaker(f"{path}: cannot be read: {error.strerror}") from error
    except NoSpeaker:
        raise
    except Exception as error:  # torch passes on any error of its unpickler
        raise NoSpeaker(f"{path}: not a file of plain tensors ({type(error).__name__}); no code in it was run") from error
    if isinstance(content, str):
        return _checked(content, width, path)
    if not isinstance(content, torch.Tensor):
        raise NoSpeaker(f"{path}: holds a {type(content).__name__}; expected a tensor of {width} numbers or a speaker string")
    if content.numel() != width or not content.is_floating_point():
        shape = tuple(content.shape)
        raise NoSpeaker(f"{path}: holds {content.dtype} numbers of shape {shape}; expected {width} floating-point numbers")
    embedding: NDArray[np.float16] = content.detach().reshape(-1).to(torch.float16).numpy()
    return _checked(encode_embedding(embedding), width, path)


def _checked(string: str, width: int, path: Path) -> NDArray[np.float16]:
    try:
        return decode_embedding(string, width)
    except ValueError as error:
        raise NoSpeaker(f"{path}: {error}") from None


def main(arguments: list[str] | None = None) -> int:
    """Exit code: 0 converted, 1 no speaker in the file."""
    parser = argparse.ArgumentParser(
        prog="chattts-serve weights convert", description="Convert a .pt speaker file into a speaker string."
    )
    parser.add_argument("file", type=Path, help="the .pt file")
    parser.add_argument("--name", help="write an entry for configs/voices.yaml under this name")
    parser.add_argument("--width", type=int, default=DEFAULT_WIDTH, help="numbers per embedding (default: %(default)s)")
    options = parser.parse_args(arguments)
    if options.name is not None and not VoiceCatalogue.is_name(options.name):
        parser.error("--name: a name has 1 to 64 of the characters a-z 0-9 _ -, the first a letter or digit")
    try:
        string = encode_embedding(read_speaker(options.file, options.width))
    except NoSpeaker as error:
        print(error, file=sys.stderr)
        return 1
    print(string if options.name is None else f"  {options.name}:\n    embedding: {string}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
