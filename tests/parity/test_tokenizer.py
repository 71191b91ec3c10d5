"""Prompt ids and refined texts against the ChatTTS package on the same vocabulary: exactly equal.

Words are first written as phones where the checkpoint brings a dictionary, which the package does not read.
"""

import numpy as np
import pytest
import torch
from ChatTTS.model.speaker import Speaker
from ChatTTS.model.tokenizer import Tokenizer

from pipeline.text.normalize import normalize
from pipeline.text.tokenizer import PromptTokenizer
from pipeline.types import RefineParams, Segment, Voice

TEXTS = [
    "hello",
    "Hello there. How are you today.",
    "The quick brown fox, jumps over the lazy dog",
    "Cafe naive ANGSTROM",
    "  spaces   inside  and around ",
    "don't can't o'clock",
    "a. b, c",
    "supercalifragilisticexpialidocious antidisestablishmentarianism",
    "你好世界",
    "今天天气很好，我们出去走走。",
    "四是四，十是十，十四是十四、四十是四十。",
    "繁體中文字",
    "生僻字龘靐",
    "我在用python写代码",
    "hello 世界 goodbye 再见",
    "中文English中文",
    "well [uv_break] let me think [laugh] about it",
    "一二三[lbreak]四五六[v_break]",
    "[laugh_1]ha[oral_3]ha[break_5][llbreak]",
    "A",
    "好",
    "x" * 101,
    normalize("In 2024 it cost $1,234.50 (50% off)!").text,
    normalize("2024年5月1日，气温25℃！").text,
]
SAMPLE = np.random.default_rng(0).integers(0, 626, (37, 4))


@pytest.fixture(scope="module", params=["demo_root", "full_random_root"])
def pair(request):
    root = request.getfixturevalue(request.param)
    return PromptTokenizer(root, max_prompt=2048), Tokenizer(str(root / "asset/tokenizer"))


def upstream_ids(upstream, texts, sample):
    """(S, 4) ids and the (S,) mask of one prompt."""
    prompt = None if sample is None else torch.from_numpy(np.ascontiguousarray(sample.T))
    ids, _, text_mask = upstream.encode(texts, 4, prompt=prompt)
    return ids[0].numpy(), text_mask[0].numpy()


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("embedding", [None, np.ones(8, np.float16)], ids=["empty", "speaker"])
@pytest.mark.parametrize("sample", [None, SAMPLE], ids=["no sample", "sample"])
def test_code_prompts_are_upstreams(pair, text, embedding, sample):
    ours, upstream = pair
    voice = Voice("v", embedding, sample, "" if sample is None else "reference text 参考。")
    sample_text = ours.pronounced(voice.sample_text)
    decorated = Speaker.decorate_code_prompts(
        [ours.pronounced(text)], "[speed_7]", sample_text or None, None if embedding is None else "any"
    )
    ids, text_mask = upstream_ids(upstream, decorated, sample)
    prompt = ours.code_prompt(Segment(text, 0, True), voice, speed_token=7, max_steps=1)
    assert np.array_equal(prompt.ids, ids)
    assert np.array_equal(prompt.text_mask, text_mask)
    assert prompt.speaker_position == (None if embedding is None else int(np.flatnonzero(ids[:, 0] == upstream.spk_emb_ids)[0]))


@pytest.mark.parametrize("text", TEXTS)
def test_refine_prompts_are_upstreams(pair, text):
    ours, upstream = pair
    decorated = Speaker.decorate_text_prompts([ours.pronounced(text.strip())], "[oral_2][laugh_0][break_4]")
    ids, _ = upstream_ids(upstream, decorated, None)
    prompt = ours.refine_prompt(Segment(text, 0, True), RefineParams(), max_steps=1)
    assert np.array_equal(prompt.ids, ids)
    assert prompt.eos_token == upstream.eos_token


@pytest.mark.parametrize("text", TEXTS)
def test_refined_texts_are_decoded_as_upstream_does(pair, text):
    """[UNK] is the one exception, on purpose: upstream would say it again, ours leaves it out."""
    ours, upstream = pair
    unknown = upstream._tokenizer.unk_token_id
    ids = [
        i for i in upstream._tokenizer(f"{text} [uv_break]好 [break_2]", add_special_tokens=False)["input_ids"] if i != unknown
    ]
    tokens = torch.tensor(ids)
    (expected,) = upstream.decode([tokens[tokens.less(upstream.break_0_ids)]])
    assert ours.decode_refined(ids) == expected
