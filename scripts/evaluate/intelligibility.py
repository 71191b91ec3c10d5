"""Intelligibility: counts the words that a speech recogniser gets wrong in held-out sentences.

In:    a service's address, or --local, or --teacher
Out:   the word error rate of each kind of sentence; last line JSON; exit code 1 if a figure is beyond its limit
Owns:  the limits, which are those of the demo checkpoint's card
Never: the recognisers and teachers (listening.py)

    python -m scripts.evaluate.intelligibility --local
    python -m scripts.evaluate.intelligibility http://127.0.0.1:8000 --parallel 4
    python -m scripts.evaluate.intelligibility --teacher        # its own figures, of the sentences that it can read

It judges the languages that the checkpoint speaks; of Mandarin, syllables with their tones are its words. Needs pocketsphinx
(in the dev extra), and for the teacher the packages of the extra train.
"""

import argparse
import asyncio
import io
import json
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

from pipeline.checkpoint.capabilities import Language, read_capabilities
from pipeline.checkpoint.locate import resolve
from pipeline.config import PipelineConfig
from pipeline.errors import CheckpointError, ConfigError, SynthesisError
from pipeline.paths import cache_home
from pipeline.spec import SAMPLE_RATE
from pipeline.types import SamplingParams, SynthesisRequest
from scripts.evaluate.impressions import MissingPackages
from scripts.evaluate.listening import KINDS, Listener, Recording, readable, teacher
from scripts.train_demo.held_out import Kind, held_out
from serve.commands.say import open_pipeline

TIMEOUT_S = 120.0
LOCAL_SLOTS = 4
ABOVE_TEACHER: dict[Kind, float] = {
    "words": 12.0,
    "digits": 5.0,
    "everyday": 8.0,
    "balanced": 12.0,
    "names": 15.0,
    "mandarin": 15.0,
}
"""limits of the word error rates [percentage points]"""
REAL_TIME_FACTOR = 0.5
TEACHER: dict[Kind, float] = {
    "words": 7.6,
    "digits": 0.0,
    "everyday": 6.6,
    "balanced": 31.5,
    "names": 4.1,
    "mandarin": 69.0,
}
"""word error rate of the teacher [%], as --teacher measures it"""
Spoken = tuple[Kind, str]


@dataclass(frozen=True, slots=True)
class Score:
    """Mistakes among words."""

    mistakes: int
    words: int

    @property
    def rate(self) -> float:
        """Returns the word error rate."""
        return self.mistakes / max(1, self.words)

    def figures(self) -> dict[str, float]:
        """Returns the score as it is printed."""
        return {"words": self.words, "mistakes": self.mistakes, "wer": round(self.rate, 4)}


Voice = Callable[[str], Recording]


def service(url: str, voice: str, seed: int) -> Voice:
    """Returns a function that synthesises a sentence with a running service."""

    def synthesise(sentence: str) -> Recording:
        started = time.perf_counter()
        body = {"input": sentence, "voice": voice, "seed": seed, "response_format": "wav", "stream": False}
        reply = requests.post(f"{url.rstrip('/')}/v1/audio/speech", json=body, timeout=TIMEOUT_S)
        reply.raise_for_status()
        samples, rate = soundfile.read(io.BytesIO(reply.content), dtype="float32")
        return Recording(samples, rate, time.perf_counter() - started)

    return synthesise


async def synthesise_all(config: PipelineConfig, voice: str, seed: int, sentences: Iterable[str]) -> list[Recording]:
    """Synthesises the sentences in this process, one after another."""
    recordings = []
    async with open_pipeline(config) as local:
        for index, sentence in enumerate(sentences):
            request = SynthesisRequest(
                f"judge-{index}", sentence, voice, sampling=SamplingParams(seed=seed), timeout_s=TIMEOUT_S
            )
            started = time.perf_counter()
            async with aclosing(local.synthesizer.stream(request)) as stream:
                chunks = [chunk.samples async for chunk in stream]
            recordings.append(Recording(np.concatenate(chunks), SAMPLE_RATE, time.perf_counter() - started))
    return recordings


def score(listener: Listener, recordings: Iterable[tuple[str, Recording]], kind: Kind, *, shown: bool = False) -> Score:
    """Counts the mistakes in sentences of a kind."""
    wrong = total = 0
    for sentence, recording in recordings:
        transcript = listener.compare(kind, sentence, recording)
        if shown and transcript.mistakes:
            print(f"{transcript.mistakes:3d}  {' '.join(transcript.expected)}  ->  {' '.join(transcript.recognised)}")
        wrong, total = wrong + transcript.mistakes, total + len(transcript.expected)
    return Score(wrong, total)


def main(arguments: list[str] | None = None) -> int:
    """Measures one voice; exit code 1 if a figure is beyond its limit or the speech cannot be synthesised."""
    args = parsed(arguments)
    try:
        kinds = args.kinds or [kind for language in languages(args) for kind in KINDS[language]]
        chosen: list[Spoken] = [(kind, sentence) for kind in kinds for sentence in held_out(kind)[: args.sentences]]
        if args.teacher:
            figures([((kind, text), take) for kind, text in chosen for take in readings(text)], shown=args.show)
            return 0
        sentences = [sentence for _, sentence in chosen]
        recordings = synthesise_locally(args, sentences) if args.local else request_all(args, sentences)
    except (MissingPackages, SynthesisError, CheckpointError, ConfigError, requests.RequestException) as error:
        print(error, file=sys.stderr)
        return 1
    audio_s = sum(len(recording.samples) / recording.rate for recording in recordings)
    result: dict[str, Any] = {"voice": args.voice, "seed": args.seed}
    result |= {"dtype": args.dtype, "weights": args.weights, "kv": args.kv} if args.local else {}
    result |= figures(list(zip(chosen, recordings, strict=True)), shown=args.show)
    result |= {
        "audio_s": round(audio_s, 1),
        "real_time_factor": round(sum(recording.took_s for recording in recordings) / audio_s, 3),
    }
    above = {kind: getattr(args, f"{kind}_above_teacher") for kind in kinds}
    broken = beyond(result, above, args.real_time_factor)
    for sentence in broken:
        print(sentence, file=sys.stderr)
    print(json.dumps(result))
    return int(bool(broken))


def parsed(arguments: list[str] | None = None) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.evaluate.intelligibility", description="Measure the word error rate of a voice."
    )
    parser.add_argument("url", nargs="?", help="address of a running service")
    parser.add_argument("--local", action="store_true", help="synthesise in this process, without a service")
    parser.add_argument("--teacher", action="store_true", help="let the teacher read, in place of a voice of ours")
    parser.add_argument("--checkpoint", default="demo", help="with --local: the weights (default: %(default)s)")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="with --local: number format")
    formats = ("dtype", "int8", "int4")
    parser.add_argument("--weights", choices=formats, default="dtype", help="with --local: format of the weights")
    parser.add_argument("--kv", choices=("dtype", "int8"), default="dtype", help="with --local: format of keys and values")
    parser.add_argument("--codes", action="store_true", help="with --local: decode from the codes (use_decoder false)")
    parser.add_argument("--voice", default="default", help="name of the voice")
    parser.add_argument("--seed", type=int, default=1, help="of every sentence (default: %(default)s)")
    parser.add_argument("--parallel", type=int, default=1, help="requests at once, with a URL")
    parser.add_argument("--kinds", nargs="+", choices=ABOVE_TEACHER, help="kinds of sentences (default: those it can speak)")
    parser.add_argument("--sentences", type=int, help="use only this many of each kind")
    parser.add_argument("--show", action="store_true", help="print each mistake")
    limits = parser.add_argument_group(
        "limits", "if a figure is beyond its limit, the exit code is 1; the defaults are those of the demo checkpoint"
    )
    points = "percentage points above the teacher's error rate (default: %(default)s)"
    for kind, limit in ABOVE_TEACHER.items():
        limits.add_argument(f"--{kind}-above-teacher", type=float, default=limit, metavar="POINTS", help=points)
    limits.add_argument(
        "--real-time-factor",
        type=float,
        default=REAL_TIME_FACTOR,
        metavar="FACTOR",
        help="largest real-time factor (default: %(default)s)",
    )
    args = parser.parse_args(arguments)
    if args.local + args.teacher + bool(args.url) != 1:
        parser.error("give either a URL, --local or --teacher")
    return args


def languages(args: argparse.Namespace) -> Iterable[Language]:
    """Returns the languages that the teacher, the checkpoint, or every model of the service, speaks."""
    if args.teacher:
        return KINDS
    if args.local:
        return read_capabilities(resolve(args.checkpoint, cache_home())).languages
    reply = requests.get(f"{args.url.rstrip('/')}/v1/models", timeout=TIMEOUT_S)
    reply.raise_for_status()
    spoken = [set(model["languages"]) for model in reply.json()["data"]]
    return [language for language in KINDS if all(language in names for names in spoken)]


def synthesise_locally(args: argparse.Namespace, sentences: list[str]) -> list[Recording]:
    """Synthesises each sentence in this process."""
    config = PipelineConfig.model_validate(
        {
            "checkpoint": args.checkpoint,
            "engine": {"slots": LOCAL_SLOTS, "dtype": args.dtype, "weights": args.weights, "kv": args.kv},
            "vocoder": {"use_decoder": not args.codes},
        }
    )
    return asyncio.run(synthesise_all(config, args.voice, args.seed, sentences))


def request_all(args: argparse.Namespace, sentences: list[str]) -> list[Recording]:
    """Requests each sentence from a running service."""
    with ThreadPoolExecutor(args.parallel) as pool:
        return list(pool.map(service(args.url, args.voice, args.seed), sentences))


def figures(recordings: list[tuple[Spoken, Recording]], *, shown: bool) -> dict[str, dict[str, float]]:
    """Prints and returns the figures of each kind."""
    listener = Listener()
    result: dict[str, dict[str, float]] = {}
    for kind in dict.fromkeys(kind for (kind, _), _ in recordings):
        own = [(sentence, sound) for (of_kind, sentence), sound in recordings if of_kind == kind]
        errors = score(listener, own, kind, shown=shown)
        result[kind] = errors.figures()
        print(f"{kind:8s} {errors.words:4d} words, error rate {errors.rate:.3f}, the teacher's {TEACHER[kind] / 100:.3f}")
    return result


def readings(text: str) -> list[Recording]:
    """Returns how the teacher reads a sentence: nothing where a word is not in its lexicons."""
    return [Recording(teacher(sentence), SAMPLE_RATE, 0.0) for sentence in readable([text])]


def beyond(result: Mapping[str, Any], above: Mapping[Kind, float], real_time_factor: float) -> list[str]:
    """Returns a sentence for each figure beyond its limit.

    Args:
        result: what `main` prints.
        above: kind -> percentage points above the teacher's.
    """
    broken = []
    for kind, points in above.items():
        ours = 100 * result[kind]["wer"]
        if ours > TEACHER[kind] + points:
            broken.append(f"{kind}: {ours:.1f} % of the words are wrong; the limit is {TEACHER[kind]:.1f} + {points:g} %")
    if result["real_time_factor"] > real_time_factor:
        broken.append(f"the real-time factor is {result['real_time_factor']}; the limit is {real_time_factor:g}")
    return broken


if __name__ == "__main__":
    sys.exit(main())
