"""Label: measures how the voices of a checkpoint speak, and names them. `chattts-serve label --checkpoint FOLDER` (minutes)

In:    configs/voices.yaml, a checkpoint
Out:   persons.json beside the weights: pitch, pace and brightness of every voice over ten sentences, and its name
Never: Ray, HTTP; a voice of an operator's own catalogue
"""

import argparse
import asyncio
import json
import re
import sys
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.checkpoint.locate import DEMO, resolve
from pipeline.checkpoint.manifest import manifest_hash
from pipeline.config import PipelineConfig
from pipeline.errors import CheckpointError, ConfigError, SynthesisError
from pipeline.paths import cache_home
from pipeline.spec import SAMPLE_RATE
from pipeline.types import SamplingParams, SynthesisRequest
from pipeline.voices.measure import brightness_hz, median_pitch_hz
from pipeline.voices.persons import FILE
from serve.commands.say import LocalPipeline, open_pipeline

SENTENCES = (
    "The boat was red, and the sea was calm that morning.",
    "She put the letter on the table and went out.",
    "It is late, but the shop is still open.",
    "My brother lives in a small house near the river.",
    "We will meet at the station after lunch.",
    "The children played in the garden until it was dark.",
    "今天天气很好,我们去公园走走吧。",
    "他在图书馆看了一下午的书。",
    "请把窗户打开,外面的空气很新鲜。",
    "明天早上八点我在车站等你。",
)

PITCHES = ((110.0, "deep"), (130.0, "low"), (160.0, "middle"), (200.0, "high"), (float("inf"), "very high"))  # up to [Hz]
TONES = "warm", "soft", "clear", "bright"
PACES = "calm", "unhurried", "steady", "lively"

# From deep to high; nobody's namesake. The second name is for readers of Chinese.
NAMES = re.findall(
    r"(\w+) (\w+)",
    "Magnus 伯言 Conrad 立诚 Hugo 明远 Arthur 景行 Simon 思齐 Jasper 知秋 Robin 安然 "
    "Quinn 子墨 Noa 若溪 Iris 清音 Clara 思雨 Vera 晓晴 Mina 小满 Lily 灵儿",
)


@dataclass(frozen=True, slots=True)
class Measurement:
    """How a voice speaks the same sentences as the others."""

    pitch_hz: float
    """median of the fundamental"""
    seconds: float
    """length of all sentences"""
    brightness_hz: float
    """centroid of the spectrum"""


def describe(measurements: Mapping[str, Measurement]) -> dict[str, dict[str, str]]:
    """Returns origin -> labels of voices that were measured together, from deep to high.

    Tone and pace compare the voices with each other.

    Raises:
        ValueError: there are more voices than names.
    """
    if len(measurements) > len(NAMES):
        raise ValueError(f"{len(measurements)} voices were measured, and there are names for {len(NAMES)}")
    order = sorted(measurements, key=lambda origin: measurements[origin].pitch_hz)
    pace = np.median([voice.seconds for voice in measurements.values()])
    tones = _quarters({origin: voice.brightness_hz for origin, voice in measurements.items()})
    paces = _quarters({origin: -voice.seconds for origin, voice in measurements.items()})
    return {
        origin: {
            "name": NAMES[rank * len(NAMES) // len(order)][0],
            "name_zh": NAMES[rank * len(NAMES) // len(order)][1],
            "pitch": next(word for most, word in PITCHES if measurements[origin].pitch_hz < most),
            "tone": TONES[tones[origin]],
            "pace": PACES[paces[origin]],
            "pitch_hz": f"{measurements[origin].pitch_hz:.0f}",
            "brightness_hz": f"{measurements[origin].brightness_hz:.0f}",
            "relative_pace": f"{pace / measurements[origin].seconds:.2f}",
        }
        for rank, origin in enumerate(order)
    }


def _quarters(values: Mapping[str, float]) -> dict[str, int]:
    """Returns key -> 0 .. 3, the quarter of all values that its own is in."""
    order = sorted(values, key=lambda key: values[key])
    return {key: 4 * place // len(order) for place, key in enumerate(order)}


async def samples_of(local: LocalPipeline, voice: str, text: str, seed: int) -> NDArray[np.float32]:
    request = SynthesisRequest("persons", text, voice, sampling=SamplingParams(seed=seed))
    async with aclosing(local.synthesizer.stream(request)) as stream:
        return np.concatenate([chunk.samples async for chunk in stream])


async def measure(config: PipelineConfig) -> dict[str, Measurement]:
    """Returns origin -> measurement of every voice of the catalogue, but for those in which no fundamental was found.

    Raises:
        SynthesisError: a sentence cannot be spoken.
        CheckpointError, ConfigError: as open_pipeline raises them.
    """
    measurements = {}
    async with open_pipeline(config) as local:
        for voice in local.voices.list():
            recordings = [await samples_of(local, voice.name, text, seed) for seed, text in enumerate(SENTENCES)]
            pitches = [pitch for recording in recordings if (pitch := median_pitch_hz(recording)) is not None]
            seconds = sum(len(recording) for recording in recordings) / SAMPLE_RATE
            brightness = float(np.median([brightness_hz(recording) for recording in recordings]))
            if pitches:
                measurements[voice.origin] = Measurement(float(np.median(pitches)), seconds, brightness)
            print(voice.name, measurements.get(voice.origin, "has no pitch and gets no name"), flush=True)
    return measurements


def main(arguments: list[str] | None = None) -> int:
    """Writes the file. Exit code: 0 written, 1 the voices cannot be measured, 2 wrong usage."""
    parser = argparse.ArgumentParser(
        prog="chattts-serve label", description="Measure how every voice speaks, and give it a name. It takes minutes."
    )
    parser.add_argument("--checkpoint", default=DEMO, help="as for `chattts-serve say` (default: %(default)s)")
    parser.add_argument("--device", choices=("cpu", "cuda", "auto"), default="cpu", help="where it runs (default: %(default)s)")
    args = parser.parse_args(arguments)
    parts = {"engine": {"slots": 1, "threads": 1, "device": args.device}, "vocoder": {"threads": 1, "device": args.device}}
    try:
        root = resolve(args.checkpoint, cache_home())
        if not manifest_hash(root):
            raise CheckpointError(
                f"{root}: without SHA256SUMS nobody knows which weights it is; `chattts-serve pack` writes them"
            )
        config = PipelineConfig.model_validate({"checkpoint": args.checkpoint, **parts})
        persons = {"checkpoint": manifest_hash(root), "persons": describe(asyncio.run(measure(config)))}
        (root / FILE).write_text(f"{json.dumps(persons, indent=1, ensure_ascii=False)}\n", encoding="utf-8")
    except (SynthesisError, CheckpointError, ConfigError) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{root / FILE} is written; a service that runs shows the names once it is started again")
    return 0


if __name__ == "__main__":
    sys.exit(main())
