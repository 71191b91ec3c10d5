"""Audio: what a vocoder takes and returns, in both of its forms; the samples of one reply and the report about them.

In:    CacheResult
Out:   AudioChunk, AudioReport
Never: containers, codecs
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.types.speech import CacheResult
from pipeline.types.timing import Coverage, TimedItem


@dataclass(frozen=True, slots=True)
class AudioReport:
    """What was done to the samples of a whole stream."""

    steps: int
    """decoded; the model generates 46.875 per second of speech"""
    trimmed_ms: tuple[int, int] = (0, 0)
    """cut before the first and after the last sound, measured before any time-stretch [ms]"""
    denoised: bool = False
    coverage: Coverage | None = None
    """of the words whose times were followed; None: of none"""


@dataclass(frozen=True, slots=True, eq=False)
class AudioChunk:
    """Samples that are sent together: mono, at the request's rate."""

    samples: NDArray[np.float32]  # (m,) in [-1, 1]
    first_sample: int
    is_last: bool
    warnings: tuple[tuple[str, int], ...] = ()
    """(code, count): SpeechPlan.warnings on a stream's first chunk; on its last those of the takes, on the first those known"""
    cache: CacheResult = CacheResult.BYPASS
    """where the steps of the first segment came from"""
    is_made: bool = False
    """the model makes steps for this request: the cache lacks a part of what was asked for so far"""
    times: tuple[TimedItem, ...] = ()
    """what is told before these samples are sent; no sample was sent before that belongs to a word of it"""
    report: AudioReport | None = None
    """on a stream's last chunk"""


@dataclass(frozen=True, slots=True)
class DecoderTraits:
    """Properties of a vocoder that its caller must respect."""

    is_stateful: bool
    """it takes StepBatches; otherwise HiddenWindows"""
    use_decoder: bool
    """a step is a hidden state; otherwise its four codes"""
    look_ahead: int
    """steps that must be known after the last one of a chunk"""
    chunk_steps: tuple[int, ...]
    """steps of chunk 0, 1, ...; the last one repeats"""
    is_beside_engine: bool = False
    """steps come with their samples: the model decodes what it generates"""


@dataclass(frozen=True, slots=True, eq=False)
class HiddenWindow:
    """The fixed-shape input of one vocoder call: `rows` steps of which [valid_start, valid_stop) exist."""

    frames: NDArray[np.float32]  # (rows, width) hidden states, or (rows, 4) codes; 0 outside the valid range
    valid_start: int
    """first row inside the utterance; rows before it are beyond its true beginning"""
    valid_stop: int
    """one past the last known row"""
    body_start: int
    """the samples of rows [body_start, body_stop) are returned"""
    body_stop: int
    is_last: bool
    """the utterance ends at body_stop; its last step has one hop less"""
    lead_s: float = 0.0
    """time until a listener who plays the stream since its first chunk needs these samples; below 0: it is silent [s]"""


@dataclass(frozen=True, slots=True, eq=False)
class DecoderState:
    """State of an incremental vocoder after some steps of an utterance."""

    network: int
    """fingerprint of the weights; the state is of no use to others"""
    steps: int
    """steps of the utterance so far"""
    memory: NDArray[np.float32]  # (m,) the state of all layers; m depends on the network


@dataclass(frozen=True, slots=True, eq=False)
class StepBatch:
    """The next steps of an utterance, for an incremental vocoder."""

    steps: NDArray[np.float32]  # (n, width) hidden states, or (n, 4) codes; n may be 0
    state: DecoderState | None
    """the state returned for the batch before; None begins an utterance"""
    is_last: bool
    """the utterance ends with these steps"""
    lead_s: float = 0.0
    """time until a listener who plays the stream since its first chunk needs these samples; below 0: it is silent [s]"""


@dataclass(frozen=True, slots=True, eq=False)
class DecodedAudio:
    """The result of decoding a StepBatch."""

    samples: NDArray[np.float32]  # (m,) final; they follow those of the batch before
    state: DecoderState | None
    """for the next batch; None after the last"""
