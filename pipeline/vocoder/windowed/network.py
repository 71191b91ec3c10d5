"""Network: windows of steps to samples, one fixed-shape call per chunk size.

In:    up to `rows` HiddenWindows of one shape
Out:   the samples of each window's body
Owns:  the networks' weights; per shape the static buffers and, on a GPU, the captured graph
Never: threads, queues, requests

On a CPU a call always computes all its rows, and unused rows are zeros. On a GPU every row is computed by itself.
So there is one matrix shape, one kernel and one order of summation, and a window's samples depend on that window alone.
"""

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from pipeline.checkpoint.in_torch import in_torch
from pipeline.checkpoint.layout import DILATION, RESIDUAL_SCALES, VQ_GROUPS, VQ_LEVELS, below
from pipeline.checkpoint.weights import Checkpoint, Tensors
from pipeline.config import VocoderConfig
from pipeline.model.gpu.graphs import GraphPool, record, use_own_stream
from pipeline.model.gpu.prepare import VOCODER_SHAPES, prepare_gpu
from pipeline.spec import CODEBOOKS, FFT_SIZE, HOP, MEL_FRAMES_PER_STEP, SAMPLES_PER_STEP
from pipeline.types import HiddenWindow
from pipeline.vocoder.windowed.calls import WindowCalls
from pipeline.vocoder.windowed.convnext import Convolution, convnext_blocks, gelu_, layer_norm
from pipeline.vocoder.windowed.windows import Schedule

OVERLAP = FFT_SIZE // HOP  # 4 frames overlap in one hop of samples
CENTER = OVERLAP // 2  # center=True: frame t is centred on hop t, two hops into its piece
MAX_MAGNITUDE = 100.0  # upstream's ceiling for one frequency's magnitude
NO_ENVELOPE = 1e-11  # torch.istft treats a smaller envelope as silence


class Vocos:
    """Log-mel frames (B, T, 100) to samples (B, T * 256): the backbone, then the inverse Fourier transform.

    Source: vocos/models.py VocosBackbone, vocos/heads.py ISTFTHead; torch.istft with center=True.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._enter = Convolution(tensors["backbone.embed.weight"], tensors["backbone.embed.bias"])
        self._first_norm = tensors["backbone.norm.weight"], tensors["backbone.norm.bias"]
        self._blocks = convnext_blocks(tensors, "backbone.convnext.", scale="gamma", dilation=1)
        self._last_norm = tensors["backbone.final_layer_norm.weight"], tensors["backbone.final_layer_norm.bias"]
        self._to_spectrum = tensors["head.out.weight"], tensors["head.out.bias"]  # (FFT_SIZE + 2, C), (FFT_SIZE + 2,)
        self._synthesis = tensors["head.istft.window"]  # (FFT_SIZE,): the Hann window

    def __call__(self, mel: Tensor, exists: Tensor) -> Tensor:
        """Returns the samples of every frame; those of frames that do not exist are meaningless but finite."""
        frames = layer_norm(self._enter(mel, exists), *self._first_norm)
        for block in self._blocks:
            frames = block(frames, exists)
        return self._waveform(layer_norm(frames, *self._last_norm), exists)

    def _waveform(self, frames: Tensor, exists: Tensor) -> Tensor:
        log_magnitude, phase = F.linear(frames, *self._to_spectrum).chunk(2, dim=-1)
        magnitude = log_magnitude.exp().clamp(max=MAX_MAGNITUDE)
        spectrum = torch.complex(magnitude * phase.cos(), magnitude * phase.sin())  # (B, T, FFT_SIZE / 2 + 1)
        pieces = torch.fft.irfft(spectrum, FFT_SIZE) * self._synthesis
        # Only frames that exist are added up, and only their windows are divided out. So the first and the last sample
        # of the utterance equal those of an inverse transform over the whole utterance.
        envelope = overlap_add(exists * self._synthesis.square())
        return (overlap_add(pieces * exists) / envelope.clamp(min=NO_ENVELOPE)).flatten(1)


# piece 0   |  0 |  1 |  2 |  3 |               pieces are a hop apart and OVERLAP quarters of a hop long
# piece 1        |  0 |  1 |  2 |  3 |
# piece 2             |  0 |  1 |  2 |  3 |
# out                 |  0 |  1 |  2 | ...      hop t: quarter 2 of piece t, 1 of t + 1, 0 of t + 2, 3 of t - 1
def overlap_add(pieces: Tensor) -> Tensor:
    """Adds up pieces (B, T, FFT_SIZE), one hop apart, to samples (B, T, HOP) that begin at the middle of piece 0."""
    rows, length, _ = pieces.shape
    hops = pieces.reshape(rows, length, OVERLAP, HOP)
    total = pieces.new_zeros(rows, length + OVERLAP - 1, HOP)
    for quarter in range(OVERLAP):
        total[:, quarter : quarter + length] += hops[:, :, quarter]
    return total[:, CENTER : CENTER + length]


class MelDecoder:
    """Steps to log-mel frames (B, 2R, 100): two convolutions, ConvNeXt blocks, two layers, a scale per mel band.

    One class reads both files: Decoder.safetensors (from hidden states) and the decoding half of DVAE.safetensors.

    Source: ChatTTS/model/dvae.py, classes DVAE (`forward`, mode "decode") and DVAEDecoder.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._enter = Convolution(tensors["decoder.conv_in.0.weight"], tensors["decoder.conv_in.0.bias"])
        self._widen = Convolution(tensors["decoder.conv_in.2.weight"], tensors["decoder.conv_in.2.bias"])
        self._blocks = convnext_blocks(tensors, "decoder.decoder_block.", scale="weight", dilation=DILATION)
        self._leave = tensors["decoder.conv_out.weight"].squeeze(2)  # (C', C): a convolution of one frame
        band_scale = tensors["coef"].reshape(-1, 1, 1)  # (bands, 1, 1)
        self._to_bands = Convolution(tensors["out_conv.weight"] * band_scale, None)
        self.width: int = MEL_FRAMES_PER_STEP * tensors["decoder.conv_in.0.weight"].shape[1]
        """numbers per step"""

    def __call__(self, steps: Tensor, exists: Tensor) -> Tensor:
        """Decodes steps (B, R, width) to mel frames (B, 2R, bands)."""
        rows, length, width = steps.shape
        # The first half of a step's numbers is its first mel frame, the second half its second.
        frames = steps.reshape(rows, MEL_FRAMES_PER_STEP * length, width // MEL_FRAMES_PER_STEP)
        frames = self._widen(gelu_(self._enter(frames, exists)), exists)
        for block in self._blocks:
            frames = block(frames, exists)
        return self._to_bands(F.linear(frames, self._leave), exists)


class CodeEmbedding:
    """The decoding half of the quantiser: codes (B, R, 4), whole numbers in float32, to embeddings (B, R, width).

    A code of 0..624 is four digits of base 5, lowest first; a digit 0..4 stands for -1, -0.5, 0, 0.5, 1. Codes 2g and
    2g + 1 belong to group g: the second refines the first, on a smaller scale. Their sum, four numbers, is projected
    to the group's part of the embedding.

    Source: ChatTTS/model/dvae.py, class GFSQ (`_embed`); vector_quantize_pytorch, GroupedResidualFSQ.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._projections = [  # per group: weight (width / groups, digits), bias (width / groups,)
            (group["weight"], group["bias"])
            for index in range(VQ_GROUPS)
            for group in [below(tensors, f"vq_layer.quantizer.rvqs.{index}.project_out.")]
        ]
        device = self._projections[0][0].device
        self._levels = torch.tensor(VQ_LEVELS, device=device)
        self._place_values = self._levels.cumprod(0) // self._levels  # 1, 5, 25, 125
        self._residual_scales = torch.tensor(RESIDUAL_SCALES, device=device)

    def __call__(self, codes: Tensor) -> Tensor:
        """Returns the embeddings (B, R, width) of codes (B, R, codebooks)."""
        values = self._values(codes)
        groups = [self._refined(codes_of_group) for codes_of_group in values.chunk(VQ_GROUPS, dim=2)]
        return torch.cat([F.linear(group, *own) for group, own in zip(groups, self._projections, strict=True)], dim=-1)

    def _values(self, codes: Tensor) -> Tensor:
        """Returns codes (...) as digits (..., digits), -1 .. 1."""
        digits = codes.long().unsqueeze(-1) // self._place_values % self._levels
        middle = self._levels // 2
        return (digits - middle) / middle

    def _refined(self, values: Tensor) -> Tensor:
        """Returns the sum (B, R, digits) of one group's codes (B, R, refinements, digits), each on its own scale."""
        total = values[:, :, 0]
        for refinement in range(1, values.shape[2]):
            total = total + values[:, :, refinement] * self._residual_scales**refinement
        return total


class Network:
    """Steps to samples: (code embedding,) mel decoder, Vocos."""

    def __init__(self, mel_decoder: MelDecoder, vocos: Vocos, embedding: CodeEmbedding | None = None) -> None:
        self._mel_decoder = mel_decoder
        self._vocos = vocos
        self._embedding = embedding
        self.width = CODEBOOKS if embedding else mel_decoder.width
        """numbers per step: 4 codes, or a hidden state"""

    def __call__(self, steps: Tensor, valid: Tensor) -> Tensor:
        """Decode a call of windows.

        Args:
            steps: (B, R, width) float32.
            valid: (B, 2) int64, the steps [start, stop) of each window that exist; any device tensor, never read here
                by the host, so that a graph captured once serves every place of the edges.

        Returns:
            samples (B, 512 R) float32: step r of the window gives samples [512 r, 512 (r + 1)).
        """
        frame = torch.arange(MEL_FRAMES_PER_STEP * steps.shape[1], device=steps.device)
        edges = MEL_FRAMES_PER_STEP * valid
        exists = ((frame >= edges[:, :1]) & (frame < edges[:, 1:])).to(steps.dtype).unsqueeze(-1)  # (B, 2R, 1)
        embedded = self._embedding(steps) if self._embedding else steps
        samples: Tensor = self._vocos(self._mel_decoder(embedded, exists), exists)
        return samples


def build_network(config: VocoderConfig, checkpoint: Checkpoint) -> Network:
    """Reads the parts of the checkpoint that the configuration needs, and puts them on its device."""

    def placed(tensors: Tensors) -> dict[str, Tensor]:
        return {name: tensor.to(config.device) for name, tensor in in_torch(tensors).items()}

    vocos = Vocos(placed(checkpoint.vocos(config.size)))
    if config.use_decoder:
        return Network(MelDecoder(placed(checkpoint.mel_decoder(config.size))), vocos)
    dvae = placed(checkpoint.dvae())
    return Network(MelDecoder(dvae), vocos, CodeEmbedding(dvae))


class WindowCall:
    """Decodes windows of one shape, without a graph. Call it from one thread."""

    def __init__(self, network: Network, *, rows: int, steps: int, look_ahead: int, pinned: bool = False) -> None:
        """Allocates the buffers.

        Args:
            rows: windows per call.
            steps: steps per window, context included.
            pinned: True if a GPU copies from the buffers.
        """
        self._network = network
        self._body_start = look_ahead
        self._body = slice(SAMPLES_PER_STEP * look_ahead, SAMPLES_PER_STEP * (steps - look_ahead))
        self._steps = torch.zeros(rows, steps, network.width, pin_memory=pinned)
        self._valid = torch.zeros(rows, 2, dtype=torch.int64, pin_memory=pinned)

    @torch.inference_mode()
    def __call__(self, windows: Sequence[HiddenWindow]) -> list[NDArray[np.float32]]:
        """Decodes up to `rows` windows of this shape. Returns one array of samples (m,) per window."""
        steps, valid = self._steps.numpy(), self._valid.numpy()
        for row, window in enumerate(windows):
            steps[row] = window.frames
            valid[row] = window.valid_start, window.valid_stop
        unused = slice(len(windows), self._computed(len(windows)))
        steps[unused], valid[unused] = 0, 0
        samples = self._run(len(windows))
        return [self._body_samples(window, samples[row]) for row, window in enumerate(windows)]

    def _computed(self, count: int) -> int:
        """Returns how many rows are computed for `count` windows."""
        return len(self._steps)

    def _run(self, count: int) -> NDArray[np.float32]:
        """Returns the samples (B, m) of every row's body; the first `count` rows are used."""
        return self._network(self._steps, self._valid)[:, self._body].numpy()

    def _body_samples(self, window: HiddenWindow, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        """Returns a copy of the body's samples: the next call overwrites the buffer."""
        start = SAMPLES_PER_STEP * (window.body_start - self._body_start)
        stop = SAMPLES_PER_STEP * (window.body_stop - self._body_start) - (HOP if window.is_last else 0)
        return samples[start:stop].copy()


class RecordedCall(WindowCall):
    """Decodes windows of one shape on a GPU: CUDA graphs of 1, 2, 4 ... `rows` windows, recorded when first needed.

    A graph has one branch per window, and every branch does the same work on one window. So branches run in parallel,
    a single window costs one branch, and a window's samples depend neither on its neighbours nor on their number.
    """

    def __init__(
        self,
        network: Network,
        *,
        rows: int,
        steps: int,
        look_ahead: int,
        device: str,
        tf32: bool,
        pool: GraphPool,
        branches: Sequence[torch.cuda.Stream],
    ) -> None:
        """
        Args:
            branches: one stream per window, shared by the calls of all shapes: a GPU has 32 of them, each with a workspace.
        """
        super().__init__(network, rows=rows, steps=steps, look_ahead=look_ahead, pinned=True)
        self._tf32 = tf32
        self._pool = pool
        self._gpu_steps, self._gpu_valid = self._steps.to(device), self._valid.to(device)
        self._gpu_samples = torch.zeros(rows, self._body.stop - self._body.start, device=device)
        self._samples = torch.zeros_like(self._gpu_samples, device="cpu", pin_memory=True)
        self._branches = branches
        # Blocking: the waiting thread sleeps, and its core is free for the event loop.
        self._arrived = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}

    def _computed(self, count: int) -> int:
        return min(1 << (count - 1).bit_length(), len(self._branches))

    def _run(self, count: int) -> NDArray[np.float32]:
        branches = self._computed(count)
        if branches not in self._graphs:
            self._graphs[branches] = record(partial(self._compute, branches), pool=self._pool, tf32=self._tf32)
        self._gpu_steps[:branches].copy_(self._steps[:branches], non_blocking=True)
        self._gpu_valid[:branches].copy_(self._valid[:branches], non_blocking=True)
        self._graphs[branches].replay()
        self._samples[:count].copy_(self._gpu_samples[:count], non_blocking=True)
        self._arrived.record()
        self._arrived.synchronize()
        return self._samples.numpy()

    def _compute(self, branches: int) -> None:
        trunk = torch.cuda.current_stream()
        for row, branch in enumerate(self._branches[:branches]):
            own = slice(row, row + 1)
            branch.wait_stream(trunk)
            with torch.cuda.stream(branch):
                self._gpu_samples[own].copy_(self._network(self._gpu_steps[own], self._gpu_valid[own])[:, self._body])
        for branch in self._branches[:branches]:
            trunk.wait_stream(branch)


def build_window_calls(config: VocoderConfig, checkpoint: Checkpoint) -> WindowCalls:
    """Reads the network and builds one call per shape of the schedule, for the thread that calls this."""
    if config.threads is not None:
        torch.set_num_threads(config.threads)  # counts for the thread that calls it
    shapes = Schedule(config.chunks(incremental=False), config.look_ahead).shapes
    if config.device == "cuda":
        use_own_stream(urgent=False)
        frames = [MEL_FRAMES_PER_STEP * steps for steps, _ in shapes]
        prepare_gpu(rows=frames, dtype=torch.float32, shapes=VOCODER_SHAPES)
    network = build_network(config, checkpoint)
    pool = torch.cuda.graph_pool_handle() if config.device == "cuda" else None
    branches = [torch.cuda.Stream() for _ in range(config.rows)] if config.device == "cuda" else []  # type: ignore[no-untyped-call]

    def call(steps: int) -> WindowCall:
        if config.device == "cpu":
            return WindowCall(network, rows=config.rows, steps=steps, look_ahead=config.look_ahead)
        return RecordedCall(
            network,
            rows=config.rows,
            steps=steps,
            look_ahead=config.look_ahead,
            device=config.device,
            tf32=config.matmul == "tf32",
            pool=pool,
            branches=branches,
        )

    return WindowCalls(network.width, {steps: call(steps) for steps, _ in shapes})
