"""Fit: writes a configuration for the GPU of this machine, or of a named kind: formats, slots and memory limits chosen for it.

`chattts-serve fit -o here.yaml`, then `chattts-serve start here.yaml`

In:    this machine's GPU, or a name; configs/gpu.yaml
Out:   that configuration with the chosen settings, as a file or on stdout; exit code 3 without a GPU
Owns:  nothing
Never: a choice of its own: gpu_sizes.py chooses
"""

import argparse
import sys
from dataclasses import replace
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
from scripts.operate.gpu_sizes import CARDS, FIRST_AUDIO_GOAL_MS, GIB, Card, Choice, card_named, choose
from scripts.output_path import output_path

BASE = FOLDER / "gpu.yaml"
EXIT_NO_GPU = 3
LANES = 128  # float32 units of a multiprocessor
BYTES_A_CLOCK = 2 / 8  # double data rate, bits to bytes


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
    text = fitted(BASE.read_text(encoding="utf-8"), choice, args.out)
    if args.out:
        args.out.write_text(text, encoding="utf-8")
        print(f"{args.out}: {described(choice)}")
    else:
        print(text, end="")
    return 0


def card_here() -> Card | None:
    """Returns this machine's first GPU, with its own memory; None without one. Kinds not in the table describe themselves.

    Raises:
        ConfigError: it is too old.
    """
    if not torch.cuda.is_available():
        return None
    found = torch.cuda.get_device_properties(0)
    refuse_old(found.name, (found.major, found.minor))
    card = card_named(found.name)
    if card is None:
        bandwidth = found.memory_clock_rate * 1e3 * found.memory_bus_width * BYTES_A_CLOCK
        card = Card(found.name, 0.0, bandwidth, found.multi_processor_count * LANES * 2 * found.clock_rate * 1e3 / 1e12)
    return replace(card, memory_gib=found.total_memory / GIB)


def fitted(base: str, choice: Choice, out: Path | None) -> str:
    """Returns the configuration `base` with the settings of a choice, which names `out` as its own file."""
    document: dict[str, Any] = parse_yaml(base)
    args = document["applications"][0]["args"]
    args["pipeline"]["engine"] |= choice.engine
    args.pop("source")
    if out:
        args["source"] = str(out.resolve())
    head = f"# Written by `chattts-serve fit`: {BASE.name} for {described(choice)}\n"
    return head + yaml.safe_dump(document, sort_keys=False, width=120)


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
