"""Say: speaks a text into a sound file with the same pipeline as the service, without Ray. `chattts-serve say "Hello."`

In:    text, a pipeline configuration
Out:   a sound file; one line with its length, seed and speed
Owns:  one engine and one vocoder, until the file is written
Never: Ray, HTTP
"""

import argparse
import asyncio
import random
import sys
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn

from pipeline.audio.encode import encode_whole
from pipeline.audio.formats import CONTAINERS, AudioFormat, audio_format
from pipeline.audio.tempo import share_speed
from pipeline.checkpoint.capabilities import read_capabilities
from pipeline.checkpoint.locate import resolve
from pipeline.checkpoint.weights import open_checkpoint
from pipeline.config import PipelineConfig
from pipeline.engine.engine import Engine
from pipeline.errors import CheckpointError, ConfigError, SynthesisError
from pipeline.paths import cache_home
from pipeline.synthesizer import Synthesizer
from pipeline.text.frontend import LocalTextFrontend
from pipeline.text.markup.ssml import parse
from pipeline.text.segment import limits_of
from pipeline.timing.following import Following
from pipeline.types import SPEED, AudioChunk, AudioOptions, Denoise, Latency, SamplingParams, SchedulingParams, SynthesisRequest
from pipeline.vocoder.vocoder import Vocoder
from pipeline.voices.catalogue import VoiceCatalogue
from pipeline.voices.library import VoiceLibrary
from pipeline.voices.seeds import read_statistics
from serve.commands.output_path import output_path

SEED_BITS = 32
VOICES = Path(__file__).resolve().parents[2] / "configs" / "voices.yaml"


@dataclass(frozen=True, slots=True, eq=False)
class LocalPipeline:
    """The synthesizer of one process and the parts it is built from."""

    synthesizer: Synthesizer
    frontend: LocalTextFrontend
    voices: VoiceLibrary
    engine: Engine
    vocoder: Vocoder


@asynccontextmanager
async def open_pipeline(config: PipelineConfig) -> AsyncIterator[LocalPipeline]:
    """Opens every part in this process and closes it at the end of the block: what serve/app.py does for Ray.

    Raises:
        CheckpointError: the weights are missing or wrong.
        ConfigError: a voice of configs/voices.yaml does not fit the checkpoint.
    """
    root = resolve(config.checkpoint, cache_home())
    checkpoint = open_checkpoint(root)
    frontend = LocalTextFrontend(
        root, limits_of(config.engine), max_prompt=config.engine.max_prompt, max_steps=config.engine.max_steps
    )
    width = checkpoint.gpt_spec.width
    voices = VoiceLibrary(VoiceCatalogue.load(VOICES, width, read_statistics(root, width)), allow_inline=True)
    engine = Engine(config.engine, checkpoint)
    try:
        vocoder = Vocoder(config.vocoder, checkpoint)
        try:
            following = Following(checkpoint, positions=config.engine.positions)
            synthesizer = Synthesizer(frontend, engine, vocoder, voices, config.speech, follower=following)
            yield LocalPipeline(synthesizer, frontend, voices, engine, vocoder)
            following.close()
        finally:
            vocoder.close()
    finally:
        engine.close()


async def speak(config: PipelineConfig, request: SynthesisRequest) -> tuple[np.ndarray, float, float]:
    """Returns the samples (m,) float32 and the time to the first and to the last of them [s]."""
    chunks: list[AudioChunk] = []
    first_s = 0.0
    columns = (SpinnerColumn(), TextColumn("{task.description}"))
    async with open_pipeline(config) as local:
        started = time.perf_counter()
        with Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
            task = progress.add_task("speaking")
            async with aclosing(local.synthesizer.stream(request)) as stream:
                async for chunk in stream:
                    first_s = first_s or time.perf_counter() - started
                    chunks.append(chunk)
                    audio_s = (chunk.first_sample + len(chunk.samples)) / request.audio.sample_rate
                    progress.update(task, description=f"{audio_s:.1f} s of audio")
    for code, count in dict(warning for chunk in chunks for warning in chunk.warnings).items():
        print(f"{code}: {count}", file=sys.stderr)
    return np.concatenate([chunk.samples for chunk in chunks]), first_s, time.perf_counter() - started


def main(arguments: list[str] | None = None) -> int:
    """Writes one text to a file. Exit code: 0 written, 1 the text cannot be spoken, 2 wrong usage."""
    args = parsed(arguments)
    config = PipelineConfig.model_validate(
        {
            "checkpoint": args.checkpoint,
            "engine": {"slots": 4, "device": args.device, "dtype": args.dtype},
            "vocoder": {"device": args.device},
        }
    )
    try:
        audio = audio_format(args.output.suffix.removeprefix("."), args.sample_rate, args.bitrate)
        samples, first_s, total_s = asyncio.run(speak(config, request_of(args, audio)))
    except (SynthesisError, CheckpointError, ConfigError) as error:
        print(error, file=sys.stderr)
        return 1
    args.output.write_bytes(encode_whole(samples, audio))
    seconds = len(samples) / audio.sample_rate
    print(
        f"{args.output}: {seconds:.2f} s of audio, seed {args.seed}, peak {np.abs(samples).max(initial=0):.2f}, "
        f"first audio after {first_s:.2f} s, real-time factor {total_s / max(seconds, 1e-9):.2f}"
    )
    return 0


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    """Parses the command line and draws a seed if it names none."""
    parser = argparse.ArgumentParser(prog="chattts-serve say", description="Speak a text into a sound file.")
    parser.add_argument("text", help="the text, in a language of the checkpoint")
    parser.add_argument("--ssml", action="store_true", help="the text is an SSML document")
    parser.add_argument(
        "-o", "--output", type=output_path, default="out.wav", help="its suffix names the format (default: %(default)s)"
    )
    parser.add_argument("--checkpoint", default="demo", help="demo, small-random, full-random, hub:2Noise/ChatTTS or a folder")
    parser.add_argument("--voice", default="default", help="a name of configs/voices.yaml, or seed:<n>")
    parser.add_argument("--seed", type=int, help="0 to 4294967295 (default: a random one)")
    parser.add_argument("--speed", type=float, default=1.0, help="0.25 to 4 (default: %(default)g)")
    modes = "stretch the audio, use the model's speed tokens, or both (default: %(default)s)"
    parser.add_argument("--speed-mode", choices=("stretch", "token", "auto"), default="stretch", help=modes)
    parser.add_argument("--sample-rate", type=int, help="Hz (default: 24000; 8000 for ulaw and alaw)")
    parser.add_argument("--bitrate", type=int, help="kbit/s, of mp3, opus and aac")
    parser.add_argument("--trim", action="store_true", help="cut the silence before the first sound and after the last one")
    parser.add_argument(
        "--denoise", choices=[mode.value for mode in Denoise], default="off", help="remove noise (default: %(default)s)"
    )
    parser.add_argument("--gain", type=float, default=0.0, help="gain of the whole recording, limited to -1 dBTP [dB]")
    parser.add_argument("--loudness", type=float, help="bring the voice to this loudness [LUFS]")
    parser.add_argument("--fade", type=float, default=0.0, help="fade in at the beginning and out at the end [ms]")
    waits = "what the first audio waits for: all it depends on, or less (default: %(default)s)"
    parser.add_argument("--latency", choices=[latency.value for latency in Latency], default="exact", help=waits)
    parser.add_argument(
        "--device", choices=("cpu", "cuda", "auto"), default="cpu", help="where the model runs (default: %(default)s)"
    )
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16"), default="float32", help="number format (default: %(default)s)"
    )
    args = parser.parse_args(arguments)
    container = args.output.suffix.removeprefix(".")
    if container not in CONTAINERS:
        parser.error(f"{args.output} ends in .{container}; known formats are {', '.join(CONTAINERS)}")
    if not SPEED.least <= args.speed <= SPEED.most:
        parser.error(f"--speed {args.speed:g} is not within {SPEED.least:g} .. {SPEED.most:g}")
    if args.seed is None:
        args.seed = random.getrandbits(SEED_BITS)
    if not 0 <= args.seed < 1 << SEED_BITS:
        parser.error(f"--seed {args.seed} is not within 0 .. {(1 << SEED_BITS) - 1}")
    return args


def request_of(args: argparse.Namespace, audio: AudioFormat) -> SynthesisRequest:
    """Returns the request of a command line. Control tags are allowed: the text comes from the user of this machine.

    Raises:
        SynthesisError: the SSML document or an audio option is wrong.
        CheckpointError: the checkpoint is missing or wrong.
    """
    if args.speed_mode != "stretch" and not read_capabilities(resolve(args.checkpoint, cache_home())).speed_tokens:
        print(f"{args.checkpoint} was not trained with speed tokens: --speed-mode stretch is used", file=sys.stderr)
        args.speed_mode = "stretch"
    token, stretch = share_speed(args.speed, args.speed_mode)
    options = AudioOptions(
        sample_rate=audio.sample_rate,
        trim=args.trim,
        denoise=Denoise(args.denoise),
        gain_db=args.gain,
        loudness_lufs=args.loudness,
        fade_ms=args.fade,
    )
    document = parse(args.text, control_tags=True) if args.ssml else None
    return SynthesisRequest(
        "say",
        args.text if document is None else document.text,
        args.voice,
        passages=() if document is None else document.passages,
        control_tags=True,
        sampling=SamplingParams(seed=args.seed),
        speed=stretch,
        audio=options,
        speed_token=token,
        scheduling=SchedulingParams(latency=Latency(args.latency)),
        timeout_s=3600.0,
    )


if __name__ == "__main__":
    sys.exit(main())
