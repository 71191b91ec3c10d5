"""Small vocoder: a checkpoint with a random one of its own dimensions beside the full one."""

import shutil
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from pipeline.checkpoint.layout import MANIFEST_FILE, SMALL_FILES, ConvStack, Shapes, mel_decoder_shapes, vocos_shapes
from pipeline.checkpoint.random_weights import hann_window


def with_small_vocoder(root: Path, folder: Path, *, step_width: int = 128) -> Path:
    """Copies a checkpoint, without its manifest, and adds widths that fill no panel of 32."""
    shutil.copytree(root, folder)
    (folder / MANIFEST_FILE).unlink()
    stack = ConvStack(inputs=step_width // 2, bottleneck=24, hidden=48, outputs=40, layers=1, mlp_width=80)
    shapes = mel_decoder_shapes(stack), vocos_shapes(width=16, mlp_width=48, layers=2)
    for file, tensors in zip(SMALL_FILES, shapes, strict=True):
        (folder / file).parent.mkdir(exist_ok=True)
        save_file(_random(tensors), folder / file)
    return folder


def _random(shapes: Shapes) -> dict[str, np.ndarray]:
    random = np.random.default_rng(7)
    tensors = {name: random.standard_normal(shape, np.float32) / np.sqrt(np.prod(shape[1:])) for name, shape in shapes.items()}
    return {name: hann_window() if name.endswith("window") else tensor.astype("f2") for name, tensor in tensors.items()}
