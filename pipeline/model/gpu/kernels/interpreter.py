"""Interpreter: lets Triton's interpreter run a loop whose bounds the kernel has read from memory.

In:    nothing
Out:   allow_read_bounds
Owns:  that one conversion in Triton 3.6's interpreter
Never: compiled kernels

A number that a kernel reads is an array of one element there, which NumPy 2.4 no longer converts to a Python number.
"""

from typing import Any

from triton.runtime import interpreter


def allow_read_bounds() -> None:
    """Mends the interpreter of this process; call it once, where a kernel has such a loop."""
    patch = interpreter._patch_lang_tensor

    def patch_with_bounds(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda number: int(number.handle.data.item()))

    interpreter._patch_lang_tensor = patch_with_bounds
