"""A whole book: 60,000 words become an audiobook on a path that is killed three times, and memory stays flat."""

import random
import subprocess
import sys
import time
from pathlib import Path

import av
import pytest

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(3600)]

WORDS = 60_000
CHAPTERS = 40
PLACES = ("the harbour", "an old house", "the hills", "a narrow street", "the river", "the station", "a small garden")
PEOPLE = ("The captain", "My sister", "An old friend", "The doctor", "A stranger", "The keeper of the light")
DEEDS = ("waited for", "remembered", "walked towards", "wrote about", "dreamed of", "turned away from")
TIMES = ("that evening", "in the cold morning", "after the storm", "once more", "as the bells rang", "without a word")
GROWTH = 64 << 20  # bytes; the samples of the book are ten times as many


def book_of(words: int) -> str:
    """A text of so many words, in chapters and paragraphs."""
    chance = random.Random(7)
    lines, count = ["# The Long Way Home"], 4
    for chapter in range(CHAPTERS):
        lines.append(f"## Chapter {chapter + 1}")
        while count < words * (chapter + 1) / CHAPTERS:
            told = (PEOPLE, DEEDS, PLACES, TIMES)
            choices = [tuple(chance.choice(words_of) for words_of in told) for _ in range(5)]
            paragraph = " ".join(f"{who} {did} {where} {when}." for who, did, where, when in choices)
            count += len(paragraph.split())
            lines.append(paragraph)
    return "\n\n".join(lines)


def resident(process: subprocess.Popen[bytes]) -> int:
    """Bytes of memory that a process has now."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) << 10


def test_a_book_survives_three_kills_with_flat_memory(tmp_path: Path, demo_root):
    book, output = tmp_path / "book.md", tmp_path / "book.m4b"
    book.write_text(book_of(WORDS))
    kept = tmp_path / ".book.m4b.parts"
    command = [sys.executable, "-m", "serve.commands.read", str(book), "-o", str(output), "--checkpoint", "small-random"]

    def finished() -> int:
        return len(list(kept.glob("*.pcm")))

    began, parts = time.monotonic(), 0
    for _ in range(3):
        process = subprocess.Popen(command)
        while finished() < parts + WORDS // 200:
            assert process.poll() is None
            time.sleep(0.1)
        process.kill()
        process.wait()
        parts = finished()
    process, seen = subprocess.Popen(command), []
    while process.poll() is None:
        if finished() > parts + WORDS // 1000:
            seen.append(resident(process))
        time.sleep(1.0)
    assert process.returncode == 0
    took_s = time.monotonic() - began
    with av.open(str(output)) as file:
        assert [one["metadata"]["title"] for one in file.chapters()][1:] == [f"Chapter {n + 1}" for n in range(CHAPTERS)]
        seconds = float(file.duration / av.time_base)
    print(
        f"\n  {WORDS / took_s * 60:.0f} words a minute, {seconds / 60:.0f} minutes of audio, {output.stat().st_size >> 20} MiB"
    )
    print(f"  memory {seen[0] >> 20} MiB after 50 parts, at most {max(seen) >> 20} MiB")
    assert max(seen) - seen[0] < GROWTH
