"""Paths: the folder for all fetched, generated and compiled files on this machine, and the one for fetched weights.

In:    CHATTTS_HOME, CHATTTS_WEIGHTS, TRITON_CACHE_DIR, XDG_CACHE_HOME
Out:   folders
Owns:  the only reading of the environment in pipeline/ and serve/
Never: creating a folder, but the one of GPU kernels
"""

import os
import tempfile
from pathlib import Path


def cache_home() -> Path:
    """Returns CHATTTS_HOME if it is set, else `chattts-serve` in the user's cache folder. It may not exist yet."""
    if chosen := os.environ.get("CHATTTS_HOME"):
        return Path(chosen).expanduser()
    caches = os.environ.get("XDG_CACHE_HOME")
    return (Path(caches) if caches else Path.home() / ".cache") / "chattts-serve"


def weights_home(home: Path) -> Path:
    """Returns CHATTTS_WEIGHTS if it is set, else `home`, a cache_home(). Only fetching weights writes there."""
    chosen = os.environ.get("CHATTTS_WEIGHTS")
    return Path(chosen).expanduser() if chosen else home


def triton_folder() -> Path:
    """Returns TRITON_CACHE_DIR if it is set, else `triton` in cache_home(), created; where it cannot be, one for this process.

    Triton loads libraries from it, so a place that is mounted noexec, as a container's /tmp, will not do.
    """
    if chosen := os.environ.get("TRITON_CACHE_DIR"):
        return Path(chosen)
    folder = cache_home() / "triton"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return Path(tempfile.mkdtemp(prefix="chattts-triton-"))
    return folder if os.access(folder, os.W_OK) else Path(tempfile.mkdtemp(prefix="chattts-triton-"))
