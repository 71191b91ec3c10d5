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
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean

from pipeline.checkpoint.capabilities import Language
from pipeline.config import PipelineConfig
from pipeline.errors import CheckpointError, ConfigError, SynthesisError
from scripts.evaluate.impressions import PACKAGES, Impression, MissingPackages, impression, require
from scripts.evaluate.intelligibility import synthesise_all
from scripts.evaluate.listening import TEACHER_PACKAGES, TEACHERS, Samples, Sentence, readable, recording_at, teacher
from scripts.train_demo.held_out import held_out

TEXTS = "texts.txt"
AUDIO = (".wav", ".flac")
Figures = dict[str, float | None]


def natural_sentences(language: Language, count: int) -> list[Sentence]:
    """Returns held-out sentences as people say them."""
    texts = held_out("mandarin") if language == "zh" else (*held_out("everyday"), *held_out("balanced"))
    return readable(texts)[:count]


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
        name: round(fmean(getattr(impression, name) for impression in impressions), 2)
        for name in ("overall", "signal", "background", "p808", "voiced", "pace")
    }
    phones = sum(impression.phones for impression in impressions)
    ranges = [impression.pitch_range for impression in impressions if impression.pitch_range is not None]
    return means | {
        "phone_error_rate": round(sum(impression.mistakes for impression in impressions) / phones, 3) if phones else None,
        "pitch_range_semitones": round(fmean(ranges), 1) if ranges else None,
        "sentences": len(impressions),
    }


def judged(name: str, recordings: Sequence[tuple[Sentence, Samples]]) -> dict[str, Figures]:
    """Prints and returns the figures of a voice by language."""
    result: dict[str, Figures] = {}
    for language in dict.fromkeys(sentence.language for sentence, _ in recordings):
        of_language = [impression(samples, sentence.units) for sentence, samples in recordings if sentence.language == language]
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
            sentences = [sentence for language in args.languages for sentence in natural_sentences(language, args.sentences)]
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
