"""Alignment heads: finds the heads of attention that follow the text, and judges the times of words that they give.

In:    --checkpoint
Out:   the chosen heads and their error as JSON; with --write also in taught.json of the checkpoint
Owns:  how a head is chosen
Never: a figure from the sentences that chose the heads: these are judged on others

    python -m scripts.evaluate.alignment_heads --checkpoint demo --write

Speaks held-out sentences, and compares where each word begins with pocketsphinx's forced alignment of the audio. Heads are
added while they lower the median error, from the one with the lowest on. A checkpoint without a head that follows its text gets
none: the times of its words are then estimated. Needs pocketsphinx (in the dev extra), which knows English alone.
"""

import argparse
import asyncio
import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

import numpy as np
import soxr
from numpy.typing import NDArray
from pocketsphinx import Decoder

from pipeline.checkpoint.capabilities import Alignment, capabilities_file, read_capabilities
from pipeline.checkpoint.layout import CAPABILITIES_FILE
from pipeline.checkpoint.locate import resolve
from pipeline.checkpoint.manifest import file_sha256, read_manifest, write_manifest
from pipeline.checkpoint.weights import open_checkpoint
from pipeline.config import PipelineConfig
from pipeline.model.text_attention import PromptAttention
from pipeline.paths import cache_home
from pipeline.spec import HOP, SAMPLE_RATE, SAMPLES_PER_STEP
from pipeline.timing.follow import GROUP, Follower
from pipeline.types import Prompt, SamplingParams, SpokenWord, SynthesisRequest, TimeDetail
from scripts.train_demo.held_out import Kind, held_out
from serve.commands.say import LocalPipeline, open_pipeline

KINDS: tuple[Kind, ...] = ("words", "everyday", "balanced")
RATE = 16_000
PEAK = 0.8
SEED = 1
FRAME_S = 0.01  # of pocketsphinx
MOST_HEADS = 4
MOST_MS = 100.0
"""a head whose median error is larger does not follow the text"""
LEAST_GAIN_MS = 2.0
"""what one more head must lower it by; the judge counts in frames of 10 ms"""
CLOSE_MS = 100.0


@dataclass(frozen=True, slots=True, eq=False)
class Spoken:
    """A sentence that was spoken, and where the judge hears its words begin."""

    segments: list[tuple[Prompt, tuple[SpokenWord, ...], NDArray[np.int64]]]
    scores: list[NDArray[np.float32]]  # per segment (heads, steps, prompt)
    starts_s: list[float]
    """of each word"""


def starts(decoder: Decoder, text: str, samples: NDArray[np.float32]) -> list[float] | None:
    """Returns where each word of a text begins in samples (n,) [s]; None if the judge cannot tell."""
    words = re.findall(r"[a-z']+", text.lower())
    if any(decoder.lookup_word(word) is None for word in words):
        return None
    resampled = soxr.resample(samples, SAMPLE_RATE, RATE)
    loudest = float(np.abs(resampled).max(initial=1e-4))
    decoder.set_align_text(" ".join(words))
    decoder.start_utt()
    decoder.process_raw((resampled / loudest * PEAK * 32767).astype("<i2").tobytes(), full_utt=True)
    decoder.end_utt()
    frames = [
        (re.sub(r"\(\d+\)", "", segment.word), segment.start_frame)
        for segment in decoder.seg() or ()
        if segment.word[0] not in "<[("
    ]
    return [frame * FRAME_S for _, frame in frames] if [word for word, _ in frames] == words else None


async def speak(
    local: LocalPipeline, sentence: str
) -> tuple[list[tuple[Prompt, tuple[SpokenWord, ...], NDArray[np.int64]]], NDArray[np.float32]]:
    """Returns prompt, words and codes of each segment, and the samples."""
    request = SynthesisRequest("heads", sentence, "default", sampling=SamplingParams(seed=SEED), times=TimeDetail.WORD)
    plan = await local.frontend.plan(request, {"default": local.voices.get("default")})
    segments = []
    for prompt, words in zip(plan.prompts, plan.words, strict=True):
        blocks = [block.codes async for block in local.engine.generate(prompt, request.sampling, timeout_s=120)]
        segments.append((prompt, words, np.concatenate(blocks)))
    async with aclosing(local.synthesizer.stream(request)) as chunks:
        samples = [chunk.samples async for chunk in chunks]
    return segments, np.concatenate(samples)


async def speak_all(checkpoint: str, sentences: Iterable[str]) -> list[Spoken]:
    """Speaks the sentences, and keeps those that the judge can place."""
    files = open_checkpoint(resolve(checkpoint, cache_home()))
    heads = [(layer, head) for layer in range(files.gpt_spec.layers) for head in range(files.gpt_spec.heads)]
    config = PipelineConfig.model_validate({"checkpoint": checkpoint, "engine": {"slots": 1, "dtype": "float32"}})
    attention = PromptAttention(files, heads, positions=config.engine.positions)
    decoder = Decoder(samprate=RATE, loglevel="FATAL")
    spoken = []
    async with open_pipeline(config) as local:
        for sentence in sentences:
            segments, samples = await speak(local, sentence)
            begun = starts(decoder, sentence, samples)
            if begun is not None and len(begun) == sum(len(words) for _, words, _ in segments):
                scores = [scores_of(attention, prompt, codes) for prompt, _, codes in segments]
                spoken.append(Spoken(segments, scores, begun))
    return spoken


def scores_of(attention: PromptAttention, prompt: Prompt, codes: NDArray[np.int64]) -> NDArray[np.float32]:
    """Returns how strongly each head (heads, steps, prompt) looks at each position."""
    fed, first = attention.begin(prompt)
    rest = [attention.extend(fed, codes[start : start + GROUP]) for start in range(0, len(codes), GROUP)]
    return np.concatenate([first, *rest], 1)[:, : len(codes)]


def errors_ms(spoken: Iterable[Spoken], heads: Sequence[int]) -> NDArray[np.float64]:
    """Returns the error of the beginning of each word that these heads give [ms]."""
    return np.array(
        [
            1000 * (ours - theirs)
            for recording in spoken
            for ours, theirs in zip(_begun(recording, heads), recording.starts_s, strict=True)
        ]
    )


def _begun(spoken: Spoken, heads: Sequence[int]) -> Iterator[float]:
    before = 0  # samples of the segments before
    for (prompt, words, codes), scores in zip(spoken.segments, spoken.scores, strict=True):
        first, stop = words[0].tokens[0], int(prompt.text_mask.sum())
        follower = Follower(stop - first)
        follower.add(scores[list(heads), :, first:stop])
        follower.finish()
        for word in words:
            step = int(np.searchsorted(follower.path, word.tokens[0] - first))
            yield (before + step * SAMPLES_PER_STEP) / SAMPLE_RATE
        before += len(codes) * SAMPLES_PER_STEP - HOP


def median(errors: NDArray[np.float64]) -> float:
    """Returns the median of their sizes."""
    return float(np.median(np.abs(errors)))


def chosen_of(spoken: Sequence[Spoken], heads: int) -> list[int]:
    """Returns the heads that follow the text best together, the best one first; none if none follows it."""
    alone = {head: median(errors_ms(spoken, [head])) for head in range(heads)}
    chosen: list[int] = []
    least = MOST_MS
    for head in sorted(alone, key=alone.__getitem__)[: 2 * MOST_HEADS]:
        error = median(errors_ms(spoken, [*chosen, head]))
        if error < least - (LEAST_GAIN_MS if chosen else 0) and len(chosen) < MOST_HEADS:
            chosen, least = [*chosen, head], error
    return chosen


def main(arguments: list[str] | None = None) -> int:
    """Finds the heads of a checkpoint; exit code 1 if none follows its text."""
    parser = argparse.ArgumentParser(description="Find the heads of attention that follow the text.")
    parser.add_argument("--checkpoint", default="demo", help="the weights (default: %(default)s)")
    parser.add_argument("--sentences", type=int, default=40, help="of each kind (default: %(default)s)")
    parser.add_argument("--write", action="store_true", help="write taught.json and SHA256SUMS of the checkpoint")
    args = parser.parse_args(arguments)
    spoken = asyncio.run(
        speak_all(args.checkpoint, [sentence for kind in KINDS for sentence in held_out(kind)[: args.sentences]])
    )
    if len(spoken) < 2:
        print("the judge understands too few sentences of this checkpoint", file=sys.stderr)
        return 1
    layers = open_checkpoint(resolve(args.checkpoint, cache_home())).gpt_spec
    learning, judging = spoken[::2], spoken[1::2]
    chosen = chosen_of(learning, layers.layers * layers.heads)
    if not chosen:
        print("no head follows the text: the times of words stay estimated", file=sys.stderr)
        return 1
    errors = errors_ms(judging, chosen)
    alignment = Alignment(
        heads=tuple(divmod(head, layers.heads) for head in chosen),
        words=len(errors),
        median_ms=round(median(errors), 1),
        within_100_ms=round(float((np.abs(errors) <= CLOSE_MS).mean()), 4),
    )
    if args.write:
        write(args.checkpoint, alignment)
    print(json.dumps({"checkpoint": args.checkpoint, "sentences": len(judging), **alignment.model_dump()}))
    return 0


def write(checkpoint: str, alignment: Alignment) -> None:
    """Writes the heads into the checkpoint's taught.json, and its hash into the manifest if there is one."""
    root = resolve(checkpoint, cache_home())
    capabilities = read_capabilities(root).model_copy(update={"alignment": alignment})
    (root / CAPABILITIES_FILE).write_bytes(capabilities_file(capabilities))
    manifest = read_manifest(root)
    if manifest is not None:
        write_manifest(root, {**manifest, CAPABILITIES_FILE: file_sha256(root / CAPABILITIES_FILE)})


if __name__ == "__main__":
    sys.exit(main())
