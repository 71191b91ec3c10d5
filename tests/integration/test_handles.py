"""The adapters over real handles, in both of Serve's transports: by reference (actor calls) and by value (gRPC)."""

import asyncio
from contextlib import aclosing

import numpy as np
import pytest
from ray import serve

from pipeline.config import VocoderConfig
from pipeline.errors import EngineFault, TextTooLong
from pipeline.types import HiddenWindow, Prompt, SamplingParams
from pipeline.vocoder.windows import Schedule
from serve.engine import warm_up_prompt
from serve.handles import RemoteDecoder, RemoteGenerator, ask_speakers
from tests.integration.cluster import Cluster

CONFIG = VocoderConfig()
STEPS, BODY = Schedule(CONFIG.chunk_steps, CONFIG.look_ahead).shapes[0]


def window(width: int, value: float) -> HiddenWindow:
    start = CONFIG.look_ahead
    return HiddenWindow(np.full((STEPS, width), value, np.float32), 0, STEPS, start, start + BODY, is_last=False)


@pytest.fixture(params=[True, False], ids=["by reference", "by value"])
def transport(request: pytest.FixtureRequest, cluster: Cluster) -> dict[str, bool]:
    return {"_by_reference": request.param}


def test_one_bad_window_fails_alone(transport: dict[str, bool]):
    async def run() -> list[object]:
        handle = serve.get_deployment_handle("Vocoder", "chattts").options(**transport)
        width, _ = await ask_speakers(serve.get_deployment_handle("AcousticModel", "chattts"))
        decoder = RemoteDecoder(handle)
        windows = [window(width, 0.1), window(3, 0.2), window(width, 0.3), window(width, 0.1)]
        return await asyncio.gather(*(decoder.decode(each) for each in windows), return_exceptions=True)

    first, bad, other, again = asyncio.run(run())
    assert isinstance(bad, EngineFault)
    assert isinstance(first, np.ndarray)
    assert isinstance(other, np.ndarray)
    assert np.array_equal(first, again)
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
