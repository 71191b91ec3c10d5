"""Output path: the type of an option that names a file to write, refused before any work is done for it.

In:    a path on a command line
Out:   the path, if a file can be written there
Never: writing it
"""

import os
from argparse import ArgumentTypeError
from pathlib import Path


def output_path(name: str) -> Path:
    """Returns the path.

    Raises:
        ArgumentTypeError: it is a folder, or this user cannot write it or create it.
    """
    path = Path(name)
    if path.is_dir():
        raise ArgumentTypeError(f"{name} is a folder: name a file")
    if not path.exists() and not path.parent.is_dir():
        raise ArgumentTypeError(f"{name} cannot be written: there is no folder {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ArgumentTypeError(f"{name} cannot be written by this user")
    return path
