"""Slot waste: how much of a KV cache of fixed slots is never used, and how many listeners that costs. One JSON line.

`python -m scripts.evaluate.slot_waste`

In:    the length law of scripts/evaluate/gpu_check/speech.py; the cards of scripts/operate/gpu_sizes.py
Out:   per number of slots: memory reserved and used, with pages of PAGE positions; per card: slots by memory and by time
Owns:  the law of prompt lengths
Never: an engine

Every slot is busy, which is where memory could matter. A page holds PAGE positions of one sequence; the last page of a sequence
is part empty. A pool of pages must hold what all slots use at once, most of the time: its size is a high quantile.
"""

import json
import sys
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.config import EngineConfig, PipelineConfig
from scripts.evaluate.gpu_check.speech import lengths
from scripts.operate.gpu_memory import BESIDE, kv_cache_bytes, needed_bytes
from scripts.operate.gpu_sizes import CARDS, FIRST_AUDIO_GOAL_MS, FIRST_AUDIO_STEPS, GIB, Card, ms_per_audio_s, step_ms

SLOTS = (16, 64, 128)
PAGE = 16  # positions
MOMENTS = 20_000
QUANTILE = 0.999
MOST_SLOTS = 512  # the largest engine.slots
BUSY = 0.75
STEPS_PER_TOKEN = 12  # of text: speech at the usual pace, 46.875 steps and some four tokens a second
PROMPT_EXTRA = 12  # positions: voice, speed and control tokens
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Waste:
    """The cache of one number of slots, in bfloat16."""

    slots: int
    reserved_mib: float
    used_mib: float
    """the mean over moments"""
    wasted: float
    """1 - used / reserved"""
    paged_mib: float
    """pool of pages that suffices in QUANTILE of the moments"""


@dataclass(frozen=True, slots=True)
class Limit:
    """How many sequences one card can decode together."""

    card: str
    kv: str
    """number format of keys and values"""
    by_memory: int
    """fixed slots within engine.gpu_memory_share"""
    by_memory_paged: int
    in_time: int
    """with first audio within the goal"""
    in_real_time: int
    """engine and vocoder busy for BUSY of the time, first audio whenever it comes"""
    lost_in_time: float
    """share of listeners that fixed slots cost, compared with pages"""
    lost_in_real_time: float


def engine(slots: int, kv: str = "dtype") -> EngineConfig:
    """Returns an engine of so many slots; only its sizes count."""
    return EngineConfig.model_validate(
        {"device": "cuda", "dtype": "bfloat16", "kv": kv, "slots": slots, "kv_budget_mib": 1 << 20}
    )


def used_positions(slots: int, chance: np.random.Generator) -> NDArray[np.int64]:
    """Returns the positions that each slot uses, (MOMENTS, slots): a busy slot more likely holds a long sequence."""
    pool = lengths(200_000, chance)
    found = chance.choice(pool, size=(MOMENTS, slots), p=pool / pool.sum())
    return PROMPT_EXTRA + found // STEPS_PER_TOKEN + chance.integers(0, found + 1)


def waste(slots: int) -> Waste:
    """Measures the cache of `slots` busy slots."""
    used = used_positions(slots, np.random.default_rng(slots))
    config = engine(slots)
    position = kv_cache_bytes(config) / (slots * config.positions)
    pages = -(-used // PAGE) * PAGE
    reserved, mean = kv_cache_bytes(config), float(used.sum(axis=1).mean()) * position
    pool = float(np.quantile(pages.sum(axis=1), QUANTILE)) * position
    return Waste(slots, reserved / MIB, mean / MIB, 1 - mean / reserved, pool / MIB)


def limit(card: Card, kv: str, paged_share: float) -> Limit:
    """Compares memory and time as limits of one card.

    Args:
        paged_share: the size of a pool of pages as a share of the fixed cache.
    """
    one = engine(1, kv)
    fixed = needed_bytes(PipelineConfig(engine=one, vocoder=BESIDE)) - kv_cache_bytes(one)
    room = one.gpu_memory_share * card.memory_gib * GIB - fixed
    by_memory, paged = int(room // kv_cache_bytes(one)), int(room // (paged_share * kv_cache_bytes(one)))
    steps = [(count, step_ms(engine(count, kv), card)) for count in range(1, MOST_SLOTS + 1)]
    in_time = max((count for count, step in steps if FIRST_AUDIO_STEPS * step <= FIRST_AUDIO_GOAL_MS), default=0)
    in_real_time = max((count for count, step in steps if count * ms_per_audio_s(step, count, card) <= 1e3 * BUSY), default=0)

    def lost(by_time: int) -> float:
        return 1 - min(by_memory, by_time) / min(paged, by_time) if by_time else 0.0

    return Limit(card.name, kv, by_memory, paged, in_time, in_real_time, lost(in_time), lost(in_real_time))


def main() -> int:
    """Prints both tables."""
    by_slots = [waste(slots) for slots in SLOTS]
    largest = by_slots[-1]
    cards = [limit(card, kv, largest.paged_mib / largest.reserved_mib) for kv in ("dtype", "int8") for card in CARDS]
    print(json.dumps({"slots": [asdict(one) for one in by_slots], "cards": [asdict(one) for one in cards]}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
