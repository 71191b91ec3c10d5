"""Prompts: the layouts of both kinds, and no way for a text to write a mark of its own."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from pipeline.checkpoint.layout import TOKENIZER_FILE
from pipeline.errors import CheckpointError, TextTooLong
from pipeline.spec import CONTROL_TAGS
from pipeline.text.tokenizer import PROMPT_MARKS, PromptTokenizer
from pipeline.types import Head, RefineParams, Segment, Voice

SPEAKER = np.linspace(-1, 1, 16).astype(np.float16)
SAMPLE = np.arange(12).reshape(3, 4)


@pytest.fixture(scope="module")
def vocabulary(demo_root):
    return Tokenizer.from_file(str(demo_root / TOKENIZER_FILE))


@pytest.fixture(scope="module")
def tokenizer(demo_root):
    return PromptTokenizer(demo_root, max_prompt=200)


def segment(text):
    return Segment(text, index=3, is_last=False)


VOICE = Voice("v", SPEAKER)


def code(tokenizer, text="hello", voice=VOICE, speed=5):
    return tokenizer.code_prompt(segment(text), voice, speed_token=speed, max_steps=77)


def tokens(vocabulary, prompt):
    return [vocabulary.id_to_token(int(token_id)) for token_id in prompt.ids[prompt.text_mask][:, 0]]


def test_a_code_prompt_is_marks_speaker_speed_and_text(tokenizer, vocabulary):
    prompt = code(tokenizer, "a [laugh]b")
    assert tokens(vocabulary, prompt) == ["[Stts]", "[spk_emb]", "[speed_5]", "a", "[laugh]", "b", "[Ptts]"]
    assert (prompt.head, prompt.max_steps, prompt.eos_token, prompt.segment.index) == (Head.CODE, 77, None, 3)
    assert prompt.ids.dtype == np.int64
    assert (prompt.ids == prompt.ids[:, :1]).all()
    assert prompt.text_mask.dtype == np.bool_
    assert prompt.text_mask.all()
    assert prompt.speaker is SPEAKER
    assert prompt.speaker_position == 1


def test_no_embedding_means_the_empty_speaker(tokenizer, vocabulary):
    prompt = code(tokenizer, voice=Voice("default", None), speed=0)
    assert tokens(vocabulary, prompt)[:3] == ["[Stts]", "[empty_spk]", "[speed_0]"]
    assert prompt.speaker is None
    assert prompt.speaker_position is None


def test_a_sample_stands_before_as_text_and_after_as_codes(tokenizer, vocabulary):
    prompt = code(tokenizer, "b", Voice("v", SPEAKER, SAMPLE, "a [Stts]"))
    assert tokens(vocabulary, prompt)[2:4] == ["a", vocabulary.id_to_token(vocabulary.encode("Stts").ids[1])]
    assert prompt.text_mask.tolist() == [True] * (len(prompt.ids) - 3) + [False] * 3
    assert np.array_equal(prompt.ids[-3:], SAMPLE)


def test_a_refine_prompt_is_text_and_manner(tokenizer, vocabulary):
    prompt = tokenizer.refine_prompt(segment("a b"), RefineParams(oral=1, laugh=2, pause=7), max_steps=9)
    assert tokens(vocabulary, prompt) == ["[Sbreak]", "a", "b", "[Pbreak]", "[oral_1]", "[laugh_2]", "[break_7]"]
    assert (prompt.head, prompt.max_steps) == (Head.TEXT, 9)
    assert vocabulary.id_to_token(prompt.eos_token) == "[Ebreak]"
    assert prompt.speaker is None


SOUP = st.lists(
    st.sampled_from([*"[]_ 9aSts你", *PROMPT_MARKS, "[UNK]", "[CLS]", "[PAD]", "[music]", "[laugh]", "tts]", "[S", "spk"])
)


@given(SOUP.map("".join) | st.text())
def test_no_text_can_write_a_mark(tokenizer, vocabulary, text):
    try:
        found = tokens(vocabulary, code(tokenizer, text))
    except TextTooLong:
        return
    assert found[:3] == ["[Stts]", "[spk_emb]", "[speed_5]"]
    assert found[-1] == "[Ptts]"
    special = {token for token in found[3:-1] if token.startswith("[")}
    assert special <= CONTROL_TAGS | {"[UNK]"}, "only an unknown word may become [UNK]"


def test_the_written_word_unk_is_not_the_unknown_token(tokenizer, vocabulary):
    assert "[UNK]" not in tokens(vocabulary, code(tokenizer, "[UNK] [CLS] [PAD]"))


def test_prompts_end_at_the_limit(demo_root):
    fits = code(PromptTokenizer(demo_root, max_prompt=64), "a " * 60)
    assert len(fits.ids) == 64
    with pytest.raises(TextTooLong, match=r"65 positions.*64"):
        code(PromptTokenizer(demo_root, max_prompt=64), "a " * 61)
    with pytest.raises(TextTooLong):
        code(PromptTokenizer(demo_root, max_prompt=64), "a " * 58, Voice("v", SPEAKER, SAMPLE, ""))
    with pytest.raises(TextTooLong):
        PromptTokenizer(demo_root, max_prompt=64).refine_prompt(segment("a " * 60), RefineParams(), max_steps=1)


def test_refined_text_keeps_tags_and_loses_manner_and_marks(tokenizer, vocabulary):
    ids = vocabulary.encode("a [uv_break] b [break_3] [oral_2] c [Stts] [UNK] [laugh] d", add_special_tokens=False).ids
    assert tokenizer.decode_refined(ids) == "a [uv_break] b c [laugh] d"
    assert tokenizer.decode_refined([]) == ""


def test_a_missing_file_a_broken_one_and_a_foreign_one_are_refused(tmp_path, vocabulary):
    with pytest.raises(CheckpointError, match="the file is missing"):
        PromptTokenizer(tmp_path, max_prompt=64)
    file = tmp_path / TOKENIZER_FILE
    file.parent.mkdir(parents=True)
    file.write_text("{]")
    with pytest.raises(CheckpointError, match="tokenizers"):
        PromptTokenizer(tmp_path, max_prompt=64)
    file.write_text(vocabulary.to_str().replace("[speed_7]", "[speed_x]"))
    with pytest.raises(CheckpointError, match=r"\[speed_7\]"):
        PromptTokenizer(tmp_path, max_prompt=64)
