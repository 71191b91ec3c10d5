"""The house stays small: lines, files, names. Each limit is the figure of the day on which it was set."""

import ast
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.syntax import syntax_tree

ROOT = Path(__file__).resolve().parents[2]

MOST_LINES = {"pipeline": 31_428, "serve": 35_849, "scripts": 14_929, "tests": 61_406}  # of Python
MOST_FILES = 1_273  # tracked, of every kind
MOST_OF_HTTP = 0.15  # of the lines of serve/

NO_NOUNS = {"told", "heard", "said", "held", "found", "wanted", "kept", "asked", "seen", "one", "each", "what", "who"}
NO_NOUNS |= {"given", "made", "sent", "taken", "left"}
MOST_NO_NOUNS = {"pipeline": 0.5, "serve": 0.5, "scripts": 0.5, "tests": 3.5}  # of 1,000 bound names

SHARED_NAMES = frozenset({"__init__", "__main__", "routes", "errors", "messages"})
EQUAL_ROLES = ("serve/protocols/", "serve/remote/", "serve/local/")  # equal names there mean equal roles
MOST_SHARED_NAMES = 1


def tracked(*patterns: str) -> list[Path]:
    listing = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / name for name in listing.splitlines() if (ROOT / name).is_file()]


def lines_below(folder: str) -> int:
    return sum(len(path.read_bytes().splitlines()) for path in tracked(f"{folder}/*.py"))


def bound_names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.alias(asname=str(name)):
                yield name


pytestmark = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="counts what is tracked")


@pytest.mark.parametrize("folder", MOST_LINES)
def test_lines_of_python(folder: str):
    assert lines_below(folder) <= MOST_LINES[folder], f"{folder}/ has grown: take something away for what was added"


def test_tracked_files():
    assert len(tracked()) <= MOST_FILES


def test_the_http_server_is_a_small_part_of_serve():
    assert lines_below("serve/http") <= MOST_OF_HTTP * lines_below("serve")


@pytest.mark.parametrize("folder", MOST_NO_NOUNS)
def test_names_are_nouns(folder: str):
    names = [(name.strip("_"), path) for path in tracked(f"{folder}/*.py") for name in bound_names(syntax_tree(path))]
    odd = Counter(f"{path.relative_to(ROOT)}: {name}" for name, path in names if name in NO_NOUNS)
    assert odd.total() <= len(names) / 1000 * MOST_NO_NOUNS[folder], odd.most_common(10)


def test_modules_of_a_tree_have_names_of_their_own():
    shared = 0
    for folder in ("pipeline", "serve", "scripts"):
        paths = [path.relative_to(ROOT) for path in tracked(f"{folder}/*.py")]
        stems = Counter(path.stem for path in paths if not str(path).startswith(EQUAL_ROLES))
        shared += sum(1 for stem, count in stems.items() if count > 1 and stem not in SHARED_NAMES)
    assert shared <= MOST_SHARED_NAMES


def test_no_public_parameter_is_without_a_noun():
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {name}"
        for path in tracked("pipeline/*.py", "serve/*.py", "scripts/*.py")
        for node in ast.walk(syntax_tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not re.match(r"_", node.name)
        for name in (argument.arg for argument in (*node.args.args, *node.args.kwonlyargs))
        if name in NO_NOUNS
    ]
    assert len(wrong) <= 25, wrong
