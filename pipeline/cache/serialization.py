"""Serialization: the steps of a whole segment as bytes, and back, bit for bit.

In:    all StepBlocks of a segment; bytes from anywhere
Out:   bytes; StepBlocks; ValueError for bytes in another format
Never: rounding

    header | codes | hidden states, or samples, or nothing

An audio code takes 10 bits: 5 bytes per step, 2.3 kB for ten seconds. A text token takes 2 bytes. A checkpoint with more
of either is not opened.
Hidden states and samples are stored as float32: their mantissas are almost random and do not compress.
"""

import struct
import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pipeline.cache.key import Kept
from pipeline.spec import CODE_BITS, CODEBOOKS, TEXT_TOKEN_BITS
from pipeline.types import FinishReason, StepBlock

MAGIC = b"CTS2"
CODE_BYTES = CODE_BITS * CODEBOOKS // 8  # 5 per step
FINISHES = (FinishReason.EOS, FinishReason.LENGTH)
KEPT = (Kept.CODES, Kept.HIDDEN, Kept.SAMPLES)
HEADER = struct.Struct("<4sIIHBBB")  # magic, checksum of the rest; steps, hidden width, codes per step, finish, what is kept
CHECKED_FROM = 8  # bytes; the checksum covers everything from here on


def pack(blocks: Sequence[StepBlock], payload: Kept) -> bytes:
    """Returns all blocks of a finished segment as bytes.

    Args:
        payload: what is included beside the codes; without hidden states unpack() returns some of width 0.
    """
    codes = np.concatenate([block.codes for block in blocks])  # (n, 4) or (n, 1)
    finish = blocks[-1].finish
    assert finish is not None, "the last block has a finish reason"
    width = blocks[0].hidden.shape[1] if payload is Kept.HIDDEN else 0
    beside = b"".join(np.ascontiguousarray(array, "<f4").tobytes() for block in blocks for array in _beside(block, payload))
    head = struct.pack("<IHBBB", len(codes), width, codes.shape[1], FINISHES.index(finish), KEPT.index(payload))
    body = head + _packed(codes) + beside
    return MAGIC + struct.pack("<I", zlib.crc32(body)) + body


def unpack(content: bytes) -> StepBlock:
    """Returns the whole segment as one block; its arrays are views of the bytes where possible.

    Raises:
        ValueError: another format, or damaged.
    """
    if len(content) < HEADER.size:
        raise ValueError(f"{len(content)} bytes are too few for a cache entry")
    magic, checksum, steps, width, books, finish, payload = HEADER.unpack_from(content)
    if magic != MAGIC or checksum != zlib.crc32(memoryview(content)[CHECKED_FROM:]):
        raise ValueError("not a cache entry, or a damaged one")
    codes_end = HEADER.size + steps * _bytes_per_step(books)
    beside = np.frombuffer(content, "<f4", offset=codes_end).astype(np.float32, copy=False)
    has_samples = KEPT[payload] is Kept.SAMPLES
    return StepBlock(
        hidden=np.zeros((steps, 0), np.float32) if has_samples else beside.reshape(steps, width),
        codes=_unpacked(np.frombuffer(content, np.uint8, codes_end - HEADER.size, HEADER.size), steps, books),
        first_step=0,
        finish=FINISHES[finish],
        samples=beside if has_samples else None,
    )


def _beside(block: StepBlock, payload: Kept) -> tuple[NDArray[np.float32], ...]:
    """Returns what is stored of a block beside its codes."""
    if payload is Kept.HIDDEN:
        return (block.hidden,)
    return (block.samples,) if payload is Kept.SAMPLES and block.samples is not None else ()


def _bytes_per_step(books: int) -> int:
    return CODE_BYTES if books == CODEBOOKS else 2 * books


def _packed(codes: NDArray[np.int64]) -> bytes:
    if codes.shape[1] != CODEBOOKS:
        assert codes.size == 0 or codes.max() < 1 << TEXT_TOKEN_BITS, "a text token has 16 bits"
        return codes.astype("<u2").tobytes()
    assert codes.size == 0 or codes.max() < 1 << CODE_BITS, "an audio code has 10 bits"
    shifts = CODE_BITS * np.arange(CODEBOOKS)
    words = (codes << shifts).sum(axis=1).astype("<u8")  # (n,), 40 bits used of each
    packed: NDArray[np.uint8] = words.view(np.uint8).reshape(len(codes), 8)[:, :CODE_BYTES]
    return packed.tobytes()


def _unpacked(content: NDArray[np.uint8], steps: int, books: int) -> NDArray[np.int64]:
    if books != CODEBOOKS:
        return content.view("<u2").reshape(steps, books).astype(np.int64)
    words = np.zeros((steps, 8), np.uint8)
    words[:, :CODE_BYTES] = content.reshape(steps, CODE_BYTES)
    shifts = CODE_BITS * np.arange(CODEBOOKS, dtype=np.uint64)
    codes = words.view("<u8") >> shifts & np.uint64((1 << CODE_BITS) - 1)  # (n, 1) over (4,): (n, 4)
    return codes.astype(np.int64)
