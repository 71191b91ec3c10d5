"""Look-ahead: what the ear loses when a stream is decoded before all steps are known that it depends on.

In:    --checkpoint
Out:   per look-ahead and for `latency: low` the distance to the exact audio, and the words misheard; JSON, to --out if given
Never: another seed or text for one of the rows: all of them decode the same steps

    python -m scripts.evaluate.look_ahead --checkpoint demo --out scripts/evaluate/results/look_ahead-demo.json

The distance is the log-spectral one: the root mean square, over the bins of a frame, of the difference of two spectra in dB,
where either is within 60 dB of the loudest. Words are judged where the checkpoint speaks a language of the judge (in the dev
extra); random weights speak none.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.checkpoint.capabilities import read_capabilities
from pipeline.checkpoint.locate import resolve
from pipeline.config import PipelineConfig
from pipeline.paths import cache_home
from pipeline.spec import FFT_SIZE, HOP, SAMPLE_RATE, STEPS_PER_SECOND
from pipeline.types import Latency, SamplingParams, StepBlock, SynthesisRequest
from pipeline.vocoder.early import EARLY
from pipeline.vocoder.stream import StreamDecoder
from scripts.evaluate.listening import KINDS, Listener, Recording
from scripts.train_demo.held_out import Kind, held_out
from serve.commands.say import LocalPipeline, open_pipeline

LOOK_AHEADS = (4, 8, 12, 20, 28)
CHUNK = 8
LOW = "low"
EXACT = "exact"
SEED = 1
VOICE = "default"
AUDIBLE_DB = -60.0  # relative to the loudest bin
TIMEOUT_S = 600.0
RANDOM_KINDS: tuple[Kind, ...] = ("everyday",)  # what a checkpoint without a language is given

Samples = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Spoken:
    """One sentence, decoded in every way."""

    kind: Kind
    sentence: str
    ways: dict[str, Samples]  # exact, low, or the look-ahead -> samples (n,)


def distances_db(ours: Samples, exact: Samples) -> NDArray[np.float64]:
    """Returns the log-spectral distance (frames,) of samples (n,) in the frames that can be heard [dB]."""
    ours_db, exact_db = _spectrum_db(ours), _spectrum_db(exact)
    floor = exact_db.max() + AUDIBLE_DB
    audible = np.maximum(ours_db, exact_db).max(axis=1) > floor
    difference = np.maximum(ours_db, floor) - np.maximum(exact_db, floor)
    distances: NDArray[np.float64] = np.sqrt((difference[audible] ** 2).mean(axis=1))
    return distances


def _spectrum_db(samples: Samples) -> NDArray[np.float64]:
    padded = np.pad(samples.astype(np.float64), FFT_SIZE // 2)
    frames = np.lib.stride_tricks.sliding_window_view(padded, FFT_SIZE)[::HOP] * np.hanning(FFT_SIZE)
    return 20 * np.log10(np.abs(np.fft.rfft(frames)) + 1e-12)


async def decoded(local: LocalPipeline, blocks: Sequence[StepBlock], way: str) -> Samples:
    """Returns the samples (n,) of a segment's steps, decoded in one way."""
    ramp = ((CHUNK, int(way)),) * len(blocks) if way.isdigit() else EARLY

    async def steps() -> AsyncGenerator[StepBlock, None]:
        for block in blocks:
            yield block

    latency = Latency.EXACT if way == EXACT else Latency.LOW
    async with aclosing(StreamDecoder(local.vocoder, ramp=ramp).decode(steps(), latency=latency)) as chunks:
        return np.concatenate([chunk.samples async for chunk in chunks])


async def spoken(local: LocalPipeline, kind: Kind, sentence: str) -> Spoken:
    """Samples the steps of a sentence once, and decodes them in every way."""
    request = SynthesisRequest(LOW, sentence, VOICE, sampling=SamplingParams(seed=SEED), timeout_s=TIMEOUT_S)
    plan = await local.frontend.plan(request, {VOICE: local.voices.get(VOICE)})
    segments = [
        [block async for block in local.engine.generate(prompt, request.sampling, timeout_s=TIMEOUT_S)]
        for prompt in plan.prompts
    ]
    ways = {}
    for way in (EXACT, LOW, *map(str, LOOK_AHEADS)):
        ways[way] = np.concatenate([await decoded(local, blocks, way) for blocks in segments])
    return Spoken(kind, sentence, ways)


async def spoken_all(config: PipelineConfig, chosen: Sequence[tuple[Kind, str]]) -> tuple[int, list[Spoken]]:
    """Returns the exact look-ahead of a checkpoint [steps], and all sentences."""
    async with open_pipeline(config) as local:
        return (await local.vocoder.traits()).look_ahead, [await spoken(local, *sentence) for sentence in chosen]


def figures(sentences: Sequence[Spoken], way: str, listener: Listener | None) -> dict[str, Any]:
    """Returns the figures of one way of decoding, over all sentences."""
    distances = np.concatenate([distances_db(sentence.ways[way], sentence.ways[EXACT]) for sentence in sentences])
    same = [np.array_equal(sentence.ways[way], sentence.ways[EXACT]) for sentence in sentences]
    result: dict[str, Any] = {
        "distance_db": round(float(distances.mean()), 3),
        "distance_p95_db": round(float(np.percentile(distances, 95)), 3),
        "same_samples": sum(same),
    }
    if listener is not None:
        transcripts = [
            listener.compare(sentence.kind, sentence.sentence, Recording(sentence.ways[way], SAMPLE_RATE, 0.0))
            for sentence in sentences
        ]
        result |= {
            "mistakes": sum(transcript.mistakes for transcript in transcripts),
            "words": sum(len(transcript.expected) for transcript in transcripts),
        }
    return result


def main(arguments: list[str] | None = None) -> int:
    """Measures one checkpoint."""
    parser = argparse.ArgumentParser(description="Measure what the ear loses with less look-ahead.")
    parser.add_argument("--checkpoint", default="demo", help="the weights (default: %(default)s)")
    parser.add_argument("--sentences", type=int, default=20, help="of each kind (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="file for the result")
    args = parser.parse_args(arguments)
    languages = read_capabilities(resolve(args.checkpoint, cache_home())).languages
    kinds = [kind for language in languages if language in KINDS for kind in KINDS[language]]
    is_random = args.checkpoint.endswith("random")
    engine: dict[str, Any] = {"slots": 1, "ignore_eos": is_random}
    config = PipelineConfig.model_validate({"checkpoint": args.checkpoint, "engine": engine})
    chosen = [
        (kind, sentence) for kind in (RANDOM_KINDS if is_random else kinds) for sentence in held_out(kind)[: args.sentences]
    ]
    exact, sentences = asyncio.run(spoken_all(config, chosen))
    listener = None if is_random else Listener()
    audio_s = sum(len(sentence.ways[EXACT]) for sentence in sentences) / SAMPLE_RATE
    result = {
        "checkpoint": args.checkpoint,
        "exact_look_ahead_steps": exact,
        "sentences": len(sentences),
        "audio_s": round(audio_s, 1),
        "steps_per_second": STEPS_PER_SECOND,
        "ways": {way: figures(sentences, way, listener) for way in (EXACT, LOW, *map(str, LOOK_AHEADS))},
    }
    if args.out is not None:
        args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
