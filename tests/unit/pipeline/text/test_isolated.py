"""The front end in a process of its own: the same answers, a limit that holds, a death that nobody else notices."""

import asyncio
import os
import signal

import pytest

from pipeline.config import TextConfig
from pipeline.errors import NoSpeakableText, TextTooHard
from pipeline.text.frontend import LocalTextFrontend
from pipeline.text.isolated import IsolatedFrontend
from pipeline.types import SynthesisRequest, Voice

VOICES = {"v": Voice("v", None)}


def request(text: str) -> SynthesisRequest:
    return SynthesisRequest("r", text, "v")


def frontends(root, **config):
    sizes = {"max_prompt": 256, "max_steps": 512}
    return (kind(root, TextConfig(**config), **sizes) for kind in (IsolatedFrontend, LocalTextFrontend))


def test_it_answers_as_the_front_end_itself(demo_root):
    isolated, local = frontends(demo_root)

    async def run() -> None:
        text = request("Hello there, 2 of you! 他说：“你好。”")
        assert await isolated.read(text) == await local.read(text)
        theirs, ours = await isolated.plan(text, VOICES), await local.plan(text, VOICES)
        assert [prompt.ids.tolist() for prompt in theirs.prompts] == [prompt.ids.tolist() for prompt in ours.prompts]
        with pytest.raises(NoSpeakableText):
            await isolated.read(request("?!"))

    asyncio.run(run())


def test_a_text_that_takes_too_long_is_refused_and_the_next_one_read(demo_root):
    isolated, _ = frontends(demo_root, read_cpu_s=0.0005)

    async def run() -> None:
        with pytest.raises(TextTooHard) as refused:
            # Half a second of work: the kernel looks at processor time a hundred times a second.
            await isolated.read(request("1,234.5 on 2026-11-21, " * 2000))
        assert refused.value.param == "input"
        isolated._cpu_s = 5.0
        assert (await isolated.read(request("hi"))).segments[0].text == "hi"

    asyncio.run(run())


def test_a_caller_that_leaves_and_a_child_that_dies_disturb_nobody(demo_root):
    isolated, _ = frontends(demo_root)

    async def run() -> None:
        asked = [asyncio.create_task(isolated.read(request(f"number {index}"))) for index in range(6)]
        await asyncio.sleep(0.01)
        asked[0].cancel()
        asked[3].cancel()
        answers = await asyncio.gather(*asked, return_exceptions=True)
        spoken = [answer.segments[0].text for answer in answers if not isinstance(answer, BaseException)]
        assert spoken == ["number one", "number two", "number four", "number five"]
        os.kill(isolated._child.pid, signal.SIGKILL)
        with pytest.raises(TextTooHard):
            await isolated.read(request("hi"))
        assert (await isolated.read(request("hi"))).segments[0].text == "hi"

    asyncio.run(run())
