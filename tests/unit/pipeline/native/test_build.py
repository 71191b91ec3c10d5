"""Native code: built once, found again, and a plain answer where it cannot be had."""

import ctypes

import pytest

from pipeline.native import build
from pipeline.native.build import NativeUnavailable, library
from tests.machine import needs_native


@pytest.fixture
def source(tmp_path, monkeypatch):
    """Three lines of C++ and a header of their own, whatever else this process has loaded."""
    headers = tmp_path / "headers"
    headers.mkdir()
    (headers / "answer.h").write_text("constexpr int ANSWER = 42;\n")
    monkeypatch.setattr(build, "HEADERS", headers)
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
    ("path", "message"), [("", r"there is no C\+\+ compiler here"), ("broken", "refused trivial.cpp: it is Monday")]
)
def test_a_machine_without_a_working_compiler_says_what_is_missing(source, tmp_path, monkeypatch, path, message):
    folder = tmp_path / "broken"
    folder.mkdir()
    (folder / "c++").write_text("#!/bin/sh\necho it is Monday >&2\nexit 1\n")
    (folder / "c++").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder) if path else "")
    with pytest.raises(NativeUnavailable, match=message):
        library(source, tmp_path / "built")


def test_another_kind_of_machine_says_so(source, tmp_path, monkeypatch):
    monkeypatch.setattr(build.platform, "machine", lambda: "riscv64")
    with pytest.raises(NativeUnavailable, match="AVX-512"):
        library(source, tmp_path / "built")
