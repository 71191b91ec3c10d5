"""Network: the GPT and its mel decoder for training; their parameters have upstream's names.

In:    text tokens, codes, speaker vectors
Out:   hidden states, logits of the codes, mel frames, attention of the guided heads
Owns:  the weights
Never: data, schedules

Embeddings and heads of the codes are sums over a code's digits, plus a part of its own that starts at zero: codes
that sound alike begin alike, which spares most of the examples. The export adds them up.

Source: ChatTTS/model/gpt.py, ChatTTS/model/embed.py, ChatTTS/model/dvae.py; transformers, LlamaModel.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scripts.train_demo.codes import BOOKS, CODES, DIGITS, LEVELS, digit_table

ROPE_BASE = 10_000.0
NORM_EPS = 1e-6
GUIDED_LAYERS = (1, 2)  # head 0 of each looks at the token being spoken
BOTTLENECK = 64
IGNORED = -100


@dataclass(frozen=True, slots=True)
class Size:
    """Dimensions of the trained checkpoint."""

    width: int = 256
    layers: int = 8
    heads: int = 4
    mlp_width: int = 1024
    decoder_width: int = 224
    decoder_layers: int = 4


@dataclass(frozen=True, slots=True, eq=False)
class Tables:
    """What the network knows about its text."""

    vocabulary: int  # rows that are learned
    syllable_parts: Tensor  # (syllables, 3): the rows whose sum is a syllable's
    speaker_position: int  # of the speaker's vector among the tokens


def speaker_vectors(shares: Tensor, width: int) -> Tensor:
    """Maps shares of the speakers (n, 3) to unit vectors (n, width): a blend of two lies between them."""
    return F.pad(F.normalize(shares.float()), (0, width - shares.shape[1]))


class CodeTable(nn.Module):
    """One row per code, and one for the end."""

    def __init__(self, width: int, std: float) -> None:
        super().__init__()
        self.shared = nn.Parameter(torch.randn(DIGITS * LEVELS, width) * std / math.sqrt(DIGITS))
        self.own = nn.Parameter(torch.zeros(CODES + 1, width))
        parts = F.one_hot(digit_table() + LEVELS * torch.arange(DIGITS), DIGITS * LEVELS).sum(1).float()
        self.register_buffer("parts", F.pad(parts, (0, 0, 0, 1)), persistent=False)

    def rows(self) -> Tensor:
        """Returns the table (626, width)."""
        parts = self.parts
        assert isinstance(parts, Tensor)
        return parts @ self.shared + self.own


class Layer(nn.Module):
    """One Llama layer."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads = size.heads
        self.input_layernorm = nn.RMSNorm(size.width, NORM_EPS)
        self.self_attn = nn.ModuleDict(
            {name: nn.Linear(size.width, size.width, bias=False) for name in ("q_proj", "k_proj", "v_proj", "o_proj")}
        )
        self.post_attention_layernorm = nn.RMSNorm(size.width, NORM_EPS)
        self.mlp = nn.ModuleDict(
            {
                "gate_proj": nn.Linear(size.width, size.mlp_width, bias=False),
                "up_proj": nn.Linear(size.width, size.mlp_width, bias=False),
                "down_proj": nn.Linear(size.mlp_width, size.width, bias=False),
            }
        )

    def forward(
        self, x: Tensor, turn: tuple[Tensor, Tensor], mask: Tensor | None, guide: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Maps (B, N, width) to the same; also returns the share of head 0's attention within `guide` (B, N, N): (B, N)."""
        rows, length, width = x.shape
        attention, mlp = self.self_attn, self.mlp
        merged = F.linear(
            self.input_layernorm(x),
            torch.cat([attention.get_parameter(f"{name}.weight") for name in ("q_proj", "k_proj", "v_proj")]),
        )
        query, key, value = (part.view(rows, length, self.heads, -1).transpose(1, 2) for part in torch.split(merged, width, -1))
        query, key = rotate(query, turn), rotate(key, turn)
        if guide is None or mask is None:
            mixed, right = F.scaled_dot_product_attention(query, key, value, is_causal=True), None
        else:
            scores = (query @ key.transpose(2, 3)).float() / math.sqrt(width // self.heads) + mask
            looking = scores.softmax(-1)
            mixed, right = looking.to(value.dtype) @ value, (looking[:, 0] * guide).sum(-1)
        mixed = mixed.transpose(1, 2).reshape(rows, length, width)
        x = x + attention["o_proj"](mixed)
        gate, up = (mlp[name](normed) for normed in [self.post_attention_layernorm(x)] for name in ("gate_proj", "up_proj"))
        x = x + mlp["down_proj"](F.silu(gate) * up)
        return x, right


def rotation(length: int, head_width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Returns cosines and sines (length, head_width) of the rotary position embedding."""
    frequencies = ROPE_BASE ** (-torch.arange(0, head_width, 2, device=device) / head_width)
    angles = torch.arange(length, device=device)[:, None] * frequencies
    angles = torch.cat([angles, angles], 1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    first, second = x.chunk(2, -1)
    return (x * turn[0] + torch.cat([-second, first], -1) * turn[1]).to(x.dtype)


class ConvNeXtBlock(nn.Module):
    """Upstream's block of the mel decoders (scale `weight`, dilation 2); Vocos's has the scale `gamma` and no dilation."""

    def __init__(self, width: int, mlp_width: int, *, scale: str, dilation: int) -> None:
        super().__init__()
        self.dwconv = nn.Conv1d(width, width, 7, padding=3 * dilation, dilation=dilation, groups=width)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.pwconv1, self.pwconv2 = nn.Linear(width, mlp_width), nn.Linear(mlp_width, width)
        self.scale_name = scale
        self.register_parameter(scale, nn.Parameter(torch.full((width,), 0.1)))

    def forward(self, x: Tensor) -> Tensor:
        """Maps (B, C, T) to the same shape."""
        y: Tensor = self.norm(self.dwconv(x).transpose(1, 2))
        y = self.pwconv2(F.gelu(self.pwconv1(y))) * self.get_parameter(self.scale_name)
        return x + y.transpose(1, 2)


class ConvStack(nn.Module):
    """Upstream's DVAEDecoder."""

    def __init__(self, inputs: int, outputs: int, width: int, layers: int, bottleneck: int = BOTTLENECK) -> None:
        super().__init__()
        self.conv_in = nn.Sequential(
            nn.Conv1d(inputs, bottleneck, 3, padding=1), nn.GELU(), nn.Conv1d(bottleneck, width, 3, padding=1)
        )
        self.decoder_block = nn.ModuleList(ConvNeXtBlock(width, 4 * width, scale="weight", dilation=2) for _ in range(layers))
        self.conv_out = nn.Conv1d(width, outputs, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Maps (B, inputs, T) to (B, outputs, T)."""
        x = self.conv_in(x)
        for block in self.decoder_block:
            x = block(x)
        out: Tensor = self.conv_out(x)
        return out


class MelDecoder(nn.Module):
    """Maps steps to mel frames: upstream's DVAE without a quantiser."""

    def __init__(self, step_width: int, width: int, layers: int, coef: Tensor) -> None:
        super().__init__()
        self.decoder = ConvStack(step_width // 2, step_width // 2, width, layers)
        self.out_conv = nn.Conv1d(step_width // 2, 100, 3, padding=1, bias=False)
        self.register_buffer("coef", coef.view(1, 100, 1).clone())

    def forward(self, steps: Tensor) -> Tensor:
        """Maps (B, T, step_width) to (B, 100, 2T)."""
        rows, length, width = steps.shape
        frames = steps.reshape(rows, 2 * length, width // 2).transpose(1, 2)
        out: Tensor = self.out_conv(self.decoder(frames)) * self.coef
        return out


class Speaking(nn.Module):
    """GPT, embeddings, heads and mel decoder."""

    def __init__(self, size: Size, coef: Tensor, tables: Tables) -> None:
        super().__init__()
        self.size, self._speaker_position = size, tables.speaker_position
        self.emb_text = nn.Embedding(tables.vocabulary, size.width)
        self.emb_code = nn.ModuleList(CodeTable(size.width, 0.06 * math.sqrt(768 / size.width)) for _ in range(BOOKS))
        self.head_code = nn.ModuleList(CodeTable(size.width, 0.02) for _ in range(BOOKS))
        self.layers = nn.ModuleList(Layer(size) for _ in range(size.layers))
        self.norm = nn.RMSNorm(size.width, NORM_EPS)
        self.mel_decoder = MelDecoder(size.width, size.decoder_width, size.decoder_layers, coef)
        self.head_phone = nn.Linear(size.width, tables.vocabulary)  # training only: predicts the current phone
        self.register_buffer("syllable_parts", tables.syllable_parts, persistent=False)
        nn.init.normal_(self.emb_text.weight, 0, 0.1)
        for name, parameter in self.layers.named_parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, 0, 0.035 / (math.sqrt(2 * size.layers) if "o_proj" in name or "down" in name else 1))

    def embed(self, tokens: Tensor, codes: Tensor, is_code: Tensor, speakers: Tensor) -> Tensor:
        """Embeds tokens (B, N), or codes (B, N, 4) where `is_code` (B, N) is true, as (B, N, width)."""
        text = F.embedding(tokens, self.text_rows())
        at = self._speaker_position
        text = torch.cat([text[:, :at], speakers[:, None].to(text.dtype), text[:, at + 1 :]], 1)
        sound = sum(F.embedding(codes[..., book], table.rows()) for book, table in enumerate(self._tables(self.emb_code)))
        return torch.where(is_code[..., None], sound, text)

    def text_rows(self) -> Tensor:
        """Returns the rows of TOKEN_IDS (tokens, width): those that are learned, then a sum of them for each syllable."""
        syllable_parts = self.syllable_parts
        assert isinstance(syllable_parts, Tensor)
        return torch.cat([self.emb_text.weight, self.emb_text(syllable_parts).sum(1)])

    def trunk(self, x: Tensor, guide: Tensor | None = None) -> tuple[Tensor, list[Tensor]]:
        """Maps (B, N, width) to hidden states; also returns each guided head's attention within `guide` (B, N, N): (B, N)."""
        length = x.shape[1]
        turn = rotation(length, self.size.width // self.size.heads, x.device)
        mask = None if guide is None else torch.full((length, length), -1e9, device=x.device).triu(1)
        guided = []
        for index, layer in enumerate(self.layers):
            x, right = layer(x, turn, mask, guide if index in GUIDED_LAYERS else None)
            if right is not None:
                guided.append(right)
        return self.norm(x), guided

    def entropies(self, hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Compares hidden states (..., width) with the codes (..., 4) that they should predict; IGNORED is no code.

        Returns:
            A book's cross-entropy, its mean squared log-sum of exponentials, the share of right guesses: (4,) each.
        """
        results = []
        is_wanted = targets[..., 0] != IGNORED
        for book, table in enumerate(self._tables(self.head_code)):
            logits = F.linear(hidden, table.rows().to(hidden.dtype)).float()
            scale = logits.logsumexp(-1)
            right = logits.gather(-1, targets[..., book, None].clamp(min=0))[..., 0]
            parts = torch.stack([scale - right, scale.square(), (right >= logits.amax(-1)).float()])
            results.append((parts * is_wanted).flatten(1).sum(1) / is_wanted.sum())
        entropies, scales, hits = torch.stack(results, 1)
        return entropies, scales, hits

    @staticmethod
    def _tables(tables: nn.ModuleList) -> list[CodeTable]:
        return [table for table in tables if isinstance(table, CodeTable)]
