"""Archive: the parts of a script as files of their own, in one ZIP.

In:    a script, its track, other files
Out:   the bytes of a ZIP, as they are made
Owns:  the names in it
Never: all of it in memory; a date: equal contents are equal bytes

    0001.wav ...    the parts, counted from one
    summary.json    what each of them says, and where it is in the whole
"""

import json
import zipfile
from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.audio.encode import wav_header, wav_trailer
from pipeline.books.job_files import SAMPLE_BYTES, JobFiles
from pipeline.books.script import Script
from pipeline.books.track import Track, samples_in

DATE = (1980, 1, 1, 0, 0, 0)
"""of every file in a ZIP: the first that one can have"""


def archive(files: JobFiles, script: Script, track: Track, beside: Mapping[str, bytes]) -> Iterator[bytes]:
    """Yields a ZIP of all parts before the first missing one.

    Args:
        beside: contents of other files, by their names.
    """
    sink = Sink()
    with zipfile.ZipFile(sink, "w") as file:  # stored: samples hardly shrink
        for number, size in enumerate(track.lengths):
            with file.open(zipfile.ZipInfo(name_of(number), DATE), "w") as member:
                member.write(wav_header(track.sample_rate, size * SAMPLE_BYTES, marked=True))
                for piece in samples_in(files, script.keys[number], 0, size * SAMPLE_BYTES):
                    member.write(piece)
                    yield sink.take()
                member.write(wav_trailer(size * SAMPLE_BYTES))
        for name, content in {"summary.json": _summary(script, track), **beside}.items():
            file.writestr(zipfile.ZipInfo(name, DATE), content)
    yield sink.take()


def name_of(number: int) -> str:
    """Returns the name of a part's file."""
    return f"{number + 1:04d}.wav"


def _summary(script: Script, track: Track) -> bytes:
    rate = track.sample_rate
    parts: list[dict[str, Any]] = []
    for number, (start, size) in enumerate(zip(track.starts, track.lengths, strict=True)):
        fields, part = script.body_of(number), script.parts[number]
        details = {"text": part.text, "voice": fields.get("voice"), "seed": fields.get("seed"), "chapter": part.chapter}
        if part.speaker:
            details["speaker"] = part.speaker
        times = {"start_s": round(start / rate, 6), "duration_s": round(size / rate, 6)}
        parts.append({"file": name_of(number), **details, **times})
    about = {"title": script.title, "author": script.author, "model": script.speech.get("model"), "sample_rate": rate}
    summary = {**about, "complete": track.is_whole, "chapters": list(script.chapters), "parts": parts}
    return json.dumps(summary, ensure_ascii=False, indent=1).encode()


class Sink:
    """A file that cannot seek, so that sizes follow the contents."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def write(self, content: bytes, /) -> int:
        self._buffer += content
        return len(content)

    def flush(self) -> None:
        """Nothing is kept back."""

    def close(self) -> None:
        """Nothing is to be closed."""

    def take(self) -> bytes:
        """Returns what was written since the last time."""
        content = bytes(self._buffer)
        self._buffer.clear()
        return content
