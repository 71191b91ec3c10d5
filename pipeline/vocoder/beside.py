"""Beside: steps that are decoded where they are generated, and travel with their samples.

In:    StepBlocks of one sequence and its decoder; at the other end, the blocks that this returned
Out:   the same steps with samples in place of hidden states; at the other end, AudioChunks
Owns:  the steps of one sequence whose samples are not complete
Never: other samples than the steps would have if they were decoded elsewhere
"""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import EngineFault
from pipeline.spec import CODEBOOKS
from pipeline.types import AudioChunk, FinishReason, Latency, Position, StepBlock
from pipeline.vocoder.early import NOTHING
from pipeline.vocoder.stream import StreamDecoder


async def with_samples(
    blocks: AsyncGenerator[StepBlock, None],
    decoder: StreamDecoder,
    *,
    latency: Latency = Latency.EXACT,
    skipped_chunk_sizes: int = 0,
) -> AsyncGenerator[StepBlock, None]:
    """Streams the steps of one sequence with their samples: a block per chunk of audio. The first steps go ahead without
    any, as a sign that the sequence runs.

    Raises:
        Whatever StreamDecoder.decode raises, after the chunks before it.
    """
    unsent: list[StepBlock] = []
    finish: FinishReason | None = None
    position = Position()

    async def read(first: StepBlock) -> AsyncIterator[StepBlock]:
        yield first
        async for block in blocks:
            unsent.append(block)
            yield block

    async with aclosing(blocks):
        first = await anext(blocks)
        if first.finish is None:
            opening = _joined([first], position, NOTHING, None)
            position = opening.end
            yield opening
        else:
            unsent.append(first)
        async with aclosing(decoder.decode(read(first), latency=latency, skipped_chunk_sizes=skipped_chunk_sizes)) as chunks:
            async for chunk in chunks:
                # The last steps may have been read before the last chunk but one was decoded.
                finish = finish or (unsent[-1].finish if unsent else None)
                block = _joined(unsent, position, chunk.samples, finish if chunk.is_last else None)
                unsent.clear()
                position = block.end
                yield block


def _joined(blocks: list[StepBlock], begin: Position, samples: NDArray[np.float32], finish: FinishReason | None) -> StepBlock:
    """Returns one block of all steps, without their hidden states, and of the samples."""
    codes = np.concatenate([block.codes for block in blocks]) if blocks else np.zeros((0, CODEBOOKS), np.int64)
    return StepBlock(
        hidden=np.zeros((len(codes), 0), np.float32),
        codes=codes,
        first_step=begin.step,
        finish=finish,
        admission=blocks[0].admission if blocks else None,
        samples=samples,
        first_sample=begin.sample,
    )


async def chunks_of(blocks: AsyncIterator[StepBlock]) -> AsyncGenerator[AudioChunk, None]:
    """Streams the chunks of a sequence that was decoded beside its engine.

    Raises:
        EngineFault: the steps ended without a finish reason, or came without samples.
        Whatever `blocks` raises, after the chunks before it.
    """
    is_last = False
    async for block in blocks:
        if block.samples is None:
            raise EngineFault(f"the steps from {block.first_step} on came without samples")
        is_last = block.finish is not None
        if is_last or len(block.samples):
            yield AudioChunk(block.samples, block.first_sample, is_last=is_last)
    if not is_last:
        raise EngineFault("the steps ended without a finish reason")
