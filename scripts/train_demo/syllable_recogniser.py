"""Syllable recogniser: transcribes Mandarin speech as pinyin syllables with tones.

In:    samples
Out:   syllables
Owns:  the network, its weights (syllable_recogniser.safetensors), the order of its classes
Never: its training (train_recogniser.py)

No recogniser of Mandarin comes with a package of PyPI or Debian, so this small one learned from the teacher's recordings, and
before that from espeak-ng's. It measures whether the demo voice says what its teacher says, not what a person understands.
"""

from functools import cache
from pathlib import Path

import numpy as np
import soxr
import torch
import torchaudio
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor, nn

from scripts.train_demo.syllables import parts, syllables

FILE = Path(__file__).with_suffix(".safetensors")
RATE = 16_000
FFT_SIZE = 1024
MEL_BANDS = 80
PITCH_BINS = slice(4, 44)  # 62 to 687 Hz
BANDS = MEL_BANDS + 40
WIDTH = 128
DILATIONS = (1, 2, 4, 1, 2, 4)
KERNEL = 5
BLANK = 0


@cache
def classes() -> dict[str, int]:
    """Returns class -> index from 1: every initial, and every final with each tone as `final:ang/3`."""
    sounded = [part for part in parts() if part.startswith("initial:") and part != "initial:"]
    finals = [f"{part}/{tone}" for part in parts() if part.startswith("final:") for tone in "12345"]
    return {name: index for index, name in enumerate((*sounded, *finals), start=BLANK + 1)}


def labels(spoken: list[str]) -> list[int]:
    """Returns the classes of syllables, one or two for each."""
    numbers = []
    for syllable in spoken:
        initial, final, tone = syllables()[syllable]
        if initial:
            numbers.append(classes()[f"initial:{initial}"])
        numbers.append(classes()[f"final:{final}/{tone}"])
    return numbers


@cache
def _by_parts() -> dict[tuple[str, str], str]:
    """Returns (initial, final/tone) -> syllable; `o` stands for `yo` too, which has the same parts."""
    return {(initial, f"{final}/{tone}"): syllable for syllable, (initial, final, tone) in reversed(syllables().items())}


@cache
def _filters() -> torchaudio.transforms.MelScale:
    return torchaudio.transforms.MelScale(MEL_BANDS, RATE, f_min=50.0, f_max=7600.0, n_stft=FFT_SIZE // 2 + 1)


def features(samples: NDArray[np.float32]) -> Tensor:
    """Maps samples (n,) at RATE to logarithmic frames (BANDS, T), 100 a second: mel bands, then the lowest bins as they are.

    The bins, 16 Hz wide, tell the harmonics of a voice and so the tones.
    """
    window = torch.hann_window(FFT_SIZE)
    spectrum = torch.stft(torch.from_numpy(samples), FFT_SIZE, 160, window=window, return_complex=True).abs()
    frames = torch.cat([_filters()(spectrum), spectrum[PITCH_BINS]]).clip(1e-3).log()
    return frames - frames.mean()


def as_heard(spoken: list[str]) -> list[str]:
    """Returns syllables as the recogniser writes them: one spelling for each pair of classes."""
    parts_of = (syllables()[syllable] for syllable in spoken)
    return [_by_parts()[initial, f"{final}/{tone}"] for initial, final, tone in parts_of]


class Residual(nn.Module):
    """A dilated convolution that adds to its input."""

    def __init__(self, dilation: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(1, WIDTH)
        self.conv = nn.Conv1d(WIDTH, WIDTH, KERNEL, padding=dilation * (KERNEL // 2), dilation=dilation)

    def forward(self, x: Tensor) -> Tensor:
        """Maps (B, WIDTH, T) to the same shape."""
        out: Tensor = x + self.conv(nn.functional.gelu(self.norm(x)))
        return out


class SyllableNetwork(nn.Module):
    """Frames to classes, at half the rate."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Conv1d(BANDS, WIDTH, KERNEL, stride=2, padding=KERNEL // 2)
        self.blocks = nn.Sequential(*(Residual(dilation) for dilation in DILATIONS))
        self.norm = nn.GroupNorm(1, WIDTH)
        self.out = nn.Conv1d(WIDTH, len(classes()) + 1, 1)
        self.sounding = nn.Conv1d(WIDTH, len(classes()) + 1, 1)  # training only: the class that sounds in each frame

    def forward(self, mel: Tensor) -> tuple[Tensor, Tensor]:
        """Maps frames (B, BANDS, T) to logits (B, T / 2, classes + 1): of what is recognised, and of what sounds."""
        x = self.norm(self.blocks(self.inner(mel)))
        return self.out(x).transpose(1, 2), self.sounding(x).transpose(1, 2)


class SyllableRecogniser:
    """Transcribes Mandarin. Use it from one thread at a time."""

    def __init__(self, network: SyllableNetwork | None = None) -> None:
        if network is None:
            network = SyllableNetwork()
            network.load_state_dict({name: value.float() for name, value in load_file(FILE).items()})
        self.network = network.eval()

    def transcribe(self, samples: NDArray[np.float32], rate: int) -> list[str]:
        """Returns the syllables in samples (n,)."""
        resampled = soxr.resample(samples, rate, RATE).astype(np.float32)
        loudness = float(np.sqrt(np.mean(resampled**2))) or 1.0
        with torch.no_grad():
            best = self.network(features(resampled * np.float32(0.1 / loudness))[None])[0][0].argmax(-1)
        return decoded(best.tolist())


def decoded(best: list[int]) -> list[str]:
    """Returns the syllables of each frame's likeliest class: repeats and blanks dropped, an initial joined to its final."""
    names = {index: name for name, index in classes().items()}
    units, initial, before = [], "", BLANK
    for index in best:
        if index not in (before, BLANK):
            kind, _, name = names[index].partition(":")
            if kind == "initial":
                initial = name
            else:
                units.append(_by_parts().get((initial, name), f"{initial}?{name}"))
                initial = ""
        before = index
    return units
