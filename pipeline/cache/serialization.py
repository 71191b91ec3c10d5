"""Serialization: the steps of a whole segment as bytes, and back, bit for bit.

In:    all StepBlocks of a segment; bytes from anywhere
Out:   bytes; StepBlocks; ValueError for bytes in another format
Owns:  nothing
Never: rounding

    header | codes | hidden states, or nothing

An audio code is below 626 and takes 10 bits: 5 bytes per step, 2.3 kB for ten seconds. A text token takes 2 bytes.
Hidden states are stored as float32: their mantissas are almost random and do not compress.
"""

import struct
import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pipeline.types import FinishReason, StepBlock

MAGIC = b"CTS1"
CODE_BITS, CODE_BOOKS = 10, 4
CODE_BYTES = CODE_BITS * CODE_BOOKS // 8  # 5 per step
FINISHES = (FinishReason.EOS, FinishReason.LENGTH)
HEADER = struct.Struct("<4sIIHBB")  # magic, checksum of the rest; then steps, hidden width, codes per step, finish
CHECKED_FROM = 8  # bytes; the checksum covers everything from here on


def pack(blocks: Sequence[StepBlock], *, hidden: bool) -> bytes:
    """Returns all blocks of a finished segment as bytes.

    Args:
        hidden: include the hidden states; without them unpack() returns hidden states of width 0.
    """
    codes = np.concatenate([block.codes for block in blocks])  # (n, 4) or (n, 1)
    finish = blocks[-1].finish
    assert finish is not None, "the last block has a finish reason"
    width = blocks[0].hidden.shape[1] if hidden else 0
    states = b"".join(np.ascontiguousarray(block.hidden, "<f4").tobytes() for block in blocks) if hidden else b""
    head = struct.pack("<IHBB", len(codes), width, codes.shape[1], FINISHES.index(finish))
    body = head + _packed(codes) + states
    return MAGIC + struct.pack("<I", zlib.crc32(body)) + body


def unpack(content: bytes) -> StepBlock:
    """Returns the whole segment as one block; its arrays are views of the bytes where possible.

    Raises:
        ValueError: another format, or damaged.
    """
    if len(content) < HEADER.size:
        raise ValueError(f"{len(content)} bytes are too few for a cache entry")
    magic, checksum, steps, width, books, finish = HEADER.unpack_from(content)
    if magic != MAGIC or checksum != zlib.crc32(memoryview(content)[CHECKED_FROM:]):
        raise ValueError("not a cache entry, or a damaged one")
    codes_end = HEADER.size + steps * _bytes_per_step(books)
    hidden = np.frombuffer(content, "<f4", offset=codes_end).reshape(steps, width)
    return StepBlock(
        hidden=hidden.astype(np.float32, copy=False),
        codes=_unpacked(np.frombuffer(content, np.uint8, codes_end - HEADER.size, HEADER.size), steps, books),
        first_step=0,
        finish=FINISHES[finish],
    )


def _bytes_per_step(books: int) -> int:
    return CODE_BYTES if books == CODE_BOOKS else 2 * books


def _packed(codes: NDArray[np.int64]) -> bytes:
    if codes.shape[1] != CODE_BOOKS:
        assert codes.size == 0 or codes.max() < 1 << 16, "a text token has 16 bits"
        return codes.astype("<u2").tobytes()
    assert codes.size == 0 or codes.max() < 1 << CODE_BITS, "an audio code has 10 bits"
    shifts = CODE_BITS * np.arange(CODE_BOOKS)
    words = (codes << shifts).sum(axis=1).astype("<u8")  # (n,), 40 bits used of each
    packed: NDArray[np.uint8] = words.view(np.uint8).reshape(len(codes), 8)[:, :CODE_BYTES]
    return packed.tobytes()


def _unpacked(content: NDArray[np.uint8], steps: int, books: int) -> NDArray[np.int64]:
    if books != CODE_BOOKS:
        return content.view("<u2").reshape(steps, books).astype(np.int64)
    words = np.zeros((steps, 8), np.uint8)
    words[:, :CODE_BYTES] = content.reshape(steps, CODE_BYTES)
    shifts = CODE_BITS * np.arange(CODE_BOOKS, dtype=np.uint64)
    codes = words.view("<u8") >> shifts & np.uint64((1 << CODE_BITS) - 1)  # (n, 1) over (4,): (n, 4)
    return codes.astype(np.int64)
