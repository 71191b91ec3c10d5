"""Batch output: the answers of a batch, as lines of JSON or as files in a ZIP.

In:    a batch's script, the samples of its lines
Out:   the bytes of the output file, of the error file, of a ZIP, as they are made
Owns:  the form of an answer
Never: all answers in memory; other bytes for the same samples
"""

import base64
import json
import re
import zipfile
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from pipeline.audio.encode import encode_whole
from pipeline.audio.formats import AudioFormat
from pipeline.books.archive import DATE, Sink
from pipeline.books.script import Script
from pipeline.books.shelf import SAMPLE_BYTES, Shelf

CANCELLED = {"code": "batch_cancelled", "message": "the batch was cancelled before this line was spoken"}
_UNSAFE = re.compile(r"[^\w-]+")
_MOST_LETTERS = 40  # of a custom_id in the name of a file


def output_lines(shelf: Shelf, script: Script) -> Iterator[bytes]:
    """Yields the lines of the requests that were spoken, in the order of the file."""
    lengths = shelf.lengths()
    for number, key in enumerate(script.keys):
        if lengths.get(key):
            about = _about(script, number, lengths[key], shelf.notes(key).warnings)
            audio = base64.b64encode(_audio(shelf, script, number)).decode()
            yield _line(script, number, {"status_code": 200, "body": {"audio": audio, **about}})


def error_lines(shelf: Shelf, script: Script, *, is_cancelled: bool) -> Iterator[bytes]:
    """Yields the lines of the requests that were refused, and of those that were not spoken if the batch is cancelled."""
    lengths = shelf.lengths()
    for number, key in enumerate(script.keys):
        if key in lengths and not lengths[key]:
            yield _line(script, number, shelf.notes(key).error)
        elif key not in lengths and is_cancelled:
            yield _line(script, number, None, CANCELLED)


def batch_archive(shelf: Shelf, script: Script) -> Iterator[bytes]:
    """Yields a ZIP with the audio of each request that was spoken, and a summary."""
    lengths, sink = shelf.lengths(), Sink()
    summary: list[dict[str, Any]] = []
    with zipfile.ZipFile(sink, "w") as file:
        for number, key in enumerate(script.keys):
            line = script.lines[number]
            if lengths.get(key):
                slug = _UNSAFE.sub("_", line["custom_id"])[:_MOST_LETTERS].strip("_")
                name = f"{number + 1:04d}-{slug}.{line['container']}"
                file.writestr(zipfile.ZipInfo(name, DATE), _audio(shelf, script, number))
                yield sink.take()
                about = _about(script, number, lengths[key], shelf.notes(key).warnings)
                summary.append({"custom_id": line["custom_id"], "file": name, **about})
            else:
                answer = shelf.notes(key).error if key in lengths else None
                summary.append({"custom_id": line["custom_id"], "file": None, "response": answer})
        content = json.dumps({"requests": summary}, ensure_ascii=False, indent=1)
        file.writestr(zipfile.ZipInfo("summary.json", DATE), content)
    yield sink.take()


def _line(script: Script, number: int, response: Mapping[str, Any] | None, error: Mapping[str, Any] | None = None) -> bytes:
    request_id = f"batch_req_{script.keys[number][:12]}{number:05d}"
    told = None if response is None else {**response, "request_id": request_id}
    answer = {"id": request_id, "custom_id": script.lines[number]["custom_id"], "response": told, "error": error}
    return json.dumps(answer).encode() + b"\n"


def _about(script: Script, number: int, samples: int, warnings: Mapping[str, int] | None) -> dict[str, Any]:
    fields, audio = script.parts[number].own, _format(script, number)
    return {
        "content_type": audio.content_type,
        "duration_ms": round(1000 * samples / audio.sample_rate),
        "sample_rate": audio.sample_rate,
        "seed": fields["seed"],
        "voice": fields["voice"],
        "model": fields["model"],
        "warnings": dict(warnings or {}),
    }


def _format(script: Script, number: int) -> AudioFormat:
    line = script.lines[number]
    return AudioFormat(line["container"], script.parts[number].own["sample_rate"], line["kbps"])


def _audio(shelf: Shelf, script: Script, number: int) -> bytes:
    samples = np.frombuffer(shelf.pcm_file(script.keys[number]).read_bytes(), "<i2")
    assert samples.itemsize == SAMPLE_BYTES, "parts are kept in 16 bits"
    return encode_whole(samples.astype(np.float32) / np.float32(32_767), _format(script, number))
