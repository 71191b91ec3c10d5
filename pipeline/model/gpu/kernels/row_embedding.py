"""Row embedding: that of one row, for the kernels that begin a pass through the layers.

In:    the row's ids; the tables
Out:   float32
Never: which ids

The codes are added in the order of their codebooks, so a row has the same bits in a prompt as in a step.
"""

import triton
import triton.language as tl


@triton.jit
def embedded(
    ids,  # (BOOKS,): codes, or a text token in the first place
    text,  # whether it is a text token
    code_table,  # (BOOKS, VOCAB, WIDTH) float32
    text_table,  # (text vocabulary, WIDTH) float32
    column,
    inside,
    BOOKS: tl.constexpr,
    VOCAB: tl.constexpr,
    WIDTH: tl.constexpr,
    WITH_TEXT: tl.constexpr,
):
    """Returns the row at the columns that are inside, 0 at the others."""
    x = tl.zeros(column.shape, tl.float32)
    for book in tl.static_range(BOOKS):
        code = tl.load(ids + book)
        x += tl.load(code_table + (book * VOCAB + code) * WIDTH + column, mask=inside & (text == 0), other=0.0)
    if WITH_TEXT:
        word = tl.load(ids).to(tl.int64)
        x += tl.load(text_table + word * WIDTH + column, mask=inside & text, other=0.0)
    return x
