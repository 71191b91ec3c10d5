"""Ship: compiles the native code for every processor of this architecture, for an image. `python -m serve.commands.launch.ship`

In:    the C++ of decode step and vocoder
Out:   pipeline/native/built, where a start finds it without a compiler
Owns:  that folder
Never: running what it compiles: the machine that builds may have another processor
"""

import platform
import sys

from pipeline.model.cpu.native import SOURCE as DECODE_STEP
from pipeline.native.compiler import SHIPPED, build
from pipeline.native.instructions import Instructions
from pipeline.vocoder.incremental.incremental_network import SOURCE as VOCODER


def main() -> int:
    """Compiles every source for every set of instructions; sets with the same flags share a library."""
    is_arm = platform.machine() == "aarch64"
    for instructions in Instructions:
        if is_arm is (instructions is Instructions.NEON):
            for source in (DECODE_STEP, VOCODER):
                print(f"{instructions}: {build(source, SHIPPED, instructions).name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
