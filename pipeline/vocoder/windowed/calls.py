"""Calls: what decodes windows, one call per shape.

In:    HiddenWindows of one shape
Out:   samples
Never: torch: network.py builds them
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.types import HiddenWindow


@dataclass(frozen=True, slots=True)
class WindowCalls:
    """One call per window shape of a configuration."""

    width: int
    """numbers per step"""
    by_steps: Mapping[int, Callable[[Sequence[HiddenWindow]], list[NDArray[np.float32]]]]
    """steps per window -> the call that decodes up to `rows` such windows"""
