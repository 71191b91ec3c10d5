"""Read: a book from a shell to a file, in this process and by a service, and on where it was stopped."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import av
import pytest

from serve.commands import read
from tests.support.books import epub
from tests.support.fakes import Speaker
from tests.support.jobs import living

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def chapters(path: Path) -> list[tuple[str, float]]:
    with av.open(str(path)) as file:
        return [(one["metadata"]["title"], float(one["start"] * one["time_base"])) for one in file.chapters()]


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


def test_a_killed_command_goes_on_and_writes_the_same_bytes(tmp_path: Path, demo_root):
    book = tmp_path / "book.md"
    book.write_text("# One\n\n" + "\n\n".join(f"Sentence number {number} of a book." for number in range(40)))
    whole, killed = tmp_path / "whole.mp3", tmp_path / "killed.mp3"
    command = [sys.executable, "-m", "serve.commands.read", str(book), "--checkpoint", "small-random", "-o"]
    subprocess.run([*command, str(whole)], check=True)
    kept = tmp_path / ".killed.mp3.parts"
    process = subprocess.Popen([*command, str(killed)])
    while len(list(kept.glob("*.pcm"))) < 5:
        assert process.poll() is None, "it was too quick to be killed"
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = {path: path.stat().st_mtime_ns for path in kept.glob("*.pcm")}
    assert len(before) < 41
    subprocess.run([*command, str(killed)], check=True)
    assert killed.read_bytes() == whole.read_bytes()
    assert not kept.exists()


def test_a_service_reads_it_and_the_job_is_gone_afterwards(tmp_path: Path):
    book, output = tmp_path / "book.epub", tmp_path / "book.m4b"
    book.write_bytes(epub())
    with living(tmp_path / "jobs", Speaker(chunks=2)) as live:
        assert read.main([str(book), "-o", str(output), "--url", live.url]) == 0
        assert not list((tmp_path / "jobs").glob("job-*"))
    assert [title for title, _ in chapters(output)] == ["One", "Chapter Two"]


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
    assert "no such voice" in capsys.readouterr().err.lower()
    with pytest.raises(SystemExit):
        read.main([str(book), "-o", str(tmp_path / "a.ogg")])


SCRIPT = "Anna: Who is there?\nBen: It is me.\n"


def test_a_script_is_read_here_and_by_a_service_with_the_voices_of_its_cast(tmp_path: Path, demo_root, capsys):
    play, output = tmp_path / "play.txt", tmp_path / "play.wav"
    play.write_text(SCRIPT)
    cast = ["--cast", "Anna=alloy", "--cast", "Ben=nova"]
    command = [str(play), "-o", str(output), *cast]
    assert read.main([*command, "--checkpoint", "small-random"]) == 0
    whole = output.read_bytes()
    ssml = tmp_path / "play.ssml"
    who, me = "<p><voice name='alloy'>Who is there?</voice></p>", "<p><voice name='nova'>It is me.</voice></p>"
    ssml.write_text(f"<speak>{who}{me}</speak>")
    assert read.main([str(ssml), *command[1:3], "--checkpoint", "small-random"]) == 0
    quiet = 2 * 24 * (350 - 250)  # paragraphs are further apart than turns
    assert len(output.read_bytes()) == len(whole) + quiet
    speaker = Speaker(chunks=2)
    with living(tmp_path / "jobs", speaker) as live:
        assert read.main([*command, "--url", live.url]) == 0
        assert [(request.text, request.voice) for request in speaker.requests] == [
            ("Who is there?", "default"),
            ("It is me.", "default"),
        ], "alloy and nova are names of one voice there"
        assert read.main([str(play), "-o", str(output), "--url", live.url, "--cast", "Anna=alloy"]) == 1
    assert "line 2 of the script" in capsys.readouterr().err
