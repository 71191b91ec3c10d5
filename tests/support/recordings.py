"""Recordings: somebody who speaks, as an upload would hold it."""

import io
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from tests.support.services import needed_program

SAID = "Good morning. This is the voice that I would like to hear from now on, please."


def spoken(text: str, folder: Path, speaker: str = "slt") -> tuple[np.ndarray, int]:
    """flite's samples and their rate."""
    file = folder / f"{speaker}.wav"
    subprocess.run([needed_program("flite", "flite"), "-voice", speaker, "-t", text, str(file)], check=True)
    samples, rate = soundfile.read(file, dtype="float32")
    return samples, rate


def written(samples: np.ndarray, rate: int, container: str = "WAV", **options: Any) -> bytes:
    """The bytes of a file."""
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=container, **options)
    return file.getvalue()
