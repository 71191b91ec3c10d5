"""Size: writes a configuration for the GPU of this machine: formats, slots and memory limits chosen for it.

`chattts-serve size -o here.yaml`, then `chattts-serve start here.yaml`

In:    this machine's GPU; configs/gpu.yaml
Out:   that configuration with the chosen settings, as a file or on stdout; exit code 3 without a GPU
Never: a file that the service would refuse; a prediction (serve/simulation/roofline.py) that is not called one
"""

import argparse
import math
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml

from pipeline.config import EngineConfig, PipelineConfig
from pipeline.errors import ConfigError
from pipeline.model.gpu.identity import driver_version
from pipeline.model.gpu.prepare import refuse_old
from pipeline.yaml_loader import parse_yaml
from serve.commands.config_path import FOLDER
from serve.commands.doctor_gpu import why_no_gpu
from serve.commands.output_path import output_path
from serve.config.app_config import read_app_config
from serve.config.config_file import find_mistakes
from serve.remote.deploy_config import least_ongoing
from serve.simulation.roofline import BESIDE, GIB, MIB, Card, audio_s_per_s, kv_cache_bytes, needed_bytes, step_ms

BASE = FOLDER / "gpu.yaml"
EXIT_NO_GPU = 3
LANES = {(8, 0): 64}
"""float32 units of a multiprocessor, by compute capability"""
MOST_LANES = 128
BYTES_A_CLOCK = 2 / 8  # double data rate, bits to bytes
SLICE = re.compile(r"\bMIG (\d+)g\.(\d+)gb")
WHOLE_GB = re.compile(r"(\d+) ?GB\b")
EIGHTHS = 8  # parts of a card's memory that slices are made of
FIRST_AUDIO_STEPS = 64
"""steps before the first window is complete, and a round until the sequence is scheduled"""
FIRST_AUDIO_GOAL_MS = 150.0
LEAST_SLOTS = 16
SLOTS = (128, 64, 32, 16, 8)
FORMATS: tuple[dict[str, str], ...] = ({}, {"kv": "int8"}, {"weights": "int8", "kv": "int8"})
"""the first one that reaches the goal with LEAST_SLOTS is chosen"""
INGRESS_RATE = 90
"""seconds of audio per second that one ingress replica of two cores encodes as mp3 and sends"""


@dataclass(frozen=True, slots=True)
class Choice:
    """What to set for a card, and what to expect of it."""

    card: Card
    engine: EngineConfig
    memory_share: float
    """of the card's memory"""

    @property
    def first_audio_ms(self) -> float:
        """Time to the first audio without waiting for a slot [ms]."""
        return FIRST_AUDIO_STEPS * step_ms(self.engine, self.card)

    @property
    def reaches_goal(self) -> bool:
        return self.first_audio_ms <= FIRST_AUDIO_GOAL_MS

    @property
    def audio_s_per_s(self) -> float:
        return audio_s_per_s(self.engine, self.card)

    def __str__(self) -> str:
        eight = " and ".join(name for name in ("weights", "kv") if getattr(self.engine, name) == "int8")
        goal = "" if self.reaches_goal else f", later than the goal of {FIRST_AUDIO_GOAL_MS:.0f}"
        return (
            f"{self.card.name}: bfloat16{f', {eight} int8' if eight else ''}, {self.engine.slots} slots; predicted: "
            f"{self.memory_share:.0%} of its memory, first audio after {self.first_audio_ms:.0f} ms{goal}, "
            f"{self.audio_s_per_s:.0f} seconds of audio a second"
        )


def main(arguments: list[str] | None = None) -> int:
    """Exit code: 0 written, 1 the GPU cannot run the model, 2 wrong usage, 3 there is no GPU."""
    parser = argparse.ArgumentParser(
        prog="chattts-serve size",
        description="Write a configuration for this machine's GPU: number formats and slots by its memory and its rate.",
        epilog="Exit codes: 0 written, 1 the GPU cannot run the model, 2 wrong usage, 3 there is no GPU.",
    )
    parser.add_argument("-o", "--out", type=output_path, help="the file to write (default: stdout)")
    args = parser.parse_args(arguments)
    try:
        card = card_here()
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    if card is None:
        print("; ".join(why_no_gpu(driver_version(), torch.version.cuda)), file=sys.stderr)
        return EXIT_NO_GPU
    choice = choose(card)
    if choice is None:
        print(f"{card.name}: {card.memory_gib:.1f} GiB hold no engine and vocoder: use configs/cpu.yaml", file=sys.stderr)
        return 1
    text = sized(choice, args.out)
    if mistakes := find_mistakes(parse_yaml(text)):
        print(f"for {card.name} no valid configuration was found:", *mistakes, sep="\n", file=sys.stderr)
        return 1
    if args.out:
        args.out.write_text(text, encoding="utf-8")
        print(f"{args.out}: {choice}")
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
    properties = torch.cuda.get_device_properties(0)
    refuse_old(properties.name, (properties.major, properties.minor))
    memory_rate = (
        properties.memory_clock_rate * 1e3 * properties.memory_bus_width * BYTES_A_CLOCK * memory_share(properties.name)
    )
    lanes = LANES.get((properties.major, properties.minor), MOST_LANES) * properties.multi_processor_count
    if not memory_rate or not properties.clock_rate:
        raise ConfigError(
            f"the driver of {properties.name} tells no clock rates: set engine.slots in a copy of configs/gpu.yaml"
        )
    return Card(properties.name, properties.total_memory / GIB, memory_rate, lanes * 2 * properties.clock_rate * 1e3 / 1e12)


def memory_share(name: str) -> float:
    """Returns the part of the whole card's memory bus that a slice of it has (MIG); 1 for a whole card.

    A driver reports the clock and the width of the whole card. Slices are eighths of its memory: `3g.40gb` of 80 GB are four.
    """
    part = SLICE.search(name)
    if part is None:
        return 1.0
    compute, memory_gb = int(part[1]), int(part[2])
    whole = WHOLE_GB.search(name[: part.start()])
    eighths = round(EIGHTHS * memory_gb / int(whole[1])) if whole else compute  # at least as many as of its multiprocessors
    return min(max(eighths, 1), EIGHTHS) / EIGHTHS


def choose(card: Card) -> Choice | None:
    """Returns the settings for a card: the first format that reaches FIRST_AUDIO_GOAL_MS with LEAST_SLOTS, and the most slots.

    Returns:
        None if not even the smallest setting fits the memory. A card that misses the goal gets the fewest bytes per step.
    """
    choices = [choice for formats in FORMATS for slots in SLOTS if (choice := _choice(card, slots, formats)) is not None]
    good = (choice for choice in choices if choice.reaches_goal and choice.engine.slots >= LEAST_SLOTS)
    return next(good, None) or min(choices, key=lambda choice: choice.first_audio_ms, default=None)


def _choice(card: Card, slots: int, formats: dict[str, str]) -> Choice | None:
    settings: dict[str, Any] = {"device": "cuda", "dtype": "bfloat16", "weights": "dtype", "kv": "dtype"} | formats
    settings |= {"slots": slots, "steps_per_round": 2, "prefill_rows": 4, "max_waiting": slots}
    draft = EngineConfig.model_validate(settings)
    cache = kv_cache_bytes(draft) * (slots + 1) // slots  # unused rows of a prefill have a slot of their own
    engine = EngineConfig.model_validate(settings | {"kv_budget_mib": -(-cache // MIB)})
    used = needed_bytes(PipelineConfig(engine=engine, vocoder=BESIDE)) / (card.memory_gib * GIB)
    return Choice(card, engine, used) if used <= engine.gpu_memory_share else None


def sized(choice: Choice, out: Path | None) -> str:
    """Returns configs/gpu.yaml with the settings of a choice and all that follows from them on this machine's cores.

    Args:
        out: the file that it names as its own.
    """
    document: dict[str, Any] = parse_yaml(BASE.read_text(encoding="utf-8"))
    args = document["applications"][0]["args"]
    args["pipeline"]["engine"] |= choice.engine.model_dump(exclude_unset=True)
    args.pop("source")
    if out:
        args["source"] = str(out.resolve())
    derive(document, choice)
    return f"# Written by `chattts-serve size`: {BASE.name} for {choice}\n" + yaml.safe_dump(
        document, sort_keys=False, width=120
    )


def derive(document: dict[str, Any], choice: Choice) -> None:
    """Sets what follows from the slots and the speed of a choice: ingress replicas, and how much each deployment takes.

    All ingress replicas together admit what the engine can decode and queue: the engine refuses later, which costs more.
    """
    application = document["applications"][0]
    deployments = {deployment["name"]: deployment for deployment in application["deployments"]}
    ingress, acoustic = deployments["Ingress"], deployments["AcousticModel"]
    needed = math.ceil(choice.audio_s_per_s / INGRESS_RATE)
    others = sum(other["ray_actor_options"]["num_cpus"] for other in deployments.values() if other is not ingress)
    room = int(((os.cpu_count() or 1) - others) // ingress["ray_actor_options"]["num_cpus"])
    ingress["num_replicas"] = max(1, min(max(needed, ingress["num_replicas"]), room))
    engine = choice.engine
    limits = application["args"].setdefault("limits", {})
    limits["max_in_flight"] = max(1, (engine.slots + engine.max_waiting) // ingress["num_replicas"])
    for name, (least, _) in least_ongoing(read_app_config(application["args"])).items():
        options = deployments[name]
        options["max_ongoing_requests"] = max(least, options["max_ongoing_requests"])
    acoustic["max_queued_requests"] = max(acoustic["max_queued_requests"], acoustic["max_ongoing_requests"])


if __name__ == "__main__":
    sys.exit(main())
