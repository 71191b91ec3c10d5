"""Fit: writes a configuration for the GPU of this machine, or of a named kind: formats, slots and memory limits chosen for it.

`chattts-serve fit -o here.yaml`, then `chattts-serve start here.yaml`

In:    this machine's GPU, or a name; configs/gpu.yaml
Out:   that configuration with the chosen settings, as a file or on stdout; exit code 3 without a GPU
Owns:  nothing
Never: a choice of its own: gpu_sizes.py chooses
"""

import argparse
import math
import os
import re
import sys
from pathlib import Path
from typing import Any

import torch
import yaml

from pipeline.errors import ConfigError
from pipeline.model.gpu.identity import driver_version
from pipeline.model.gpu.prepare import refuse_old
from pipeline.yaml_loader import parse_yaml
from scripts.bench.record import RESULTS
from scripts.config_path import FOLDER
from scripts.doctor_gpu import why_no_gpu
from scripts.operate.gpu_sizes import CARDS, FIRST_AUDIO_GOAL_MS, GIB, INGRESS_RATES, Card, Choice, card_named, choose
from scripts.output_path import output_path
from serve.config.app_config import read_app_config
from serve.config.config_file import find_mistakes, least_ongoing

BASE = FOLDER / "gpu.yaml"
EXIT_NO_GPU = 3
LANES = {(8, 0): 64}
"""float32 units of a multiprocessor, by compute capability"""
MOST_LANES = 128
BYTES_A_CLOCK = 2 / 8  # double data rate, bits to bytes
SLICE = re.compile(r"\bMIG (\d+)g\.(\d+)gb")
WHOLE_GB = re.compile(r"(\d+) ?GB\b")
EIGHTHS = 8  # parts of a card's memory that slices are made of


def main(arguments: list[str] | None = None) -> int:
    """Exit code: 0 written, 1 the GPU cannot run the model, 2 wrong usage, 3 there is no GPU."""
    parser = argparse.ArgumentParser(
        prog="chattts-serve fit",
        description="Write a configuration for this machine's GPU: number formats and slots by its memory and bandwidth.",
        epilog="Exit codes: 0 written, 1 the GPU cannot run the model, 2 wrong usage, 3 there is no GPU: name one with --gpu.",
    )
    parser.add_argument("--gpu", choices=[card.name for card in CARDS], help="a kind of GPU instead of this machine's")
    parser.add_argument("-o", "--out", type=output_path, help="the file to write (default: stdout)")
    args = parser.parse_args(arguments)
    try:
        card = card_named(args.gpu) if args.gpu else card_here()
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    if card is None:
        print("; ".join(why_no_gpu(driver_version(), torch.version.cuda)) + "; or name a GPU: --gpu", file=sys.stderr)
        return EXIT_NO_GPU
    choice = choose(card, RESULTS)
    if choice is None:
        print(f"{card.name}: {card.memory_gib:.1f} GiB hold no engine and vocoder: use configs/cpu.yaml", file=sys.stderr)
        return 1
    text = fitted(BASE.read_text(encoding="utf-8"), choice, args.out, cores=None if args.gpu else os.cpu_count())
    if mistakes := find_mistakes(parse_yaml(text)):
        print(f"for {card.name} no valid configuration was found:", *mistakes, sep="\n", file=sys.stderr)
        return 1
    if args.out:
        args.out.write_text(text, encoding="utf-8")
        print(f"{args.out}: {described(choice)}")
    else:
        print(text, end="")
    return 0


def card_here() -> Card | None:
    """Returns this machine's first GPU, as its driver describes it; None without one.

    Raises:
        ConfigError: it is too old, or its driver does not describe it.
    """
    if not torch.cuda.is_available():
        return None
    found = torch.cuda.get_device_properties(0)
    refuse_old(found.name, (found.major, found.minor))
    bandwidth = found.memory_clock_rate * 1e3 * found.memory_bus_width * BYTES_A_CLOCK * memory_share(found.name)
    lanes = LANES.get((found.major, found.minor), MOST_LANES) * found.multi_processor_count
    if not bandwidth or not found.clock_rate:
        raise ConfigError(f"the driver of {found.name} tells no clock rates: name the nearest kind of GPU with --gpu")
    return Card(found.name, found.total_memory / GIB, bandwidth, lanes * 2 * found.clock_rate * 1e3 / 1e12)


def memory_share(name: str) -> float:
    """Returns the part of the whole card's memory bus that a slice of it has (MIG); 1 for a whole card.

    A driver reports the clock and the width of the whole card. Slices are eighths of its memory: `3g.40gb` of 80 GB are four.
    """
    part = SLICE.search(name)
    if part is None:
        return 1.0
    compute, memory_gb = int(part[1]), int(part[2])
    whole, known = WHOLE_GB.search(name[: part.start()]), card_named(name[: part.start()])
    whole_gb = int(whole[1]) if whole else known.memory_gib * GIB / 1e9 if known else None
    eighths = round(EIGHTHS * memory_gb / whole_gb) if whole_gb else compute  # at least as many as parts of its multiprocessors
    return min(max(eighths, 1), EIGHTHS) / EIGHTHS


def fitted(base: str, choice: Choice, out: Path | None, *, cores: int | None = None) -> str:
    """Returns the configuration `base` with the settings of a choice and all that follows from them.

    Args:
        out: the file that it names as its own.
        cores: of the machine it is for; None: as many as the ingress replicas need.
    """
    document: dict[str, Any] = parse_yaml(base)
    args = document["applications"][0]["args"]
    args["pipeline"]["engine"] |= choice.engine
    args.pop("source")
    if out:
        args["source"] = str(out.resolve())
    derive(document, choice, cores)
    head = f"# Written by `chattts-serve fit`: {BASE.name} for {described(choice)}\n"
    return head + yaml.safe_dump(document, sort_keys=False, width=120)


def derive(document: dict[str, Any], choice: Choice, cores: int | None) -> None:
    """Sets what follows from the slots and the speed of a choice: ingress replicas, and how much each deployment takes.

    All ingress replicas together admit what the engine can decode and queue: the engine refuses later, which costs more.
    """
    application = document["applications"][0]
    deployments = {deployment["name"]: deployment for deployment in application["deployments"]}
    ingress, acoustic = deployments["Ingress"], deployments["AcousticModel"]
    needed = math.ceil(choice.audio_s_per_s / min(INGRESS_RATES.values()))
    each = ingress["ray_actor_options"]["num_cpus"]
    others = sum(one["ray_actor_options"]["num_cpus"] for one in deployments.values() if one is not ingress)
    room = needed if cores is None else int((cores - others) // each)
    ingress["num_replicas"] = max(1, min(max(needed, ingress["num_replicas"]), room))
    engine = choice.engine
    limits = application["args"].setdefault("limits", {})
    limits["max_in_flight"] = max(1, (engine["slots"] + engine["max_waiting"]) // ingress["num_replicas"])
    for name, (least, _) in least_ongoing(read_app_config(application["args"])).items():
        taken = deployments[name]
        taken["max_ongoing_requests"] = max(least, taken["max_ongoing_requests"])
    acoustic["max_queued_requests"] = max(acoustic["max_queued_requests"], acoustic["max_ongoing_requests"])


def described(choice: Choice) -> str:
    """Returns a choice in one line."""
    goal = "" if choice.reaches_goal else f", later than the goal of {FIRST_AUDIO_GOAL_MS:.0f}"
    return (
        f"{choice.card.name}: {choice.formats}, {choice.engine['slots']} slots, {choice.memory_share:.0%} of its memory; "
        f"first audio after {choice.first_audio_ms:.0f} ms{goal}, {choice.audio_s_per_s:.0f} seconds of audio a second "
        f"({choice.origin})"
    )


if __name__ == "__main__":
    sys.exit(main())
