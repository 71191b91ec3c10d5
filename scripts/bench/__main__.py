"""Main: `python -m scripts.bench SCENARIO...` runs scenarios, shows their tables and keeps their results.

In:    names of scenarios, `all`, or `summary` for the figures of the kept results
Out:   tables; results/SET/results.json and .png; one line of JSON per scenario
Owns:  the order of the scenarios, Ctrl-C
Never: measuring: the scenarios do
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

from rich.console import Console

from pipeline.errors import CheckpointError, ConfigError
from pipeline.yaml_loader import parse_yaml
from scripts.bench.bench import Bench, Options, ScenarioFailed
from scripts.bench.client import Endpoint
from scripts.bench.plots import draw_all
from scripts.bench.record import RESULTS, ROOT, Result, here, is_done, publish
from scripts.bench.scenarios import account, cold_start, listeners, overhead, saturation, single, streaming, turn
from scripts.bench.summary import LIMIT_KEPT, TARGET_REACHED, WHOLE, markdown, summarise, write_pages
from serve.commands.config_path import DEFAULT, config_path
from serve.config.config_file import PROCESS

SCENARIOS = {
    "b1": single.run,
    "b2": streaming.run,
    "b3": saturation.run,
    "b4": listeners.knee,
    "b5": listeners.at_once,
    "b13": overhead.around_the_model,
    "b15": account.run,
    "b16": single.weights,
    "b14": turn.run,
    "b10": overhead.serve,
    "b11": cold_start.run,
    "b18": listeners.beside_a_book,
    "b19": saturation.bulk,
}
WIDTH = 140  # of tables in a file
COMPILE_STEP = "from pipeline.model.cpu.native import SOURCE, library; library(SOURCE)"
FOR_ANY_SERVER = ("b2", "b3", "b4", "b5")


def main(arguments: list[str] | None = None) -> int:
    """Runs the scenarios; one that fails does not keep the others from running."""
    args = parse(arguments)
    if "summary" in args.scenarios:
        return show_summary(args.results, into_pages=args.readme)
    console = Console(stderr=True)
    signal.signal(signal.SIGTERM, interrupt)
    bench = Bench(options_of(args), console)
    try:
        all_done = run_scenarios(bench, args, console)
    except (ConfigError, CheckpointError) as error:
        console.print(str(error), style="red", markup=False)
        return 1
    except KeyboardInterrupt:
        print("interrupted: stopping every process", file=sys.stderr)
        return 130
    else:
        draw_all(args.results)
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)  # stopping takes a moment and must be finished
        bench.systems.close()
    return 0 if all_done else 1


def run_scenarios(bench: Bench, args: argparse.Namespace, console: Console) -> bool:
    """Runs each scenario, prints its tables and keeps its result. Returns False if one of them failed."""
    output = Console()
    if not output.is_terminal:
        output = Console(width=WIDTH)
    names = list(SCENARIOS) if "all" in args.scenarios else args.scenarios
    if args.url:
        names = [name for name in names if name in FOR_ANY_SERVER]
    failed = False
    for name in names:
        if args.resume and is_done(name, args.results, quick=args.quick):
            console.print(f"{name}: done already")
            continue
        began = time.monotonic()
        try:
            with bench.scenario(name):
                report = SCENARIOS[name](bench)
        except (ScenarioFailed, RuntimeError, OSError, AssertionError) as error:
            console.print(f"{name} failed: {error}", style="red", markup=False)
            failed = True
            bench.systems.close()  # the next scenario starts systems of its own
            continue
        for table in report.tables:
            output.print(table)
        wall_s = round(time.monotonic() - began, 1)
        result = {"options": shown_options(bench.options), "taken_s": wall_s, "judged": report.figures, **report.result}
        publish(name, result, args.results)
    return not failed


def show_summary(folder: Path, *, into_pages: bool) -> int:
    """Prints the judged figures. Returns 1 if one of them misses its limit or was never measured."""
    draw_all(folder / WHOLE)
    summary = summarise(folder)
    text = markdown(summary)
    print(text)
    if into_pages:
        write_pages(folder)
    return 0 if all(row["verdict"] in (TARGET_REACHED, LIMIT_KEPT) for row in summary["figures"]) else 1


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.bench",
        description="Measure the service against the ChatTTS package, in one run on one machine.",
        epilog="; ".join(f"{name}: {title_of(run.__doc__)}" for name, run in SCENARIOS.items()),
    )
    parser.add_argument("scenarios", nargs="+", choices=[*SCENARIOS, "all", "summary"], metavar="SCENARIO")
    parser.add_argument("--quick", action="store_true", help="shorter speech and fewer loads: about 17 minutes for all")
    parser.add_argument("--repeats", type=int, default=3, help="rounds of each figure; the median is reported")
    parser.add_argument("--seed", type=int, default=1, help="seed of texts, lengths and arrivals")
    parser.add_argument("--config", type=config_path, default=DEFAULT, help="configuration of the service")
    parser.add_argument(
        "--checkpoint", default="full-random", help="demo, small-random, full-random, hub:OWNER/NAME or a folder"
    )
    parser.add_argument("--dtype", default="bfloat16", help="engine.dtype of the service")
    parser.add_argument(
        "--weights", help="engine.weights of the service; `dtype` keeps --dtype; default: int8 where this machine runs it"
    )
    parser.add_argument("--kv", default="int8", help="engine.kv of the service; `dtype` keeps --dtype")
    parser.add_argument(
        "--placement", choices=("separate", "with_acoustic"), default="with_acoustic", help="vocoder.placement of the service"
    )
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), help="device of the ChatTTS package too; default: the one of the configuration"
    )
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="threads of the engine, and of the ChatTTS package")
    parser.add_argument("--vocoder-threads", type=int, default=1, help="threads of the vocoder, which runs beside the engine")
    parser.add_argument(
        "--path",
        choices=("fast", "plain", PROCESS),
        default="fast",
        help="`fast`: as `make serve`; `plain`: Serve's default; `process`: without Ray",
    )
    parser.add_argument("--slo-ttfb-s", type=float, default=2.5, help="b4: limit of the first audio, p95")
    parser.add_argument("--results", type=Path, help="folder for results and plots; default: that of this kind of processor")
    parser.add_argument("--resume", action="store_true", help="skip scenarios that have a result of this commit")
    parser.add_argument("--readme", action="store_true", help="summary: also update the tables of README.md and docs/")
    parser.add_argument("--url", help=f"any OpenAI-compatible speech server (without /v1): {', '.join(FOR_ANY_SERVER)}")
    parser.add_argument("--model", default="chattts", help="model to request, with --url")
    parser.add_argument("--voice", default="default", help="voice to request, with --url")
    args = parser.parse_args(arguments)
    args.results = args.results or (RESULTS if "summary" in args.scenarios else here())
    if args.url and args.device:
        parser.error("--device has no effect on the server at --url: leave it out")
    if not args.url:
        args.device = device_of(args.config, args.device, parser)
    return args


def device_of(config: Path, requested: str | None, parser: argparse.ArgumentParser) -> str:
    """Returns the device of every system. The configuration decides: a service on another one has other deployments."""
    configured = configured_device(config)
    if configured == "auto" and requested is None:
        parser.error(f"{config} has engine.device auto: say --device cpu or --device cuda for the ChatTTS package")
    if configured != "auto" and requested not in (None, configured):
        parser.error(f"--device {requested}, but {config} has engine.device {configured}: choose another --config")
    return requested or configured


def configured_device(config: Path) -> str:
    """Returns the setting engine.device of a configuration."""
    pipeline = parse_yaml(config.read_text())["applications"][0]["args"]["pipeline"]
    return str(pipeline.get("engine", {}).get("device", "cpu"))


def options_of(args: argparse.Namespace) -> Options:
    """Returns the options of the scenarios."""
    key = os.environ.get("OPENAI_API_KEY", "none")
    return Options(
        quick=args.quick,
        seed=args.seed,
        repeats=args.repeats,
        config=args.config,
        checkpoint=args.checkpoint,
        dtype=args.dtype,
        weights=args.weights or ("dtype" if args.url else best_weights(args.config)),
        kv=args.kv,
        placement=args.placement,
        path=args.path,
        device=args.device or "cpu",
        threads=args.threads,
        vocoder_threads=args.vocoder_threads,
        slo_ttfb_s=args.slo_ttfb_s,
        endpoint=Endpoint(args.url.rstrip("/"), args.model, args.voice, key) if args.url else None,
    )


def best_weights(config: Path) -> str:
    """Returns int8, or dtype on a CPU without native code: torch has no int8 weights there. Only a child loads torch."""
    if configured_device(config) != "cpu":
        return "int8"
    if subprocess.run([sys.executable, "-c", COMPILE_STEP], capture_output=True, check=False).returncode == 0:
        return "int8"
    print("this CPU runs no native code: weights stay in --dtype (as with --weights dtype)", file=sys.stderr)
    return "dtype"


def shown_options(options: Options) -> Result:
    """Returns the options as a result has them."""
    return {
        "quick": options.quick,
        "seed": options.seed,
        "repeats": options.repeats,
        "url": options.endpoint.url if options.endpoint else None,
        "device": options.device,
        "service": {
            "config": str(options.config.relative_to(ROOT) if options.config.is_relative_to(ROOT) else options.config.name),
            "path": options.path,
            "checkpoint": options.checkpoint,
            "changes": options.settings.changes,
        },
    }


def title_of(docstring: str | None) -> str:
    """Returns the title of a scenario, which stands between its name and a colon."""
    assert docstring is not None
    return docstring.partition(": ")[0].partition(", ")[2]


def interrupt(number: int, frame: FrameType | None) -> None:
    """Ends a run on SIGTERM as on Ctrl-C: no process keeps running."""
    signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
