"""Make random: generates a checkpoint with random weights. `chattts-serve weights make small-random OUT`

In:    a kind and an empty or absent folder
Out:   the folder in upstream's layout, with SHA256SUMS
Never: the network, the cache folder
"""

import argparse
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from pipeline.checkpoint.random_model import RANDOM_MODELS
from pipeline.checkpoint.random_weights import generate, size

EXIT_REFUSED = 2


def main(arguments: list[str] | None = None) -> int:
    """Exit code: 0 generated, 1 the files cannot be written, 2 refused."""
    options = _parser().parse_args(arguments)
    if options.out.exists() and (not options.out.is_dir() or any(options.out.iterdir())):
        print(f"{options.out} is not an empty folder; name an empty or a new one", file=sys.stderr)
        return EXIT_REFUSED
    console = Console(stderr=True)
    try:
        with _progress(console) as progress:
            task = progress.add_task(options.kind, total=size(options.kind))
            generate(options.kind, options.out, on_bytes=lambda count: progress.advance(task, count))
    except OSError as error:
        print(f"{options.out} could not be written: {error}; {size(options.kind)} bytes are needed", file=sys.stderr)
        return 1
    print(options.out)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="chattts-serve weights make", description="Generate a checkpoint with random weights."
    )
    parser.add_argument(
        "kind",
        choices=tuple(RANDOM_MODELS),
        help="small-random: 11 MB; full-random: 1.2 GB, the real dimensions; the audio of both is noise",
    )
    parser.add_argument("out", type=Path, metavar="OUT", help="an empty or absent folder")
    return parser


def _progress(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, disable=not console.is_terminal)


if __name__ == "__main__":
    sys.exit(main())
