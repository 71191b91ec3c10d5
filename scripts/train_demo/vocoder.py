"""Vocoder: the network from mel frames to the waveform, under upstream's names, and the judges that it is trained beside.

In:    mel frames; samples
Out:   samples; verdicts
Owns:  the networks
Never: losses, data

Source: vocos/models.py VocosBackbone, vocos/heads.py ISTFTHead; the judges: UnivNet, https://arxiv.org/abs/2106.07889, and
HiFi-GAN, https://arxiv.org/abs/2010.05646.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from pipeline.spec import FFT_SIZE, HOP, MEL_BANDS
from scripts.train_demo.network import ConvNeXtBlock

WIDTH, LAYERS = 320, 6
RESOLUTIONS = ((512, 128), (1024, 256), (2048, 512))  # window, hop of the judges of spectra
PERIODS = (2, 3, 5, 7, 11)
SPECTRUM_CHANNELS = 32
PERIOD_CHANNELS = (1, 16, 64, 192, 256)
Verdict = tuple[Tensor, list[Tensor]]


class Backbone(nn.Module):
    """Mel frames to features."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.embed = nn.Conv1d(MEL_BANDS, width, 7, padding=3)
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
        """Maps (B, T, width) to samples (B, 256 (T - 1)): overlapping windows, divided by the sum of their squares."""
        log_magnitude, phase = self.out(features).transpose(1, 2).float().chunk(2, 1)
        magnitude = log_magnitude.exp().clamp(max=100.0)
        spectrum = torch.complex(magnitude * phase.cos(), magnitude * phase.sin())
        window = self.window
        assert isinstance(window, Tensor)
        frames = torch.fft.irfft(spectrum, FFT_SIZE, dim=1) * window[:, None]
        length = (frames.shape[2] - 1) * HOP
        weights = window.square()[:, None].expand(-1, frames.shape[2])[None]
        samples, total = (_overlapped(values) for values in (frames, weights))
        return (samples / total.clamp(min=1e-8))[:, FFT_SIZE // 2 : FFT_SIZE // 2 + length]


def _overlapped(frames: Tensor) -> Tensor:
    """Adds frames (B, 1024, T), each 256 samples after the one before: (B, 1024 + 256 (T - 1))."""
    length = FFT_SIZE + HOP * (frames.shape[2] - 1)
    return F.fold(frames, (1, length), (1, FFT_SIZE), stride=(1, HOP))[:, 0, 0]


class Vocos(nn.Module):
    """Backbone and head, under upstream's names."""

    def __init__(self, width: int = WIDTH, layers: int = LAYERS) -> None:
        super().__init__()
        self.backbone, self.head = Backbone(width, layers), FourierHead(width)

    def forward(self, mel: Tensor) -> Tensor:
        """Maps (B, 100, T) to (B, 256 (T - 1))."""
        out: Tensor = self.head(self.backbone(mel))
        return out


class SpectrumCritic(nn.Module):
    """Judges the complex spectrum of one resolution."""

    def __init__(self, window: int, hop: int) -> None:
        super().__init__()
        self.hop = hop
        self.register_buffer("window", torch.hann_window(window), persistent=False)
        strides = (1, 2, 2, 2, 1)
        inputs = (2, *[SPECTRUM_CHANNELS] * (len(strides) - 1))
        self.layers = nn.ModuleList(
            weight_norm(
                nn.Conv2d(width, SPECTRUM_CHANNELS, (7, 5) if at == 0 else (5, 3), (stride, 1), (3, 2) if at == 0 else (2, 1))
            )
            for at, (width, stride) in enumerate(zip(inputs, strides, strict=True))
        )
        self.last = weight_norm(nn.Conv2d(SPECTRUM_CHANNELS, 1, 3, padding=1))

    def forward(self, samples: Tensor) -> Verdict:
        """Maps samples (B, n) to scores and the features of each layer."""
        window = self.window
        assert isinstance(window, Tensor)
        spectrum = torch.stft(samples, len(window), self.hop, window=window, return_complex=True, normalized=True)
        return _judged(torch.view_as_real(spectrum).permute(0, 3, 1, 2), self.layers, self.last)


class PeriodCritic(nn.Module):
    """Judges every period-th sample."""

    def __init__(self, period: int) -> None:
        super().__init__()
        self.period = period
        self.layers = nn.ModuleList(
            weight_norm(nn.Conv2d(width, wider, (5, 1), (3, 1), (2, 0))) for width, wider in pairwise(PERIOD_CHANNELS)
        )
        self.last = weight_norm(nn.Conv2d(PERIOD_CHANNELS[-1], 1, (3, 1), padding=(1, 0)))

    def forward(self, samples: Tensor) -> Verdict:
        """Maps samples (B, n) to scores and the features of each layer."""
        whole = samples[:, : samples.shape[1] // self.period * self.period]
        return _judged(whole.reshape(len(samples), 1, -1, self.period), self.layers, self.last)


def _judged(x: Tensor, layers: nn.ModuleList, last: nn.Module) -> Verdict:
    features = []
    for layer in layers:
        x = F.leaky_relu(layer(x), 0.1)
        features.append(x)
    return last(x), features


class Critic(nn.Module):
    """Judges of spectra and of periods."""

    def __init__(self, resolutions: Sequence[tuple[int, int]] = RESOLUTIONS, periods: Sequence[int] = PERIODS) -> None:
        super().__init__()
        self.judges = nn.ModuleList(
            [*(SpectrumCritic(*resolution) for resolution in resolutions), *(PeriodCritic(period) for period in periods)]
        )
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, samples: Tensor) -> list[Verdict]:
        """Maps samples (B, n) to the verdicts of all judges."""
        return [judge(samples) for judge in self.judges]
