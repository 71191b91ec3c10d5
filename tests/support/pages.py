"""The pages people read: their text, their commands and their examples."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_NAMES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "k8s/README.md", "k8s/monitoring/runbook.md")

PAGES = {
    str(path.relative_to(ROOT)): path.read_text()
    for path in (*(ROOT / name for name in _NAMES), *sorted((ROOT / "docs").rglob("*.md")))
    if path.exists()
}
"""path -> text. The change log is none of them: it names what is gone."""


def section(page: str, title: str) -> str:
    """The text below one heading of a page, up to the next heading.

    Raises:
        KeyError: there is no such page, or no such heading in it.
    """
    match = re.search(rf"^##+ {re.escape(title)}\n(.*?)(?=^##|\Z)", PAGES[page], re.MULTILINE | re.DOTALL)
    if match is None:
        raise KeyError(f"{page} has no section {title}")
    return match[1]


def table(page: str, title: str) -> list[list[str]]:
    """The rows of the first table below one heading of a page, as cells, without its head."""
    lines = re.findall(r"(?:^\|.*\n)+", section(page, title), re.MULTILINE)[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


def code_blocks(text: str) -> list[str]:
    """The indented blocks of a text, without their indentation."""
    blocks = re.findall(r"(?:^    .*\n)+", text, re.MULTILINE)
    return [re.sub(r"^    ", "", block, flags=re.MULTILINE) for block in blocks]


def commands(*tools: str) -> list[str]:
    """Every command line of the pages that begins with one of these words, comments left out."""
    words = "|".join(map(re.escape, tools))
    unique: dict[str, None] = {}
    for text in PAGES.values():
        lines = re.findall(rf"^    (?:kubectl .* -- )?((?:{words}) .*)$", text, re.MULTILINE)
        lines += re.findall(rf"`((?:{words}) [^`]+)`", text)
        unique |= dict.fromkeys(re.sub(r"\s+#.*$", "", line) for line in lines)
    return list(unique)
