"""Glossary: the words of this project, in docs/architecture.md, each with the docstring of its class.

In:    TERMS, and the sources of pipeline/ and serve/
Out:   docs/architecture.md, with the table between its markers
"""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/architecture.md"
BEGIN, END = "<!-- glossary: begin -->\n", "<!-- glossary: end -->"
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


def files() -> dict[Path, str]:
    """Returns path -> text of the page with the present glossary."""
    rows = "".join(f"| {term} | {meaning(*place)} |\n" for term, place in TERMS.items())
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    return {PAGE: f"{before}{BEGIN}| word | meaning |\n|---|---|\n{rows}{END}{rest.partition(END)[2]}"}
