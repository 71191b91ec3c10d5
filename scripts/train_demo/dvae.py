"""DVAE: the network from mel frames to codes and back, under upstream's names.

In:    mel frames, codes
Out:   the eight numbers that are rounded to codes; mel frames
Owns:  the network's dimensions
Never: losses, files

Source: ChatTTS/model/dvae.py.
"""

import torch
from torch import Tensor, nn

from scripts.train_demo.codes import DIGITS, GROUPS, values_of
from scripts.train_demo.network import ConvStack, MelDecoder

WIDTH, STACK_WIDTH, LAYERS = 96, 96, 3


class Dvae(nn.Module):
    """Encoder, projections of the quantiser, mel decoder, under upstream's names."""

    def __init__(self, coef: Tensor) -> None:
        super().__init__()
        self.downsample_conv = nn.Sequential(
            nn.Conv1d(100, WIDTH, 3, padding=1), nn.GELU(), nn.Conv1d(WIDTH, WIDTH, 4, 2, 1), nn.GELU()
        )
        self.encoder = ConvStack(WIDTH, GROUPS * WIDTH, STACK_WIDTH, LAYERS)
        self.project_in = nn.ModuleList(nn.Linear(WIDTH, DIGITS) for _ in range(GROUPS))
        self.project_out = nn.ModuleList(nn.Linear(DIGITS, WIDTH) for _ in range(GROUPS))
        self.mel_decoder = MelDecoder(2 * WIDTH, STACK_WIDTH, LAYERS, coef)

    def encode(self, mel: Tensor) -> Tensor:
        """Maps mel frames (B, 100, 2T) to the numbers (B, T, 8) that are rounded to codes."""
        steps = self.encoder(self.downsample_conv(mel / self.mel_decoder.get_buffer("coef"))).transpose(1, 2)
        return torch.cat([own(group) for own, group in zip(self.project_in, steps.chunk(GROUPS, -1), strict=True)], -1)

    def decode(self, codes: Tensor) -> Tensor:
        """Maps codes (B, T, 4) to mel frames (B, 100, 2T)."""
        values = values_of(codes)
        steps = torch.cat([own(group) for own, group in zip(self.project_out, values.chunk(GROUPS, -1), strict=True)], -1)
        out: Tensor = self.mel_decoder(steps)
        return out
