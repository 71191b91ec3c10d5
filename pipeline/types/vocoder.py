"""Vocoder: what a vocoder takes and returns, in both of its forms.

In:    nothing
Out:   HiddenWindow -> samples, or one step batch after another with the decoder's state in between
Owns:  nothing
Never: weights, the choice between the two forms
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class DecoderTraits:
    """What whoever feeds a vocoder must know of it."""

    is_stateful: bool
    """it takes StepBatches; otherwise HiddenWindows"""
    use_decoder: bool
    """a step is a hidden state; otherwise its four codes"""
    look_ahead: int
    """steps that must be known behind a chunk's last one"""
    chunk_steps: tuple[int, ...]
    """steps of chunk 0, 1, ...; the last one repeats"""


@dataclass(frozen=True, slots=True, eq=False)
class HiddenWindow:
    """The fixed-shape input of one vocoder call: `rows` steps of which [valid_start, valid_stop) exist."""

    frames: NDArray[np.float32]  # (rows, width) hidden states, or (rows, 4) codes; 0 outside the valid range
    valid_start: int
    """first row inside the utterance; rows before it are beyond its true beginning"""
    valid_stop: int
    """one past the last known row"""
    body_start: int
    """rows [body_start, body_stop) are the ones whose samples are wanted"""
    body_stop: int
    is_last: bool
    """the utterance ends at body_stop: its last step gives one hop less"""


@dataclass(frozen=True, slots=True, eq=False)
class DecoderState:
    """What a vocoder that decodes every step once has to know of the steps before."""

    network: int
    """fingerprint of the weights that made it: no others can go on"""
    steps: int
    """of the utterance it has seen"""
    memory: NDArray[np.float32]  # (m,) what its layers remember; m is the network's own


@dataclass(frozen=True, slots=True, eq=False)
class StepBatch:
    """The next steps of an utterance, for a vocoder that decodes every step once."""

    steps: NDArray[np.float32]  # (n, width) hidden states, or (n, 4) codes; n may be 0
    state: DecoderState | None
    """what came with the answer to the feed before; None begins an utterance"""
    is_last: bool
    """the utterance ends with these steps"""


@dataclass(frozen=True, slots=True, eq=False)
class DecodedAudio:
    """The answer to a StepBatch."""

    samples: NDArray[np.float32]  # (m,) that no later step can change; they follow on those of the feed before
    state: DecoderState | None
    """for the next feed; None after the last"""
