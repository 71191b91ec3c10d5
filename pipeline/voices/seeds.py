"""Seeds: draws the speaker of a seed, the same on every machine and the same as in ChatTTS.

In:    0 .. 4294967295, the width of an embedding, a checkpoint's own speaker statistics
Out:   embeddings (width,) float16
"""

import io
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.checkpoint.layout import SPEAKERS_FILE
from pipeline.checkpoint.manifest import read_verified
from pipeline.errors import CheckpointError

# Row 0: standard deviation, row 1: mean of every embedding dimension of 2Noise/ChatTTS, float16.
# Source: ChatTTS 0.2.5, ChatTTS/config/config.py, Config.spk_stat, decoded as ChatTTS/model/speaker.py does.
_STATISTICS_FILE = Path(__file__).with_name("speaker_stat.npy")


def draw_embedding(seed: int, width: int, statistics: NDArray[np.float16] | None = None) -> NDArray[np.float16]:
    """Returns the speaker of a seed: (width,) float16, the bits upstream draws on a CPU after torch.manual_seed(seed).

    Args:
        statistics: the checkpoint's own, as read_statistics returns them. Without them those of 2Noise/ChatTTS for its
            width, mean 0 and standard deviation 1 for any other.

    Source: ChatTTS/model/speaker.py `_sample_random`.
    """
    std, mean = _statistics(width) if statistics is None else statistics
    return (standard_normal(seed, width) * std + mean).astype(np.float16)


def read_statistics(checkpoint: Path, width: int) -> NDArray[np.float16] | None:
    """Returns the standard deviation and mean (2, width) of a checkpoint's training speakers; None without the file.

    Raises:
        CheckpointError: the file is damaged, or of another checkpoint.
    """
    path = checkpoint / SPEAKERS_FILE
    if not path.is_file():
        return None
    try:
        array = np.load(io.BytesIO(read_verified(checkpoint, SPEAKERS_FILE)), allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise CheckpointError(f"{path}: expected an array of numpy, found: {error}; generate the checkpoint again") from error
    if array.shape != (2, width) or array.dtype != np.float16 or not np.isfinite(array).all():
        raise CheckpointError(
            f"{path}: holds {array.dtype} {array.shape}, expected finite float16 (2, {width}); generate the checkpoint again"
        )
    statistics: NDArray[np.float16] = array
    return statistics


def standard_normal(seed: int, count: int) -> NDArray[np.float16]:
    """Returns the bits of `torch.randn(count, dtype=torch.float16)` on a CPU after `torch.manual_seed(seed)`.

    torch fills with uniforms of 11 bits, one 32-bit word of its Mersenne Twister each, then turns blocks of 16
    into normals by Box-Muller (0..7: cosines, 8..15: sines), rounding every intermediate value to float16.
    A last, incomplete block is drawn again over the last 16 numbers.
    """
    assert count >= _BLOCK, "torch draws fewer numbers in another way"
    words = np.random.RandomState(seed)  # the legacy generator: its stream is frozen by numpy's policy
    normals = _uniforms(words, count)
    whole = count - count % _BLOCK
    normals[:whole] = _box_muller(normals[:whole].reshape(-1, _BLOCK)).reshape(-1)
    if whole < count:
        normals[-_BLOCK:] = _box_muller(_uniforms(words, _BLOCK).reshape(1, _BLOCK))[0]
    return normals


_BLOCK = 16


def _uniforms(words: np.random.RandomState, count: int) -> NDArray[np.float16]:
    bits = words.randint(0, 2**32, size=count, dtype=np.uint32) & 0x7FF
    return (bits / 2048).astype(np.float16)


def _box_muller(uniforms: NDArray[np.float16]) -> NDArray[np.float16]:
    """Turns (blocks, 16) uniforms into (blocks, 16) standard normals."""
    first, second = uniforms[:, : _BLOCK // 2], uniforms[:, _BLOCK // 2 :]
    logarithm = _half(np.log(_wide(_half(1 - _wide(first)))))
    radius = _half(np.sqrt(_wide(_half(-2 * _wide(logarithm)))))
    angle = _wide(_half(2 * np.pi * _wide(second)))
    normals = np.concatenate([radius * _half(np.cos(angle)), radius * _half(np.sin(angle))], axis=1)
    # torch multiplies by the standard deviation and adds the mean, 1 and 0: -0 becomes +0.
    return _half(normals + np.float16(0))


def _wide(values: NDArray[np.float16]) -> NDArray[np.float64]:
    # float64, because numpy's float32 logarithm and cosine differ in the last bit from machine to machine.
    return values.astype(np.float64)


def _half(values: NDArray[Any]) -> NDArray[np.float16]:
    return values.astype(np.float16)


def _statistics(width: int) -> tuple[NDArray[np.float16], NDArray[np.float16]]:
    """Returns standard deviation and mean, (width,) each."""
    statistics: NDArray[np.float16] = np.load(_STATISTICS_FILE, allow_pickle=False)
    if statistics.shape[1] != width:
        return np.ones(width, np.float16), np.zeros(width, np.float16)
    return statistics[0], statistics[1]
