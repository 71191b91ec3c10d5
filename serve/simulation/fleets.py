"""Fleets: cards by name, traffic of listeners, and what a fleet makes of it.

In:    a fleet such as 4*H100+4*L4, a number of listeners or a load
Out:   refusals, first audio, the share of the steps that was used; the smallest number of cards that is enough
Owns:  what is known of each card, and from where
Never: a card that nobody has measured or predicted
"""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from pipeline.config import EngineConfig
from pipeline.errors import ConfigError
from pipeline.spec import STEPS_PER_SECOND
from serve.simulation.roofline import Card, audio_s_per_s, step_ms
from serve.simulation.virtual_time import Call, Device, VirtualService

MEASURED, PREDICTED = "measured", "predicted"
FIRST_STEPS = 64  # before the first window of ChatTTS's vocoder is complete
FIRST_STEPS_S = 0.15  # that they may take with every slot in use
SLOTS = (128, 64, 32, 16, 8)
PREFILL_S = 0.001

CARDS = (  # by their data sheets: memory [GiB], its rate [bytes/s], float32 products [10^12/s]
    Card("H200", 141, 4.80e12, 67.0),
    Card("A100", 80, 2.04e12, 19.5),
    Card("L40S", 48, 0.86e12, 91.6),
    Card("A10G", 24, 0.60e12, 31.2),
    Card("L4", 24, 0.30e12, 30.3),
)


def predicted(card: Card) -> Device:
    """Returns a card as the roofline predicts it, with as many slots as leave the first audio soon."""
    engines = [EngineConfig(slots=slots, device="cuda", dtype="bfloat16", kv="int8") for slots in SLOTS]
    engine = next((entry for entry in engines if FIRST_STEPS * step_ms(entry, card) <= 1e3 * FIRST_STEPS_S), engines[-1])
    alone = engine.model_copy(update={"slots": 1})
    full_s = engine.slots / (audio_s_per_s(engine, card) * STEPS_PER_SECOND)
    return Device(card.name, engine.slots, step_ms(alone, card) / 1e3, full_s, PREFILL_S, FIRST_STEPS, PREDICTED)


DEVICES = {
    # docs/benchmarks.md, on a GPU: engine and vocoder in float32, 128 clients; a step of one slot; a prefill.
    "H100": Device("H100", 128, 0.00066, 128 / (380 * STEPS_PER_SECOND), 0.0007, FIRST_STEPS, MEASURED),
    # docs/benchmarks.md, eight in flight on two cores; a step of one row alone; a prefill.
    "CPU": Device("CPU", 8, 0.0062, 8 / (6.1 * STEPS_PER_SECOND), 0.051, FIRST_STEPS, MEASURED),
    **{card.name: predicted(card) for card in CARDS},
}
MEDIAN_S, SPREAD, SHORTEST_S, LONGEST_S = 4.0, 0.6, 0.8, 25.0  # of a call's audio, lognormal
GOAL_S = 0.3  # first audio, p95
MOST_REFUSED = 0.001
MOST_CALLS = 1_500  # of a run that takes seconds
LOAD_WITHIN = 0.04
WARM = 0.3  # share of a run that does not count
DRAIN_S = 60.0
INGRESSES, STEPS_PER_ROUND = 4, 2  # as configs/gpu.yaml


def parse_fleet(text: str) -> list[Device]:
    """Returns the cards of a fleet: names, each with its number before an asterisk, joined by plus signs.

    Raises:
        ConfigError: a card is unknown, or a number is none.
    """
    devices: list[Device] = []
    for part in text.split("+"):
        number, _, name = part.strip().rpartition("*")
        number = number or "1"
        if name not in DEVICES or not (number.isascii() and number.isdigit() and int(number)):
            raise ConfigError(f"{part!r} is no part of a fleet: write 4*H100+4*L4, with {', '.join(DEVICES)}")
        devices += [DEVICES[name]] * int(number)
    return devices


@dataclass(frozen=True, slots=True)
class Figures:
    """What became of the calls that count."""

    calls: int
    refused: float
    """share of them"""
    first_audio_s: tuple[float, float, float]
    """p50, p95, p99 [s]"""
    used: float
    """steps that were made, as a share of those that could be"""

    @property
    def is_enough(self) -> bool:
        """True if the first audio meets GOAL_S and hardly anybody is refused."""
        return self.refused <= MOST_REFUSED and self.first_audio_s[1] <= GOAL_S


def lengths(draws: random.Random) -> Iterator[int]:
    """Yields the lengths of calls [steps]."""
    while True:
        audio_s = min(LONGEST_S, max(SHORTEST_S, MEDIAN_S * math.exp(SPREAD * draws.gauss(0, 1))))
        yield round(audio_s * STEPS_PER_SECOND)


@cache
def mean_steps() -> float:
    """Returns the mean length of a call [steps]."""
    drawn = lengths(random.Random(0))
    return sum(next(drawn) for _ in range(20_000)) / 20_000


def offer(service: VirtualService, steps_per_s: float, seconds: float, *, seed: int = 11) -> list[Call]:
    """Returns the calls that come at random times; they come while time passes.

    Args:
        steps_per_s: that the calls ask for.
    """
    draws, calls = random.Random(seed), list[Call]()
    drawn, rate = lengths(draws), steps_per_s / mean_steps()
    agenda = service.agenda

    def arrive() -> None:
        call = Call(agenda.now, next(drawn), ingress=draws.randrange(64))
        calls.append(call)
        service.ask(call)
        if (following := agenda.now + draws.expovariate(rate)) < seconds:
            agenda.at(following, arrive)

    agenda.at(agenda.now, arrive)
    return calls


def run(
    service: VirtualService, steps_per_s: float, seconds: float, *, seed: int = 11, at_half: Callable[[], object] | None = None
) -> Figures:
    """Offers calls at random times.

    Args:
        steps_per_s: that the calls ask for.
        at_half: called in the middle of the time that counts.
    """
    agenda, calls = service.agenda, offer(service, steps_per_s, seconds, seed=seed)
    if at_half is not None:
        agenda.at(seconds * (1 + WARM) / 2, lambda: (at_half(), None)[1])
    agenda.run(seconds)
    made = service.steps
    possible = seconds * sum(engine.device.steps_per_s for engine in service.engines.values())
    agenda.run(seconds + DRAIN_S)
    return figures_of([call for call in calls if call.at >= WARM * seconds], made / possible)


def figures_of(calls: Sequence[Call], used: float) -> Figures:
    """Returns the figures of calls that are over."""
    firsts = sorted(call.first_s for call in calls if call.first_s is not None)
    refused = sum(call.is_refused for call in calls) / max(1, len(calls))
    return Figures(len(calls), refused, quantiles(firsts), used)


def quantiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Returns p50, p95 and p99 of sorted values; infinite where there are none."""
    if not values:
        return math.inf, math.inf, math.inf
    p50, p95, p99 = (values[min(len(values) - 1, int(share * len(values)))] for share in (0.5, 0.95, 0.99))
    return p50, p95, p99


def service_of(devices: Sequence[Device]) -> VirtualService:
    """Returns a service over cards, as configs/gpu.yaml sets it."""
    return VirtualService(devices, ingresses=INGRESSES, steps_per_round=STEPS_PER_ROUND)


def offered(listeners: float) -> float:
    """Returns the steps per second that so many listeners, who always listen, ask for."""
    return listeners * STEPS_PER_SECOND


def fewest(device: Device, listeners: int, seconds: float) -> tuple[int, Figures]:
    """Returns the smallest number of cards that is enough, and what they make of it; or one that is not, where none is.

    Where that many cannot be simulated call by call, a card of the largest fleet that can be counts for each.
    """
    needed = offered(listeners) / device.steps_per_s
    most = max(1, math.floor(MOST_CALLS * mean_steps() / (device.steps_per_s * seconds)))
    if needed <= most:
        number = max(1, math.floor(needed))
        while not (figures := _figures(device, number, offered(listeners), seconds)).is_enough and number < 4 * needed + 4:
            number += max(1, number // 16)
        return number, figures
    low, high, figures = 0.0, 1.0, _figures(device, most, 0.5 * most * device.steps_per_s, seconds)
    while high - low > LOAD_WITHIN:
        load = (low + high) / 2
        tried = _figures(device, most, load * most * device.steps_per_s, seconds)
        low, high, figures = (load, high, tried) if tried.is_enough else (low, load, figures)
    return math.ceil(needed / max(low, LOAD_WITHIN)), figures


def _figures(device: Device, number: int, steps_per_s: float, seconds: float) -> Figures:
    return run(service_of([device] * number), steps_per_s, seconds)
