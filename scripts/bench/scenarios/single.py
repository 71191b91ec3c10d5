"""B1, one request: how long it takes, what a decode step costs alone and with eight, and what the vocoder costs.

U against P0: the same work in one process each, so that Serve is no part of it. "decode" is the loop alone, "whole" is text
to the last sample, buffered. The vocoder is P0's, in core-seconds a second of audio: scripts/operate/capacity.py reads them.
"""

from rich.table import Table

from pipeline.spec import STEPS_PER_SECOND
from scripts.bench.bench import Bench, Report
from scripts.bench.show import physics_line, shown
from scripts.bench.timeline import spread

SYSTEMS = ("U", "P0")
ROWS = (1, 8)


def run(bench: Bench) -> Report:
    """Whole requests, then the decode loop."""
    lengths, decoded_s = ((4.0,), 2.0) if bench.options.quick else ((4.0, 13.0), 4.0)
    taken: dict[str, dict[float, list[float]]] = {name: {length: [] for length in lengths} for name in SYSTEMS}
    for length in lengths:
        for turn, name in bench.turns(SYSTEMS):
            system = bench.speaker(name)
            bench.say(f"{name}, {length:g} s of audio, round {turn + 1}")
            line = bench.alone(system, bench.utterance(length, turn), streamed=False)
            taken[name][length].append(line.taken_s / line.audio_s)
    steps: dict[str, dict[int, list[float]]] = {name: {rows: [] for rows in ROWS} for name in SYSTEMS}
    for rows in ROWS:
        batch = [bench.utterance(decoded_s, "decode", row) for row in range(rows)]
        for turn, name in bench.turns(SYSTEMS):
            system = bench.upstream() if name == "U" else bench.ours(bench.options.settings)
            bench.say(f"{name}, decode loop of {rows}, round {turn + 1}")
            steps[name][rows].append(system.ask("decode", batch) / batch[0].steps)
    bandwidth = bench.bandwidth
    ours = bench.ours(bench.options.settings)
    vocoded = []
    for turn, _ in bench.turns(("P0",)):
        bench.say(f"P0, vocoder, {lengths[-1]:g} s of audio, round {turn + 1}")
        vocoded.append(ours.ask("vocode", round(lengths[-1] * STEPS_PER_SECOND)))
    result: dict[str, object] = {}
    table = Table("", *SYSTEMS, "U / P0", title="B1  one request")
    figures = {}
    for length in lengths:
        rtf = {name: spread(taken[name][length]) for name in SYSTEMS}
        ratio = spread([u / p for u, p in zip(taken["U"][length], taken["P0"][length], strict=True)])
        table.add_row(f"whole, {length:g} s: RTF", *(shown(rtf[name]) for name in SYSTEMS), shown(ratio))
        result[f"rtf_{length:g}_s"] = {**rtf, "U/P0": ratio}
        if length == lengths[0]:
            figures["rtf_one_request"] = ratio
    for rows in ROWS:
        ms = {name: spread([1e3 * one for one in steps[name][rows]]) for name in SYSTEMS}
        rate = {name: rows / STEPS_PER_SECOND / (ms[name]["median"] / 1e3) for name in SYSTEMS}
        ratio = spread([u / p for u, p in zip(steps["U"][rows], steps["P0"][rows], strict=True)])
        physics = ours.ask("physics", ms["P0"]["median"] / 1e3, rows, batch[0].steps / 2, bandwidth)
        result[f"decode_{rows}"] = {"step_ms": ms, "audio_s_per_s": rate, "U/P0": ratio, "physics": physics}
        table.add_row(f"decode {rows}: ms a step", *(shown(ms[name]) for name in SYSTEMS), shown(ratio))
        table.add_row(f"decode {rows}: audio s a second", *(f"{rate[name]:.2f}" for name in SYSTEMS), "")
        table.add_row(f"decode {rows}: physics", "", physics_line(physics), "")
    cores = spread(vocoded)
    result["vocoder"] = {"core_s_per_audio_s": {"P0": cores}}
    table.add_row("vocoder: core-seconds a second of audio", "", shown(cores), "")
    return Report(result, [table], figures)
