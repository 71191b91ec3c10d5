"""Interpreter: mends Triton 3.6's interpreter, in which the kernels run on a CPU.

Out:   mend_interpreter
Owns:  two of the interpreter's functions, in this process
Never: compiled kernels

A number that a kernel reads is an array of one element there, which NumPy 2.4 no longer converts to a Python number: no loop
could end at it. And each call of a jitted function, such as `tl.sum`, replaces the whole language anew, which is most of the
time of a draw.
"""

from types import FunctionType
from typing import Any

from triton.runtime import interpreter


def mend_interpreter() -> None:
    """Lets loops end at numbers that a kernel has read, and replaces the language once a launch; call it once."""
    patch_tensor, patch_language, launch = (
        interpreter._patch_lang_tensor,
        interpreter._patch_lang,
        interpreter.GridExecutor.__call__,
    )
    replaced: set[int] = set()

    def patch_tensor_with_bounds(tensor: Any, scope: Any) -> None:
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda number: int(number.handle.data.item()))

    def patch_language_once(function: FunctionType) -> Any:
        if id(function.__globals__) in replaced:
            return interpreter._LangPatchScope()
        replaced.add(id(function.__globals__))
        return patch_language(function)

    def launch_anew(executor: Any, *arguments: Any, **named: Any) -> None:
        replaced.clear()  # the last launch has restored the language
        launch(executor, *arguments, **named)

    interpreter._patch_lang_tensor = patch_tensor_with_bounds
    interpreter._patch_lang = patch_language_once
    interpreter.GridExecutor.__call__ = launch_anew
