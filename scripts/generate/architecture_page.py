"""Architecture page: its lists, from the imports, and its glossary, each word with the docstring of its class.

In:    TERMS, and the sources of pipeline/ and serve/
Out:   docs/architecture.md, with what stands between its markers
"""

import ast
from pathlib import Path

from scripts.bench.summary import with_sections

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/architecture.md"
TREES = ("serve", "pipeline")
TERMS = {
    "admission": ("serve/access", "AdmissionLimiter"),
    "attempt": ("pipeline", "Takes"),
    "block": ("pipeline/types", "StepBlock"),
    "charge": ("serve/access", "Charge"),
    "chunk": ("pipeline/types", "AudioChunk"),
    "context": ("serve/speech", "Context"),
    "degradation": ("serve/config", "DegradationStep"),
    "job": ("serve/jobs", "JobRecord"),
    "lane": ("pipeline/types", "Lane"),
    "part": ("pipeline/books", "Part"),
    "passage": ("pipeline/types", "Passage"),
    "plan": ("pipeline/types", "SpeechPlan"),
    "preemption": ("pipeline/engine", "PreemptedSlot"),
    "prompt": ("pipeline/types", "Prompt"),
    "purge generation": ("pipeline/cache", "PurgeGenerations"),
    "quarantine": ("serve/resilience", "Quarantine"),
    "round": ("pipeline/engine", "RoundOutput"),
    "segment": ("pipeline/types", "Segment"),
    "sequence": ("pipeline/engine", "Sequence"),
    "session": ("serve/speech", "SpeechSession"),
    "slot": ("pipeline/engine", "SlotTable"),
    "span": ("pipeline/types", "Span"),
    "tenant": ("serve/access", "Caller"),
    "turn": ("pipeline/types", "Turn"),
    "version": ("serve/config", "Version"),
    "window": ("pipeline/vocoder", "Window"),
}
"""word -> the folder below which its class is found, and the class"""


def meaning(folder: str, name: str) -> str:
    """Returns the first paragraph of a class's docstring, on one line.

    Raises:
        LookupError: not exactly one such class below the folder has a docstring.
    """
    texts = [
        text
        for path in sorted((ROOT / folder).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef) and node.name == name and (text := ast.get_docstring(node))
    ]
    if len(texts) != 1:
        raise LookupError(f"glossary: {len(texts)} documented classes {name} below {folder}/, one is needed")
    return " ".join(texts[0].partition("\n\n")[0].split())


def glossary() -> str:
    """Returns the table of TERMS."""
    return "\n".join(["| word | meaning |", "|---|---|", *(f"| {term} | {meaning(*place)} |" for term, place in TERMS.items())])


def imports_of(tree: str) -> dict[str, set[str]]:
    """Returns room -> the rooms of the same tree that it imports. A room is a folder directly below the tree."""
    rooms: dict[str, set[str]] = {}
    for path in sorted((ROOT / tree).rglob("*.py")):
        room = path.relative_to(ROOT / tree).parts[0]
        if path.parent == ROOT / tree:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            rooms.setdefault(room, set()).update(name.split(".")[1] for name in names if name.startswith(f"{tree}."))
    return {room: (below - {room}) & rooms.keys() for room, below in rooms.items()}


def floors(tree: str) -> str:
    """Returns the list of a tree from its roof down: the rooms that each imports and does not also reach through a third."""
    rooms = imports_of(tree)

    def reached(room: str) -> set[str]:
        return {below for direct in rooms.get(room, ()) for below in (direct, *reached(direct))}

    def direct(room: str) -> list[str]:
        return sorted(below for below in rooms[room] if not any(below in reached(other) for other in rooms[room] - {below}))

    roof_first = sorted(rooms, key=lambda room: (-len(reached(room)), room))
    lines = (f"{room:<15}{', '.join(direct(room))}".rstrip() for room in roof_first)
    return "\n".join(["```text", *lines, "```"])


def files() -> dict[Path, str]:
    """Returns path -> text of the page with the present lists and glossary."""
    return {PAGE: with_sections(PAGE, {"glossary": glossary()} | {f"imports of {tree}": floors(tree) for tree in TREES})}
