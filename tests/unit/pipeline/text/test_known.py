"""What a checkpoint does not know is left out and counted: its vocabulary decides about words, its manifest about tags."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from pipeline.checkpoint.layout import TOKENIZER_FILE
from pipeline.errors import NoSpeakableText, PartlyUnspeakable, TextTooLong
from pipeline.spec import CONTROL_TAGS
from pipeline.text.frontend import LocalTextFrontend
from pipeline.text.markup.ssml import parse
from pipeline.text.normalize import is_speakable
from pipeline.types import LexiconEntry, Passage, PronunciationKind, SpeechText, SynthesisRequest, Voice
from tests.support.effort import examples

NO_DROPS = ("spoken_as_mandarin", "unsupported_language")
VOICES = {"v": Voice("v", np.ones(16, np.float16))}


def frontend(root) -> LocalTextFrontend:
    return LocalTextFrontend(root, max_prompt=2048, max_steps=2048)


@pytest.fixture(scope="module")
def english(english_root):
    """Knows no Chinese character and no Chinese sign."""
    return frontend(english_root)


@pytest.fixture(scope="module")
def common(demo_root):
    """Knows English and the common Chinese characters."""
    return frontend(demo_root)


def request(text: str, **fields) -> SynthesisRequest:
    return SynthesisRequest("r", text, "v", **fields)


def read(front: LocalTextFrontend, text: str, **fields) -> SpeechText:
    return asyncio.run(front.read(request(text, **fields)))


def texts_of(speech_text: SpeechText) -> list[str]:
    return [segment.text for segment in speech_text.segments]


@pytest.mark.parametrize("text", ["今天天气真不错，我们一起去公园散步吧。", "你好", "一二三四五六七八九十", "你好！ ... ?"])
def test_a_text_of_unknown_words_is_refused_with_the_languages_that_are_known(english, text):
    with pytest.raises(NoSpeakableText, match=r"speaks en\b"):
        read(english, text)


def test_what_is_unknown_is_counted_and_the_rest_is_said(english):
    found = read(english, "hello 世界 goodbye 再见。")
    assert texts_of(found) == ["hello goodbye."]
    assert dict(found.warnings) == {"unknown_to_model": 4}
    assert found.dropped == ((6, 8), (15 + 2, 19))


def test_a_known_word_that_touches_an_unknown_one_is_said(english):
    found = read(english, "iPhone手机, 你have很好")
    assert texts_of(found) == ["iPhone, have"]
    assert dict(found.warnings) == {"unknown_to_model": 5}


def test_of_a_chinese_run_the_unknown_characters_alone_are_left_out(common):
    found = read(common, "“我很堃龘高兴”。", normalize=(("homophones", False),))
    assert texts_of(found) == ["我很高兴。"]
    assert dict(found.warnings) == {"unknown_to_model": 2}
    assert found.dropped == ((3, 5),)


def test_numbers_are_read_in_a_language_the_checkpoint_speaks(english, common):
    assert texts_of(read(english, "共30元")) == ["thirty"]
    assert texts_of(read(english, "30", language="zh")) == ["thirty"]
    assert texts_of(read(common, "共30元")) == ["共三十元"]


def test_a_reading_with_an_unknown_word_is_dropped_whole(english):
    entry = LexiconEntry("nginx", PronunciationKind.ALIAS, "恩静")
    found = read(english, "use nginx now", lexicon=(entry,))
    assert texts_of(found) == ["use now"]
    assert dict(found.warnings) == {"unknown_to_model": 5}


def test_a_passage_of_unknown_words_is_skipped(english):
    document = parse('<speak>One.<voice name="v">今天</voice><break time="100ms"/>Two.</speak>')
    found = read(english, document.text, passages=document.passages)
    assert [(segment.text, segment.silence_ms) for segment in found.segments] == [("One.", 0), ("Two.", 100)]
    assert dict(found.warnings) == {"unknown_to_model": 2}


@pytest.mark.parametrize("strict", [False, True])
def test_a_silence_is_no_answer_to_unknown_words(english, strict):
    document = parse('<speak>今天<break time="100ms"/></speak>')
    with pytest.raises(NoSpeakableText):
        read(english, document.text, passages=document.passages, strict=strict)
    silence = parse('<speak>?<break time="100ms"/></speak>')
    assert read(english, silence.text, passages=silence.passages, strict=strict).closing_silence_ms == 100


def test_strict_refuses_what_is_unknown_and_nothing_else(english):
    assert texts_of(read(english, "hello 😀", strict=True)) == ["hello"]
    with pytest.raises(PartlyUnspeakable, match="unknown_to_model=2"):
        read(english, "hello 世界", strict=True)


def test_a_passage_in_an_unsupported_language_is_counted_and_strict_refuses_it(english):
    document = parse('<speak>One <lang xml:lang="zh-CN">2</lang></speak>')
    found = read(english, document.text, passages=document.passages)
    assert texts_of(found) == ["One", "two"]
    assert dict(found.warnings) == {"unsupported_language": 1}
    with pytest.raises(PartlyUnspeakable, match="unsupported_language=1"):
        read(english, document.text, passages=document.passages, strict=True)


# Control tags.


def test_unsupported_tags_are_counted_and_never_spoken(english):
    text = "Ha [laugh] ha [speed_3] ha [oral_2] ha [break_4] ha."
    found = read(english, text, control_tags=True)
    assert texts_of(found) == ["Ha ha ha ha ha."]
    assert dict(found.warnings) == {"control_tag_not_taught": sum(map(len, ("[laugh]", "[speed_3]", "[oral_2]", "[break_4]")))}
    with pytest.raises(PartlyUnspeakable, match="control_tag_not_taught"):
        read(english, text, control_tags=True, strict=True)


def test_supported_tags_are_tokens(english, common):
    assert texts_of(read(english, "Wait [uv_break] here [lbreak]", control_tags=True)) == ["Wait [uv_break] here [lbreak]"]
    every = " a ".join(sorted(CONTROL_TAGS))
    assert dict(read(common, f"a {every}", control_tags=True).warnings) == {}


def test_a_version_without_tags_drops_them_all(common):
    found = read(common, "Ha [laugh] ha [uv_break] ha.", control_tags=True, keep_control_tags=False)
    assert texts_of(found) == ["Ha ha, ha."], "a pause that is no token is a comma"
    assert dict(found.warnings) == {"control_tag_not_taught": 17}


def test_a_dropped_pause_is_a_comma(common):
    found = read(common, "one [uv_break] two [lbreak]", control_tags=True, keep_control_tags=False)
    assert texts_of(found)[0].startswith("one, two")


# Whatever comes.

SOUP = st.lists(
    st.one_of(
        st.sampled_from(
            [*sorted(CONTROL_TAGS)[::5], "hello ", "你好", "龘", "。", "，", "12", " 3.5kg ", "é", "[Stts]", "\n", "A", "😀"]
        ),
        st.text(max_size=4),
        st.text(alphabet=st.characters(min_codepoint=0x3400, max_codepoint=0x9FFF), max_size=4),
    ),
    max_size=25,
).map("".join)
LETTER = st.text(alphabet=st.characters(categories=("L", "N")), max_size=12)


def check(front: LocalTextFrontend, vocabulary: Tokenizer, requested: SynthesisRequest) -> None:
    try:
        found = asyncio.run(front.read(requested))
        prompts = asyncio.run(front.plan(requested, VOICES)).prompts
    except (NoSpeakableText, TextTooLong):
        return
    spoken = {place for spans in found.spans for span in spans for place in range(span.source_start, span.source_stop)}
    gone = {place for start, stop in found.dropped for place in range(start, stop)}
    assert spoken | gone == set(range(len(requested.text)))
    assert not spoken & gone
    assert sum(count for code, count in found.warnings if code not in NO_DROPS) == len(gone)
    assert [prompt.segment for prompt in prompts] == list(found.segments)
    for prompt in prompts:
        assert vocabulary.token_to_id("[UNK]") not in prompt.ids[prompt.text_mask][:, 0]
        assert len(prompt.ids) > 4, "there is something between [speed_5] and [Ptts]"


@pytest.mark.slow
@settings(max_examples=examples(300))
@given(SOUP | LETTER, st.booleans(), st.sampled_from(["auto", "zh", "en", "dialect"]))
@pytest.mark.parametrize("root", ["english_root", "taught_root", "demo_root"])
def test_every_character_is_spoken_a_token_or_a_counted_drop(request, root, text, tags, language):
    front, vocabulary = _opened(request, root)
    check(front, vocabulary, SynthesisRequest("r", text, "v", control_tags=tags, language=language))


_OPENED = {}


def _opened(request, root):
    if root not in _OPENED:
        folder = request.getfixturevalue(root)
        _OPENED[root] = (frontend(folder), Tokenizer.from_file(str(folder / TOKENIZER_FILE)))
    return _OPENED[root]


@pytest.mark.parametrize("text", ["x" * 64, "w" * 500, "啊" * 500, "龘a" * 200, "nginx" * 30, "1" * 300])
def test_long_words_are_no_way_out(request, text):
    for root in ("english_root", "taught_root", "demo_root"):
        check(*_opened(request, root), SynthesisRequest("r", text, "v"))


def test_a_passage_without_words_is_dropped_and_counted(common):
    """A tag or a sign alone becomes no segment, but is not lost."""
    passages = (Passage("One."), Passage("[laugh]", control_tags=True), Passage("..."), Passage("Two."))
    requested = replace(request("One.[laugh]...Two."), passages=passages)
    found = asyncio.run(common.read(requested))
    assert texts_of(found) == ["One.", "Two."]
    assert found.dropped == ((4, 14),)
    assert dict(found.warnings) == {"without_words": 7, "punctuation": 3}
    assert all(is_speakable(text) for text in texts_of(found))
