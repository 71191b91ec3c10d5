"""Syntax trees of the project's own sources, parsed once for all the tests that read them."""

import ast
import functools
from pathlib import Path


@functools.cache
def syntax_tree(path: Path) -> ast.Module:
    """Returns the parsed file; callers must not change it."""
    return ast.parse(path.read_text(encoding="utf-8"))
