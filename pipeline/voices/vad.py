"""Voice activity detection: Silero VAD in numpy, because the processes that use it load no torch.

In:    samples (m,) float32, 16 kHz
Out:   one probability of speech per frame of 32 ms
Owns:  the weights, silero_vad_16k.safetensors of the package silero-vad, unchanged
Never: the package's own code

Source: silero-vad 6.2 (MIT), silero_vad/tinygrad_model.py and silero_vad_16k.safetensors.
"""

from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

WEIGHTS = Path(__file__).with_name("silero_vad_16k.safetensors")
VAD_RATE = 16_000  # Hz
FRAME = 512  # samples per decision
CONTEXT = 64  # samples before a frame that are added to it
PAD = 64  # samples after it, reflected
FFT = 256
STRIDE = 128
BINS = FFT // 2 + 1
SPEECH = 0.5  # probability from which a frame counts as speech

Weights = dict[str, NDArray[np.float32]]


def speech_probabilities(samples: NDArray[np.float32]) -> NDArray[np.float32]:
    """Returns the probability of speech in each frame, (frames,); the last frame is filled up with silence."""
    weights = _weights()
    frames = -(-len(samples) // FRAME)
    padded = np.zeros(CONTEXT + frames * FRAME, np.float32)
    padded[CONTEXT : CONTEXT + len(samples)] = samples
    windows = np.lib.stride_tricks.sliding_window_view(padded, CONTEXT + FRAME)[::FRAME]
    return _recur(weights, _features(weights, windows))


def _features(weights: Weights, windows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Turns (frames, 576) samples into (frames, 128): a spectrum, four convolutions."""
    windows = np.pad(windows, ((0, 0), (0, PAD)), mode="reflect")
    pieces = np.lib.stride_tricks.sliding_window_view(windows, FFT, axis=1)[:, ::STRIDE]  # (frames, 4, 256)
    spectrum = pieces @ weights["stft_conv.weight"][:, 0].T
    signal = np.sqrt(spectrum[..., :BINS] ** 2 + spectrum[..., BINS:] ** 2).transpose(0, 2, 1)  # (frames, 129, 4)
    for layer, stride in (("conv1", 1), ("conv2", 2), ("conv3", 2), ("conv4", 1)):
        signal = np.maximum(_convolve(signal, weights[f"{layer}.weight"], weights[f"{layer}.bias"], stride), 0)
    return signal[:, :, 0]


def _convolve(
    signal: NDArray[np.float32], weight: NDArray[np.float32], bias: NDArray[np.float32], stride: int
) -> NDArray[np.float32]:
    """Convolves (frames, C, n) to (frames, C', n / stride), kernel 3, zeros at both ends."""
    padded = np.pad(signal, ((0, 0), (0, 0), (1, 1)))
    columns = np.lib.stride_tricks.sliding_window_view(padded, weight.shape[2], axis=2)[:, :, ::stride]  # (frames, C, n, 3)
    rows = columns.transpose(0, 2, 1, 3).reshape(len(signal), -1, weight.shape[1] * weight.shape[2])
    mixed: NDArray[np.float32] = (rows @ weight.reshape(len(weight), -1).T + bias).transpose(0, 2, 1)
    return mixed


def _recur(weights: Weights, features: NDArray[np.float32]) -> NDArray[np.float32]:
    """Turns (frames, 128) into probabilities: an LSTM cell, a linear layer, a sigmoid."""
    gates_in = features @ weights["lstm_cell.weight_ih"].T + weights["lstm_cell.bias_ih"] + weights["lstm_cell.bias_hh"]
    recurrent = np.ascontiguousarray(weights["lstm_cell.weight_hh"].T)
    hidden = cell = np.zeros(features.shape[1], np.float32)
    states = np.empty_like(features)
    for frame, gate_in in enumerate(gates_in):
        enter, forget, fresh, leave = np.split(gate_in + hidden @ recurrent, 4)
        cell = _sigmoid(forget) * cell + _sigmoid(enter) * np.tanh(fresh)
        hidden = _sigmoid(leave) * np.tanh(cell)
        states[frame] = hidden
    logits = np.maximum(states, 0) @ weights["final_conv.weight"][0, :, 0] + weights["final_conv.bias"][0]
    return _sigmoid(logits)


def _sigmoid(values: NDArray[np.float32]) -> NDArray[np.float32]:
    return (1 / (1 + np.exp(-np.clip(values, -80, 80)))).astype(np.float32)


@cache
def _weights() -> Weights:
    return load_file(WEIGHTS)
