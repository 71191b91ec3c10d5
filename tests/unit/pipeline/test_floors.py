"""The floors of pipeline/: every import goes down, or stays in its folder."""

import ast
import re
from pathlib import Path

import pipeline

ROOT = Path(pipeline.__file__).parent
FLOORS = {
    name: int(number)
    for number, names in re.findall(r"^    (\d)  (.+)$", pipeline.__doc__ or "", re.M)
    for name in names.split()
}
GROUND = 1
"""on this floor modules may import one another, without a cycle"""


def name_of(module: str) -> str:
    return module.split(".")[1]


def arrows() -> set[tuple[str, str]]:
    """(importer, imported), of the folders and single modules of pipeline/."""
    found = set()
    for source in ROOT.rglob("*.py"):
        importer = source.relative_to(ROOT).parts[0].removesuffix(".py")
        for node in ast.walk(ast.parse(source.read_text())):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            found |= {(importer, name_of(module)) for module in modules if module.startswith("pipeline.")}
    return {(importer, imported) for importer, imported in found if importer != imported}


def test_every_folder_stands_on_a_floor():
    names = {entry.name.removesuffix(".py") for entry in ROOT.iterdir() if entry.suffix == ".py" or any(entry.glob("*.py"))}
    assert names - {"__init__"} == set(FLOORS)


def test_imports_go_down():
    upward = [
        f"{importer} (floor {FLOORS[importer]}) imports {imported} (floor {FLOORS[imported]})"
        for importer, imported in sorted(arrows())
        if FLOORS[importer] <= FLOORS[imported] and FLOORS[imported] != GROUND
    ]
    assert not upward


def test_the_ground_has_no_cycle():
    ground = {(importer, imported) for importer, imported in arrows() if FLOORS[importer] == GROUND}
    left = {name for name, floor in FLOORS.items() if floor == GROUND}
    while leaves := {name for name in left if not any((name, other) in ground for other in left)}:
        left -= leaves
    assert not left, f"these import one another: {sorted(left)}"
