"""Prompt ids and refined texts against the ChatTTS package on the same vocabulary: exactly equal.

Words are first written as phones where the checkpoint brings a dictionary, which the package does not read.
"""

from pathlib import Path

import ChatTTS
import inflect
import numpy as np
import pytest
import torch
from ChatTTS.model.speaker import Speaker
from ChatTTS.model.tokenizer import Tokenizer
from ChatTTS.norm import Normalizer
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.text.normalize import normalize
from pipeline.text.normalize.chinese import HOMOPHONES, homophones
from pipeline.text.normalize.numbers import english, ordinal
from pipeline.text.tokenizer import PromptTokenizer
from pipeline.types import RefineParams, Segment, Voice
from serve.commands.weights.fetch import HASHES_FILE
from tests.support.effort import examples

TEXTS = [
    "hello", "Hello there. How are you today.", "The quick brown fox, jumps over the lazy dog", "Cafe naive ANGSTROM",
    "  spaces   inside  and around ", "don't can't o'clock", "a. b, c",
    "supercalifragilisticexpialidocious antidisestablishmentarianism", "你好世界", "今天天气很好，我们出去走走。",
    "四是四，十是十，十四是十四、四十是四十。", "繁體中文字", "生僻字龘靐", "我在用python写代码",
    "hello 世界 goodbye 再见", "中文English中文", "well [uv_break] let me think [laugh] about it",
    "一二三[lbreak]四五六[v_break]", "[laugh_1]ha[oral_3]ha[break_5][llbreak]", "A", "好", "x" * 101,
    normalize("In 2024 it cost $1,234.50 (50% off)!").text, normalize("2024年5月1日，气温25℃！").text,
]  # fmt: skip
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


# Homophones: the characters replaced are those of the ChatTTS package, and become the same ones. Its files are unchanged.


RESOURCES = Path(ChatTTS.__file__).parent / "res"
UPSTREAM = Normalizer(str(RESOURCES / "homophones_map.json"))


def upstream(text: str) -> str:
    return UPSTREAM(text, do_text_normalization=False, do_homophone_replacement=True)


def test_the_files_of_the_package_are_unchanged():
    assert HOMOPHONES.read_bytes() == (RESOURCES / HOMOPHONES.name).read_bytes()
    assert HASHES_FILE.read_bytes() == (RESOURCES / HASHES_FILE.name).read_bytes()


def test_every_character_of_the_map_is_replaced_as_upstream_does():
    rare = "".join(map(chr, homophones()))
    assert len(rare) == 16_425
    assert rare.translate(homophones()) == upstream(rare)


@settings(max_examples=examples(200))
@given(st.text(alphabet=st.characters(min_codepoint=0x4E00, max_codepoint=0x9FFF)))
def test_any_chinese_text_is_replaced_as_upstream_does(text):
    assert text.translate(homophones()) == upstream(text)


# English number words: the same as inflect writes, which does nothing else.


@given(st.integers(0, 10**15 - 1))
def test_english_integers_are_those_of_inflect(number):
    words = str(inflect.engine().number_to_words(number, andword="", comma=""))
    assert english(number) == " ".join(words.replace("-", " ").split())


@given(st.integers(0, 10**12))
def test_english_ordinals_are_those_of_inflect(number):
    engine = inflect.engine()
    words = str(engine.number_to_words(engine.ordinal(str(number)), andword="", comma=""))
    assert ordinal(str(number)) == " ".join(words.replace("-", " ").split())
