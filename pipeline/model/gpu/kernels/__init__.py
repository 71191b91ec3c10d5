"""Kernels: the GPU's own operators, in Triton. Start at step.py, which says what a decode step is made of.

Import these modules only where a GPU decodes (pipeline/engine/gpu_runner.py): not every platform has Triton.
On a CPU they run in Triton's interpreter, and so do their tests (TRITON_INTERPRET=1, tests/conftest.py).

Every program computes one slot and sums in one fixed order, so a slot's numbers depend on that slot alone. Programs
of idle slots write zeros, or nothing where the result is not read.
"""

import triton

from pipeline.model.gpu.kernels.interpreter import mend_interpreter
from pipeline.paths import triton_folder

if triton.knobs.runtime.interpret:
    mend_interpreter()
else:
    triton.knobs.cache.dir = str(triton_folder())
