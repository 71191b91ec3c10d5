"""Capacity: how many streams a configuration serves, how much memory it takes, and what one hour of audio costs.

In:    a configuration file; measurements in scripts/bench/results; options for what is not measured
Out:   every input with its origin, then the figures that follow from them; --json for machines
Owns:  nothing
Never: a guess: a figure that depends on an unmeasured value is shown as unknown
"""

import argparse
import json
import math
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipeline.config import EngineConfig, VocoderConfig
from pipeline.errors import ConfigError
from pipeline.model.gpu.placement import pipeline_on_this_machine
from pipeline.spec import STEPS_PER_SECOND
from scripts.bench.names import IN_PROCESS
from scripts.bench.record import RESULTS, step_figure
from scripts.config_path import CONFIG_HELP, config_path
from scripts.operate.gpu_memory import MIB, kv_cache_bytes, weight_bytes
from scripts.operate.gpu_sizes import table
from serve.config.config_file import check_file

PARTS = ("weights", "kv")  # of an engine that may be kept in 8 bits

GIVEN, FORMULA, MISSING = "given", "by formula", "not measured"
MEASURED_WINDOW = 48  # steps of the windows scripts/evaluate/gpu_check times
CPU_RESULTS = ("b1.json", "bfloat16/b1.json")
"""one number format each"""
EXIT_NOT_MEASURED = 3


@dataclass(frozen=True, slots=True)
class Figure:
    """A number, its unit and its origin."""

    name: str
    value: float | None
    """None: unknown"""
    unit: str
    origin: str

    @property
    def shown(self) -> str:
        value = "unknown" if self.value is None else f"{self.value:,.4g}" if self.value < 1000 else f"{self.value:,.0f}"
        return f"{value} {self.unit}".rstrip() if self.value is not None else value


@dataclass(frozen=True, slots=True)
class Asked:
    """Values given by the operator."""

    step_ms: float | None = None
    vocoder_rate: float | None = None
    utilisation: float = 0.75
    price: float | None = None
    tenants: tuple[tuple[str, float], ...] = ()
    talking: float = 1.0


def step_time(engine: EngineConfig, results: Path) -> Figure:
    """Returns the measured time per decode step with every slot in use [ms]."""
    name, unit = "a decode step, all slots in use", "ms"
    if engine.device == "cuda":
        gpu = _read(results / "gpu.json")
        measured = step_figure(engine.slots, weights=engine.weights, kv=engine.kv)
        found = gpu.get("figures", {}).get(measured) if engine.dtype == "bfloat16" else None
        if isinstance(found, dict) and gpu["hardware"]["device"] != "cpu":
            return Figure(name, found["step_ms"], unit, _measured("gpu.json", gpu))
        return Figure(name, None, unit, f"{MISSING}: `make gpu-check` on such a GPU, or --step-ms")
    for file in CPU_RESULTS:
        b1 = _read(results / file)
        if not _same_numbers(engine, b1):
            continue
        points = {
            int(key.removeprefix("decode_")): part["step_ms"][IN_PROCESS]["median"]
            for key, part in b1.items()
            if key.startswith("decode_")
        }
        value = between(points, engine.slots)
        if value is not None:
            how = "" if engine.slots in points else f", on a line between {' and '.join(map(str, sorted(points)))} slots"
            return Figure(name, value, unit, _measured(file, b1) + how)
    return Figure(name, None, unit, f"{MISSING} with {engine.slots} slots in {engine.dtype}: --step-ms")


def vocoder_rate(vocoder: VocoderConfig, results: Path) -> Figure:
    """Returns the seconds of audio per second that one vocoder generates, from timed windows or from its threads."""
    name, unit = "a vocoder", "audio s/s"
    gpu = _read(results / "gpu.json")
    calls = (gpu.get("figures", {}).get(f"vocoder_{vocoder.matmul}") or {}).get("call_ms", {})
    counts = [int(count) for count in calls if int(count) <= vocoder.rows]
    if vocoder.device == "cuda" and counts and gpu["hardware"]["device"] != "cpu":
        rows = max(counts)
        audio_s = rows * MEASURED_WINDOW / STEPS_PER_SECOND
        return Figure(
            name, audio_s / (calls[str(rows)] / 1000), unit, _measured("gpu.json", gpu) + f", {rows} windows per call"
        )
    b1 = _read(results / "b1.json")
    cost = b1.get("vocoder", {}).get("core_s_per_audio_s", {}).get(IN_PROCESS, {}).get("median")
    if vocoder.device == "cpu" and cost is not None and _real_dimensions(b1):
        threads = vocoder.threads or b1["hardware"]["cores"]
        how = f", {cost:.3g} core-seconds per second of audio, on each of {threads} threads"
        return Figure(name, threads / cost, unit, _measured("b1.json", b1) + how)
    return Figure(name, None, unit, f"{MISSING}: --vocoder-rate; without it the engine alone counts")


def between(points: dict[int, float], at: int) -> float | None:
    """Interpolates between the two nearest points; None beyond them, where a step's time is not linear."""
    if at in points:
        return points[at]
    below, above = [x for x in points if x < at], [x for x in points if x > at]
    if not below or not above:
        return None
    low, high = max(below), min(above)
    return points[low] + (points[high] - points[low]) * (at - low) / (high - low)


def inputs(engine: EngineConfig, vocoder: VocoderConfig, asked: Asked, results: Path) -> tuple[Figure, Figure]:
    """Returns the two rates from which all figures follow: decode step and vocoder."""
    step, rate = step_time(engine, results), vocoder_rate(vocoder, results)
    if asked.step_ms is not None:
        step = Figure(step.name, asked.step_ms, step.unit, f"{GIVEN}: --step-ms")
    if asked.vocoder_rate is not None:
        rate = Figure(rate.name, asked.vocoder_rate, rate.unit, f"{GIVEN}: --vocoder-rate")
    return step, rate


def follows(engine: EngineConfig, step: Figure, rate: Figure, asked: Asked) -> list[Figure]:
    """Returns streams, memory and cost of one acoustic replica with the vocoders it needs."""
    generated = None if step.value is None else engine.slots / (step.value / 1000) / STEPS_PER_SECOND
    streams = None if generated is None else generated * asked.utilisation
    vocoders = None if generated is None or rate.value is None else generated / rate.value
    wanted = sum(streams for _, streams in asked.tenants) * asked.talking
    replicas = None if streams is None or not wanted else math.ceil(wanted / streams)
    figures = [
        Figure("weights of the decoder", weight_bytes(engine) / MIB, "MiB", FORMULA),
        Figure("KV cache", kv_cache_bytes(engine) / MIB, f"MiB of {engine.kv_budget_mib} allowed", FORMULA),
        Figure("an acoustic replica generates", generated, "audio s/s", "slots / (46.875 x the time of a step)"),
        Figure("streams it keeps up with", streams, "at once", f"at {asked.utilisation:.0%} of that: --utilisation"),
        Figure("vocoders beside it", vocoders, "", "the acoustic replica's rate / a vocoder's"),
    ]
    if asked.tenants:
        figures.append(
            Figure(
                "streams at once, all tenants",
                wanted,
                "",
                f"--tenant, speech in {asked.talking:.0%} of the time: --talking",
            )
        )
        figures.append(Figure("acoustic replicas", replicas, "", "streams of the tenants / streams of a replica"))
    if asked.price is not None:
        # An hour of audio takes 1 / streams hours of an acoustic replica and its share of vocoders.
        machines = None if streams is None else 1 + (0.0 if vocoders is None else vocoders)
        cost = None if streams is None or machines is None else asked.price * machines / streams
        note = "" if vocoders is not None else "; without vocoders, whose rate is unknown"
        figures.append(Figure("an hour of audio costs", cost, "", f"--price per hour of either{note}"))
    return figures


def quota_lines(asked: Asked) -> list[str]:
    """Returns the commands that limit each tenant to its share."""
    return [
        f"chattts-serve keys add {name} --streams {math.ceil(streams)} --audio-s-a-minute {math.ceil(60 * streams)}"
        for name, streams in asked.tenants
    ]


def main(arguments: list[str] | None = None) -> int:
    """Exit code: 0 known, 1 wrong configuration, 2 wrong usage, 3 the decode step was not measured."""
    args = _arguments().parse_args(arguments)
    try:
        pipeline = pipeline_on_this_machine(check_file(args.config).app.pipeline)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    engine, vocoder = pipeline.engine, pipeline.vocoder
    asked = Asked(args.step_ms, args.vocoder_rate, args.utilisation, args.price, tuple(args.tenant), args.talking)
    step, rate = inputs(engine, vocoder, asked, args.results)
    found = follows(engine, step, rate, asked)
    if args.json:
        print(json.dumps({"inputs": [asdict(step), asdict(rate)], "figures": [asdict(figure) for figure in found]}))
    else:
        slots = f"{engine.slots} slots of {engine.positions} positions, {engine.dtype}, {engine.device}"
        print(f"{args.config}: {slots}; dimensions of the real model")
        for figure in (step, rate, *found):
            print(f"  {figure.name:<34}{figure.shown:<32}{figure.origin}")
        for line in quota_lines(asked):
            print(f"  {line}")
        if engine.device == "cuda":
            print(*table(args.results), sep="\n")
    return 0 if step.value is not None else EXIT_NOT_MEASURED


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="chattts-serve capacity",
        description="Estimate streams, memory and cost of a configuration from measured figures and options.",
        epilog="Exit codes: 0 known, 1 wrong configuration, 2 wrong usage, 3 the decode step was not measured: give --step-ms.",
    )
    parser.add_argument("config", type=config_path, help=CONFIG_HELP)
    parser.add_argument(
        "--step-ms", type=_positive, help="time of a decode step, all slots in use, instead of a measured one [ms]"
    )
    parser.add_argument("--vocoder-rate", type=_positive, help="seconds of audio that a vocoder replica generates per second")
    parser.add_argument(
        "--utilisation", type=_share, default=0.75, help="part of the replicas' rate to plan with (default: %(default)s)"
    )
    parser.add_argument("--price", type=_positive, help="price per hour of one replica's machine or GPU, in any currency")
    parser.add_argument(
        "--tenant",
        type=_tenant,
        action="append",
        default=[],
        metavar="NAME=STREAMS",
        help="a tenant's streams at once; repeatable",
    )
    parser.add_argument(
        "--talking", type=_share, default=1.0, help="share of the time in which a stream carries speech (default: %(default)s)"
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the measurements")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of lines")
    return parser


def _positive(text: str) -> float:
    value = float(text)
    if not (value > 0 and math.isfinite(value)):
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def _share(text: str) -> float:
    value = float(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not above 0 and at most 1")
    return value


def _tenant(text: str) -> tuple[str, float]:
    name, separator, streams = text.partition("=")
    if not name or not separator:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=STREAMS")
    return name, _positive(streams)


def _read(path: Path) -> dict[str, Any]:
    """Returns a result file; empty if there is none."""
    try:
        result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return result


def _same_numbers(engine: EngineConfig, b1: dict[str, Any]) -> bool:
    """True if a CPU's measurement used this number format."""
    changes = _service(b1).get("changes", {})
    formats = (changes.get("pipeline.engine.dtype"), *(changes.get(f"pipeline.engine.{name}", "dtype") for name in PARTS))
    return _real_dimensions(b1) and formats == (engine.dtype, *(getattr(engine, name) for name in PARTS))


def _real_dimensions(b1: dict[str, Any]) -> bool:
    """True if a CPU's measurement used the real model's dimensions."""
    return _service(b1).get("checkpoint") in ("full-random", "hub:2Noise/ChatTTS")


def _service(b1: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = b1.get("options", {}).get("service", {})
    return found


def _measured(name: str, result: dict[str, Any]) -> str:
    machine = result["hardware"]
    device = machine.get("device") or f"{machine['cores']} cores, {machine['cpu']}"
    return f"measured: {name}, {device}, commit {machine['commit']}"


if __name__ == "__main__":
    sys.exit(main())
