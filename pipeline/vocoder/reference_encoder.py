"""ReferenceEncoder: turns a recording into the codes that a cloned voice needs as its sample.

In:    samples (m,) float32, 24 kHz
Out:   codes (n, 4) int64, n = m / 512
Owns:  its weights, on the CPU
Never: files, checks of the recording's content, a GPU

It runs the same operations in the same order as upstream, where the rest of this folder folds and regroups them: a code is a
rounded number, and a difference in the last bit would sometimes give another code. It always runs on the CPU, so that a
recording gives the same voice everywhere.

Source: ChatTTS/model/dvae.py, classes DVAE (`forward`, mode "encode"), MelSpectrogramFeatures, DVAEDecoder and GFSQ;
torchaudio, MelSpectrogram; vector_quantize_pytorch, ResidualFSQ and FSQ.
"""

from collections.abc import Mapping

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from pipeline.checkpoint.layout import DILATION, RESIDUAL_SCALES, VQ_GROUPS, VQ_LEVELS, below
from pipeline.spec import CODEBOOKS, CONV_NORM_EPS, FFT_SIZE, HOP

MEL_FLOOR = 1e-5  # lower values are raised to it before the logarithm
BOUND_MARGIN = 1e-3  # how far beyond the outermost levels the quantiser's tanh reaches
MIN_SAMPLES = FFT_SIZE // 2 + 1  # the first window is reflected at the start


class ReferenceEncoder:
    """Log-mel, two convolutions down to one frame per step, ConvNeXt blocks, the quantiser."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        """Takes the encoding half of a checkpoint's DVAE (Checkpoint.dvae())."""
        self._tensors = {
            name: tensor for name, tensor in tensors.items() if not name.startswith(("decoder.", "out_conv.", "vq_layer."))
        }
        self._blocks: list[Mapping[str, Tensor]] = []
        while block := below(tensors, f"encoder.decoder_block.{len(self._blocks)}."):
            self._blocks.append(block)
        self._quantiser = [
            (group["weight"], group["bias"])
            for index in range(VQ_GROUPS)
            for group in [below(tensors, f"vq_layer.quantizer.rvqs.{index}.project_in.")]
        ]
        self._levels = torch.tensor(VQ_LEVELS, dtype=torch.int32)
        self._place_values = self._levels.cumprod(0, dtype=torch.int32) // self._levels  # 1, 5, 25, 125

    @torch.inference_mode()
    def __call__(self, samples: NDArray[np.float32]) -> NDArray[np.int64]:
        """Returns the codes (n, 4) of a recording (m,) of at least MIN_SAMPLES."""
        assert samples.ndim == 1
        assert len(samples) >= MIN_SAMPLES
        frames = self._reduced(self._mel(torch.from_numpy(np.ascontiguousarray(samples, np.float32))))
        codes: NDArray[np.int64] = self._codes(self._mixed(frames)).numpy()
        return codes

    def encode_alone(self, samples: NDArray[np.float32]) -> NDArray[np.int64]:
        """Encodes on one thread: a second team of OpenMP threads would slow down every step of the engine."""
        torch.set_num_threads(1)  # applies to the calling thread
        return self(samples)

    def _mel(self, samples: Tensor) -> Tensor:
        """Returns the log-mel frames (bands, T), each band on its own scale."""
        tensors = below(self._tensors, "preprocessor_mel.mel_spec.")
        spectrum = torch.stft(
            samples.unsqueeze(0), FFT_SIZE, HOP, FFT_SIZE, tensors["spectrogram.window"],
            center=True, pad_mode="reflect", normalized=False, onesided=True, return_complex=True,
        )  # fmt: skip
        mel = torch.matmul(spectrum.squeeze(0).abs().transpose(-1, -2), tensors["mel_scale.fb"]).transpose(-1, -2)
        return torch.log(torch.clip(mel, min=MEL_FLOOR)) / self._tensors["coef"].view(-1, 1)

    def _reduced(self, mel: Tensor) -> Tensor:
        """Joins two mel frames to one: (bands, T) to (1, C, T / 2)."""
        tensors = below(self._tensors, "downsample_conv.")
        frames = F.gelu(F.conv1d(mel, tensors["0.weight"], tensors["0.bias"], padding=1))
        return F.gelu(F.conv1d(frames, tensors["2.weight"], tensors["2.bias"], stride=2, padding=1)).unsqueeze(0)

    def _mixed(self, frames: Tensor) -> Tensor:
        """Runs the encoder over frames (1, C, n). Returns (1, C', n)."""
        tensors = below(self._tensors, "encoder.")
        frames = F.gelu(F.conv1d(frames, tensors["conv_in.0.weight"], tensors["conv_in.0.bias"], padding=1))
        frames = F.conv1d(frames, tensors["conv_in.2.weight"], tensors["conv_in.2.bias"], padding=1)
        for block in self._blocks:
            frames = frames + _change(block, frames)
        return F.conv1d(frames, tensors["conv_out.weight"])

    def _codes(self, frames: Tensor) -> Tensor:
        """Returns the codes (n, 4) of frames (1, C', n): each group's half of the channels, quantised twice."""
        codes = []
        for group, (weight, bias) in zip(frames.transpose(1, 2).chunk(VQ_GROUPS, dim=-1), self._quantiser, strict=True):
            residual = F.linear(group, weight, bias)
            scales = torch.tensor(RESIDUAL_SCALES)
            for refinement in range(CODEBOOKS // VQ_GROUPS):
                scale = scales**refinement
                values = self._rounded(residual / scale)
                codes.append(self._index(values))
                residual = residual - values * scale
        return torch.stack(codes, dim=-1).squeeze(0)

    def _rounded(self, values: Tensor) -> Tensor:
        """Returns the nearest level of each digit: -1, -0.5, 0, 0.5 or 1."""
        half_range = (self._levels - 1) * (1 + BOUND_MARGIN) / 2
        return (values.tanh() * half_range).round() / (self._levels // 2)

    def _index(self, values: Tensor) -> Tensor:
        """Returns the codes (1, n) of digits (1, n, 4)."""
        middle = self._levels // 2
        return ((values * middle + middle) * self._place_values).sum(dim=-1).round().long()


def _change(tensors: Mapping[str, Tensor], frames: Tensor) -> Tensor:
    """Returns what one ConvNeXt block adds to its frames (1, C, n)."""
    kernel, channels = tensors["dwconv.weight"].shape[-1], frames.shape[1]
    mixed = F.conv1d(
        frames,
        tensors["dwconv.weight"],
        tensors["dwconv.bias"],
        padding=DILATION * (kernel // 2),
        dilation=DILATION,
        groups=channels,
    )
    normed = F.layer_norm(mixed.transpose(1, 2), (channels,), tensors["norm.weight"], tensors["norm.bias"], CONV_NORM_EPS)
    widened = F.gelu(F.linear(normed, tensors["pwconv1.weight"], tensors["pwconv1.bias"]))
    narrowed = F.linear(widened, tensors["pwconv2.weight"], tensors["pwconv2.bias"]) * tensors["weight"]
    return narrowed.transpose(1, 2)
