"""The front end: a request to prompts, with and without the refine pass."""

import asyncio

import numpy as np
import pytest
from tokenizers import Tokenizer

from pipeline.checkpoint.layout import TOKENIZER_FILE
from pipeline.errors import NoSpeakableText
from pipeline.text.frontend import LocalTextFrontend
from pipeline.text.segment import SegmentLimits
from pipeline.types import Head, RefineParams, SynthesisRequest, Voice

CONFIG = SegmentLimits(max_segment_chars=30, first_segment_chars=16, base_steps=10, steps_per_char=2, refine_steps=50)
VOICES = {"v": Voice("v", np.ones(16, np.float16))}


@pytest.fixture(scope="module")
def frontend(demo_root):
    return LocalTextFrontend(demo_root, CONFIG, max_prompt=64, max_steps=60)


@pytest.fixture(scope="module")
def vocabulary(demo_root):
    return Tokenizer.from_file(str(demo_root / TOKENIZER_FILE))


def request(text, **more):
    return SynthesisRequest("r", text, "v", **more)


def plan(frontend, text, **more):
    return asyncio.run(frontend.plan(request(text, **more), VOICES)).prompts


def replan(frontend, requested, ids):
    """The refine pass has written `ids`."""

    async def both():
        return await frontend.replan(requested, VOICES, await frontend.plan(requested, VOICES), ids)

    return asyncio.run(both()).prompts


def test_one_prompt_a_segment_in_order(frontend):
    prompts = plan(frontend, "Hello there 2! And now a sentence. And one more of them.")
    assert [prompt.segment.text for prompt in prompts] == ["Hello there two.", "And now a sentence.", "And one more of them."]
    assert [prompt.segment.index for prompt in prompts] == [0, 1, 2]
    assert [prompt.segment.is_last for prompt in prompts] == [False, False, True]
    assert {prompt.head for prompt in prompts} == {Head.CODE}
    assert [prompt.max_steps for prompt in prompts] == [42, 48, 52]


def test_the_engine_bounds_the_steps(frontend):
    assert plan(frontend, "abcdefghijklmnopqrstuvwxyz abcdefghij klmnopq rst uvw")[-1].max_steps <= 60


def test_the_speed_token_reaches_the_prompt(frontend, vocabulary):
    (prompt,) = plan(frontend, "hi", speed_token=9)
    assert vocabulary.id_to_token(int(prompt.ids[2, 0])) == "[speed_9]"


def test_nothing_to_say_is_refused(frontend):
    with pytest.raises(NoSpeakableText):
        plan(frontend, "😀")


def test_refining_plans_text_prompts(frontend):
    (prompt,) = plan(frontend, "hi", refine=RefineParams())
    assert (prompt.head, prompt.max_steps) == (Head.TEXT, 50)


def test_replanning_speaks_the_refined_texts(frontend, vocabulary):
    requested = request("Hello there 2! And now a sentence.", refine=RefineParams())
    refined = ["hello [uv_break] um there two", "and now like a sentence [laugh]"]
    ids = [np.array(vocabulary.encode(text, add_special_tokens=False).ids) for text in refined]
    prompts = replan(frontend, requested, ids)
    assert [prompt.segment.text for prompt in prompts] == refined
    assert [prompt.segment.index for prompt in prompts] == [0, 1]
    assert [prompt.head for prompt in prompts] == [Head.CODE, Head.CODE]


@pytest.mark.parametrize("refined", ["", "[uv_break]", ",", "a " * 100])
def test_a_refined_text_that_cannot_be_spoken_gives_way_to_its_source(frontend, vocabulary, refined):
    ids = np.array(vocabulary.encode(refined, add_special_tokens=False).ids, np.int64)
    (prompt,) = replan(frontend, request("hi", refine=RefineParams()), [ids])
    assert prompt.segment.text == "hi"


def test_a_transcript_is_left_without_what_the_checkpoint_does_not_know(english_root):
    """The words of a cloned voice's recording are a part of the prompt: unknown ones would be [UNK] in it."""
    english = LocalTextFrontend(english_root, CONFIG, max_prompt=64, max_steps=60)
    unknown = Tokenizer.from_file(str(english_root / TOKENIZER_FILE)).token_to_id("[UNK]")
    codes = np.zeros((3, 4), np.int64)

    def plan_with(transcript: str):
        voices = {"v": Voice("v", None, codes, transcript)}
        return asyncio.run(english.plan(request("hi"), voices))

    known, cut, empty = plan_with("one three"), plan_with("one 二二 three"), plan_with("二")
    assert (known.warnings, cut.warnings) == ((), (("unknown_in_voice_sample", 2),))
    assert np.array_equal(cut.prompts[0].ids, known.prompts[0].ids)
    assert empty.warnings == (("unknown_in_voice_sample", 1),)
    assert all(unknown not in found.prompts[0].ids[:, 0] for found in (known, cut, empty))
