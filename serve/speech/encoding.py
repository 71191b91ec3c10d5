"""Encoding: chunks of samples to pieces of a container, without delaying the other replies of the process.

In:    AudioChunks
Out:   bytes
Owns:  one encoder per stream
Never: HTTP, Ray; an empty piece, except for a whole audio without a sample
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from pipeline.audio.encode import Encoder, encode_whole
from pipeline.audio.formats import AudioFormat
from pipeline.types import AudioChunk

# Cheap to encode. The other formats are encoded in a thread, or they would delay every other reply.
LIGHT_CONTAINERS = ("pcm", "wav", "ulaw", "alaw")
ENCODERS = ThreadPoolExecutor(8, thread_name_prefix="encoder")  # nothing that waits for somebody else may keep them


async def encode_stream(chunks: AsyncGenerator[AudioChunk, None], audio: AudioFormat) -> AsyncGenerator[bytes, None]:
    """Yields the pieces of the container as they become final."""
    encoder = Encoder(audio)
    light = audio.container in LIGHT_CONTAINERS
    try:
        async for chunk in chunks:
            data = encoder.feed(chunk.samples) if light else await _in_thread(encoder.feed, chunk.samples)
            if data:
                yield data
        data = encoder.finish() if light else await _in_thread(encoder.finish)
        if data:
            yield data
    finally:
        encoder.close()


async def encode_at_once(chunks: AsyncGenerator[AudioChunk, None], audio: AudioFormat) -> AsyncGenerator[bytes, None]:
    """Yields the whole container as one piece, with exact sizes in its header."""
    parts = [chunk.samples async for chunk in chunks]
    samples = np.concatenate(parts) if parts else np.zeros(0, np.float32)
    yield await asyncio.get_running_loop().run_in_executor(ENCODERS, encode_whole, samples, audio)


async def _in_thread(work: Callable[..., bytes], *args: object) -> bytes:
    """Runs `work` in a thread; a cancellation waits for it, or the encoder would be closed while it works."""
    running = asyncio.ensure_future(asyncio.get_running_loop().run_in_executor(ENCODERS, work, *args))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait((running,))
        raise
