"""Speech text: a request's text as it will be spoken, with nothing lost on the way."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from pipeline.checkpoint.layout import TOKENIZER_FILE
from pipeline.errors import InvalidLexicon, InvalidSsml, NoSpeakableText, PartlyUnspeakable
from pipeline.text.markup.ssml import parse
from pipeline.text.segment import SegmentLimits, letter_weight
from pipeline.text.speech_text import build_speech_text, expand_say_as
from pipeline.text.tokenizer import PromptTokenizer
from pipeline.types import LexiconEntry, PronunciationKind, Segment, SpeechText, SynthesisRequest, Voice

CONFIG = SegmentLimits()
SOUP = st.lists(
    st.sampled_from(["[Stts]", "[Ptts]", "[spk_emb]", "[speed_3]", "[laugh]", "[S", "tts]", "[", "]", "［Stts］", "a 你1"])
    | st.text(max_size=4),
    max_size=30,
).map("".join)  # fmt: skip


def speech_text(text: str, **fields) -> SpeechText:
    return build_speech_text(SynthesisRequest("r", text, "v", **fields), CONFIG)


def segments_of(text: str, **fields) -> list[str]:
    return [segment.text for segment in speech_text(text, **fields).segments]


def ssml(inside: str, **fields) -> SpeechText:
    document = parse(f"<speak>{inside}</speak>")
    return speech_text(document.text, passages=document.passages, **fields)


@given(st.text(max_size=200))
def test_every_character_is_spoken_or_dropped(text):
    try:
        found = speech_text(text)
    except NoSpeakableText:
        return
    spoken = {place for spans in found.spans for span in spans for place in range(span.source_start, span.source_stop)}
    gone = {place for start, stop in found.dropped for place in range(start, stop)}
    assert spoken | gone == set(range(len(text)))
    assert [segment.index for segment in found.segments] == list(range(len(found.segments)))
    assert [segment.is_last for segment in found.segments] == [False] * (len(found.segments) - 1) + [True]
    for segment in found.segments:
        assert 0 < letter_weight(segment.text) <= CONFIG.max_segment_chars
        assert segment.text == segment.text.strip()


@pytest.mark.parametrize(
    "spoken",
    [
        "one thousand two hundred thirty four dollars and fifty cents",
        "example dot com",
        "November twenty first, twenty twenty six",
    ],
)
def test_what_is_read_out_is_in_one_segment(spoken):
    written = {"one": "$1,234.50", "exa": "example.com", "Nov": "2026-11-21"}[spoken[:3]]
    for before in range(0, 200, 7):
        pieces = segments_of("word " * (before // 5) + "x" * (before % 5) + f" {written} and so on it goes for a while longer.")
        assert any(spoken in piece for piece in pieces), pieces


def test_quotes_and_brackets_stay_with_their_sentence():
    text = "他说：“今天的天气真的非常好，我们一起出去走走吧。”（她没有回答。）然后他们两个人就这样慢慢地走到了河边，坐了下来。"
    for piece in segments_of(text * 4):
        assert piece[0] not in "，。、,. "


def test_each_segment_has_its_language():
    found = speech_text("Good morning to all of you, my friends. 今天我们来谈一谈天气，因为天气很好，大家都想出去走走。")
    assert [segment.language for segment in found.segments] == ["en", "zh"]


def test_lexicons_and_hints_say_how_words_sound():
    entries = (
        LexiconEntry("重庆", PronunciationKind.PINYIN, "chong2 qing4"),
        LexiconEntry("nginx", PronunciationKind.ALIAS, "engine X 2"),
    )
    (piece,) = segments_of("Nginx 在重庆", lexicon=entries)
    assert "engine X two" in piece
    assert "崇庆" in piece
    (segment,) = ssml('重庆<phoneme alphabet="pinyin" ph="zhong4">重庆</phoneme>', lexicon=entries).segments
    assert segment.text == "崇庆仲"


def test_words_that_are_not_mandarin_are_counted_with_their_sentence():
    assert dict(speech_text("佢哋喺度食嘢，唔該晒。").warnings) == {"spoken_as_mandarin": 9}
    assert dict(speech_text("有冇？有的。").warnings) == {"spoken_as_mandarin": 2}
    assert dict(speech_text("他们在这里吃东西，谢谢，瀹茶。").warnings) == {}
    assert dict(speech_text("唔，好吧。").warnings) == {}, "an interjection of Mandarin"
    assert dict(speech_text("佢哋 are they. Hello.").warnings) == {"spoken_as_mandarin": 2}


def test_a_language_that_is_not_mandarin_keeps_every_character():
    text = "瀹茶，講3個嘢。"
    assert segments_of(text, language="dialect") == ["瀹茶，讲三个嘢。"]
    assert dict(speech_text("瀹茶 tea", language="dialect").warnings) == {"spoken_as_mandarin": 2}
    assert segments_of("瀹茶。佢哋喺度。") == ["月茶。佢哋喺度。"], "the table applies to sentences of Mandarin alone"
    found = ssml('<lang xml:lang="yue-HK">瀹茶。</lang>瀹茶。')
    assert [segment.text for segment in found.segments] == ["瀹茶。", "月茶。"]
    assert dict(found.warnings) == {"spoken_as_mandarin": 2}


@given(st.text(alphabet=st.characters(min_codepoint=0x4E00, max_codepoint=0x9FFF), min_size=1))
def test_no_text_of_a_dialect_is_rewritten_by_the_table(text):
    assert segments_of(text, language="dialect") == segments_of(text, language="zh", normalize=(("homophones", False),))
    assert segments_of(f"佢{text}") == segments_of(f"佢{text}", normalize=(("homophones", False),))


def test_strict_refuses_a_language_that_is_not_spoken():
    with pytest.raises(PartlyUnspeakable, match="Mandarin") as refused:
        speech_text("你好", language="dialect", strict=True)
    assert refused.value.param == "language"
    assert speech_text("佢好。", strict=True).segments, "a word alone is no request for another language"


def test_the_error_of_invalid_pinyin_names_its_field():
    with pytest.raises(InvalidLexicon):
        speech_text("重", lexicon=(LexiconEntry("重", PronunciationKind.PINYIN, "xyz1"),))
    with pytest.raises(InvalidSsml):
        ssml('<phoneme alphabet="pinyin" ph="xyz1">重</phoneme>')


def test_silence_goes_before_the_next_words_whatever_is_dropped_between():
    found = ssml('One.<break time="100ms"/>😀<break time="200ms"/>Two.<break time="5ms"/>?!')
    assert [(segment.text, segment.silence_ms) for segment in found.segments] == [("One.", 0), ("Two.", 300)]
    assert found.closing_silence_ms == 5
    assert dict(found.warnings)["emoji"] == 1


def test_silence_alone_is_a_script_and_nothing_is_none():
    assert ssml('<break time="1s"/>').closing_silence_ms == 1000
    with pytest.raises(NoSpeakableText):
        ssml("?!")


def test_a_rate_out_of_bounds_is_counted():
    assert dict(ssml('<prosody rate="8">x y</prosody>').warnings) == {"rate_bounded": 1}


@pytest.mark.parametrize(
    ("written", "kind", "language", "expected"),
    [
        ("110", "digits", "en", "1 1 0"),
        ("ABC1", "characters", "en", "A B C 1"),
        ("138-1234", "telephone", "zh", "1 3 8, 1 2 3 4"),
        ("1999", "cardinal", "en", "1,999"),
        ("3", "ordinal", "en", "3rd"),
        ("12", "ordinal", "en", "12th"),
        ("3", "ordinal", "zh", "第3"),
        ("11/21/2026", "date:mdy", "en", "2026-11-21"),
        ("21.11.2026", "date:dmy", "zh", "2026年11月21日"),
        ("USD 5", "currency", "en", "$5"),
        ("5 EUR", "currency", "en", "€5"),
        ("words", "cardinal", "en", "words"),
        ("words", "date:mdy", "en", "words"),
    ],
)
def test_say_as(written, kind, language, expected):
    assert expand_say_as(written, kind, language) == expected


@given(SOUP)
def test_no_text_writes_a_control_token(demo_root_of_session, text):
    tokenizer, tags = demo_root_of_session
    try:
        segments = speech_text(text, control_tags=False).segments
    except NoSpeakableText:
        return
    for segment in segments:
        prompt = tokenizer.code_prompt(Segment(segment.text, 0, is_last=True), Voice("v", None), speed_token=5, max_steps=8)
        written = set(prompt.ids[3:-1, 0].tolist())  # between [Stts] [empty_spk] [speed_5] and [Ptts]
        assert not written & (tokenizer._forbidden_ids - tags["unknown"])
        assert not written & tags["control"]


@pytest.fixture(scope="module")
def demo_root_of_session(demo_root):
    vocabulary = Tokenizer.from_file(str(demo_root / TOKENIZER_FILE))
    special = vocabulary.get_added_tokens_decoder()
    tags = {
        "unknown": frozenset([vocabulary.token_to_id("[UNK]")]),  # what a word outside the vocabulary is; no control token
        "control": frozenset(i for i, token in special.items() if token.content != "[UNK]"),
    }
    return PromptTokenizer(demo_root, max_prompt=512), tags
