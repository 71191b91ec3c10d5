"""Read: speaks a book into a sound file. `chattts-serve read book.epub -o book.m4b`

In:    an EPUB, Markdown, SSML, text, a script with a cast; a pipeline in this process, or a service (--url)
Out:   a sound file with chapters; a progress bar
Owns:  the folder with what is finished, beside the file: begun again, the command goes on where it stopped
Never: speaking a part twice
"""

import argparse
import asyncio
import sys
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from pipeline.audio.encode import to_int16
from pipeline.audio.formats import AudioFormat, audio_format
from pipeline.books.assemble import CONTAINERS, M4B, assemble
from pipeline.books.job_files import JobFiles, PartNotes
from pipeline.books.question import Question
from pipeline.books.reader import read_document
from pipeline.books.script import Script
from pipeline.books.track import Track
from pipeline.config import PipelineConfig
from pipeline.errors import CheckpointError, ConfigError, SynthesisError
from pipeline.text.markup.ssml import parse
from pipeline.types import AudioOptions, Lane, SamplingParams, SchedulingParams, SynthesisRequest
from serve.commands import read_remote
from serve.commands.output_path import output_path
from serve.commands.say import LocalPipeline, open_pipeline

PARALLEL = 4
MARKDOWN = (".md", ".markdown")
SSML = (".ssml", ".xml")
TIMEOUT_S = 3600.0

Advance = Callable[[int, int], None]
"""told the finished parts and all of them"""


def main(arguments: list[str] | None = None) -> int:
    """Speaks one book. Exit code: 0 written, 1 it cannot be spoken, 2 wrong usage, 130 stopped: the same command goes on."""
    args = parsed(arguments)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    try:
        with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as progress:
            task = progress.add_task("reading", total=None)

            def advance(done: int, parts: int) -> None:
                progress.update(task, completed=done, total=parts, description=f"part {done} of {parts}")

            seconds = read_remote.read(args, kind_of(args), advance) if args.url else asyncio.run(read_here(args, advance))
    except (SynthesisError, CheckpointError, ConfigError, OSError, UnicodeError, read_remote.Refused) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; the same command goes on where it was", file=sys.stderr)
        return 130
    print(f"{args.output}: {seconds / 60:.1f} minutes of audio, seed {args.seed}")
    return 0


async def read_here(args: argparse.Namespace, advance: Advance) -> float:
    """Speaks a book in this process and returns how long it is [s].

    Raises:
        SynthesisError, CheckpointError, ConfigError
        OSError: a file cannot be read or written.
    """
    audio = format_of(args)
    fields = {"voice": args.voice, "seed": args.seed, "speed": args.speed, "sample_rate": audio.sample_rate}
    script, cover = script_of_file(args, {**fields, "checkpoint": args.checkpoint})
    files = JobFiles(args.output.with_name(f".{args.output.name}.parts"))
    files.make()
    if cover is None:
        print(f"{args.book}: its cover cannot be shown: {args.output} has none", file=sys.stderr)
    if cover:
        script = replace(script, cover=files.keep_cover(cover))
    files.keep_script(script)
    config = PipelineConfig.model_validate(
        {
            "checkpoint": args.checkpoint,
            "engine": {"slots": PARALLEL, "device": args.device},
            "vocoder": {"device": args.device},
        }
    )
    missing = [key for key in dict.fromkeys(script.keys) if key not in files.lengths()]
    advance(len(script.parts) - len(missing), len(script.parts))
    if missing:
        async with open_pipeline(config) as local:
            await _speak_all(local, script, files, missing, advance)
    track = Track(script, files.lengths(), audio.sample_rate)
    files.keep_only(frozenset(script.keys), "")
    await asyncio.to_thread(assemble, files, script, track, audio, args.output)
    files.remove()
    return track.samples / audio.sample_rate


async def _speak_all(local: LocalPipeline, script: Script, files: JobFiles, missing: list[str], advance: Advance) -> None:
    numbers = {key: number for number, key in reversed(list(enumerate(script.keys)))}
    waiting = list(reversed(missing))

    async def work() -> None:
        while waiting:
            key = waiting.pop()
            pcm = await _speak(local, script, numbers[key])
            await asyncio.to_thread(files.keep, key, pcm, PartNotes())
            advance(sum(key not in waiting for key in script.keys), len(script.parts))

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(PARALLEL):
                group.create_task(work())
    except* (SynthesisError, OSError) as failed:
        raise failed.exceptions[0] from None


async def _speak(local: LocalPipeline, script: Script, number: int) -> bytes:
    fields = script.body_of(number)
    document = parse(fields["input"]) if fields.get("input_type") == "ssml" else None
    request = SynthesisRequest(
        f"part-{number}",
        fields["input"] if document is None else document.text,
        fields["voice"],
        passages=() if document is None else document.passages,
        sampling=SamplingParams(seed=fields["seed"]),
        speed=fields["speed"],
        audio=AudioOptions(sample_rate=fields["sample_rate"]),
        scheduling=SchedulingParams(Lane.BULK),
        timeout_s=TIMEOUT_S,
    )
    async with aclosing(local.synthesizer.stream(request)) as stream:
        samples = [chunk.samples async for chunk in stream]
    return to_int16(np.concatenate(samples)).astype("<i2").tobytes()


def script_of_file(args: argparse.Namespace, fields: dict[str, Any]) -> tuple[Script, bytes | None]:
    """Returns what is spoken of a file, and its cover as in Book.

    Raises:
        InvalidRequest, OSError
    """
    kind, cast = kind_of(args), {speaker: {"voice": voice} for speaker, voice in (args.cast or {}).items()}
    document = read_document(Question(args.book.read_bytes(), kind, sys.maxsize, args.book.name, cast=cast))
    markup = {"input_type": kind} if kind == "ssml" and not document.is_book else {}
    return replace(document.script, speech={**fields, **markup}), document.cover


def kind_of(args: argparse.Namespace) -> str:
    """Returns what a file has: text, markdown, ssml, or a script, which has a cast."""
    suffix = args.book.suffix.lower()
    return "script" if args.cast else "markdown" if suffix in MARKDOWN else "ssml" if suffix in SSML else "text"


def _cast_member(written: str) -> tuple[str, str]:
    name, _, voice = written.partition("=")
    if not name.strip() or not voice:
        raise argparse.ArgumentTypeError("a speaker is written NAME=VOICE")
    return name.strip(), voice


def format_of(args: argparse.Namespace) -> AudioFormat:
    """Returns the format that the name of the file asks for.

    Raises:
        UnsupportedFormat
    """
    container = args.output.suffix.removeprefix(".")
    if container == M4B:
        return replace(audio_format("aac", args.sample_rate, args.bitrate), container=M4B)
    return audio_format(container, args.sample_rate, args.bitrate)


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    """Returns the options of a command line."""
    parser = argparse.ArgumentParser(prog="chattts-serve read", description="Speak a book into a sound file.")
    parser.add_argument("book", type=Path, help="an EPUB, Markdown (.md), SSML (.ssml), or text")
    parser.add_argument("-o", "--output", type=output_path, required=True, help=f"the file to write: {', '.join(CONTAINERS)}")
    parser.add_argument("--voice", default="default", help="name of a voice (default: %(default)s)")
    parser.add_argument(
        "--cast",
        type=_cast_member,
        action="append",
        metavar="NAME=VOICE",
        help="the file is a script of lines like `Name: text`, and this a speaker of it; once for each",
    )
    parser.add_argument("--seed", type=int, default=0, help="of all draws (default: %(default)s)")
    parser.add_argument("--speed", type=float, default=1.0, help="0.25 to 4 (default: %(default)g)")
    parser.add_argument("--sample-rate", type=int, help="Hz (default: 24000)")
    parser.add_argument("--bitrate", type=int, help="kbit/s, of mp3, m4b, opus and aac")
    parser.add_argument("--url", help="address of a service that speaks it; without one, this process does")
    parser.add_argument("--key", help="API key, where the service needs one")
    parser.add_argument("--checkpoint", default="demo", help="of this process (default: %(default)s)")
    parser.add_argument(
        "--device", choices=("cpu", "cuda", "auto"), default="cpu", help="of this process (default: %(default)s)"
    )
    args = parser.parse_args(arguments)
    args.cast = dict(args.cast or ())
    if args.output.suffix.removeprefix(".") not in CONTAINERS:
        parser.error(f"{args.output} ends in {args.output.suffix or 'nothing'}; known formats are {', '.join(CONTAINERS)}")
    if not args.book.is_file():
        parser.error(f"there is no file {args.book}")
    return args


if __name__ == "__main__":
    sys.exit(main())
