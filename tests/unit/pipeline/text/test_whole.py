"""Whole: no segment ends inside a Chinese word, a name or a count, and a list's number stays with its item."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.text.normalize.chinese import words_of
from pipeline.text.segment import SegmentLimits
from pipeline.text.speech_text import build_speech_text
from pipeline.types import Segment, SynthesisRequest
from tests.support.effort import examples

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
    assert "".join(segment.text for segment in segments(text)) == text
    assert {place for segment in segments(text) for place in segment.source} <= edges


@pytest.mark.parametrize("kept", NAMES + COUNTS)
def test_no_segment_ends_inside_a_name_or_a_count(kept):
    spoken = re.sub(r"[^\w ]", "", segments(kept)[0].text)
    for before in range(4, 30):
        text = "去" * before + kept + "的时候我们都很高兴" * 3
        assert any(spoken in re.sub(r"[^\w ]", "", segment.text) for segment in segments(text)), before


@pytest.mark.parametrize("sign", ["{}. ", "{}) ", "{}、", "（{}）", "- {}. "])
@settings(max_examples=examples(40))
@given(st.lists(st.integers(4, 30), min_size=2, max_size=6))
def test_the_number_of_an_item_begins_the_segment_its_item_is_in(sign, lengths):
    text = "\n".join(sign.format(number) + "好" * length for number, length in enumerate(lengths, 1))
    for segment in segments(text):
        assert not re.search(r"(?:^|[。，、])[一二三四五六][，、]?$", segment.text), segment.text


@settings(max_examples=examples(60))
@given(st.lists(PLAIN, min_size=10, max_size=60))
def test_segments_inside_a_run_have_their_own_source(words):
    text = "".join(words)
    found = segments(text)
    assert [segment.source[0] for segment in found] == [0, *(segment.source[1] for segment in found)][: len(found)]
    for segment in found:
        assert text[slice(*segment.source)] == segment.text


def test_spans_in_a_chinese_run_are_words():
    found = build_speech_text(SynthesisRequest("r", "我來到北京清華大學", "v"), SHORT)
    assert [(span.source_start, span.source_stop) for span in found.spans[0]] == [(0, 1), (1, 3), (3, 5), (5, 9)]


STORY = """昨天下午，李明和张晓红去了中关村的一家新华书店，买了三本关于人工智能的书和一张北京地图。
1. 首先把洋葱切成小丁
2. 然后在平底锅里加入橄榄油加热
埃隆·马斯克和蒂姆·库克出席了在上海举行的世界人工智能大会开幕式并发表了主题演讲内容非常丰富"""
STORY_NAMES = ("张晓红", "中关村", "新华书店", "人工智能", "埃隆马斯克", "蒂姆库克", "橄榄油", "一首先", "二然后")


@pytest.mark.parametrize("shift", range(0, 26, 5))
@pytest.mark.parametrize("config", [SHORT, SegmentLimits()], ids=["short", "default"])
def test_names_words_and_items_of_a_story_stay_whole_wherever_the_cuts_fall(config, shift):
    text = "好" * shift + STORY
    found = build_speech_text(SynthesisRequest("r", text, "v"), config)
    heard = "|".join(re.sub("[，。、·]", "", segment.text) for segment in found.segments)
    assert [name for name in STORY_NAMES if name not in heard] == []
    for segment, spans in zip(found.segments, found.spans, strict=True):
        start, stop = segment.source
        assert all(start <= span.source_start < span.source_stop <= stop for span in spans)
        runs = [text[span.source_start : span.source_stop] for span in spans]
        assert all(len(words_of(run)) == 1 for run in runs if re.fullmatch("[\u4e00-\u9fff]+", run))
