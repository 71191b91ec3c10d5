"""Teacher: flite, which synthesises a sentence and prints the end time of each phone.

In:    text, a voice, a pace
Out:   Utterance
Owns:  one flite process per sentence, which ends before the function returns
Never: torch

The voices rms and slt, each also shifted towards the other: synthesised slower or faster and played at another rate. That
moves pitch and formants together and keeps the pace. The four voices lie on a line from deep to high.
"""

import shutil
import subprocess
import tempfile
import wave
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scripts.train_demo.phones import SILENCE

RATE = 16_000  # flite's


@dataclass(frozen=True, slots=True)
class Speaker:
    """A teacher's voice and its place on the line from rms (-1) to slt (+1)."""

    name: str
    flite_voice: str
    shift: float  # of pitch and formants
    place: float


SPEAKERS = (
    Speaker("rms", "rms", 1.0, -1.0),
    Speaker("slt", "slt", 1.0, 1.0),
    Speaker("rms-high", "rms", 1.19, -0.33),
    Speaker("slt-low", "slt", 0.85, 0.33),
)


@dataclass(frozen=True, slots=True, eq=False)
class Utterance:
    """Speech of flite: samples (n,) float32 at `rate`, and every phone with its end [s], silences included."""

    samples: NDArray[np.float32]
    rate: int
    phones: tuple[tuple[str, float], ...]


def speak(text: str, speaker: Speaker, pace: float = 1.0) -> Utterance:
    """Synthesises a text with a speaker's voice; a pace of 2 is twice as fast as the ordinary one.

    Raises:
        FileNotFoundError: there is no flite; the message names the package.
    """
    flite = shutil.which("flite")
    if flite is None:
        raise FileNotFoundError("flite is not installed: install the Debian package flite")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "spoken.wav"
        stretch = speaker.shift / pace
        slower = ("--setf", f"duration_stretch={stretch}") if stretch != 1.0 else ()
        command = [flite, "-voice", speaker.flite_voice, *slower, "-psdur", "-t", text, "-o", str(path)]
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        with wave.open(str(path)) as file:
            samples = np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32) / np.float32(32768)
    ends = (entry.rsplit(":", 1) for entry in printed.split())
    phones = tuple((name, float(end) / speaker.shift) for name, end in ends)
    return Utterance(samples, round(RATE * speaker.shift), phones)


def pronounce(word: str) -> list[str]:
    """Returns the phones of one word, as flite pronounces it within a sentence."""
    spoken = [name for name, _ in speak(f"say {word} then", SPEAKERS[0]).phones if name != SILENCE]
    return spoken[len(["s", "ey"]) : -len(["dh", "eh", "n"])]
