"""B2, one stream: when the first audio comes, when it can be heard, and whether it ever stops.

U streams as its package does: first audio after 72 steps, the whole prefix decoded again for every piece. P0 is beside P to
show what Serve adds; B10 measures that by itself.
"""

from rich.table import Table

from scripts.bench.bench import Bench, Report
from scripts.bench.show import shown
from scripts.bench.timeline import Timeline, latency, spread

SYSTEMS = ("U", "P", "P0")
EACH = 2


def run(bench: Bench) -> Report:
    """Some streams each, in turns."""
    quick = bench.options.quick
    names = ("url",) if bench.options.endpoint else SYSTEMS
    audio_s, each = (3.0, 1) if quick else (6.0, EACH)
    heard: dict[str, list[list[Timeline]]] = {name: [] for name in names}
    for turn, name in bench.turns(names):
        system = bench.speaker(name)
        lines = []
        for number in range(each):
            bench.say(f"{name}, stream {number + 1} of {each}, round {turn + 1}")
            lines.append(bench.alone(system, bench.utterance(audio_s, turn, number)))
        heard[name].append(lines)
    rounds = {name: [latency(lines) for lines in turns] for name, turns in heard.items()}
    figures = {name: {key: spread([one[key] for one in turns]) for key in turns[0]} for name, turns in rounds.items()}
    result: dict[str, object] = {"audio_s": audio_s, "systems": figures}
    table = Table("", *names, title=f"B2  one stream of {audio_s:g} s")
    for key, label in LABELS.items():
        table.add_row(label, *(shown(figures[name][key]) for name in names))
    judged = {}
    if "U" in names:
        pairs = zip(rounds["U"], rounds["P"], strict=True)
        judged["ttfb_streaming"] = spread([u["ttfb_p50_s"] / p["ttfb_p50_s"] for u, p in pairs])
        result["ttfb U/P"] = judged["ttfb_streaming"]
        table.add_row("first audio, U / P", "", shown(judged["ttfb_streaming"]), "")
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
