"""Judge: is what comes out the sentence that went in? A recogniser writes down held-out sentences; its mistakes are counted.

In:    a service's address, or --local
Out:   mistakes beside those it makes on the teacher's own voice; last line JSON; exit code 1 when a figure is beyond its limit
Owns:  the limits, those of the demo checkpoint's card
Never: what a text means; demo_voice/hearing.py has the recogniser

    chattts-serve judge --local
    chattts-serve judge http://127.0.0.1:8000 --parallel 4

Needs pocketsphinx (in the dev extra), and for the teacher's own figures the Debian package flite.
"""

import argparse
import asyncio
import io
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import numpy as np
import requests
import soundfile
from numpy.typing import NDArray

from pipeline.config import PipelineConfig
from pipeline.errors import CheckpointError, ConfigError, SynthesisError
from pipeline.spec import SAMPLE_RATE
from pipeline.types import SamplingParams, SynthesisRequest
from scripts.say import open_pipeline
from scripts.train_demo.hearing import Recogniser, mistakes
from scripts.train_demo.sentences import DIGITS, held_out, words_of
from scripts.train_demo.teacher import SPEAKERS, speak

SEED = 1
TIMEOUT_S = 120.0
SPINE_SLOTS = 4
WORDS_ABOVE_TEACHER, DIGITS_ABOVE_TEACHER = 12.0, 5.0  # percentage points
REAL_TIME_FACTOR = 0.5
TEACHER = {"words": 7.1, "digits": 5.5}
"""what is misheard of flite's own voice, in percent: the card's figures, for machines without flite"""


@dataclass(frozen=True, slots=True, eq=False)
class Spoken:
    """A sentence as samples (n,) at `rate`, and the seconds it took to make."""

    samples: NDArray[np.float32]
    rate: int
    took_s: float


@dataclass(frozen=True, slots=True)
class Score:
    """Mistakes among words."""

    mistakes: int
    words: int

    @property
    def rate(self) -> float:
        """Word error rate."""
        return self.mistakes / max(1, self.words)

    def figures(self) -> dict[str, float]:
        """As they are printed."""
        return {"words": self.words, "mistakes": self.mistakes, "wer": round(self.rate, 4)}


Voice = Callable[[str], Spoken]


def is_digits(sentence: str) -> bool:
    """Whether nothing but digits is said."""
    return set(words_of(sentence)) <= set(DIGITS)


def teacher(sentence: str) -> Spoken:
    """flite's own voice."""
    started = time.perf_counter()
    utterance = speak(sentence, SPEAKERS[0])
    return Spoken(utterance.samples, utterance.rate, time.perf_counter() - started)


def service(url: str, voice: str) -> Voice:
    """A running service's voice."""

    def say(sentence: str) -> Spoken:
        started = time.perf_counter()
        body = {"input": sentence, "voice": voice, "seed": SEED, "response_format": "wav", "stream": False}
        reply = requests.post(f"{url.rstrip('/')}/v1/audio/speech", json=body, timeout=TIMEOUT_S)
        reply.raise_for_status()
        samples, rate = soundfile.read(io.BytesIO(reply.content), dtype="float32")
        return Spoken(samples, rate, time.perf_counter() - started)

    return say


async def say_all(config: PipelineConfig, voice: str, sentences: Iterable[str]) -> list[Spoken]:
    """The spine's voice, in this process, one sentence after another."""
    spoken = []
    async with open_pipeline(config) as local:
        for index, sentence in enumerate(sentences):
            request = SynthesisRequest(
                f"judge-{index}", sentence, voice, sampling=SamplingParams(seed=SEED), timeout_s=TIMEOUT_S
            )
            started = time.perf_counter()
            async with aclosing(local.synthesizer.stream(request)) as stream:
                chunks = [chunk.samples async for chunk in stream]
            spoken.append(Spoken(np.concatenate(chunks), SAMPLE_RATE, time.perf_counter() - started))
    return spoken


def score(recogniser: Recogniser, spoken: Iterable[tuple[str, Spoken]], *, digits: bool, shown: bool = False) -> Score:
    """Count the mistakes in those sentences that are digits, or that are not."""
    wrong = total = 0
    for sentence, sound in spoken:
        if is_digits(sentence) == digits:
            said = words_of(sentence)
            heard = recogniser.hear(sound.samples, sound.rate, digits=digits)
            count = mistakes(said, heard)
            if shown and count:
                print(f"{count:3d}  {' '.join(said)}  ->  {' '.join(heard)}")
            wrong, total = wrong + count, total + len(said)
    return Score(wrong, total)


def main(arguments: list[str] | None = None) -> int:
    """Judge one voice."""
    args = parsed(arguments)
    chosen = [one for kind in (False, True) for one in [s for s in held_out() if is_digits(s) == kind][: args.sentences]]
    try:
        spoken = say_locally(args, chosen) if args.local else say_remotely(args, chosen)
    except (SynthesisError, CheckpointError, ConfigError, requests.RequestException) as error:
        print(error, file=sys.stderr)
        return 1
    audio_s = sum(len(one.samples) / one.rate for one in spoken)
    result: dict[str, Any] = {"voice": args.voice}
    result |= {"dtype": args.dtype, "weights": args.weights, "kv": args.kv} if args.local else {}
    result |= hear(list(zip(chosen, spoken, strict=True)), shown=args.show)
    result |= {"audio_s": round(audio_s, 1), "real_time_factor": round(sum(one.took_s for one in spoken) / audio_s, 3)}
    above = {"words": args.words_above_teacher, "digits": args.digits_above_teacher}
    broken = beyond(result, above, args.real_time_factor)
    for sentence in broken:
        print(sentence, file=sys.stderr)
    print(json.dumps(result))
    return int(bool(broken))


def parsed(arguments: list[str] | None = None) -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(prog="chattts-serve judge", description="Count the words a recogniser mishears.")
    parser.add_argument("url", nargs="?", help="of a running service")
    parser.add_argument("--local", action="store_true", help="the same spine in this process, without a service")
    parser.add_argument("--checkpoint", default="demo", help="with --local")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="with --local")
    parser.add_argument("--weights", choices=("dtype", "int8"), default="dtype", help="with --local")
    parser.add_argument("--kv", choices=("dtype", "int8"), default="dtype", help="with --local")
    parser.add_argument("--codes", action="store_true", help="with --local: speak from the codes, use_decoder false")
    parser.add_argument("--voice", default="default")
    parser.add_argument("--parallel", type=int, default=1, help="requests at a time, with a URL")
    parser.add_argument("--sentences", type=int, help="only so many of each kind")
    parser.add_argument("--show", action="store_true", help="print what was misheard")
    limits = parser.add_argument_group("limits", "beyond one of them the exit code is 1; defaults: the demo checkpoint's card")
    points = "percentage points misheard above the teacher's (%(default)s)"
    limits.add_argument("--words-above-teacher", type=float, default=WORDS_ABOVE_TEACHER, metavar="POINTS", help=points)
    limits.add_argument("--digits-above-teacher", type=float, default=DIGITS_ABOVE_TEACHER, metavar="POINTS", help=points)
    limits.add_argument("--real-time-factor", type=float, default=REAL_TIME_FACTOR, metavar="FACTOR", help="(%(default)s)")
    args = parser.parse_args(arguments)
    if args.local == bool(args.url):
        parser.error("give a URL or --local")
    return args


def say_locally(args: argparse.Namespace, sentences: list[str]) -> list[Spoken]:
    """Each sentence, in this process."""
    config = PipelineConfig.model_validate(
        {
            "checkpoint": args.checkpoint,
            "engine": {"slots": SPINE_SLOTS, "dtype": args.dtype, "weights": args.weights, "kv": args.kv},
            "vocoder": {"use_decoder": not args.codes},
        }
    )
    return asyncio.run(say_all(config, args.voice, sentences))


def say_remotely(args: argparse.Namespace, sentences: list[str]) -> list[Spoken]:
    """Each sentence, by a running service."""
    with ThreadPoolExecutor(args.parallel) as pool:
        return list(pool.map(service(args.url, args.voice), sentences))


def hear(spoken: list[tuple[str, Spoken]], *, shown: bool) -> dict[str, dict[str, float]]:
    """Figures of words and of digits, the teacher's beside them where flite is installed; a printed line each."""
    recogniser = Recogniser()
    has_teacher = shutil.which("flite") is not None
    if not has_teacher:
        print("flite is not installed (Debian package flite): the teacher's figures are the card's", file=sys.stderr)
    result = {}
    for kind, digits in (("words", False), ("digits", True)):
        ours = score(recogniser, spoken, digits=digits, shown=shown)
        result[kind] = ours.figures()
        line = f"{kind:7s} {ours.words:4d} words, error rate {ours.rate:.3f}"
        if has_teacher:
            theirs = score(recogniser, [(s, teacher(s)) for s, _ in spoken if is_digits(s) == digits], digits=digits)
            result[f"teacher {kind}"] = theirs.figures()
            line += f", the teacher's {theirs.rate:.3f}"
        print(line)
    return result


def beyond(result: Mapping[str, Any], above: Mapping[str, float], real_time_factor: float) -> list[str]:
    """A sentence for each figure beyond its limit.

    Args:
        result: what `main` prints.
        above: words and digits -> percentage points above the teacher's.
    """
    broken = []
    for kind, points in above.items():
        ours = 100 * result[kind]["wer"]
        theirs = 100 * result[f"teacher {kind}"]["wer"] if f"teacher {kind}" in result else TEACHER[kind]
        if ours > theirs + points:
            broken.append(f"{ours:.1f} % of the {kind} were misheard; at most {theirs:.1f} + {points:g} % may be")
    if result["real_time_factor"] > real_time_factor:
        broken.append(f"the real-time factor is {result['real_time_factor']}; at most {real_time_factor:g} may it be")
    return broken


if __name__ == "__main__":
    sys.exit(main())
