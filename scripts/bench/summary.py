"""Summary: the figures that are judged, out of the kept results: what must be reached, what is aimed at, what was measured.

In:    results/*.json
Out:   a table, as Markdown and as JSON; the tables in README.md between their markers
Owns:  the limits
Never: measuring
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.bench.record import RESULTS, ROOT, Result, read
from scripts.bench.timeline import CONTINUOUS_S

README = ROOT / "README.md"
PLOT = "comparison.png"
SERVICE = "P"

PATH_NAMES = {"P0": "without Serve", "fast": "fast path (`make serve`)", "plain": "default path (`serve run`)"}
PATH_FIGURES = {
    "ttfb_p50_s": ("first audio byte, one client, p50 (ms)", 1e3),
    "ttfb_p99_s": ("the same, p99 (ms)", 1e3),
    "hop_p50_s": ("a request that does nothing, p50 (ms)", 1e3),
    "ttfb_crowd_p50_s": ("first audio byte, eight clients, p50 (ms)", 1e3),
    "audio_s_per_s": ("audio seconds a second, eight clients", 1.0),
    "refusal_p50_s": ("refusal while full, p50 (ms)", 1e3),
    "leave_s": ("slots free after a client hangs up (ms)", 1e3),
}


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
        row |= {"commit": found["hardware"]["commit"], "quick": found["options"]["quick"], "format": number_format(found)}
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
        quick = "; `--quick`" if any(row.get("quick") for row in summary["figures"]) else ""
        formats = " and ".join(sorted({row["format"] for row in summary["figures"] if row.get("format")}))
        lines += ["", f"{machines}; {formats}; commit {', '.join(commits)}{quick}."]
    return "\n".join(lines)


def number_format(result: Result) -> str:
    """What the service computed with; nothing is said of one that somebody else runs."""
    service = result["options"].get("service")
    if service is None:
        return ""
    changes = service["changes"]
    parts = {"weights": "weights", "keys and values": "kv"}
    formats = {name: changes.get(f"pipeline.engine.{key}", "dtype") for name, key in parts.items()}
    rounded = [f"{value} {name}" for name, value in formats.items() if value != "dtype"]
    return f"this service in {changes['pipeline.engine.dtype']}" + (f" with {' and '.join(rounded)}" if rounded else "")


def path_table(folder: Path = RESULTS) -> str | None:
    """B10's table, or None while there is no result."""
    found = read("b10", folder)
    if found is None:
        return None
    systems: dict[str, Any] = found["systems"]
    lines = ["| | " + " | ".join(PATH_NAMES[name] for name in systems) + " |", "|---" * (len(systems) + 1) + "|"]
    for key, (label, scale) in PATH_FIGURES.items():
        cells = [f"{figures[key]['median'] * scale:.3g}" if key in figures else "" for figures in systems.values()]
        lines.append(f"| {label} | {' | '.join(cells)} |")
    hardware, rounds = found["hardware"], found["options"]["repeats"]
    lines += ["", f"Medians of {rounds} rounds, demo checkpoint, {hardware['cores']} cores; commit {hardware['commit']}."]
    return "\n".join(lines)


def gap_table(folder: Path = RESULTS) -> str | None:
    """How many listeners heard no gap at each load of B3 and B4, or None while there is neither."""
    crowds, arrivals = read("b3", folder), read("b4", folder)
    lines = [
        "| load on this service | audio seconds a second | first audio, p95 | streams without a gap |",
        "|---|---|---|---|",
    ]
    for count, figures in (crowds or {"systems": {}})["systems"].get(SERVICE, {}).items():
        load = "one request at a time" if count == "1" else f"{count} in flight"
        medians = {name: figures[name]["median"] for name in ("audio_s_per_s", "ttfb_p95_s", "continuous")}
        lines.append(gap_line(f"{load} (B3)", f"{medians['audio_s_per_s']:.3g}", medians["ttfb_p95_s"], medians["continuous"]))
    for row in (arrivals or {"rates": []})["rates"]:
        load = f"{row['rate']:.2f} requests a second, at random times (B4)"
        lines.append(gap_line(load, "", row["ttfb_p95_s"], row["continuous"]))
    if len(lines) == 2:
        return None
    smooth = arrivals and arrivals["smooth_knee"]
    if smooth:
        lines += [
            "",
            f"A gap is a pause of {CONTINUOUS_S:g} s or more: none up to {smooth:.2f} requests a second at random times.",
        ]
    return "\n".join(lines)


def gap_line(load: str, rate: str, first_audio_s: float, continuous: float) -> str:
    """One line of that table."""
    return f"| {load} | {rate} | {first_audio_s:.2f} s | {100 * continuous:.0f} % |"


def write_readme(sections: Mapping[str, str], readme: Path = README) -> None:
    """Put each text between the markers of its name.

    Raises:
        ValueError: the markers are not there.
    """
    page = readme.read_text()
    for name, text in sections.items():
        before, begin, rest = page.partition(f"<!-- {name}: begin -->")
        _, end, after = rest.partition(f"<!-- {name}: end -->")
        if not begin or not end:
            raise ValueError(f"{readme.name} has no <!-- {name}: begin --> ... <!-- {name}: end -->")
        page = f"{before}{begin}\n{text}\n{end}{after}"
    readme.write_text(page)


def readme_sections(folder: Path = RESULTS) -> dict[str, str]:
    """Every part of the README that comes from results."""
    first, gaps, paths = markdown(summarise(folder)), gap_table(folder), path_table(folder)
    if gaps:
        first += f"\n\nThese rates count audio, whatever the pauses. At which load a listener hears none:\n\n{gaps}"
    if (folder / PLOT).exists():
        first += f"\n\n![audio seconds a second, one and eight in flight](scripts/bench/results/{PLOT})"
    return {"benchmarks": first, **({"data paths": paths} if paths else {})}
