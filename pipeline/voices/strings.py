"""Strings: encodes and decodes ChatTTS's speaker and prompt strings: base16384 over raw LZMA2.

In:    untrusted strings, embeddings and codes
Out:   embeddings (width,) float16, codes (steps, 4) int64, strings
Never: more bytes than a valid string can hold

Source: ChatTTS/model/speaker.py, `_encode`, `_decode`, `encode_prompt`, `decode_prompt`.
"""

import lzma

import numpy as np
import pybase16384
from numpy.typing import NDArray

from pipeline.spec import CODEBOOKS

MAX_CODE = 625  # EOS included: upstream's encoder never writes it, but its decoder accepts it
MAX_SAMPLE_STEPS = 1_500  # 32 s; more would leave no space for text in a prompt

# Raw LZMA2 has no header with the dictionary's size; 1 MiB covers every accepted string at no extra memory. The rest is
# upstream's preset, so that the strings are equal to upstream's.
_LZMA_FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "dict_size": 2**20}]
_LZMA_OVERHEAD = 256  # bytes that incompressible data may grow by
_BITS_PER_CHARACTER = 14  # of base16384


def encode_embedding(embedding: NDArray[np.float16]) -> str:
    """Returns the speaker string of an embedding (width,), as upstream writes it."""
    return _encode_base16384(_deflate(embedding.astype("<f2").tobytes()))


def encode_sample(codes: NDArray[np.int64]) -> str:
    """Returns the prompt string of codes (steps, 4), as upstream writes it."""
    steps, codebooks = codes.shape
    sizes = np.array((codebooks, steps), "<u2").tobytes()
    return _encode_base16384(sizes + _deflate(codes.T.astype("<u2").tobytes()))


def decode_embedding(text: str, width: int) -> NDArray[np.float16]:
    """Decodes a speaker string of ChatTTS to (width,): base16384 over raw LZMA2 over float16.

    Raises:
        ValueError: the string is malformed. It is never inflated beyond `width` numbers.
    """
    size = 2 * width
    embedding = np.frombuffer(_inflate(_decode_base16384(text, size), size), "<f2").astype(np.float16)
    if not np.isfinite(embedding).all():
        raise ValueError("the embedding has infinite or undefined numbers")
    if not embedding.any():
        raise ValueError("the embedding is all zeros")
    return embedding


def decode_sample(text: str) -> NDArray[np.int64]:
    """Decodes a prompt string of ChatTTS to (steps, 4): two 16-bit sizes, raw LZMA2 over 16-bit codes, codebook by codebook.

    Raises:
        ValueError: the string is malformed. It is never inflated beyond MAX_SAMPLE_STEPS.
    """
    packed = _decode_base16384(text, 2 * CODEBOOKS * MAX_SAMPLE_STEPS)
    if len(packed) < 4:
        raise ValueError("the sample is cut off before its sizes")
    codebooks, steps = (int(size) for size in np.frombuffer(packed[:4], "<u2"))
    if codebooks != CODEBOOKS or not 1 <= steps <= MAX_SAMPLE_STEPS:
        raise ValueError(
            f"the sample has {codebooks} codebooks and {steps} steps; allowed are {CODEBOOKS} and 1 to {MAX_SAMPLE_STEPS}"
        )
    codes = np.frombuffer(_inflate(packed[4:], 2 * codebooks * steps), "<u2").reshape(codebooks, steps)
    if codes.max() > MAX_CODE:
        raise ValueError(f"the sample has the code {codes.max()}; codes end at {MAX_CODE}")
    return np.ascontiguousarray(codes.T, np.int64)


def _decode_base16384(text: str, payload: int) -> bytes:
    """Returns the packed bytes, at most as many as `payload` bytes can need."""
    longest = (payload + _LZMA_OVERHEAD) * 8 // _BITS_PER_CHARACTER + 2
    if not 1 <= len(text) <= longest:
        raise ValueError(f"the string has {len(text)} characters; allowed are 1 to {longest}")
    # The C decoder accepts any text; the alphabet of base16384 is U+4E00 .. U+8DFF, and U+3D01 .. U+3D06 at the end.
    digits = text[:-1] if "\u3d01" <= text[-1] <= "\u3d06" else text
    if not all("\u4e00" <= character <= "\u8dff" for character in digits):
        raise ValueError("the string is not base16384: it has characters outside U+4E00 .. U+8DFF")
    try:
        return bytes(pybase16384.decode_from_string(text))
    except Exception as error:  # the binding raises whatever its C code reports
        raise ValueError(f"the string is not base16384: {error}") from error


def _inflate(packed: bytes, size: int) -> bytes:
    """Returns exactly `size` bytes of raw LZMA2; the decoder never produces more than one byte beyond them."""
    decoder = lzma.LZMADecompressor(format=lzma.FORMAT_RAW, filters=_LZMA_FILTERS)
    try:
        content = decoder.decompress(packed, max_length=size + 1)
    except (lzma.LZMAError, EOFError) as error:
        raise ValueError(f"the packed bytes are not LZMA2: {error}") from error
    if len(content) != size:
        length = f"more than {size}" if len(content) > size else str(len(content))
        raise ValueError(f"the unpacked string has {length} bytes; expected are {size}")
    return content


def _deflate(content: bytes) -> bytes:
    return lzma.compress(content, format=lzma.FORMAT_RAW, filters=_LZMA_FILTERS)


def _encode_base16384(content: bytes) -> str:
    return str(pybase16384.encode_to_string(content))
