"""GPU sizes: for each kind of card, the number format and the slots to use and the speech to expect: predicted until measured.

In:    a card's memory and its bandwidth; results of scripts/evaluate/gpu_check
Out:   Choice: settings of engine and vocoder; the table that doctor and docs/operations.md print
Owns:  the cards' data sheets, the model of a step, the goal of a choice
Never: a prediction that is not called one

A step reads every weight once and the keys and values of each sequence, at REACHED of the memory's bandwidth, and each of its
kernels takes NODE_US besides. The vocoder's windows are float32 products at VOCODER_REACHED of the card's peak. Both share the
card, so their times per second of audio add up. `make gpu-check` measures each term; its results then replace the prediction.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.config import EngineConfig, PipelineConfig
from pipeline.spec import STEPS_PER_SECOND
from scripts.bench.record import step_figure
from scripts.operate.gpu_memory import BESIDE, LAYERS, MIB, kv_cache_bytes, needed_bytes, weight_bytes

CONTEXT = 300  # positions: the middle of an utterance of ten seconds
REACHED = 0.6
"""of the memory's bandwidth: kernels of this kind reach that or more on data-centre cards"""
NODE_US = 2.4
"""of a kernel in a CUDA graph [us]"""
NODES = 8 * LAYERS + 4
WINDOW_GFLOP = 28.5
"""of the windows of one second of audio, whose contexts overlap"""
VOCODER_REACHED = 0.4
PREFILL_MS = 0.12
"""of a second of audio: one call of 0.8 ms (184 nodes) per request of about five seconds, some of them shared"""
FIRST_AUDIO_STEPS = 64
"""steps before the first window is complete, and a round until the sequence is scheduled"""
FIRST_AUDIO_GOAL_MS = 150.0
LEAST_SLOTS = 16
SLOTS = (128, 64, 32, 16, 8)
FORMATS: tuple[dict[str, str], ...] = ({}, {"kv": "int8"}, {"weights": "int8", "kv": "int8"})
"""the first one that reaches the goal with LEAST_SLOTS is chosen"""
GIB = 1 << 30
PREDICTED = "predicted"
INGRESS_RATES = {"pcm": 200, "mp3": 90}
"""seconds of audio per second that one ingress replica of two cores encodes and sends"""


@dataclass(frozen=True, slots=True)
class Card:
    """A kind of GPU, as its maker describes it."""

    name: str
    """a part of the name that the driver reports"""
    memory_gib: float
    bandwidth: float
    """of its memory [bytes/s]"""
    tflops: float
    """peak of float32 products without tensor cores [10^12/s]"""


CARDS = (  # NVIDIA's data sheets; SXM where a card comes in several forms
    Card("A10", 22.5, 600e9, 31.2),
    Card("L4", 22.5, 300e9, 30.3),
    Card("L40S", 44.5, 864e9, 91.6),
    Card("RTX 4090", 23.5, 1008e9, 82.6),
    Card("A100", 79.0, 2039e9, 19.5),
    Card("H100", 79.0, 3350e9, 67.0),
    Card("H200", 139.0, 4800e9, 67.0),
)


@dataclass(frozen=True, slots=True)
class Choice:
    """What to set for a card, and what to expect of it."""

    card: Card
    engine: dict[str, Any]
    """settings of EngineConfig"""
    step_ms: float
    origin: str
    """`predicted`, or `measured: ...`"""
    audio_s_per_s: float
    """of engine and vocoder together on the card"""
    memory_share: float
    """of the card's memory"""

    @property
    def first_audio_ms(self) -> float:
        """Time to the first audio without waiting for a slot [ms]."""
        return FIRST_AUDIO_STEPS * self.step_ms

    @property
    def reaches_goal(self) -> bool:
        return self.first_audio_ms <= FIRST_AUDIO_GOAL_MS

    @property
    def formats(self) -> str:
        """The number formats in words."""
        eight = [name for name in ("weights", "kv") if self.engine[name] == "int8"]
        return f"bfloat16, {' and '.join(eight)} int8" if eight else "bfloat16"


def card_named(name: str) -> Card | None:
    """Returns the card whose name is in a driver's name for it, such as `NVIDIA H100 80GB HBM3`; None: not in the table."""
    words = name.upper().replace("-", " ").split()
    if {"LAPTOP", "MIG"} & set(words):  # half the card of the same name, or a slice of it
        return None
    return next((card for card in CARDS if set(card.name.upper().split()) <= set(words)), None)


def step_ms(engine: EngineConfig, card: Card) -> float:
    """Returns the predicted time of a decode step with every slot in use [ms]."""
    cached = engine.slots * CONTEXT * kv_cache_bytes(engine) / (engine.slots * engine.positions)
    return (weight_bytes(engine) + cached) / (REACHED * card.bandwidth) * 1e3 + NODES * NODE_US / 1e3


def ms_per_audio_s(step: float, slots: int, card: Card) -> float:
    """Returns the time of the card that a second of audio takes [ms], for steps of so many ms with every slot in use."""
    return step / slots * STEPS_PER_SECOND + PREFILL_MS + WINDOW_GFLOP / (VOCODER_REACHED * card.tflops)


def choose(card: Card, results: Path, *, share: float | None = None) -> Choice | None:
    """Returns the settings for a card: the first format that reaches FIRST_AUDIO_GOAL_MS with LEAST_SLOTS, and the most slots.

    Args:
        results: the folder of measurements.
        share: the part of the memory that may be needed; None: the default of engine.gpu_memory_share.

    Returns:
        None if not even the smallest setting fits the memory. A card that misses the goal gets the fewest bytes per step.
    """
    best: Choice | None = None
    for formats in FORMATS:
        for slots in SLOTS:
            choice = _choice(card, slots, formats, results, share)
            if choice is None:
                continue
            if choice.reaches_goal and slots >= LEAST_SLOTS:
                return choice
            if best is None or choice.first_audio_ms < best.first_audio_ms:
                best = choice
    return best


def _choice(card: Card, slots: int, formats: dict[str, str], results: Path, share: float | None) -> Choice | None:
    settings: dict[str, Any] = {"device": "cuda", "dtype": "bfloat16", "weights": "dtype", "kv": "dtype"} | formats
    settings |= {"slots": slots, "steps_per_round": 4, "prefill_rows": 4, "max_waiting": slots}
    draft = EngineConfig.model_validate(settings)
    cache = kv_cache_bytes(draft) * (slots + 1) // slots  # unused rows of a prefill have a slot of their own
    engine = EngineConfig.model_validate(settings | {"kv_budget_mib": -(-cache // MIB)})
    needed = needed_bytes(PipelineConfig(engine=engine, vocoder=BESIDE))
    used = needed / (card.memory_gib * GIB)
    if used > (share or engine.gpu_memory_share):
        return None
    measured = _measured(card, engine, results)
    step, origin = measured or (step_ms(engine, card), PREDICTED)
    per_audio_s = ms_per_audio_s(step, slots, card)
    return Choice(card, settings | {"kv_budget_mib": engine.kv_budget_mib}, step, origin, 1e3 / per_audio_s, used)


def _measured(card: Card, engine: EngineConfig, results: Path) -> tuple[float, str] | None:
    """Returns a measured step on this kind of card [ms], and its origin."""
    for file in sorted(results.glob("gpu*.json")):
        result = json.loads(file.read_text())
        found = result.get("figures", {}).get(step_figure(engine.slots, weights=engine.weights, kv=engine.kv))
        if found and is_of(card, str(result["hardware"].get("device"))):
            return found["step_ms"], f"measured: {file.name}"
    return None


def is_of(card: Card, device: str) -> bool:
    """True if a device of this name is such a card: the same name, or the one that the card of the table stands for."""
    return device == card.name or (card in CARDS and card_named(device) == card)


def table(results: Path) -> Iterator[str]:
    """Yields the table of all cards, in Markdown."""
    yield "| GPU | formats | slots | memory | ms a step | first audio [ms] | audio s/s | ingress replicas, pcm / mp3 | from |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for card in CARDS:
        choice = choose(card, results)
        assert choice is not None, "every card of the table holds the smallest setting"
        replicas = " / ".join(f"{-(-choice.audio_s_per_s // rate):.0f}" for rate in INGRESS_RATES.values())
        goal = "" if choice.reaches_goal else " (goal missed)"
        yield (
            f"| {card.name} | {choice.formats} | {choice.engine['slots']} "
            f"| {choice.memory_share:.0%} of {card.memory_gib:g} GiB"
            f" | {choice.step_ms:.2f} | {choice.first_audio_ms:.0f}{goal} | {choice.audio_s_per_s:.0f} | {replicas} "
            f"| {choice.origin} |"
        )
