"""Native code: built once, found again, with the instructions there are, and a plain answer where it cannot be had."""

import ctypes
import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import ConfigError
from pipeline.model.fingerprint import native_form
from pipeline.native import compiler, instructions
from pipeline.native.compiler import CompilerStuck, NativeFailed, NativeUnavailable, library
from pipeline.native.instructions import FLAGS, Instructions, usable
from pipeline.native.memory import ALIGNMENT, HUGE_PAGE, Arena, address, aligned, pack
from tests.support.effort import examples
from tests.support.machine import needs_instructions, needs_native

ROOT = Path(__file__).resolve().parents[4]
STRANGER = 65534


@pytest.fixture
def source(tmp_path, monkeypatch):
    """Three lines of C++ and a header of their own, whatever else this process has loaded."""
    headers = tmp_path / "headers"
    headers.mkdir()
    (headers / "answer.h").write_text("constexpr int ANSWER = 42;\n")
    monkeypatch.setattr(compiler, "HEADERS", headers)
    trivial = tmp_path / "trivial.cpp"
    trivial.write_text('#include "answer.h"\nextern "C" int answer() { return ANSWER; }\n')
    library.cache_clear()
    yield trivial
    library.cache_clear()


@needs_native
def test_the_library_is_built_once_and_found_again(source, tmp_path, monkeypatch):
    built = tmp_path / "built"
    assert library(source, built).answer() == 42
    assert [path.suffix for path in built.iterdir()] == [".so"], "no draft is left"
    library.cache_clear()
    monkeypatch.setenv("PATH", "")  # no compiler any more
    assert isinstance(library(source, built), ctypes.CDLL)


@needs_native
@pytest.mark.parametrize("changed", ["trivial.cpp", "headers/answer.h"])
def test_whatever_changes_the_code_builds_it_anew(source, tmp_path, changed):
    built = tmp_path / "built"
    library(source, built)
    library.cache_clear()
    changed_file = tmp_path / changed
    changed_file.write_text(changed_file.read_text().replace("42", "43").replace("return ANSWER", "return ANSWER + 1 - 0"))
    assert library(source, built).answer() == 43
    assert len(list(built.iterdir())) == 2


@needs_native
@pytest.mark.parametrize(
    ("path", "message"),
    [("", r"there is no C\+\+ compiler on this machine"), ("broken", "failed on trivial.cpp: it is Monday")],
)
def test_a_machine_without_a_working_compiler_says_what_is_missing(source, tmp_path, monkeypatch, path, message):
    folder = tmp_path / "broken"
    folder.mkdir()
    (folder / "c++").write_text("#!/bin/sh\necho it is Monday >&2\nexit 1\n")
    (folder / "c++").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder) if path else "")
    with pytest.raises(NativeUnavailable, match=message):
        library(source, tmp_path / "built")


@needs_native
def test_every_set_of_instructions_has_a_library_of_its_own(source, tmp_path):
    built = tmp_path / "built"
    assert [library(source, built, instructions=instructions).answer() for instructions in usable()] == [42] * len(usable())
    assert len(list(built.iterdir())) == len({FLAGS[instructions] for instructions in usable()})


def test_another_kind_of_machine_says_so(source, tmp_path, monkeypatch):
    monkeypatch.setattr(instructions.platform, "machine", lambda: "riscv64")
    with pytest.raises(NativeUnavailable, match="AVX-512"):
        library(source, tmp_path / "built")


# A process that dies takes the test with it: loading happens in one of its own.
LOAD = """
import sys
from pathlib import Path
from pipeline.model.fingerprint import native_form
from pipeline.native import compiler
compiler.HEADERS = Path(sys.argv[1]).parent / "headers"
print(compiler.library(Path(sys.argv[1]), Path(sys.argv[2])).answer(), flush=True)
"""


def load(source: Path, built: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", LOAD, str(source), str(built)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def cut(content: bytes) -> bytes:
    return content[: len(content) // 3]


def flip(content: bytes) -> bytes:
    """Every byte of the code's third quarter."""
    half, end = len(content) // 2, 3 * len(content) // 4
    return content[:half] + bytes(byte ^ 0x5A for byte in content[half:end]) + content[end:]


def flip_one_bit(content: bytes) -> bytes:
    return content[:1000] + bytes([content[1000] ^ 1]) + content[1001:]


def take_off_the_digest(content: bytes) -> bytes:
    return content[: -compiler.DIGEST_BYTES]


@needs_native
@pytest.mark.parametrize("damage", [cut, flip, flip_one_bit, take_off_the_digest, lambda content: b""])
def test_a_damaged_library_is_compiled_again_and_never_loaded(source, tmp_path, damage):
    built = tmp_path / "built"
    assert library(source, built).answer() == 42
    (file,) = built.glob("*.so")
    whole = file.read_bytes()
    file.unlink()  # this process has the old one open
    file.write_bytes(damage(whole))
    file.chmod(0o755)
    loading = load(source, built)
    assert loading.communicate(timeout=120) == ("42\n", "")
    assert loading.returncode == 0
    assert len(file.read_bytes()) == len(whole)


@needs_native
def test_a_damaged_library_without_a_compiler_is_not_loaded(source, tmp_path, monkeypatch):
    built = tmp_path / "built"
    library(source, built)
    library.cache_clear()
    (file,) = built.glob("*.so")
    file.write_bytes(flip(file.read_bytes()))
    monkeypatch.setenv("PATH", "")
    with pytest.raises(NativeUnavailable, match="no C"):
        library(source, built)


def put_before_the_compiler(folder: Path, monkeypatch: pytest.MonkeyPatch, lines: str) -> None:
    """A `c++` that runs these lines of shell first."""
    compiler_path = next(filter(None, map(shutil.which, compiler.COMPILERS)))
    folder.mkdir()
    (folder / "c++").write_text(f'#!/bin/sh\n{lines}\nexec {compiler_path} "$@"\n')
    (folder / "c++").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


@needs_native
def test_of_several_who_build_at_once_one_compiles(source, tmp_path, monkeypatch):
    """Replicas that start together: each for itself took minutes, and some gave up and sounded unlike the others."""
    built, calls = tmp_path / "built", tmp_path / "calls"
    put_before_the_compiler(tmp_path / "counting", monkeypatch, f"echo called >>{calls}; sleep 0.5")
    for loading in [load(source, built) for _ in range(4)]:
        assert loading.communicate(timeout=120) == ("42\n", "")
    assert calls.read_text() == "called\n"
    assert len(list(built.iterdir())) == 1, "no draft is left"


@needs_native
def test_a_compiler_that_does_not_end_is_no_reason_to_sound_different(source, tmp_path, monkeypatch):
    """With torch in place of native code a replica has other numbers than the next one, whose compiler was in time."""
    put_before_the_compiler(tmp_path / "slow", monkeypatch, "exec sleep 60")
    monkeypatch.setattr(compiler, "COMPILE_TIMEOUT_S", 0.2)
    with pytest.raises(CompilerStuck, match=r"within 0.2 s: start again .* CHATTTS_INSTRUCTIONS=none"):
        library(source, tmp_path / "built")
    monkeypatch.setenv("CHATTTS_HOME", str(tmp_path / "home"))
    with pytest.raises(CompilerStuck):
        native_form(source)  # of a fingerprint


@needs_native
@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ("kill -9 $$", "ended by signal 9"),
        ("echo 'c++: fatal error: Killed signal terminated program cc1plus' >&2; exit 1", "Killed signal"),
        ("echo 'collect2: fatal error: ld terminated with signal 9 [Killed]' >&2; exit 1", "ld terminated"),
        ("echo 'cc1plus: out of memory allocating 65536 bytes' >&2; exit 1", "out of memory"),
        ("echo 'fatal error: error writing to /tmp/a.s: No space left on device' >&2; exit 1", "No space left"),
        ("exit 0", "No such file"),  # and has written nothing
    ],
)
def test_a_compiler_that_is_ended_or_finds_no_room_ends_the_start(source, tmp_path, monkeypatch, lines, why):
    put_before_the_compiler(tmp_path / "ended", monkeypatch, lines)
    with pytest.raises(NativeFailed, match=rf"{why}.*: start again with more free memory.*CHATTTS_INSTRUCTIONS=none"):
        library(source, tmp_path / "built")
    assert not list((tmp_path / "built").glob("*.so"))
    monkeypatch.setenv("CHATTTS_HOME", str(tmp_path / "home"))
    with pytest.raises(NativeFailed):
        native_form(source)  # of a fingerprint


@needs_native
def test_a_compiler_that_cannot_be_started_ends_the_start(source, tmp_path, monkeypatch):
    folder = tmp_path / "damaged"
    folder.mkdir()
    (folder / "c++").write_bytes(b"\x7fELF and then nothing")
    (folder / "c++").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    with pytest.raises(NativeFailed, match=r"Exec format error.*start again"):
        library(source, tmp_path / "built")


@needs_native
def test_a_process_without_free_descriptors_does_not_decode_with_torch(source, tmp_path):
    few = "import os, resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir('/proc/self/fd')) + 1,) * 2)\n"
    program = LOAD.replace("print(", f"{few}print(")
    command = [sys.executable, "-c", program, str(source), str(tmp_path / "built")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert "NativeFailed" in done.stderr
    assert "Too many open files" in done.stderr


@needs_native
def test_without_a_compiler_and_a_place_for_its_code_torch_decodes(source, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("PATH", "")
    with pytest.raises(NativeUnavailable, match="no C"):
        library(source, tmp_path / "file" / "built")


@needs_native
def test_on_a_file_system_without_locks_each_compiles_for_itself(source, tmp_path, monkeypatch):
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(compiler.fcntl, "flock", no_locks)
    assert library(source, tmp_path / "built").answer() == 42


@needs_native
@pytest.mark.parametrize("mode", [0o777, 0o775, 0o1777])
def test_a_folder_of_ours_is_closed_to_others(source, tmp_path, mode):
    built = tmp_path / "built"
    built.mkdir()
    built.chmod(mode)
    assert library(source, built).answer() == 42
    assert built.stat().st_mode & 0o022 == 0


@needs_native
def test_a_library_others_may_have_written_is_built_anew(source, tmp_path):
    built = tmp_path / "built"
    library(source, built)
    (file,) = built.glob("*.so")
    before = file.stat().st_ino
    file.chmod(0o777)
    library.cache_clear()
    assert library(source, built).answer() == 42
    assert (file.stat().st_ino != before, file.stat().st_mode & 0o022) == (True, 0)


@needs_native
def test_a_folder_of_somebody_else_is_not_used(source, tmp_path, monkeypatch):
    built = tmp_path / "built"
    built.mkdir()
    if os.geteuid() == 0:
        os.chown(built, STRANGER, -1)
    else:
        monkeypatch.setattr(compiler.os, "geteuid", lambda: STRANGER)
    with pytest.raises(NativeUnavailable, match="belongs to another user or others may write to it"):
        library(source, built)
    assert list(built.iterdir()) == []


# Sets of instructions: what a machine has, and what a user may take from it.


SHOW = """
from pipeline.config import EngineConfig
from pipeline.engine import engine_fingerprint
from pipeline.native.compiler import best_instructions
print(best_instructions(), engine_fingerprint._form(EngineConfig()))
"""
AVX2, AVX512 = instructions.AVX2_FLAGS, instructions.AVX512_FLAGS


@pytest.mark.parametrize(
    ("machine", "flags", "permitted", "expected"),
    [
        ("x86_64", instructions.AMX_FLAGS, "", ("amx", "avx512-vnni", "avx512", "avx2")),
        ("x86_64", AVX512 | {"avx512_vnni"}, "", ("avx512-vnni", "avx512", "avx2")),
        ("x86_64", AVX512, "", ("avx512", "avx2")),
        ("x86_64", AVX512 - {"avx512vl"}, "", ("avx2",)),
        ("x86_64", AVX2 | {"avx_vnni"}, "", ("avx-vnni", "avx2")),
        ("x86_64", {"avx"}, "", ()),
        ("x86_64", frozenset(), "", ()),
        ("aarch64", frozenset(), "", ("neon",)),
        ("riscv64", frozenset(), "", ()),
        ("x86_64", instructions.AMX_FLAGS | {"avx_vnni"}, "amx", ("amx", "avx512-vnni", "avx512", "avx-vnni", "avx2")),
        ("x86_64", instructions.AMX_FLAGS | {"avx_vnni"}, "avx512", ("avx512", "avx-vnni", "avx2")),
        ("x86_64", instructions.AMX_FLAGS | {"avx_vnni"}, "avx2", ("avx2",)),
        ("x86_64", AVX512, "none", ()),
        ("aarch64", frozenset(), "avx2", ("neon",)),
    ],
)
def test_the_best_that_is_there_and_permitted_comes_first(monkeypatch, machine, flags, permitted, expected):
    monkeypatch.setattr(instructions.platform, "machine", lambda: machine)
    monkeypatch.setattr(instructions, "processor_flags", lambda: frozenset(flags))
    monkeypatch.setattr(instructions, "_tiles_permitted", lambda: True)
    monkeypatch.setenv(instructions.VARIABLE, permitted)
    assert usable() == tuple(map(Instructions, expected))


def test_a_set_of_instructions_that_there_is_not_is_refused_with_those_there_are(monkeypatch):
    monkeypatch.setenv(instructions.VARIABLE, "sse2")
    with pytest.raises(ConfigError, match=r"CHATTTS_INSTRUCTIONS is 'sse2'; it may be amx, .*, avx2, neon or none"):
        usable()


@pytest.mark.skipif(sys.platform != "linux", reason="Linux says what a processor can do")
def test_torch_knows_the_same_processor():
    flags = instructions.processor_flags()
    assert (flags >= AVX2) == torch.cpu._is_avx2_supported()
    assert (flags >= AVX512) == torch.cpu._is_avx512_supported()


@needs_instructions(Instructions.AVX512)
@pytest.mark.slow
def test_a_user_takes_avx512_away():
    environment = os.environ | {instructions.VARIABLE: "avx2"}
    done = subprocess.run([sys.executable, "-c", SHOW], cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["avx2", "native", "avx2"], "and the fingerprint knows"


# Memory: packing loses nothing, arenas are aligned, and what is freed goes back.


@settings(max_examples=examples(50))
@given(panels=st.integers(1, 4), inputs=st.integers(1, 8), pair=st.booleans())
def test_packing_loses_nothing_and_moves_everything_where_it_is_read(panels, inputs, pair):
    inputs *= 2
    weight = np.arange(panels * 32 * inputs).reshape(panels * 32, inputs).astype(np.uint16 if pair else np.float32)
    packed = pack(weight).ravel()
    for output in range(0, panels * 32, 7):
        for index in range(inputs):
            panel, lane = divmod(output, 32)
            place = (
                (panel * inputs // 2 + index // 2) * 64 + lane * 2 + index % 2 if pair else (panel * inputs + index) * 32 + lane
            )
            assert packed[place] == weight[output, index]


def test_weights_in_an_arena_begin_at_a_cache_line_the_first_at_a_page():
    weights = [np.arange(size, dtype=np.float32) for size in (3, 16, 33)]
    arena = Arena(sum(weight.nbytes + ALIGNMENT for weight in weights))
    copies = [arena.keep(weight) for weight in weights]
    assert address(copies[0]) % HUGE_PAGE == 0
    for weight, copy in zip(weights, copies, strict=True):
        assert address(copy) % ALIGNMENT == 0
        assert np.array_equal(weight, copy)
    assert address(aligned(100)) % ALIGNMENT == 0
    assert len(aligned(100)) >= 100
    assert not aligned(100).any()


FREED = """
import numpy as np
from pipeline.native.memory import return_free_memory

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

kept = [np.ones(64 << 10, np.uint8) for _ in range(1000)]
last = np.ones(64 << 10, np.uint8)  # above the others: what is below it does not go back by itself
kept.clear()
before = resident()
return_free_memory()
print(before - resident())
"""


def test_freed_memory_goes_back_to_the_system():
    done = subprocess.run([sys.executable, "-c", FREED], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 50 << 20
