"""Say and read: a text or a book from a shell to a file, in this process and by a service, and on where it was stopped."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import av
import numpy as np
import pytest
import soundfile

from pipeline.audio.encode import wav_header
from serve.commands import read, say
from tests.support.books import epub
from tests.support.fakes import Speaker
from tests.support.jobs import living


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["say", *arguments])
    return say.main()


@pytest.mark.slow
def test_a_text_becomes_a_file_and_a_seed_repeats_it(tmp_path: Path, monkeypatch, capsys, demo_root):
    first, again, other = (tmp_path / name for name in ("first.wav", "again.wav", "other.wav"))
    text = "Hello there. This is said in one process, without a server."
    for path, seed in ((first, "5"), (again, "5"), (other, "6")):
        assert run(monkeypatch, text, "-o", str(path), "--seed", seed, "--voice", "nova") == 0
    samples, rate = soundfile.read(first)
    assert rate == 24_000
    assert 0.01 < np.abs(samples).max() <= 1
    assert len(samples) > 2_400
    assert first.read_bytes() == again.read_bytes() != other.read_bytes()
    assert f"{len(samples) / rate:.2f} s of audio, seed 5" in capsys.readouterr().out


@pytest.mark.slow
def test_the_suffix_is_the_format(tmp_path: Path, monkeypatch, demo_root):
    path = tmp_path / "hello.mp3"
    assert run(monkeypatch, "Hello.", "-o", str(path), "--seed", "5") == 0
    with av.open(str(path)) as file:
        assert file.streams.audio[0].codec_context.name.startswith("mp3")


@pytest.mark.slow
def test_the_audio_options_are_the_requests(tmp_path: Path, monkeypatch, demo_root):
    def spoken(*arguments: str) -> bytes:
        path = tmp_path / "hello.wav"
        assert run(monkeypatch, "Hello.", "-o", str(path), "--seed", "5", *arguments) == 0
        return path.read_bytes()

    plain, phone = spoken(), spoken("--sample-rate", "8000")
    head = len(wav_header(8000, 0))
    assert len(phone) - head == pytest.approx((len(plain) - head) / 3, abs=2)
    assert len(spoken("--trim", "--denoise", "on", "--loudness", "-20", "--fade", "5", "--speed-mode", "auto")) <= len(plain)
    assert run(monkeypatch, "Hello.", "-o", str(tmp_path / "x.wav"), "--bitrate", "64") == 1


@pytest.mark.slow
def test_ssml_is_spoken_with_its_voices_and_breaks(tmp_path: Path, monkeypatch, demo_root):
    path = tmp_path / "hello.wav"
    document = '<speak>One.<break time="700ms"/><voice name="alloy">Two.</voice></speak>'
    assert run(monkeypatch, document, "--ssml", "--voice", "nova", "-o", str(path), "--seed", "5") == 0
    samples, _ = soundfile.read(path)
    silent = "".join("0" if sample == 0 else "1" for sample in samples)
    assert "0" * (700 * 24) in silent
    assert run(monkeypatch, "<speak>", "--ssml", "-o", str(path)) == 1


@pytest.mark.slow
def test_mistakes_are_said_in_one_line(tmp_path: Path, monkeypatch, capsys, demo_root):
    assert run(monkeypatch, "Hello.", "-o", str(tmp_path / "x.wav"), "--voice", "nobody") == 1
    assert "no voice of this name" in capsys.readouterr().err
    assert run(monkeypatch, "?!", "-o", str(tmp_path / "x.wav")) == 1
    assert "nothing to say" in capsys.readouterr().err
    for arguments, message in (
        (["-o", str(tmp_path / "x.midi")], "known formats are"),
        (["--speed", "9"], "--speed 9 is not within 0.25 .. 4"),
        (["--seed", "-1"], "--seed -1 is not within 0 .. 4294967295"),
    ):
        with pytest.raises(SystemExit):
            run(monkeypatch, "Hello.", *arguments)
        assert message in capsys.readouterr().err


# Read: a book from a shell to a file, in this process and by a service, and on where it was stopped.


def chapters(path: Path) -> list[tuple[str, float]]:
    with av.open(str(path)) as file:
        return [(chapter["metadata"]["title"], float(chapter["start"] * chapter["time_base"])) for chapter in file.chapters()]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_epub_becomes_an_audiobook_in_this_process(tmp_path: Path, demo_root, capsys):
    book, output = tmp_path / "book.epub", tmp_path / "book.m4b"
    book.write_bytes(epub())
    assert read.main([str(book), "-o", str(output), "--checkpoint", "small-random", "--seed", "3"]) == 0
    assert "minutes of audio, seed 3" in capsys.readouterr().out
    assert [title for title, _ in chapters(output)] == ["One", "Chapter Two"]
    with av.open(str(output)) as file:
        assert (file.metadata["title"], file.metadata["artist"]) == ("A Book", "Ann Author")
        assert [stream.codec_context.name for stream in file.streams if stream.type == "video"] == ["png"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["book.epub", "book.m4b"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_killed_command_goes_on_and_writes_the_same_bytes(tmp_path: Path, demo_root):
    book = tmp_path / "book.md"
    book.write_text("# One\n\n" + "\n\n".join(f"Sentence number {number} of a book." for number in range(40)))
    whole, killed = tmp_path / "whole.mp3", tmp_path / "killed.mp3"
    command = [sys.executable, "-m", "serve.commands.read", str(book), "--checkpoint", "small-random", "-o"]
    subprocess.run([*command, str(whole)], check=True)
    parts = tmp_path / ".killed.mp3.parts"
    process = subprocess.Popen([*command, str(killed)])
    while len(list(parts.glob("*.pcm"))) < 5:
        assert process.poll() is None, "it was too quick to be killed"
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = {path: path.stat().st_mtime_ns for path in parts.glob("*.pcm")}
    assert len(before) < 41
    subprocess.run([*command, str(killed)], check=True)
    assert killed.read_bytes() == whole.read_bytes()
    assert not parts.exists()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_service_reads_it_and_the_job_is_gone_afterwards(tmp_path: Path):
    book, output = tmp_path / "book.epub", tmp_path / "book.m4b"
    book.write_bytes(epub())
    with living(tmp_path / "jobs", Speaker(chunks=2)) as live:
        assert read.main([str(book), "-o", str(output), "--url", live.url]) == 0
        assert not list((tmp_path / "jobs").glob("job-*"))
    assert [title for title, _ in chapters(output)] == ["One", "Chapter Two"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_what_cannot_be_read_is_said(tmp_path: Path, capsys):
    book = tmp_path / "book.epub"
    book.write_bytes(b"nothing")
    assert read.main([str(book), "-o", str(tmp_path / "a.mp3")]) == 1
    assert "not an EPUB" in capsys.readouterr().err
    text = tmp_path / "book.txt"
    text.write_text("Some words.")
    with living(tmp_path / "jobs", speaks=False) as live:
        assert read.main([str(book), "-o", str(tmp_path / "a.mp3"), "--url", live.url]) == 1
        assert "not an EPUB" in capsys.readouterr().err, "it is not spoken as text"
        assert read.main([str(text), "-o", str(tmp_path / "a.mp3"), "--url", live.url, "--voice", "nobody"]) == 1
    assert "no voice of this name" in capsys.readouterr().err.lower()
    with pytest.raises(SystemExit):
        read.main([str(book), "-o", str(tmp_path / "a.ogg")])


SCRIPT = "Anna: Who is there?\nBen: It is me.\n"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_script_is_read_here_and_by_a_service_with_the_voices_of_its_cast(tmp_path: Path, demo_root, capsys):
    play, output = tmp_path / "play.txt", tmp_path / "play.wav"
    play.write_text(SCRIPT)
    cast = ["--cast", "Anna=alloy", "--cast", "Ben=nova"]
    command = [str(play), "-o", str(output), *cast]
    assert read.main([*command, "--checkpoint", "small-random"]) == 0
    whole = output.read_bytes()
    ssml = tmp_path / "play.ssml"
    question, me = "<p><voice name='alloy'>Who is there?</voice></p>", "<p><voice name='nova'>It is me.</voice></p>"
    ssml.write_text(f"<speak>{question}{me}</speak>")
    assert read.main([str(ssml), *command[1:3], "--checkpoint", "small-random"]) == 0
    quiet = 2 * 24 * (350 - 250)  # paragraphs are further apart than turns
    assert len(output.read_bytes()) == len(whole) + quiet
    speaker = Speaker(chunks=2)
    with living(tmp_path / "jobs", speaker) as live:
        assert read.main([*command, "--url", live.url]) == 0
        assert {(request.text, request.voice) for request in speaker.requests} == {
            ("Who is there?", "default"),
            ("It is me.", "default"),
        }, "alloy and nova are names of one voice there"
        assert read.main([str(play), "-o", str(output), "--url", live.url, "--cast", "Anna=alloy"]) == 1
    assert "line 2 of the script" in capsys.readouterr().err


# A whole book: 60,000 words become an audiobook on a path that is killed three times, and memory stays flat.

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
            word_lists = (PEOPLE, DEEDS, PLACES, TIMES)
            choices = [tuple(chance.choice(words_of) for words_of in word_lists) for _ in range(5)]
            paragraph = " ".join(f"{person} {did} {where} {when}." for person, did, where, when in choices)
            count += len(paragraph.split())
            lines.append(paragraph)
    return "\n\n".join(lines)


def resident(process: subprocess.Popen[bytes]) -> int:
    """Bytes of memory that a process has now."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) << 10


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_a_book_survives_three_kills_with_flat_memory(tmp_path: Path, demo_root):
    book, output = tmp_path / "book.md", tmp_path / "book.m4b"
    book.write_text(book_of(WORDS))
    folder = tmp_path / ".book.m4b.parts"
    command = [sys.executable, "-m", "serve.commands.read", str(book), "-o", str(output), "--checkpoint", "small-random"]

    def finished() -> int:
        return len(list(folder.glob("*.pcm")))

    began, parts = time.monotonic(), 0
    for _ in range(3):
        process = subprocess.Popen(command)
        while finished() < parts + WORDS // 200:
            assert process.poll() is None
            time.sleep(0.1)
        process.kill()
        process.wait()
        parts = finished()
    process, sizes = subprocess.Popen(command), []
    while process.poll() is None:
        if finished() > parts + WORDS // 1000:
            sizes.append(resident(process))
        time.sleep(1.0)
    assert process.returncode == 0
    took_s = time.monotonic() - began
    with av.open(str(output)) as file:
        assert [chapter["metadata"]["title"] for chapter in file.chapters()][1:] == [
            f"Chapter {n + 1}" for n in range(CHAPTERS)
        ]
        seconds = float(file.duration / av.time_base)
    print(
        f"\n  {WORDS / took_s * 60:.0f} words a minute, {seconds / 60:.0f} minutes of audio, {output.stat().st_size >> 20} MiB"
    )
    print(f"  memory {sizes[0] >> 20} MiB after 50 parts, at most {max(sizes) >> 20} MiB")
    assert max(sizes) - sizes[0] < GROWTH
