"""Plots of the results: the comparison of the systems, who holds the cores.

In:    a set of results
Out:   PNG files beside them
Never: measuring
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("agg")

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from scripts.bench.names import IN_PROCESS, SERVICE, STATIC, UPSTREAM, URL, kind, label
from scripts.bench.record import Result, read

COLOURS = {UPSTREAM: "#9aa0a6", STATIC: "#e8a33d", SERVICE: "#1a73e8", IN_PROCESS: "#8ab4f8", URL: "#1a73e8"}
SIZE = (7.0, 3.6)
DPI = 140


def draw_all(folder: Path) -> list[Path]:
    """Draws every plot that has a result. Returns the files."""
    drawn = []
    for file, scenario, draw in PLOTS:
        result = read(scenario, folder)
        if result is None:
            continue
        figure = Figure(figsize=SIZE, dpi=DPI, layout="constrained")
        axes = figure.subplots()
        draw(axes, result)
        axes.spines[["top", "right"]].set_visible(False)
        figure.savefig(folder / file)
        drawn.append(folder / file)
    return drawn


def draw_comparison(axes: Axes, result: Result) -> None:
    """Draws B3: seconds of audio per second of every system, one and eight in flight."""
    systems: dict[str, Any] = result["systems"]
    names = [name for name in systems if kind(name) != STATIC or name == result.get("best_batch")]
    loads = sorted({int(clients) for name in names for clients in systems[name]})
    for number, name in enumerate(names):
        at = [index for index, clients in enumerate(loads) if str(clients) in systems[name]]
        rates = [systems[name][str(loads[index])]["audio_s_per_s"] for index in at]
        medians = [rate["median"] for rate in rates]
        errors = [[rate["median"] - rate["min"] for rate in rates], [rate["max"] - rate["median"] for rate in rates]]
        width = 0.8 / len(names)
        places = [index + (number - (len(names) - 1) / 2) * width for index in at]
        colour = COLOURS[kind(name)]
        bars = axes.bar(places, medians, width, yerr=errors, capsize=2, color=colour, label=label(name))
        axes.bar_label(bars, fmt="%.2f", padding=2, fontsize=8)
    axes.set_xticks(range(len(loads)), [f"{clients} in flight" for clients in loads])
    axes.set_ylabel("seconds of audio per second")
    axes.legend(frameon=False, fontsize=8)


def draw_account(axes: Axes, result: Result) -> None:
    """Draws B15: which processes hold the cores, stacked, over time."""
    timeline, cores = result["timeline"], result["cores"]
    kinds = sorted(cores, key=lambda kind: -cores[kind]["running"])
    colours = dict(zip(kinds, ("#1a73e8", "#8ab4f8", "#e8a33d", "#f6d08a", "#9aa0a6", "#c8ccd0", "#e3e5e8"), strict=False))
    axes.stackplot(
        timeline["times_s"],
        [timeline["cores"][kind] for kind in kinds],
        labels=[f"{kind} {cores[kind]['running']:.2f}" for kind in kinds],
        colors=[colours.get(kind, "#e3e5e8") for kind in kinds],
    )
    axes.set_xlabel("seconds of the load")
    axes.set_ylabel("cores in use")
    axes.legend(frameon=False, fontsize=7, ncols=4, loc="upper center", bbox_to_anchor=(0.5, 1.2))


PLOTS: tuple[tuple[str, str, Callable[[Axes, Result], None]], ...] = (
    ("comparison.png", "b3", draw_comparison),
    ("cores.png", "b15", draw_account),
)
