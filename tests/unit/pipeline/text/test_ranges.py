"""Ranges: a dash between two quantities is "to" whatever their units are, and a dash before a lone number is a minus."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.text.normalize import normalize
from tests.support.effort import examples

DASHES = st.sampled_from(["-", "–", "—", "~", "～", "−"])
CHINESE = [
    "周一 星期三 周五 礼拜六 周日",
    "3万 5分钟 1.5小时 10元 200人 18岁 3楼 第2章 5公里 30秒 3个月 4级 60分 2亿 3周 4成 9折 5千克",
    "9点 上午8点 下午3点 晚8点 12:30",
    "5月1日 12月 10月底 3月中旬",
    "2020年 1999年 2008年",
    "三天 十元 五个月 二十人 九层",
    "春季 夏季 秋季 冬季",
]
ENGLISH = [
    "Monday Fri Wednesday Sun. Thurs",
    "9am 5:30pm 11am 7:05pm",
    "30min 1.5h 3kg 20kHz 500ml 12cm 6ft 8oz 16GB 5mph 3.5V 10k",
    "$1.5M $80k $3B",
    "24th 1st 3rd 12th",
    "January Feb Mar. September Dec",
]
MONTH_DAYS = st.builds("{} {}{}".format, st.sampled_from(["Jan", "March", "Sept.", "Dec"]), st.integers(4, 20), st.just("th"))


def said(text: str, language: str) -> str:
    return normalize(text, language=language).text.strip("，。,. ")


def two_of(kinds: list[str]) -> st.SearchStrategy[tuple[str, str]]:
    return st.sampled_from(kinds).map(str.split).flatmap(lambda kind: st.tuples(st.sampled_from(kind), st.sampled_from(kind)))


@settings(max_examples=examples(40))
@given(two_of(CHINESE), DASHES)
def test_two_chinese_quantities_are_read_as_themselves_with_to_between(ends, dash):
    first, last = ends
    assert said(f"{first}{dash}{last}", "zh") == f"{said(first, 'zh')}到{said(last, 'zh')}"


@settings(max_examples=examples(40))
@given(two_of(ENGLISH) | st.tuples(MONTH_DAYS, MONTH_DAYS), DASHES, st.sampled_from(["", " "]))
def test_two_english_quantities_are_read_as_themselves_with_to_between(ends, dash, space):
    first, last = (said(f"{end} - {end}", "en").split(" to ")[0] for end in ends)
    assert said(f"{ends[0]}{space}{dash}{space}{ends[1]}", "en") == f"{first} to {last}"


@pytest.mark.parametrize("lead", ["气温", "同比", "跌幅为", "8月", "温度是"])
@settings(max_examples=examples(40))
@given(st.integers(1, 40), st.sampled_from(["%", "℃"]))
def test_a_dash_before_a_lone_number_is_a_minus(lead, value, unit):
    assert ("零下" if unit == "℃" else "百分之负") in said(f"{lead}-{value}{unit}", "zh")


@settings(max_examples=examples(40))
@given(st.text(alphabet="-–~ 13万元周一月kgh:ampQ.%$第年十至", max_size=60), st.sampled_from(["zh", "en"]))
def test_no_mixture_of_numbers_and_dashes_loses_a_digit(text, language):
    spans = normalize(text, language=language).spans
    dropped = [text[span.source_start : span.source_stop] for span in spans if span.kind == "dropped"]
    assert not re.search(r"\d", " ".join(dropped))
