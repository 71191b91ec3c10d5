"""Summary: the judged figures of the kept results: limit, target and measured value.

In:    results/*.json
Out:   a table, as Markdown and as JSON; the tables in README.md and docs/benchmarks.md between their markers
Owns:  the limits
Never: measuring
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.bench.names import IN_PROCESS, SERVICE, UPSTREAM
from scripts.bench.record import RESULTS, ROOT, Result, read
from scripts.bench.timeline import CONTINUOUS_S

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
    Judged("rtf_one_request", "b1", "real-time factor of one request, upstream / this engine", 1.8, 2.5),
    Judged("rtf_through_serve", "b1", "the same, this service / this engine", 1.1, 1.03, less_is_better=True),
    Judged("ttfb_streaming", "b2", "first audio of an exact stream, upstream / this service", 6.5, 9.0),
    Judged("ttfb_low", "b2", "the same with `latency: low`", 10.0, 14.0),
    Judged("audio_rate_to_upstream", "b3", "seconds of audio per second, 8 in flight, this service / upstream", 16.0, 22.0),
    Judged("audio_rate_to_static", "b3", "the same, this service / static batches at their best size", 2.5, 5.0),
    Judged("smooth_listeners", "b5", "listeners at once of whom 95 % hear no gap", 5.0, 8.0, ""),
    Judged("house_core_ms", "b13", "core-time around the model for a second of audio", 3.5, 2.0, "ms", less_is_better=True),
    Judged("process_core_ms", "b13", "the same, in one process without Ray", 2.0, 1.0, "ms", less_is_better=True),
    Judged("step_int4_over_int8", "b16", "a decode step alone, int4 weights / int8 weights", 0.75, 0.6, less_is_better=True),
    Judged("added_by_serve_ms", "b10", "added by Ray Serve to the first audio", 15.0, 4.0, "ms", less_is_better=True),
    Judged("added_by_process_ms", "b10", "the same, in one process without Ray", 2.0, 1.0, "ms", less_is_better=True),
    Judged("added_by_socket_ms", "b14", "added by a socket to HTTP's first audio, p50", 5.0, 0.0, "ms", less_is_better=True),
    Judged("stalled_in_a_turn_ms", "b14", "longest stop of playback in a turn", 100.0, 0.0, "ms", less_is_better=True),
)


def summarise(folder: Path = RESULTS, figures: Sequence[Judged] = CPU) -> Result:
    """Returns judged figures with their verdicts, also those without a result."""
    rows: list[dict[str, Any]] = []
    machines: dict[str, Mapping[str, Any]] = {}
    for figure in figures:
        result = read(figure.scenario, folder)
        row: dict[str, Any] = {
            "figure": figure.name,
            "label": figure.label,
            "scenario": figure.scenario,
            "limit": figure.shown(figure.limit),
            "target": figure.shown(figure.target),
        }
        measured = None if result is None else result["judged"].get(figure.name)
        if result is None or measured is None:
            rows.append(row | {"measured": None, "verdict": NOT_MEASURED})
            continue
        row |= {"measured": measured, "shown": shown(measured, figure), "verdict": figure.verdict(measured["median"])}
        row |= {"commit": result["hardware"]["commit"], "quick": result["options"]["quick"], "format": number_format(result)}
        machines[result["hardware"]["cpu"]] = result["hardware"]
        rows.append(row)
    return {"benchmark": "summary", "hardware": list(machines.values()), "figures": rows}


def shown(measured: Mapping[str, float | int], figure: Judged) -> str:
    """Returns the median, and the range if there is one, with the unit."""
    if measured["min"] == measured["max"]:
        return f"{measured['median']:.3g}{figure.suffix}"
    return f"{measured['median']:.3g}{figure.suffix} ({measured['min']:.3g} - {measured['max']:.3g})"


def markdown(summary: Result) -> str:
    """Returns the judged figures as a table, with machine, number format and commit."""
    lines = ["| figure | limit | target | measured | result |", "|---|---|---|---|---|"]
    for row in summary["figures"]:
        cells = (f"{row['label']} ({row['scenario'].upper()})", row["limit"], row["target"])
        lines.append(f"| {' | '.join(cells)} | {row.get('shown', '')} | {row['verdict']} |")
    if summary["hardware"]:
        lines += ["", measured_on(summary)]
    return "\n".join(lines)


def measured_on(summary: Result) -> str:
    """Returns machine, number format and commit in one sentence."""
    machines = "; ".join(
        f"{machine['cores']} cores, {machine['cpu']}, torch {machine['torch']}" for machine in summary["hardware"]
    )
    commits = sorted({row["commit"] for row in summary["figures"] if "commit" in row})
    quick = "; `--quick`" if any(row.get("quick") for row in summary["figures"]) else ""
    formats = " and ".join(sorted({row["format"] for row in summary["figures"] if row.get("format")}))
    return f"{machines}; {formats}; commit {', '.join(commits)}{quick}."


def reader_table(folder: Path = RESULTS) -> str | None:
    """Returns the ChatTTS package beside this service in plain words, or None while B1, B2 or B3 has no result."""
    alone, single, crowd = (read(name, folder) for name in ("b1", "b2", "b3"))
    if alone is None or single is None or crowd is None:
        return None
    alone_s = [f"{alone['rtf_4_s'][name]['median']:.2f} s" for name in (UPSTREAM, IN_PROCESS)]
    streams = [single["systems"][name] for name in (UPSTREAM, SERVICE)]
    rates = [crowd["systems"][name]["8"]["audio_s_per_s"]["median"] for name in (UPSTREAM, SERVICE)]
    first = [f"{stream['ttfb_p50_s']['median']:.2f} s" for stream in streams]
    pauses = [f"{stream['underruns']['median']:.0f} ({stream['stalled_s']['median']:.1f} s in all)" for stream in streams]
    factors = [result["judged"][name]["median"] for result, name in zip((alone, single, crowd), READER_FACTORS, strict=True)]
    rows = (
        ("compute time per second of audio, one request", *alone_s, factors[0]),
        ("first audio of a stream", *first, factors[1]),
        ("pauses while that stream plays", *pauses, None),
        ("seconds of audio per second, 8 requests at once", *(f"{rate:.2f}" for rate in rates), factors[2]),
    )
    lines = ["| | ChatTTS package | this service | |", "|---|---|---|---|"]
    lines += [
        f"| {label} | {up} | {ours} | {'' if factor is None else f'{factor:.1f} x'} |" for label, up, ours, factor in rows
    ]
    answer = speed_answer(factors, crowd, read("b4", folder))
    shown_here = [figure for figure in CPU if figure.name in READER_FACTORS]
    return "\n".join([*answer, "", *lines, "", measured_on(summarise(folder, shown_here))])


def speed_answer(factors: list[float], crowd: Result, arrivals: Result | None) -> list[str]:
    """Returns, as lines of a paragraph, how fast the service is and at which load its streams have no gap."""
    cores, gaps = crowd["hardware"]["cores"], 100 - 100 * crowd["systems"][SERVICE]["8"]["continuous"]["median"]
    alone, _, eight = factors
    lines = [
        f"**How fast is it?** On {cores} CPU cores, it is {alone:.1f} times as fast as the ChatTTS package for one request,",
        f"and {eight:.1f} times for eight at once. Speed is not smoothness: with eight at once, {gaps:.0f} % of the streams",
        f"had a gap of {CONTINUOUS_S:g} s or more.",
    ]
    for row in smooth_rates(arrivals)[-1:]:
        rate = f"{row['rate']:.2f} requests per second, at random times"
        lines[-1] += f" At {rate}, none of the {row['answers']} streams had one."
    return lines


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


def path_table(folder: Path = RESULTS) -> str | None:
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


def gap_table(folder: Path = RESULTS) -> str | None:
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


def write_page(sections: Mapping[str, str], page: Path) -> None:
    """Puts each text between the markers of its name.

    Raises:
        ValueError: the markers are not there.
    """
    text = page.read_text()
    for name, section in sections.items():
        before, begin, rest = text.partition(f"<!-- {name}: begin -->")
        _, end, after = rest.partition(f"<!-- {name}: end -->")
        if not begin or not end:
            raise ValueError(f"{page.name} has no <!-- {name}: begin --> ... <!-- {name}: end -->")
        text = f"{before}{begin}\n{section}\n{end}{after}"
    page.write_text(text)


def page_sections(folder: Path = RESULTS) -> dict[Path, dict[str, str]]:
    """Returns every part of the pages that comes from results: page -> marker -> text."""
    parts = {"benchmarks": markdown(summarise(folder)), "gaps": gap_table(folder), "data paths": path_table(folder)}
    readers = reader_table(folder)
    return {
        README: {"benchmarks": readers} if readers else {},
        BENCHMARKS: {name: text for name, text in parts.items() if text},
    }


def write_pages(folder: Path = RESULTS) -> None:
    """Updates the tables of README.md and docs/benchmarks.md.

    Raises:
        ValueError: a page lacks a marker.
    """
    for page, sections in page_sections(folder).items():
        write_page(sections, page)
