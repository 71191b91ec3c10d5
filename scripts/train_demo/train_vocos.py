"""Train Vocos: trains the vocoder, from mel frames to the waveform.

In:    shards that keep waveforms
Out:   work/vocos.pt (resumes from it), work/vocos.jsonl
Owns:  the network, the losses
Never: the checkpoint's layout

    python -m scripts.train_demo.train_vocos work --steps 5000

The loss compares spectra at four resolutions and the mel frames. There is no discriminator, so the voice buzzes a little.
Source of the network: vocos/models.py VocosBackbone, vocos/heads.py ISTFTHead.
"""

import random

import torch
from torch import Tensor, nn

from scripts.train_demo.corpus import HELD_OUT, load_shard, log_mel
from scripts.train_demo.loop import options, train
from scripts.train_demo.network import ConvNeXtBlock

FFT_SIZE, HOP = 1024, 256
WIDTH, LAYERS = 192, 4
CROP_FRAMES, ROWS = 48, 16
RATE = 1.5e-3
MEL_WEIGHT = 2.0
RESOLUTIONS = (256, 512, 1024, 2048)


class Backbone(nn.Module):
    """Mel frames to features."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.embed = nn.Conv1d(100, width, 7, padding=3)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.convnext = nn.ModuleList(ConvNeXtBlock(width, 3 * width, scale="gamma", dilation=1) for _ in range(layers))
        self.final_layer_norm = nn.LayerNorm(width, eps=1e-6)

    def forward(self, mel: Tensor) -> Tensor:
        """Maps (B, 100, T) to (B, T, width)."""
        x = self.norm(self.embed(mel).transpose(1, 2)).transpose(1, 2)
        for block in self.convnext:
            x = block(x)
        out: Tensor = self.final_layer_norm(x.transpose(1, 2))
        return out


class FourierHead(nn.Module):
    """Features to magnitudes and phases, and back through the Fourier transform."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.out = nn.Linear(width, FFT_SIZE + 2)
        self.register_buffer("window", torch.hann_window(FFT_SIZE), persistent=False)

    def forward(self, features: Tensor) -> Tensor:
        """Maps (B, T, width) to samples (B, 256 (T - 1))."""
        log_magnitude, phase = self.out(features).transpose(1, 2).float().chunk(2, 1)
        spectrum = torch.polar(log_magnitude.exp().clamp(max=100.0), phase)
        window = self.window
        assert isinstance(window, Tensor)
        samples: Tensor = torch.istft(spectrum, FFT_SIZE, HOP, FFT_SIZE, window, center=True)
        return samples


class Vocos(nn.Module):
    """Backbone and head, under upstream's names."""

    def __init__(self, width: int = WIDTH, layers: int = LAYERS) -> None:
        super().__init__()
        self.backbone, self.head = Backbone(width, layers), FourierHead(width)

    def forward(self, mel: Tensor) -> Tensor:
        """Maps (B, 100, T) to (B, 256 (T - 1))."""
        out: Tensor = self.head(self.backbone(mel))
        return out


def loss(ours: Tensor, wanted: Tensor) -> tuple[Tensor, dict[str, float]]:
    """Returns the loss of samples (B, n) against samples (B, n), and its parts by name."""
    mel = (log_mel(ours) - log_mel(wanted)).abs().mean()
    spectra = torch.zeros(())
    for size in RESOLUTIONS:
        window = torch.hann_window(size)
        found, expected = (
            torch.stft(x, size, size // 4, window=window, return_complex=True).abs().clamp(min=1e-5) for x in (ours, wanted)
        )
        distance = (found.log() - expected.log()).abs().mean() + (found - expected).norm() / expected.norm()
        spectra = spectra + distance / len(RESOLUTIONS)
    return MEL_WEIGHT * mel + spectra, {"mel": mel.item(), "spectra": spectra.item()}


def crops(waves: list[Tensor], draw: random.Random) -> tuple[Tensor, Tensor]:
    """Returns mel frames (ROWS, 100, CROP_FRAMES) and the samples between the middles of the first and the last frame."""
    chosen: list[Tensor] = []
    while len(chosen) < ROWS:
        wave = draw.choice(waves)
        if len(wave) > (CROP_FRAMES + 1) * HOP:
            begin = draw.randrange(len(wave) - CROP_FRAMES * HOP)
            chosen.append(wave[begin : begin + CROP_FRAMES * HOP].float() / 32767)
    samples = torch.stack(chosen)
    return log_mel(samples), samples[:, : (CROP_FRAMES - 1) * HOP]


def main() -> None:
    """Trains for a number of steps."""
    args = options("Train the vocoder.", steps=5000)
    shards = {int(path.stem): path for path in (args.work / "corpus").glob("*.pt")}
    waves = {
        number: kept
        for number, path in sorted(shards.items())
        if (kept := [one.samples for one in load_shard(path) if one.samples is not None])
    }
    learning = [wave for number, kept in waves.items() if number != HELD_OUT for wave in kept]
    model = Vocos()

    def learn(step: int) -> tuple[Tensor, dict[str, float]]:
        mel, wanted = crops(learning, random.Random(f"{args.seed}/{step}"))
        return loss(model(mel), wanted)

    def judge() -> tuple[Tensor, dict[str, float]]:
        mel, wanted = crops(waves[HELD_OUT], random.Random(0))
        return loss(model(mel), wanted)

    train(model, args.work / "vocos.pt", steps=args.steps, rate=RATE, learn=learn, judge=judge)


if __name__ == "__main__":
    main()
