"""The VAD against silero-vad's own network. The wheel's TorchScript file holds other weights than its safetensors file, which
pipeline/voices/vad.py reads: they are put into it first."""

from pathlib import Path

import numpy as np
import pytest
import silero_vad
import torch

from pipeline.voices import vad
from pipeline.voices.vad import FRAME, VAD_RATE, speech_probabilities

PLACES = {"lstm_cell": "decoder.rnn", "final_conv": "decoder.decoder.2"} | {
    f"conv{number}": f"encoder.{number - 1}.reparam_conv" for number in range(1, 5)
}


def network():
    model = silero_vad.load_silero_vad()
    parameters = dict(model.named_parameters())
    basis = dict(model.named_buffers())["_model.stft.forward_basis_buffer"]
    with torch.no_grad():
        for name, values in vad._weights().items():
            layer, _, kind = name.partition(".")
            place = basis if layer == "stft_conv" else parameters[f"_model.{PLACES[layer]}.{kind}"]
            place.copy_(torch.from_numpy(values))
    return model


def test_the_weights_are_those_of_the_package():
    assert vad.WEIGHTS.read_bytes() == (Path(silero_vad.__file__).parent / "data" / vad.WEIGHTS.name).read_bytes()


@pytest.mark.parametrize("samples", [1, 511, 512, 513, 16_000, 100_001])
def test_probabilities_are_silero_vads(samples):
    random = np.random.default_rng(samples)
    at = np.arange(samples) / VAD_RATE
    sound = sum(np.sin(2 * np.pi * k * (140 + 20 * np.sin(3 * at)) * at) / k for k in range(1, 12))
    sound = (0.1 * sound * (np.sin(7 * at) > 0) + 0.01 * random.standard_normal(samples)).astype(np.float32)
    padded = np.pad(sound, (0, -samples % FRAME))
    expected = network().audio_forward(torch.from_numpy(padded)[None], VAD_RATE).numpy()[0]
    assert np.abs(speech_probabilities(sound) - expected).max() < 1e-4
