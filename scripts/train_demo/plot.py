"""Plot: a training log as curves, and a sound as a waveform over its spectrogram.

In:    a log with one JSON object per line; samples
Out:   a PNG
Owns:  nothing
Never: torch

    python -m scripts.train_demo.plot hello.wav scripts/train_demo/hello.png
"""

import argparse
import json
from pathlib import Path

import numpy as np
import soundfile
from matplotlib.figure import Figure

TOP_HZ = 8000  # the teacher's limit


def plot_log(log: Path, picture: Path) -> None:
    """Draws every held-out loss over the tokens."""
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    millions = [line["tokens"] / 1e6 for line in lines]
    for language, found in lines[-1]["held_out"].items():
        for name in found:
            axes.plot(millions, [line["held_out"].get(language, {}).get(name) for line in lines], label=f"{language} {name}")
    axes.set(xlabel="million tokens", ylabel="held-out loss", ylim=(0, 7))
    axes.grid(alpha=0.3)
    axes.legend(ncols=2, fontsize="small")
    figure.savefig(picture, dpi=100)


def plot_sound(sound: Path, picture: Path) -> None:
    """Draws the waveform and the spectrogram of a sound file."""
    samples, rate = soundfile.read(sound, dtype="float32")
    seconds = len(samples) / rate
    figure = Figure(figsize=(8, 2.6), layout="constrained")
    wave, spectrum = figure.subplots(2, 1, sharex=True, height_ratios=(1, 2))
    wave.plot(np.arange(len(samples)) / rate, samples, linewidth=0.4, color="#25508f")
    wave.set(xlim=(0, seconds), yticks=())
    spectrum.specgram(samples + 1e-6, NFFT=512, Fs=rate, noverlap=384, cmap="magma", vmin=-130, vmax=-40)
    spectrum.set(ylim=(0, TOP_HZ), xlabel="s", ylabel="Hz")
    figure.savefig(picture, dpi=80)


def main() -> None:
    """Draws a sound file."""
    parser = argparse.ArgumentParser(description="Draw a sound file.")
    parser.add_argument("sound", type=Path)
    parser.add_argument("picture", type=Path)
    args = parser.parse_args()
    plot_sound(args.sound, args.picture)


if __name__ == "__main__":
    main()
