"""The adapters over real handles, in both of Serve's transports: by reference (actor calls) and by value (gRPC)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import numpy as np
import pytest
from ray import serve

from pipeline.errors import EngineFault, TextTooLong
from pipeline.spec import HOP
from pipeline.types import FinishReason, Prompt, SamplingParams, StepBlock
from pipeline.vocoder.stream import StreamDecoder
from serve.deployments.acoustic_model import warm_up_prompt
from serve.remote.remote_stages import RemoteDecoder, RemoteGenerator, ask_speakers
from tests.support.cluster import Cluster


@pytest.fixture(params=[True, False], ids=["by reference", "by value"])
def transport(request: pytest.FixtureRequest, cluster: Cluster) -> dict[str, bool]:
    return {"_by_reference": request.param}


def test_an_utterance_is_the_same_in_one_call_and_in_many_and_a_bad_one_fails_alone(transport: dict[str, bool]):
    """Whatever this machine's vocoder takes."""

    async def hear(decoder: RemoteDecoder, rows: np.ndarray, size: int) -> np.ndarray:
        async def steps() -> AsyncIterator[StepBlock]:
            for first in range(0, len(rows), size):
                ends = first + size >= len(rows)
                block = rows[first : first + size]
                yield StepBlock(block, np.zeros((len(block), 4), np.int64), first, FinishReason.EOS if ends else None)

        async with aclosing(StreamDecoder(decoder).decode(steps())) as chunks:
            return np.concatenate([chunk.samples async for chunk in chunks])

    async def run() -> list[object]:
        decoder = RemoteDecoder(serve.get_deployment_handle("Vocoder", "chattts").options(**transport))
        width, _ = await ask_speakers(serve.get_deployment_handle("AcousticModel", "chattts"))
        rows = np.random.default_rng(0).standard_normal((150, width), np.float32)
        return await asyncio.gather(
            *(hear(decoder, each, size) for each, size in ((rows, 4), (rows[:, 1:], 4), (rows[::-1].copy(), 7), (rows, 150))),
            return_exceptions=True,
        )

    first, bad, other, again = asyncio.run(run())
    assert isinstance(bad, EngineFault)
    assert isinstance(first, np.ndarray)
    assert isinstance(other, np.ndarray)
    assert np.array_equal(first, again)
    assert len(first) == len(other) == 299 * HOP
    assert not np.array_equal(first, other)


def test_steps_arrive_in_order_and_errors_as_they_were(transport: dict[str, bool]):
    async def run() -> tuple[list[int], np.ndarray]:
        generator = RemoteGenerator(serve.get_deployment_handle("AcousticModel", "chattts").options(**transport))
        firsts, hidden = [], []
        async with aclosing(generator.generate(warm_up_prompt(), SamplingParams(seed=4), timeout_s=30)) as blocks:
            async for block in blocks:
                firsts.append((block.first_step, len(block.hidden)))
                hidden.append(block.hidden)
        long = warm_up_prompt()
        long = Prompt(np.zeros((4000, 4), np.int64), np.ones(4000, np.bool_), long.head, long.segment, max_steps=4)
        with pytest.raises(TextTooLong):
            await anext(generator.generate(long, SamplingParams(), timeout_s=30))
        return firsts, np.concatenate(hidden)

    firsts, hidden = asyncio.run(run())
    expected = 0
    for first, count in firsts:
        assert first == expected
        expected += count
    assert expected == len(hidden) > 0
