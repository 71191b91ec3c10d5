"""Workload: what is requested, and when: texts, lengths, closed and open loops. All of it follows from one seed.

In:    a seed and a path of names (scenario, phase, index)
Out:   Utterances, Loads
Never: clocks, systems

Lengths are forced, so that random weights cause the same work in every system. This service ignores the end token
(engine.ignore_eos) and generates a fixed number of steps per letter (MEASURED); the ChatTTS package takes the number of steps
itself.
"""

import hashlib
import math
from dataclasses import dataclass

import numpy as np

from pipeline.spec import STEPS_PER_SECOND
from pipeline.text.segment import MEASURED

_WORDS = """
able about above across after again along also always among answer apple around autumn away back before begin being
below better between bird black blue boat book both bring brother build call came carry change child city clear close
cold come corner could country dark deep different door down draw dream drive early earth east enough evening every face
fall family far farm father feel few field find fire first fish five flower follow food forest found four friend from
garden give gold good grass great green ground grow half hand happy hard head hear heart help here high hill home horse
hour house hundred idea island keep kind know lake land large last late laugh lead learn leave left letter life light
line listen little live long look love made make many map mark mean meet mile milk mind minute moon morning mother
mountain move much music name near never new next night north note number ocean often open order other over page paper
part pass people picture place plain plan plant play point quick quiet rain reach read ready red rest river road rock
room round salt same sand school sea season second seed seem send seven shape ship short show side silver simple sing
sister six sleep slow small snow soft some song soon sound south space speak spring stand star start stay still stone
stop story street strong summer sun sure table take talk tell then there thing think three time town tree true turn two
under until valley very voice wait walk wall warm watch water wave way week west wheel while white whole wide wild wind
window winter wish wood word work world write year yellow yes young
"""
WORDS = _WORDS.split()


@dataclass(frozen=True, slots=True)
class Lengths:
    """The distribution of lengths: lognormal, clipped."""

    median_s: float = 4.0
    sigma: float = 0.6
    shortest_s: float = 0.8
    longest_s: float = 25.0

    def draw(self, random: np.random.Generator) -> float:
        """Draws one length [s]."""
        drawn = self.median_s * math.exp(self.sigma * random.standard_normal())
        return min(self.longest_s, max(self.shortest_s, drawn))


@dataclass(frozen=True, slots=True)
class Utterance:
    """One request."""

    text: str
    steps: int
    """decode steps; 0: unknown"""
    seed: int
    latency: str = "exact"
    """of this service; others have none"""
    lane: str = ""
    """of this service; empty: its default"""

    @property
    def audio_s(self) -> float:
        """Returns the length of the audio [s], 512 samples per step: samples that a system leaves out do not make it faster."""
        return self.steps / STEPS_PER_SECOND


@dataclass(frozen=True, slots=True)
class Load:
    """What is requested, and when."""

    utterances: tuple[Utterance, ...]
    clients: int | None = None
    """closed loop: number of clients, each of which sends its next request once the last is answered; None: open loop"""
    arrivals_s: tuple[float, ...] = ()
    """open loop: when each utterance is requested"""
    completions: int | None = None
    """the load ends with this many complete answers: the other clients then disconnect"""
    in_real_time: bool = False
    """closed loop: a client plays an answer to its end before it sends its next request"""
    streamed: bool = True
    timeout_s: float = 600.0

    def __post_init__(self) -> None:
        if self.clients is None and len(self.arrivals_s) != len(self.utterances):
            raise ValueError(f"{len(self.arrivals_s)} arrivals for {len(self.utterances)} utterances")


def random_of(*path: object) -> np.random.Generator:
    """Returns a random generator that is unique to a path."""
    digest = hashlib.sha256("/".join(map(str, path)).encode()).digest()
    return np.random.default_rng(int.from_bytes(digest, "big"))


def utterance(audio_s: float, *path: object) -> Utterance:
    """Returns a text unique to its path, whose speech is as near to `audio_s` as whole letters allow.

    Raises:
        ValueError: the text would be empty or too long for one segment.
    """
    letters = round((audio_s * STEPS_PER_SECOND - MEASURED.base_steps) / MEASURED.steps_per_char)
    if not 1 <= letters <= MEASURED.max_segment_chars:
        raise ValueError(f"{audio_s:g} s are {letters} letters; allowed are 1 to {MEASURED.max_segment_chars}")
    random = random_of(*path)
    text, steps = _text(letters, random), MEASURED.base_steps + round(MEASURED.steps_per_char * letters)
    return Utterance(text, steps, int(random.integers(2**32)))


def utterances(count: int, lengths: Lengths, *path: object) -> list[Utterance]:
    """Returns texts unique to their path, with drawn lengths."""
    return [utterance(lengths.draw(random_of(*path, index, "length")), *path, index) for index in range(count)]


def saturating(clients: int, completions: int, lengths: Lengths, *path: object, streamed: bool = True) -> Load:
    """Returns a closed loop that ends with so many complete answers, before any of the clients has nothing to request."""
    requested = utterances(completions + clients, lengths, *path)
    return Load(tuple(requested), clients=clients, completions=completions, streamed=streamed)


def open_loop(rate: float, duration_s: float, lengths: Lengths, *path: object) -> Load:
    """Returns requests at random times, at least one; `rate` in requests per second."""
    times = poisson(rate, duration_s, *path) or [0.0]
    return Load(tuple(utterances(len(times), lengths, *path)), arrivals_s=tuple(times))


def repeated(text: str, count: int) -> tuple[Utterance, ...]:
    """Returns a text with so many seeds; its length is unknown."""
    return tuple(Utterance(text, 0, seed) for seed in range(count))


def together(utterances: tuple[Utterance, ...]) -> Load:
    """Returns requests at the same moment."""
    return Load(utterances, arrivals_s=(0.0,) * len(utterances))


def poisson(rate: float, duration_s: float, *path: object) -> list[float]:
    """Returns the arrival times [s] of an open loop: no client waits for an answer before the next request."""
    random, now, times = random_of(*path, "arrivals"), 0.0, []
    while (now := now + random.exponential(1 / rate)) < duration_s:
        times.append(now)
    return times


def _text(letters: int, random: np.random.Generator) -> str:
    words: list[str] = []
    while sum(map(len, words)) + len(words) <= letters:
        words.append(WORDS[random.integers(len(WORDS))])
    text = " ".join(words)[:letters]
    return text[:-1] + "s" if text.endswith(" ") else text
