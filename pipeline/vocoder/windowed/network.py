"""Network: windows of steps to samples, one fixed-shape call per chunk size.

In:    up to `rows` HiddenWindows of one shape
Out:   the samples of each window's body
Owns:  the networks' weights; per shape the static buffers and, on a GPU, the captured graph
Never: threads, queues, requests

On a CPU a call always computes all its rows, and unused rows are zeros. On a GPU every row is computed by itself.
So there is one matrix shape, one kernel and one order of summation, and a window's samples depend on that window alone.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pipeline.checkpoint.in_torch import in_torch
from pipeline.checkpoint.weights import Checkpoint, Tensors
from pipeline.config import VocoderConfig
from pipeline.model.gpu.graphs import GraphPool, record, use_own_stream
from pipeline.model.gpu.prepare import VOCODER_SHAPES, prepare_gpu
from pipeline.spec import CODEBOOKS, HOP, MEL_FRAMES_PER_STEP, SAMPLES_PER_STEP
from pipeline.types import HiddenWindow
from pipeline.vocoder.windowed.calls import WindowCalls
from pipeline.vocoder.windowed.code_embedding import CodeEmbedding
from pipeline.vocoder.windowed.mel_decoder import MelDecoder
from pipeline.vocoder.windowed.vocos import Vocos
from pipeline.vocoder.windowed.windows import Schedule


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

    vocos = Vocos(placed(checkpoint.vocos()))
    if config.use_decoder:
        return Network(MelDecoder(placed(checkpoint.mel_decoder())), vocos)
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
