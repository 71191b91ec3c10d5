"""B2, one stream: when its first audio comes, when it becomes audible, and whether playback ever stops.

The ChatTTS package streams as it does by default: first audio after 72 steps, and the whole prefix decoded again for every
piece. This service in one process stands beside it to show what Serve adds; B10 measures that by itself.

In:    a Bench
Out:   a Report
Owns:  nothing
Never: more than one request at a time
"""

from rich.table import Table

from scripts.bench.bench import Bench, Report
from scripts.bench.names import IN_PROCESS, SERVICE, UPSTREAM, URL, label
from scripts.bench.show import shown
from scripts.bench.timeline import Timeline, latency, spread

SYSTEMS = (UPSTREAM, SERVICE, IN_PROCESS)
EACH = 2


def run(bench: Bench) -> Report:
    """Requests some streams from each system, in turns."""
    quick = bench.options.quick
    names = (URL,) if bench.options.endpoint else SYSTEMS
    audio_s, each = (3.0, 1) if quick else (6.0, EACH)
    streams: dict[str, list[list[Timeline]]] = {name: [] for name in names}
    for turn, name in bench.turns(names):
        system = bench.system(name)
        lines = []
        for number in range(each):
            bench.progress(f"{name}, stream {number + 1} of {each}, round {turn + 1}")
            lines.append(bench.alone(system, bench.utterance(audio_s, turn, number)))
        streams[name].append(lines)
    rounds = {name: [latency(lines) for lines in turns] for name, turns in streams.items()}
    figures = {name: {key: spread([one[key] for one in turns]) for key in turns[0]} for name, turns in rounds.items()}
    result: dict[str, object] = {"audio_s": audio_s, "systems": figures}
    table = Table("", *map(label, names), title=f"B2  one stream of {audio_s:g} s")
    for key, text in LABELS.items():
        table.add_row(text, *(shown(figures[name][key]) for name in names))
    judged = {}
    if UPSTREAM in names:
        pairs = zip(rounds[UPSTREAM], rounds[SERVICE], strict=True)
        judged["ttfb_streaming"] = spread([theirs["ttfb_p50_s"] / ours["ttfb_p50_s"] for theirs, ours in pairs])
        result[f"ttfb {UPSTREAM}/{SERVICE}"] = judged["ttfb_streaming"]
        table.add_row(f"first audio, {label(UPSTREAM)} / {label(SERVICE)}", "", shown(judged["ttfb_streaming"]), "")
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
