"""Summary: the figures that are judged, out of the kept results: what must be reached, what is aimed at, what was measured.

In:    results/*.json
Out:   a table, as Markdown and as JSON; the table in README.md between its markers
Owns:  the limits
Never: measuring
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.bench.record import RESULTS, ROOT, Result, read

README = ROOT / "README.md"
BEGIN, END = "<!-- bench: begin -->", "<!-- bench: end -->"
LEAST_REPEATS = 3


@dataclass(frozen=True, slots=True)
class Judged:
    """One figure and its limits."""

    name: str
    """what the scenario calls it"""
    scenario: str
    label: str
    must: float
    aim: float
    unit: str = "x"
    less_is_better: bool = False

    def verdict(self, median: float) -> str:
        """aim, must or missed."""
        for limit, verdict in ((self.aim, "aim"), (self.must, "must")):
            if median <= limit if self.less_is_better else median >= limit:
                return verdict
        return "missed"

    def bound(self, limit: float) -> str:
        """A limit with its direction."""
        return f"{'≤' if self.less_is_better else '≥'} {limit:g}{self.suffix}"

    @property
    def suffix(self) -> str:
        """The unit, as it follows a number."""
        return f" {self.unit}" if self.unit else ""


CPU = (
    Judged("rtf_one_request", "b1", "real-time factor of one request, upstream / this engine", 1.8, 2.5),
    Judged("ttfb_streaming", "b2", "first audio of an exact stream, upstream / this service", 2.5, 6.0),
    Judged("audio_rate_to_upstream", "b3", "audio seconds a second, 8 in flight, this service / upstream", 8.0, 15.0),
    Judged("audio_rate_to_static", "b3", "the same, this service / static batches at their best size", 2.5, 5.0),
    Judged("rtf_growth", "b7", "real-time factor of a stream, 25 s / 5 s of audio", 1.1, 1.0, less_is_better=True),
    Judged("same_seed_equality", "b8", "same seed, same bytes: part of all comparisons, every number format", 1.0, 1.0, ""),
    Judged("added_by_serve_ms", "b10", "added by Ray Serve to the first audio", 15.0, 4.0, "ms", less_is_better=True),
)


def summarise(folder: Path = RESULTS) -> Result:
    """Every judged figure with its verdict; those without a result say so."""
    rows: list[dict[str, Any]] = []
    machines: dict[str, Mapping[str, Any]] = {}
    for figure in CPU:
        found = read(figure.scenario, folder)
        row: dict[str, Any] = {
            "figure": figure.name,
            "label": figure.label,
            "scenario": figure.scenario,
            "must": figure.bound(figure.must),
            "aim": figure.bound(figure.aim),
        }
        measured = None if found is None else found["judged"].get(figure.name)
        if found is None or measured is None:
            rows.append(row | {"measured": None, "verdict": "not measured"})
            continue
        row |= {"measured": measured, "shown": shown(measured, figure), "verdict": figure.verdict(measured["median"])}
        row |= {"commit": found["hardware"]["commit"], "quick": found["options"]["quick"]}
        machines[found["hardware"]["cpu"]] = found["hardware"]
        rows.append(row)
    return {"benchmark": "summary", "hardware": list(machines.values()), "figures": rows}


def shown(measured: Mapping[str, float | int], figure: Judged) -> str:
    """Median and range."""
    if measured["min"] == measured["max"]:
        return f"{measured['median']:.3g}{figure.suffix}"
    return f"{measured['median']:.3g}{figure.suffix} ({measured['min']:.3g} - {measured['max']:.3g})"


def markdown(summary: Result) -> str:
    """The table for people."""
    lines = ["| figure | must | aim | measured | verdict |", "|---|---|---|---|---|"]
    for row in summary["figures"]:
        cells = (f"{row['label']} ({row['scenario'].upper()})", row["must"], row["aim"])
        lines.append(f"| {' | '.join(cells)} | {row.get('shown', '')} | {row['verdict']} |")
    machines = "; ".join(f"{one['cores']} cores, {one['cpu']}, torch {one['torch']}" for one in summary["hardware"])
    commits = sorted({row["commit"] for row in summary["figures"] if "commit" in row})
    if machines:
        lines += ["", f"{machines}; commit {', '.join(commits)}."]
    return "\n".join(lines)


def write_readme(text: str, readme: Path = README) -> None:
    """Put the table between its markers.

    Raises:
        ValueError: the markers are not there.
    """
    page = readme.read_text()
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{readme.name} has no {BEGIN} ... {END}")
    readme.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")
