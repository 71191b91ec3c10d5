"""With torch: loads the parts of this project that compute with PyTorch, where they are needed and not before.

In:    the name of a module
Out:   the module
Never: torch itself, at any import of this module

A process that serves on a CPU by native code never calls it; tests/unit/test_without_torch.py holds that promise.
"""

import importlib
import importlib.util
from functools import cache
from typing import Any

from pipeline.errors import ConfigError, InvalidRequest
from pipeline.types import SeedMode

INSTALL = "pip install 'chattts-serve[torch]'"


@cache
def has_torch() -> bool:
    """True if PyTorch is installed; does not import it."""
    try:
        return importlib.util.find_spec("torch") is not None
    except ImportError:
        return False


def check_seed_mode(mode: SeedMode) -> None:
    """Checks that the randomness of a request can be drawn here.

    Raises:
        InvalidRequest: it is the ChatTTS package's own, which torch alone draws, and PyTorch is not installed.
    """
    if mode is SeedMode.UPSTREAM and not has_torch():
        raise InvalidRequest(
            f"seed_mode is {mode}, whose randomness PyTorch draws, and PyTorch is not installed where this service runs; "
            f"allowed here is {SeedMode.COUNTER}. The operator can add it: {INSTALL}",
            param="seed_mode",
        )


def torch_part(module: str, *, wanted_for: str) -> Any:
    """Returns a module that imports torch.

    Args:
        module: its full name.
        wanted_for: what cannot be done without it, with the setting that asks for it.

    Raises:
        ConfigError: PyTorch is not installed.
    """
    if not has_torch():
        raise ConfigError(
            f"{wanted_for} needs PyTorch, which is not installed: {INSTALL}, "
            "or use native code on a CPU, which needs a C++ compiler (Debian: g++) and no PyTorch"
        )
    return importlib.import_module(module)
