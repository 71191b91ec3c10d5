"""Ship: compiles the native code for every processor of this architecture, for an image or a wheel.

In:    the C++ of decode step and vocoder; `python -m serve.commands.launch.ship`, with --platform for the tag of a wheel
Out:   pipeline/native/built, where a start finds it without a compiler
Owns:  that folder
Never: running what it compiles: the machine that builds may have another processor
"""

import platform
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from pipeline.model.cpu.native import SOURCE as DECODE_STEP
from pipeline.native.compiler import SHIPPED, build
from pipeline.native.instructions import Instructions
from pipeline.vocoder.incremental.incremental_network import SOURCE as VOCODER

GLIBC = re.compile(rb"GLIBC_2\.(\d+)")


def main() -> int:
    """Compiles every source for every set of instructions; sets with the same flags share a library."""
    if sys.argv[1:] == ["--platform"]:
        print(platform_tag(SHIPPED))
        return 0
    current = set(compiled())
    for path in set(SHIPPED.glob("*.so")) - current:
        path.unlink()
    for path in sorted(current):
        print(path.name)
    return 0


def compiled() -> Iterator[Path]:
    """Yields the path of each library, compiled if it was not there."""
    is_arm = platform.machine() == "aarch64"
    for instructions in Instructions:
        if is_arm is (instructions is Instructions.NEON):
            yield from (build(source, SHIPPED, instructions) for source in (DECODE_STEP, VOCODER))


def platform_tag(folder: Path) -> str:
    """Returns the tag of a wheel with these libraries: the least release of glibc that has what they ask for."""
    names = (name for path in folder.glob("*.so") for name in GLIBC.findall(path.read_bytes()))
    return f"manylinux_2_{max(map(int, names))}_{platform.machine()}"


if __name__ == "__main__":
    sys.exit(main())
