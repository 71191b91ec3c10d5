"""One request: its whole time, the time of a decode step alone and with eight rows, and the cost of the vocoder.

The ChatTTS package against this engine in one process, and whole requests through the service too, for what Serve adds.
"decode" is the decode loop alone; "whole" is text to the last sample, sent whole. The vocoder is this service's, in
core-seconds per second of audio.

In:    a Bench
Out:   Reports of B1 and B16
Never: Ray Serve in a decode loop
"""

from collections.abc import Mapping
from dataclasses import replace

from rich.table import Table

from pipeline.spec import STEPS_PER_SECOND
from scripts.bench.bench import Bench, Report
from scripts.bench.names import IN_PROCESS, SERVICE, UPSTREAM, label
from scripts.bench.settings import Settings
from scripts.bench.timeline import shown, spread

SYSTEMS = (UPSTREAM, IN_PROCESS)
WHOLE = (*SYSTEMS, SERVICE)
ROWS = (1, 8)
RATIO = f"{UPSTREAM}/{IN_PROCESS}"
THROUGH_SERVE = f"{SERVICE}/{IN_PROCESS}"
FORMATS = ("int8", "int4")
FORMATS_RATIO = "int4/int8"
TURNS = 4
"""for each of the usual repeats: a turn takes a second, and a busy machine disturbs some of them"""


def run(bench: Bench) -> Report:
    """B1, one request: measures whole requests, then the decode loop, then the vocoder."""
    lengths, decoded_s = ((4.0,), 2.0) if bench.options.quick else ((4.0, 13.0), 4.0)
    result: dict[str, object] = {}
    table = Table("", *map(label, WHOLE), RATIO, THROUGH_SERVE, title="B1  one request")
    figures: dict[str, dict[str, float | int]] = {}
    for length, factors in measure_whole(bench, lengths).items():
        rtf, compared = {name: spread(factors[name]) for name in WHOLE}, ratio(factors)
        served = ratio(factors, SERVICE)
        table.add_row(f"whole, {length:g} s: RTF", *(shown(rtf[name]) for name in WHOLE), shown(compared), shown(served))
        result[f"rtf_{length:g}_s"] = {**rtf, RATIO: compared, THROUGH_SERVE: served}
        if length == lengths[0]:
            figures |= {"rtf_one_request": compared, "rtf_through_serve": served}
    for rows in ROWS:
        result[f"decode_{rows}"] = measure_decode(bench, rows, decoded_s, table)
    cores = measure_vocoder(bench, lengths[-1])
    result["vocoder"] = {"core_s_per_audio_s": {IN_PROCESS: cores}}
    table.add_row("vocoder: core-seconds per second of audio", "", shown(cores))
    return Report(result, [table], figures)


def ratio(values: Mapping[str, list[float]], other: str = UPSTREAM) -> dict[str, float | int]:
    """Returns the spread of another system over this engine, round by round."""
    return spread([theirs / ours for theirs, ours in zip(values[other], values[IN_PROCESS], strict=True)])


def measure_whole(bench: Bench, lengths: tuple[float, ...]) -> dict[float, dict[str, list[float]]]:
    """Returns the real-time factors of each round: length -> system -> factors."""
    factors: dict[float, dict[str, list[float]]] = {length: {name: [] for name in WHOLE} for length in lengths}
    for length in lengths:
        for turn, name in bench.turns(WHOLE):
            system = bench.system(name)
            bench.progress(f"{name}, {length:g} s of audio, round {turn + 1}")
            line = bench.alone(system, bench.utterance(length, turn), streamed=False)
            factors[length][name].append(line.taken_s / line.audio_s)
    return factors


def measure_decode(bench: Bench, rows: int, decoded_s: float, table: Table) -> dict[str, object]:
    """Returns the time per step of the decode loop with this many rows, beside what the memory allows; adds table rows."""
    batch = [bench.utterance(decoded_s, "decode", row) for row in range(rows)]
    steps: dict[str, list[float]] = {name: [] for name in SYSTEMS}
    for turn, name in bench.turns(SYSTEMS):
        system = bench.upstream() if name == UPSTREAM else bench.in_process(bench.options.settings)
        bench.progress(f"{name}, decode loop of {rows}, round {turn + 1}")
        steps[name].append(system.call("decode", batch) / batch[0].steps)
    bandwidth = bench.bandwidth
    ms = {name: spread([1e3 * step_s for step_s in steps[name]]) for name in SYSTEMS}
    rate = {name: rows / STEPS_PER_SECOND / (ms[name]["median"] / 1e3) for name in SYSTEMS}
    ours = bench.in_process(bench.options.settings)
    memory = ours.call("memory", ms[IN_PROCESS]["median"] / 1e3, rows, batch[0].steps / 2, bandwidth)
    table.add_row(f"decode {rows}: ms per step", *(shown(ms[name]) for name in SYSTEMS), "", shown(ratio(steps)))
    table.add_row(f"decode {rows}: audio s per s", *(f"{rate[name]:.2f}" for name in SYSTEMS))
    table.add_row(f"decode {rows}: memory bandwidth", "", memory_line(memory))
    return {"step_ms": ms, "audio_s_per_s": rate, RATIO: ratio(steps), "memory_bandwidth": memory}


def measure_vocoder(bench: Bench, audio_s: float) -> dict[str, float | int]:
    """Returns the core-seconds that the vocoder takes per second of audio."""
    ours = bench.in_process(bench.options.settings)
    costs = []
    for turn in range(bench.options.repeats):
        bench.progress(f"{IN_PROCESS}, vocoder, {audio_s:g} s of audio, round {turn + 1}")
        costs.append(ours.call("vocode", round(audio_s * STEPS_PER_SECOND)))
    return spread(costs)


def memory_line(memory: dict[str, float]) -> str:
    """Returns what a step reads, in which time, and the share of the copy bandwidth that this takes."""
    return (
        f"{memory['bytes_per_step'] / 1e6:.0f} MB / {1e3 * memory['step_s']:.1f} ms / "
        f"{memory['copy_bytes_per_s'] / 1e9:.1f} GB/s = {memory['fraction_of_copy_bandwidth']:.0%}"
    )


def weights(bench: Bench) -> Report:
    """B16, fewer bits: a decode step of one row, and of eight, with weights of 4 bits beside weights of 8.

    Both engines decode the same texts in turns, each in a process of its own that sleeps while the other works.
    """
    table = Table("", *FORMATS, FORMATS_RATIO, title="B16  milliseconds per decode step, by the weights")
    result = {f"decode_{rows}": measure_formats(bench, rows, table) for rows in ROWS}
    for name in FORMATS:
        bench.systems.drop(f"{IN_PROCESS} {name}")
    return Report(result, [table], {"step_int4_over_int8": result["decode_1"][FORMATS_RATIO]})


def measure_formats(bench: Bench, rows: int, table: Table) -> dict[str, dict[str, float | int]]:
    """Returns the time of a step with this many rows [ms], format by format, and their ratio turn by turn."""
    options = bench.options
    steps_ms: dict[str, list[float]] = {name: [] for name in FORMATS}
    batch = [bench.utterance(2.0 if options.quick else 4.0, "decode", row) for row in range(rows)]
    for turn, name in bench.turns(FORMATS, TURNS * options.repeats):
        engine = bench.in_process(with_weights(options.settings, name), beside=f" {name}")
        bench.progress(f"{IN_PROCESS}, {name} weights, decode loop of {rows}, turn {turn + 1}")
        steps_ms[name].append(1e3 * engine.call("decode", batch) / batch[0].steps)
    figures = {name: spread(values) for name, values in steps_ms.items()}
    figures[FORMATS_RATIO] = spread([four / eight for eight, four in zip(*steps_ms.values(), strict=True)])
    table.add_row(f"{rows} row{'s' * (rows > 1)}", *map(shown, figures.values()))
    return figures


def with_weights(settings: Settings, weights: str) -> Settings:
    """Returns the same settings with other weights, in bfloat16 as they need."""
    number_format = {"pipeline.engine.dtype": "bfloat16", "pipeline.engine.weights": weights}
    return replace(settings, changes=settings.changes | number_format)
