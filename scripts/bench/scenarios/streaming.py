"""One stream: when its first audio comes, when it becomes audible, and whether playback ever stops.

The ChatTTS package streams as it does by default: first audio after 72 steps, and the whole prefix decoded again for every
piece. This service in one process stands beside it to show what Serve adds; B10 measures that by itself. Both are asked for
exact audio and for `latency: low`.

In:    a Bench
Out:   the Report of B2
Never: more than one request at a time
"""

from dataclasses import replace

from rich.table import Table

from scripts.bench.bench import Bench, Report
from scripts.bench.names import IN_PROCESS, SERVICE, UPSTREAM, URL, label, low_name
from scripts.bench.timeline import Timeline, latency, shown, spread, spreads

SYSTEMS = (UPSTREAM, SERVICE, IN_PROCESS)
OURS = (SERVICE, IN_PROCESS)
STREAMS = 2


def run(bench: Bench) -> Report:
    """B2, one stream: requests some from each system, in turns; of this service exact ones and ones of low latency."""
    quick = bench.options.quick
    systems = (URL,) if bench.options.endpoint else SYSTEMS
    audio_s, count = (3.0, 1) if quick else (6.0, STREAMS)
    names = [name for system in systems for name in ((system, low_name(system)) if system in OURS else (system,))]
    streams: dict[str, list[list[Timeline]]] = {name: [] for name in names}
    for turn, name in bench.turns(systems):
        system = bench.system(name)
        modes = {name: "exact", low_name(name): "low"} if name in OURS else {name: "exact"}
        lines: dict[str, list[Timeline]] = {variant: [] for variant in modes}
        for number in range(count):
            for variant, mode in modes.items():
                bench.progress(f"{variant}, stream {number + 1} of {count}, round {turn + 1}")
                utterance = replace(bench.utterance(audio_s, turn, number), latency=mode)
                lines[variant].append(bench.alone(system, utterance))
        for variant in lines:
            streams[variant].append(lines[variant])
    rounds = {name: [latency(lines) for lines in turns] for name, turns in streams.items()}
    figures = {name: spreads(turns) for name, turns in rounds.items()}
    result: dict[str, object] = {"audio_s": audio_s, "systems": figures}
    table = Table("", *map(label, names), title=f"B2  one stream of {audio_s:g} s")
    for key, text in LABELS.items():
        table.add_row(text, *(shown(figures[name][key]) for name in names))
    judged = {}
    if UPSTREAM in names:
        for key, name in (("ttfb_streaming", SERVICE), ("ttfb_low", low_name(SERVICE))):
            pairs = zip(rounds[UPSTREAM], rounds[name], strict=True)
            judged[key] = spread([theirs["ttfb_p50_s"] / ours["ttfb_p50_s"] for theirs, ours in pairs])
            result[f"ttfb {UPSTREAM}/{name}"] = judged[key]
        ratios = {SERVICE: shown(judged["ttfb_streaming"]), low_name(SERVICE): shown(judged["ttfb_low"])}
        table.add_row(f"first audio, {label(UPSTREAM)} / ours", *(ratios.get(name, "") for name in names))
    return Report(result, [table], judged)


LABELS = {
    "ttfb_p50_s": "first audio (s)",
    "audible_p50_s": "first audible audio (s)",
    "gap_p50_s": "between pieces, p50 (s)",
    "gap_max_s": "between pieces, longest (s)",
    "underruns": "underruns",
    "stalled_s": "stalled (s)",
    "rtf_p50": "RTF",
}
