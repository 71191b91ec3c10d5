"""Summary: the judged figures of the kept results: limit, target and measured value.

In:    results/SET/results.json, a set for each kind of processor
Out:   a table, as Markdown; the tables in README.md and docs/benchmarks.md between their markers
Owns:  the limits, which the worst set has to keep
Never: measuring
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.bench.names import IN_PROCESS, SERVICE, UPSTREAM
from scripts.bench.record import RESULTS, ROOT, SETS, Result, read
from scripts.bench.timeline import CONTINUOUS_S

WHOLE = "epyc"  # the set whose other tables the pages show
README = ROOT / "README.md"
BENCHMARKS = ROOT / "docs/benchmarks.md"
PATH_NAMES = {
    IN_PROCESS: "without Serve",
    "fast": "fast path (`make serve`)",
    "plain": "default path (`serve run`)",
    "process": "one process",
}
PATH_FIGURES = {
    "ttfb_p50_s": ("first audio byte, one client, p50 (ms)", 1e3),
    "ttfb_p99_s": ("the same, p99 (ms)", 1e3),
    "hop_p50_s": ("a request that does no work, p50 (ms)", 1e3),
    "ttfb_crowd_p50_s": ("first audio byte, eight clients, p50 (ms)", 1e3),
    "audio_s_per_s": ("seconds of audio per second, eight clients", 1.0),
    "refusal_p50_s": ("refusal under full load, p50 (ms)", 1e3),
    "slots_free_s": ("slots free after a client disconnects (ms)", 1e3),
}

TARGET_REACHED, LIMIT_KEPT, LIMIT_MISSED, NOT_MEASURED = "target reached", "limit kept", "limit missed", "not measured"
READER_FACTORS = ("rtf_one_request", "ttfb_streaming", "audio_rate_to_upstream")


@dataclass(frozen=True, slots=True)
class Judged:
    """One figure and its limits."""

    name: str
    """its name in the scenario's result"""
    scenario: str
    label: str
    limit: float
    target: float
    unit: str = "x"
    less_is_better: bool = False

    def verdict(self, median: float) -> str:
        """Returns the best bound that a median keeps."""
        for bound, verdict in ((self.target, TARGET_REACHED), (self.limit, LIMIT_KEPT)):
            if median <= bound if self.less_is_better else median >= bound:
                return verdict
        return LIMIT_MISSED

    def shown(self, bound: float) -> str:
        """Returns a bound as text, with its direction and unit."""
        return f"{'≤' if self.less_is_better else '≥'} {bound:g}{self.suffix}"

    @property
    def suffix(self) -> str:
        """Returns the unit as it follows a number."""
        return f" {self.unit}" if self.unit else ""


CPU = (
    Judged("rtf_one_request", "b1", "real-time factor of one request, upstream / this engine", 7.0, 10.0),
    Judged("rtf_through_serve", "b1", "the same, this service / this engine", 1.1, 1.03, less_is_better=True),
    Judged("ttfb_streaming", "b2", "first audio of an exact stream, upstream / this service", 8.0, 12.0),
    Judged("ttfb_low", "b2", "the same with `latency: low`", 14.0, 20.0),
    Judged("audio_rate_to_upstream", "b3", "seconds of audio per second, 8 in flight, this service / upstream", 16.0, 20.0),
    Judged("audio_rate_to_static", "b3", "the same, this service / static batches at their best size", 2.5, 5.0),
    Judged("prompt_listeners", "b5", "listeners without a gap whose first audio comes within 1 s, 95 % each", 8.0, 10.0, ""),
    Judged("smooth_listeners", "b5", "listeners without a gap, however long they wait, 95 %", 5.0, 8.0, ""),
    Judged("bulk_rate", "b19", "seconds of audio per second of a book, 16 parts in flight", 8.0, 10.0, ""),
    Judged("core_hours", "b19", "the same: core-hours for an hour of audio", 0.25, 0.2, "", less_is_better=True),
    Judged("house_core_ms", "b13", "core-time around the model for a second of audio", 3.5, 2.0, "ms", less_is_better=True),
    Judged("process_core_ms", "b13", "the same, in one process without Ray", 2.0, 1.0, "ms", less_is_better=True),
    Judged("step_int4_over_int8", "b16", "a decode step alone, int4 weights / int8 weights", 0.75, 0.6, less_is_better=True),
    Judged("added_by_serve_ms", "b10", "added by Ray Serve to the first audio", 15.0, 4.0, "ms", less_is_better=True),
    Judged("added_by_process_ms", "b10", "the same, in one process without Ray", 2.0, 1.0, "ms", less_is_better=True),
    Judged("added_by_socket_ms", "b14", "added by a socket to HTTP's first audio, p50", 5.0, 0.0, "ms", less_is_better=True),
    Judged("page_first_audio_ms", "b14", "first audio of an example of the page, p50", 150.0, 100.0, "ms", less_is_better=True),
    Judged("stalled_in_a_turn_ms", "b14", "longest stop of playback in a turn", 100.0, 0.0, "ms", less_is_better=True),
)


def has(result: Result | None, figure: Judged) -> bool:
    """Returns True if a result has the figure."""
    return result is not None and figure.name in result["judged"]


def summarise(root: Path = RESULTS, figures: Sequence[Judged] = CPU) -> Result:
    """Returns judged figures, each with the value of every set and the verdict on the worst, also those without a result."""
    rows: list[dict[str, Any]] = []
    machines: dict[str, Result] = {}
    for figure in figures:
        results = {name: read(figure.scenario, root / name) for name in SETS}
        values = {name: result["judged"][figure.name] for name, result in results.items() if has(result, figure)}
        for name in values:
            machine = machines.setdefault(name, {**results[name]["hardware"], "commits": set(), "format": "", "quick": False})
            machine["commits"].add(results[name]["hardware"]["commit"])
            machine["format"] = number_format(results[name]) or machine["format"]
            machine["quick"] |= results[name]["options"]["quick"]
        medians = [value["median"] for value in values.values()]
        worst = (max if figure.less_is_better else min)(medians, default=None)
        rows.append(
            {
                "figure": figure.name,
                "label": f"{figure.label} ({figure.scenario.upper()})",
                "limit": figure.shown(figure.limit),
                "target": figure.shown(figure.target),
                "shown": {name: shown(value, figure) for name, value in values.items()},
                "verdict": NOT_MEASURED if worst is None else figure.verdict(worst),
            }
        )
    return {"sets": machines, "figures": rows}


def shown(measured: Mapping[str, float | int], figure: Judged) -> str:
    """Returns the median, and the range if there is one, with the unit."""
    if measured["min"] == measured["max"]:
        return f"{measured['median']:.3g}{figure.suffix}"
    return f"{measured['median']:.3g}{figure.suffix} ({measured['min']:.3g} - {measured['max']:.3g})"


def markdown(summary: Result) -> str:
    """Returns the judged figures as a table with a column for each set, and the machines below it."""
    names = list(summary["sets"])
    head = ["figure", "limit", "target", *(SETS[name] for name in names), "the worst"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for row in summary["figures"]:
        cells = (row["label"], row["limit"], row["target"], *(row["shown"].get(name, "") for name in names), row["verdict"])
        lines.append(f"| {' | '.join(cells)} |")
    formats = {summary["sets"][name]["format"] for name in names}
    common = formats.pop() if len(formats) == 1 else ""
    machines = [f"- {measured_on(name, summary['sets'][name], common)}" for name in names]
    return "\n".join([*lines, "", *machines, *(["", f"All: {common}."] if common else [])])


def measured_on(name: str, machine: Mapping[str, Any], common: str) -> str:
    """Returns machine, number format, if it is not the common one, and commits of a set in one sentence."""
    quick = "; `--quick`" if machine["quick"] else ""
    commits = ", ".join(sorted(machine["commits"]))
    own = "" if machine["format"] == common else f"; {machine['format']}"
    return f"{SETS[name]}: {machine['cores']} cores, torch {machine['torch']}{own}; commit {commits}{quick}."


def reader_table(root: Path = RESULTS) -> str | None:
    """Returns the ChatTTS package beside this service in plain words, or None while no set has B1, B2 and B3."""
    sets = {name: [read(scenario, root / name) for scenario in ("b1", "b2", "b3")] for name in SETS}
    sets = {name: results for name, results in sets.items() if all(results)}
    if not sets:
        return None
    head = ("compute time per second of audio, one request", "first audio of a stream", "seconds of audio a second, 8 requests")
    lines = [f"| ChatTTS package → this service | {' | '.join(head)} |", "|---|---|---|---|"]
    factors = {}
    for name, (alone, single, crowd) in sets.items():
        factors[name] = [
            result["judged"][figure]["median"] for result, figure in zip((alone, single, crowd), READER_FACTORS, strict=True)
        ]
        values = (
            [f"{alone['rtf_4_s'][system]['median']:.2f} s" for system in (UPSTREAM, IN_PROCESS)],
            [f"{single['systems'][system]['ttfb_p50_s']['median']:.2f} s" for system in (UPSTREAM, SERVICE)],
            [f"{crowd['systems'][system]['8']['audio_s_per_s']['median']:.2f}" for system in (UPSTREAM, SERVICE)],
        )
        cells = (f"{up} → {ours}: {factor:.1f} x" for (up, ours), factor in zip(values, factors[name], strict=True))
        lines.append(f"| {SETS[name]} | {' | '.join(cells)} |")
    return "\n".join([*speed_answer(factors, {name: results[-1] for name, results in sets.items()}), "", *lines])


def speed_answer(factors: Mapping[str, Sequence[float]], crowds: Mapping[str, Result]) -> list[str]:
    """Returns, as lines of a paragraph, how fast the service is, and how many of the streams have a gap meanwhile."""

    def between(numbers: Sequence[float], digits: int = 0) -> str:
        low, high = f"{min(numbers):.{digits}f}", f"{max(numbers):.{digits}f}"
        return low if low == high else f"{low} to {high}"

    alone, _, eight = (list(column) for column in zip(*factors.values(), strict=True))
    cores = {crowd["hardware"]["cores"] for crowd in crowds.values()}
    gaps = [100 - 100 * crowd["systems"][SERVICE]["8"]["continuous"]["median"] for crowd in crowds.values()]
    return [
        f"**How fast is it?** On {between(sorted(cores))} CPU cores it is {between(alone)} times as fast as the ChatTTS",
        f"package for one request and {between(eight)} times for eight at once, by processor. Speed is not",
        f"smoothness: with eight at once, {between(gaps)} % of the streams had a gap of {CONTINUOUS_S:g} s or more.",
    ]


def smooth_rates(arrivals: Result | None) -> list[Result]:
    """Returns the rates of B4 up to the highest one that is smooth."""
    return [row for row in arrivals["rates"] if row["rate"] <= arrivals["smooth_knee"]] if arrivals else []


def number_format(result: Result) -> str:
    """Returns the number formats of the service; empty for a server that was reached by URL."""
    service = result["options"].get("service")
    if service is None:
        return ""
    changes = service["changes"]
    parts = {"weights": "weights", "keys and values": "kv"}
    formats = {name: changes.get(f"pipeline.engine.{key}", "dtype") for name, key in parts.items()}
    rounded = [f"{value} {name}" for name, value in formats.items() if value != "dtype"]
    return f"this service in {changes['pipeline.engine.dtype']}" + (f" with {' and '.join(rounded)}" if rounded else "")


def path_table(folder: Path) -> str | None:
    """Returns the table of B10, or None while there is no result."""
    result = read("b10", folder)
    if result is None:
        return None
    systems: dict[str, Any] = result["systems"]
    lines = ["| | " + " | ".join(PATH_NAMES[name] for name in systems) + " |", "|---" * (len(systems) + 1) + "|"]
    for key, (label, scale) in PATH_FIGURES.items():
        cells = [f"{figures[key]['median'] * scale:.3g}" if key in figures else "" for figures in systems.values()]
        lines.append(f"| {label} | {' | '.join(cells)} |")
    hardware, rounds = result["hardware"], result["options"]["repeats"]
    lines += ["", f"Medians of {rounds} rounds, demo checkpoint, {hardware['cores']} cores; commit {hardware['commit']}."]
    return "\n".join(lines)


def gap_table(folder: Path) -> str | None:
    """Returns the share of streams without a gap at each load of B3 and B4, or None while neither has a result."""
    crowds, arrivals = read("b3", folder), read("b4", folder)
    lines = [
        "| load on this service | seconds of audio per second | first audio, p95 | streams | without a gap |",
        "|---|---|---|---|---|",
    ]
    for count, figures in (crowds or {"systems": {}})["systems"].get(SERVICE, {}).items():
        load = "one request at a time" if count == "1" else f"{count} in flight"
        medians = {name: figures[name]["median"] for name in ("ttfb_p95_s", "continuous")}
        medians["answers"] = figures["answers"]["median"] * figures["answers"]["n"]
        lines.append(gap_line(f"{load} (B3)", f"{figures['audio_s_per_s']['median']:.3g}", medians))
    for row in (arrivals or {"rates": []})["rates"]:
        load = f"{row['rate']:.2f} requests per second, at random times (B4)"
        lines.append(gap_line(load, "", row))
    if len(lines) == 2:
        return None
    lines += ["", f"A gap is a pause of {CONTINUOUS_S:g} s or more."]
    for row in smooth_rates(arrivals)[-1:]:
        lines[-1] += f" The highest rate without one is {row['rate']:.2f} requests per second, at random times."
    return "\n".join(lines)


def gap_line(load: str, rate: str, figures: Mapping[str, float]) -> str:
    """Returns one row of the gap table.

    Args:
        load: the load, in words.
        rate: seconds of audio per second, or empty.
        figures: the time to first audio [s], the number of streams, and the share of them without a gap.
    """
    cells = (load, rate, f"{figures['ttfb_p95_s']:.2f} s", f"{figures['answers']:.0f}", f"{100 * figures['continuous']:.0f} %")
    return f"| {' | '.join(cells)} |"


def with_sections(page: Path, sections: Mapping[str, str]) -> str:
    """Returns the text of a page with each section between the markers of its name; ValueError if they are not there."""
    text = page.read_text(encoding="utf-8")
    for name, section in sections.items():
        before, begin, rest = text.partition(f"<!-- {name}: begin -->")
        _, end, after = rest.partition(f"<!-- {name}: end -->")
        if not begin or not end:
            raise ValueError(f"{page.name} has no <!-- {name}: begin --> ... <!-- {name}: end -->")
        text = f"{before}{begin}\n{section}\n{end}{after}"
    return text


def write_page(sections: Mapping[str, str], page: Path) -> None:
    """Puts each text between the markers of its name; raises as with_sections."""
    page.write_text(with_sections(page, sections))


def page_sections(root: Path = RESULTS) -> dict[Path, dict[str, str]]:
    """Returns every part of the pages that comes from results: page -> marker -> text."""
    whole = root / WHOLE
    parts = {"benchmarks": markdown(summarise(root)), "gaps": gap_table(whole), "data paths": path_table(whole)}
    readers = reader_table(root)
    return {
        README: {"benchmarks": readers} if readers else {},
        BENCHMARKS: {name: text for name, text in parts.items() if text},
    }


def write_pages(root: Path = RESULTS) -> None:
    """Updates the tables of README.md and docs/benchmarks.md.

    Raises:
        ValueError: a page lacks a marker.
    """
    for page, sections in page_sections(root).items():
        write_page(sections, page)
