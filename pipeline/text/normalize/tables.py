"""Tables: the words of the normaliser that are data, read from tables.tsv.

In:    tables.tsv: a line is a section, a written form and how it is spoken, divided by tabs
Out:   one dict a section, in the order of its lines
Owns:  the file
Never: patterns, rules
"""

from functools import cache
from pathlib import Path

TABLES = Path(__file__).with_name("tables.tsv")


def row_table(section: str) -> dict[str, tuple[str, ...]]:
    """Returns written form -> its columns."""
    return _sections()[section]


def word_table(section: str) -> dict[str, str]:
    """Returns written form -> spoken form, of a section with one column."""
    return {written: columns[0] for written, columns in _sections()[section].items()}


def word_list(name: str) -> tuple[str, ...]:
    """Returns the words of a list."""
    return tuple(_sections()["list"][name][0].split())


@cache
def _sections() -> dict[str, dict[str, tuple[str, ...]]]:
    sections: dict[str, dict[str, tuple[str, ...]]] = {}
    for line in TABLES.read_text(encoding="utf-8").splitlines():
        if not line.startswith("# "):
            section, written, *columns = line.split("\t")
            sections.setdefault(section, {})[written] = tuple(columns)
    return sections
