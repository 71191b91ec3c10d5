"""Segments and speech text: nothing lost, nothing too long, cut where a speaker would breathe."""

import re
import unicodedata

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipeline.errors import InvalidLexicon, NoSpeakableText, PartlyUnspeakable
from pipeline.spec import CONTROL_TAGS
from pipeline.text.markup.control_tags import neutralise, split_tags
from pipeline.text.markup.ssml import parse
from pipeline.text.normalize.chinese import words_of
from pipeline.text.say_as import KINDS, spoken_as
from pipeline.text.segment import (
    LEAST_STEPS_OF_A_WORD,
    SPOKEN,
    SegmentLimits,
    least_steps,
    letter_weight,
    max_steps,
    predicted_steps,
    split,
)
from pipeline.text.speech_text import build_speech_text
from pipeline.types import LexiconEntry, PronunciationKind, Segment, SegmentLength, SpeechText, SynthesisRequest
from tests.support.effort import examples

CONFIG = SegmentLimits(first_clause_chars=8, first_segment_chars=20, min_segment_chars=20, max_segment_chars=40)
SHORTEST = SPOKEN.cut_to(SegmentLength.SHORTEST)
TEXTS = st.lists(
    st.sampled_from(["hello", "a", "B", " ", ". ", ", ", "。", "，", "、", "你好", "世", ".", "\n", *sorted(CONTROL_TAGS)[:4]]),
    max_size=120,
).map("".join)  # fmt: skip


def pieces(text: str, config: SegmentLimits = CONFIG) -> list[str]:
    return [text[start:stop] for start, stop in split(text, config)]


def squeezed(text: str) -> str:
    return "".join(text.split())


@given(TEXTS | st.text().map(neutralise))
def test_segments_lose_nothing_cut_no_tag_and_keep_their_limits(text):
    parts = pieces(text)
    assert squeezed("".join(parts)) == squeezed(text)
    for index, piece in enumerate(parts):
        assert piece == piece.strip()
        assert piece
        assert letter_weight(piece) <= (CONFIG.max_segment_chars if index else CONFIG.first_segment_chars)
    tags = [piece for segment in parts for piece in split_tags(segment) if piece in CONTROL_TAGS]
    assert tags == [piece for piece in split_tags(text) if piece in CONTROL_TAGS]
    assert len(parts) <= 1 or letter_weight(text) > 20, "a text that fits is one segment"


WHOLE = st.lists(st.tuples(st.integers(0, 80), st.integers(1, 60)), max_size=8)


def in_order(text: str, drawn: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ranges of the text that do not overlap, from (gap, length) pairs."""
    ranges, place = [], 0
    for gap, length in drawn:
        start, stop = min(place + gap, len(text)), min(place + gap + length, len(text))
        if start < stop:
            ranges.append((start, stop))
        place = stop
    return ranges


@given(TEXTS, WHOLE)
def test_what_belongs_together_is_never_cut(text, drawn):
    whole = in_order(text, drawn)
    ranges = split(text, CONFIG, whole=whole)
    for start, stop in whole:
        inside = (start + len(text[start:stop]) - len(text[start:stop].lstrip()), start + len(text[start:stop].rstrip()))
        if letter_weight(text[start:stop]) <= CONFIG.max_segment_chars:
            assert not any(inside[0] < cut < inside[1] for part in ranges for cut in part), "a cut inside"
    assert squeezed("".join(text[slice(*part)] for part in ranges)) == squeezed(text)
    assert all(letter_weight(text[slice(*part)]) <= CONFIG.max_segment_chars for part in ranges)


@example(f"{'x' * 22} I go. 百分之一百，Mister Smith。你好你好。你好。", [(29, 5), (1, 12)])
@given(TEXTS | st.text().map(neutralise), WHOLE)
def test_the_shortest_pieces_lose_nothing_and_have_eight_characters_or_three_words(text, drawn):
    text = " ".join(text.split())
    parts = [text[slice(*cut)] for cut in split(text, SHORTEST, whole=in_order(text, drawn))]
    assert squeezed("".join(parts)) == squeezed(text)
    assert len(parts) <= 1 or all(len(piece) >= 8 or len(piece.split()) >= 3 for piece in parts)


@given(st.text(alphabet="e\u0301\u0308\u200d\ufe0f👩🎓你 ", max_size=80))
def test_a_character_keeps_its_marks(text):
    for start, _ in split(text, CONFIG):
        assert (
            start == 0
            or text[start - 1].isspace()
            or (
                not unicodedata.category(text[start]).startswith("M")
                and text[start] not in "\u200d\ufe0f"
                and text[start - 1] not in "\u200d\ufe0f"
            )
        )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One. Two. Three.", ["One. Two. Three."]),
        ("One two. Three four. Five six.", ["One two.", "Three four. Five six."]),
        ("Yes, one two. Three four.", ["Yes, one two.", "Three four."]),
        ("No stop here, but a comma and then much more", ["No stop here,", "but a comma and then much more"]),
        ("only words and spaces in a long row without stops", ["only words and", "spaces in a long row without stops"]),
        ("你好。今天天气很好，我们出去。", ["你好。", "今天天气很好，我们出去。"]),
        ("今天天气很好，我们出去。", ["今天天气很好，", "我们出去。"]),
        ("一二三四五六七八九十", ["一二三四五六", "七八九十"]),
        ("Yes. So Mr. Smith left, e.g. today. Bye.", ["Yes.", "So Mr. Smith left, e.g. today. Bye."]),
        ("Come, Mr. Smith and all", ["Come,", "Mr. Smith and all"]),
        ("x" * 70, ["x" * 20, "x" * 30, "x" * 20]),
        ("x" * 20 + ".", ["x" * 19, "x."]),
    ],
)  # fmt: skip
def test_cuts(text, expected):
    assert pieces(text) == expected


def test_later_pieces_end_at_the_last_sentence_that_is_long_enough_else_at_a_clause():
    config = SegmentLimits(first_clause_chars=1, first_segment_chars=8, min_segment_chars=20, max_segment_chars=40)
    text = "Go. Now this is a sentence. And this one goes on, with a clause that is far too long for it."
    assert pieces(text, config) == [
        "Go.", "Now this is a sentence.", "And this one goes on,", "with a clause that is", "far too long for it.",
    ]  # fmt: skip


def test_no_leftover_of_a_word_or_two():
    config = SegmentLimits(first_clause_chars=1, first_segment_chars=8, min_segment_chars=20, max_segment_chars=40)
    *_, last = pieces("Go. aaaa bbbb cccc dddd eeee ffff gggg hhhh ii", config)
    assert letter_weight(last) >= 20


def test_only_a_request_begins_with_a_short_piece():
    text = "aaaa " * 20
    (first, *_), (other, *_) = split(text, CONFIG), split(text, CONFIG, is_first=False)
    assert first[1] <= 20 < other[1]


def test_a_first_limit_above_the_other_does_not_lengthen_it():
    config = SegmentLimits(max_segment_chars=16, first_segment_chars=60)
    assert pieces("aaaa " * 20, config)[0] == "aaaa aaaa aaaa"


def test_weights():
    assert letter_weight("abc d") == 5
    assert letter_weight("你好a") == 7
    assert letter_weight("[uv_break]") == 3


def test_step_caps():
    config = SegmentLimits(base_steps=10, steps_per_char=1.5)
    assert max_steps("", config, 1000) == 10
    assert max_steps("abc", config, 1000) == 15  # 10 + ceil(4.5)
    assert max_steps("你", config, 1000) == 15
    assert max_steps("abc" * 1000, config, 1000) == 1000


def test_a_hundred_thousand_characters_are_cut_in_linear_time():
    assert len(pieces("x" * 100_000)) == 1 + -(-(100_000 - 20) // 40)


@pytest.mark.parametrize(("text", "speed_token", "steps"), [
    ("Hello there.", 5, 10), ("Hello there.", 0, 10), ("Hello there.", 9, 5), ("Hello [speed_9] there. [laugh]", 5, 5),
    ("今天天气真不错，我们走。", 5, 30), ("A", 5, 5), ("Hi.", 9, 2), ("好", 5, 5), ("[laugh].", 5, 0),
])  # fmt: skip
def test_fewer_steps_than_these_say_nothing(text, speed_token, steps):
    assert least_steps(text, speed_token) == steps


@given(TEXTS)
def test_a_segment_of_ordinary_length_is_far_above_the_least(text):
    least = least_steps(text, 5)
    assert 3 * least <= predicted_steps(text) or least == LEAST_STEPS_OF_A_WORD
    assert max(3 * least, predicted_steps(text)) <= max_steps(text, CONFIG, 10_000)


# Whole: no segment ends inside a Chinese word, a name or a count, and a list's number stays with its item.


SHORT = SegmentLimits(first_clause_chars=8, first_segment_chars=30, min_segment_chars=20, max_segment_chars=60)
PLAIN = st.sampled_from(
    [
        *("今天", "我们", "一起", "去", "公园", "散步", "然后", "回家", "吃饭", "因为"),
        *("天气", "非常", "好", "所以", "大家", "都", "高兴", "国务院", "清华大学"),
    ]
)
NAMES = ["欧阳娜娜", "乔治·布什", "iPhone 16 Pro Max", "New York", "Dr. Smith", "J. K. Rowling", "Elon Musk"]
COUNTS = ["7999元", "3个", "百分之五点六", "一百二十三万", "25%", "2024年"]


def segments(text: str, config: SegmentLimits = SHORT) -> tuple[Segment, ...]:
    return build_speech_text(SynthesisRequest("r", text, "v", language="zh"), config).segments


@settings(max_examples=examples(60))
@given(st.lists(PLAIN, min_size=10, max_size=60))
def test_no_segment_ends_inside_a_chinese_word(words):
    text = "".join(words)
    edges = {0}
    for word in words_of(text):
        edges.add(max(edges) + len(word))
    parts = segments(text)
    assert "".join(segment.text for segment in parts) == text
    assert {place for segment in parts for place in segment.source} <= edges
    assert [segment.source[0] for segment in parts] == [0, *(segment.source[1] for segment in parts)][: len(parts)]
    assert all(text[slice(*segment.source)] == segment.text for segment in parts)


@pytest.mark.parametrize("words", NAMES + COUNTS)
def test_no_segment_ends_inside_a_name_or_a_count(words):
    spoken = re.sub(r"[^\w ]", "", segments(words)[0].text)
    for before in range(4, 30):
        text = "去" * before + words + "的时候我们都很高兴" * 3
        assert any(spoken in re.sub(r"[^\w ]", "", segment.text) for segment in segments(text)), before


@pytest.mark.parametrize("sign", ["{}. ", "{}) ", "{}、", "（{}）", "- {}. "])
@settings(max_examples=examples(40))
@given(st.lists(st.integers(4, 30), min_size=2, max_size=6))
def test_the_number_of_an_item_begins_the_segment_its_item_is_in(sign, lengths):
    text = "\n".join(sign.format(number) + "好" * length for number, length in enumerate(lengths, 1))
    for segment in segments(text):
        assert not re.search(r"(?:^|[。，、])[一二三四五六][，、]?$", segment.text), segment.text


def test_spans_in_a_chinese_run_are_words():
    parts = build_speech_text(SynthesisRequest("r", "我來到北京清華大學", "v"), SHORT)
    assert [(span.source_start, span.source_stop) for span in parts.spans[0]] == [(0, 1), (1, 3), (3, 5), (5, 9)]


STORY = """昨天下午，李明和张晓红去了中关村的一家新华书店，买了三本关于人工智能的书和一张北京地图。
1. 首先把洋葱切成小丁
2. 然后在平底锅里加入橄榄油加热
埃隆·马斯克和蒂姆·库克出席了在上海举行的世界人工智能大会开幕式并发表了主题演讲内容非常丰富"""
STORY_NAMES = ("张晓红", "中关村", "新华书店", "人工智能", "埃隆马斯克", "蒂姆库克", "橄榄油", "一首先", "二然后")


@pytest.mark.parametrize("shift", range(0, 26, 5))
@pytest.mark.parametrize("config", [SHORT, SegmentLimits()], ids=["short", "default"])
def test_names_words_and_items_of_a_story_stay_whole_wherever_the_cuts_fall(config, shift):
    text = "好" * shift + STORY
    parts = build_speech_text(SynthesisRequest("r", text, "v"), config)
    spoken = "|".join(re.sub("[，。、·]", "", segment.text) for segment in parts.segments)
    assert [name for name in STORY_NAMES if name not in spoken] == []
    for segment, spans in zip(parts.segments, parts.spans, strict=True):
        start, stop = segment.source
        assert all(start <= span.source_start < span.source_stop <= stop for span in spans)
        runs = [text[span.source_start : span.source_stop] for span in spans]
        assert all(len(words_of(run)) == 1 for run in runs if re.fullmatch("[\u4e00-\u9fff]+", run))


# Speech text: a request's text as it will be spoken, with nothing lost on the way.


LIMITS = SegmentLimits()


def speech_text(text: str, **fields) -> SpeechText:
    return build_speech_text(SynthesisRequest("r", text, "v", **fields), LIMITS)


def segments_of(text: str, **fields) -> list[str]:
    return [segment.text for segment in speech_text(text, **fields).segments]


def ssml(inside: str, **fields) -> SpeechText:
    document = parse(f"<speak>{inside}</speak>")
    return speech_text(document.text, passages=document.passages, **fields)


@given(st.text(max_size=200))
def test_every_character_is_spoken_or_dropped(text):
    try:
        parts = speech_text(text)
    except NoSpeakableText:
        return
    spoken = {place for spans in parts.spans for span in spans for place in range(span.source_start, span.source_stop)}
    gone = {place for start, stop in parts.dropped for place in range(start, stop)}
    assert spoken | gone == set(range(len(text)))
    assert [segment.index for segment in parts.segments] == list(range(len(parts.segments)))
    assert [segment.is_last for segment in parts.segments] == [False] * (len(parts.segments) - 1) + [True]
    for segment in parts.segments:
        assert 0 < letter_weight(segment.text) <= LIMITS.max_segment_chars
        assert segment.text == segment.text.strip()


@pytest.mark.parametrize(
    ("written", "spoken"),
    [
        ("$1,234.50", "one thousand two hundred thirty four dollars and fifty cents"),
        ("example.com", "example dot com"),
        ("2026-11-21", "November twenty first, twenty twenty six"),
    ],
)
def test_what_is_read_out_is_in_one_segment(written, spoken):
    for before in range(0, 200, 7):
        pieces = segments_of("word " * (before // 5) + "x" * (before % 5) + f" {written} and so on it goes for a while longer.")
        assert any(spoken in piece for piece in pieces), pieces


def test_quotes_and_brackets_stay_with_their_sentence():
    text = "他说：“今天的天气真的非常好，我们一起出去走走吧。”（她没有回答。）然后他们两个人就这样慢慢地走到了河边，坐了下来。"
    for piece in segments_of(text * 4):
        assert piece[0] not in "，。、,. "


def test_each_segment_has_its_language():
    parts = speech_text("Good morning to all of you, my friends. 今天我们来谈一谈天气，因为天气很好，大家都想出去走走。")
    assert [segment.language for segment in parts.segments] == ["en", "zh"]


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
    parts = ssml('<lang xml:lang="yue-HK">瀹茶。</lang>瀹茶。')
    assert [segment.text for segment in parts.segments] == ["瀹茶。", "月茶。"]
    assert dict(parts.warnings) == {"spoken_as_mandarin": 2}


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
    document = parse('<speak><phoneme alphabet="pinyin" ph="xyz1">重</phoneme></speak>')
    assert document.warnings == (("unsupported_phoneme", 1),)


def test_silence_goes_before_the_next_words_whatever_is_dropped_between():
    parts = ssml('One.<break time="100ms"/>😀<break time="200ms"/>Two.<break time="5ms"/>?!')
    assert [(segment.text, segment.silence_ms) for segment in parts.segments] == [("One.", 0), ("Two.", 300)]
    assert parts.closing_silence_ms == 5
    assert dict(parts.warnings)["emoji"] == 1


def test_silence_alone_is_a_script_and_nothing_is_none():
    assert ssml('<break time="1s"/>').closing_silence_ms == 1000
    with pytest.raises(NoSpeakableText):
        ssml("?!")


def test_a_rate_out_of_bounds_is_counted():
    assert dict(ssml('<prosody rate="8">x y</prosody>').warnings) == {"rate_bounded": 1}


@pytest.mark.parametrize(("written", "kind", "language", "expected"), [
    ("110", "digits", "en", "one one zero"), ("ABC1", "characters", "en", "A B C one"),
    ("abc", "verbatim", "en", "A B C"), ("A1-b2", "characters", "en", "A one dash B two"),
    ("A1-b2", "characters", "zh", "A一杠B二"), ("138-1234", "telephone", "zh", "幺三八，幺二三四"),
    ("1999", "cardinal", "en", "one thousand nine hundred ninety nine"),
    ("+1 425 5550x34", "telephone", "en", "plus one, four two five, five five five zero, extension three four"),
    ("3", "ordinal", "en", "third"), ("12", "ordinal", "en", "twelfth"), ("3", "ordinal", "zh", "第三"),
    ("1,003", "ordinal", "en", "one thousand third"), ("IV", "ordinal", "en", "fourth"),
    ("XII", "cardinal", "en", "twelve"), ("11/21/2026", "date:mdy", "en", "November twenty first, twenty twenty six"),
    ("21.11.2026", "date:dmy", "zh", "二零二六年十一月二十一日"),
    ("12/31/99", "date:mdy", "en", "December thirty first, ninety nine"),
    ("10-9-05", "date:mdy", "en", "October ninth, oh five"),
    ("20240910", "date:yyyymmdd", "en", "September tenth, twenty twenty four"),
    ("240910", "date:ymd", "zh", "二四年九月十日"), ("09/10", "date:dm", "en", "October ninth"),
    ("09-2024", "date:my", "en", "September twenty twenty four"), ("10", "date:d", "en", "tenth"),
    ("9", "date:m", "zh", "九月"), ("2024", "date:y", "zh", "二零二四年"), ("8:05pm", "time:hms12", "zh", "下午八点零五分"),
    ("14:30", "time:hms24", "en", "fourteen thirty"), ("0930", "time", "en", "nine thirty"),
    ("01:18:30", "duration:hms", "en", "one hour eighteen minutes thirty seconds"), ("PT2M", "duration", "zh", "两分钟"),
    ("5", "currency:USD", "en", "five U S dollars"), ("5 EUR", "currency", "en", "five euros"),
    ("3+1/2", "fraction", "en", "three and one half"), ("2/9", "fraction", "zh", "九分之二"),
    ("5kg", "unit", "en", "five kilograms"), ("150th CT", "address", "en", "one hundred fiftieth Court"),
    ("damn", "expletive", "en", "beep"), ("words", "cardinal", "en", None), ("words", "date:mdy", "en", None),
    ("13/13/2024", "date:mdy", "en", None), ("25:99", "time", "en", None), ("1/0", "fraction", "en", None),
])  # fmt: skip
def test_say_as(written, kind, language, expected):
    kind, _, form = kind.partition(":")
    assert spoken_as(written, kind, form, language) == expected


@given(
    st.text(alphabet="0123456789/-:.,+ xapmIV年月日点$%\"'()好", max_size=24),
    st.sampled_from(sorted(KINDS)),
    st.sampled_from(["", "mdy", "hms"]),
)
@settings(max_examples=examples(200))
def test_any_text_is_read_as_any_kind_or_counted(written, kind, form):
    for language in ("en", "zh"):
        spoken = spoken_as(written, kind, form, language)
        assert spoken is None or not re.search(r"[\d\[\]]", spoken)


def test_what_is_not_of_its_kind_is_read_plainly_and_counted():
    parts = ssml('<say-as interpret-as="date" format="mdy">soon</say-as>')
    assert [segment.text for segment in parts.segments] == ["soon"]
    assert dict(parts.warnings) == {"not_as_said": 1}


def test_words_are_read_across_breaks_and_elements():
    assert [segment.text for segment in ssml('Dr.<break time="1ms"/> Smith').segments] == ["Doctor", "Smith"]
    assert [segment.text for segment in ssml("im<emphasis>poss</emphasis>ible").segments] == ["impossible"]
    parts = [segment.text for segment in ssml('Go.<break time="1ms"/>then 5<break time="1ms"/>km').segments]
    assert parts == ["Go.", "then five", "km"]


MANNERS = [
    ('un<prosody rate="2">believ</prosody>able story', [("unbelievable", 2), ("story", 1)]),
    ('It costs $<prosody rate="2">35</prosody>.', [("It costs", 1), ("thirty five dollars", 2)]),
    ('他去重<prosody rate="2">庆</prosody>了', [("他去重庆", 1), ("了", 1)]),
    ('转<prosody rate="2">100</prosody>圈', [("转", 1), ("一百", 2), ("圈", 1)]),
    ('im<voice name="nova">poss</voice>ible', [("im", 1), ("poss", 1), ("ible", 1)]),
]


@pytest.mark.parametrize(("inside", "parts"), MANNERS)
def test_a_word_is_spoken_in_the_manner_of_most_of_it(inside, parts):
    assert [(segment.text, segment.prosody.rate) for segment in ssml(inside).segments] == parts
