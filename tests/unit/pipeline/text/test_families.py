"""Families of readings: chat words, formulas, codes, ranges, units and lines hold for every member, beside any sign."""

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipeline.text.normalize import NormalizeOptions, detect_language, normalize
from pipeline.text.normalize.abbreviations import _SHORT, _SOUNDS, TITLES
from pipeline.text.normalize.numbers import chinese, english, integer, pairs, spell
from pipeline.text.normalize.words import UNITS
from tests.support.effort import examples
from tests.unit.pipeline.text.test_heldout import canonical
from tests.unit.pipeline.text.test_normalize import CHINESE, ENGLISH

AFTER = (
    ".", ",", ";", ":", "!", "?", ")", "]", "}", '"', "'", "…", "—", " –", "。", "，", "；", "：", "！", "？", "）", "】",
    "」", "』", "”", "’", "、", "》", "\n", "|", "</b>", "**", "`", " ", ". ", ").", '."', "?!", "。”", "）。", ":\n",
    "</p>",
)  # fmt: skip
BEFORE = (
    "(", "[", "{", '"', "'", "—", "…", "\n", "|", "<b>", "**", "`", "（", "【", "「", "『", "“", "‘", "《", "、", "，", "。",
    "：", "；", "！", "？", " ", ": ", "– ", ". ", '"(', "：“", "- ", "\n- ", "<p>",
)  # fmt: skip
SIGN_BEFORE, SIGN_AFTER = st.sampled_from(("", *BEFORE)), st.sampled_from(("", *AFTER))
ELEMENTS = ("C", "H", "O", "N", "Na", "Ca", "Fe", "Cl", "Mg", "K")
few = settings(max_examples=examples(40))


@few
@given(st.sampled_from(sorted({**_SOUNDS, **_SHORT}.items())), SIGN_BEFORE, SIGN_AFTER)
def test_a_word_of_messages_is_read_beside_any_sign(word, before, after):
    short, long = word
    assert heard(f"we say {before}{short}{after} to him", "en") == canonical(f"we say {long} to him")


@few
@given(st.lists(st.tuples(st.sampled_from(ELEMENTS), st.integers(2, 99)), min_size=2, max_size=5), SIGN_AFTER)
def test_the_numbers_of_a_formula_are_numbers(parts, after):
    written = "".join(f"{element}{number}" for element, number in parts)
    if re.fullmatch(r"[A-Z]2[A-Z]\d*", written):
        return
    spoken = " ".join(f"{' '.join(element.upper())} {english(number)}" for element, number in parts)
    assert heard(f"the gas {written}{after}", "en") == canonical(f"the gas {spoken}")


@few
@given(st.integers(0, 999_999), st.integers(0, 99), st.sampled_from(["€{}", "{} €", "{} EUR"]))
def test_euros_with_a_comma_are_those_with_a_dot(whole, cents, sign):
    english_way = f"{whole:,}.{cents:02d}"
    european = english_way.translate({ord(","): ".", ord("."): ","})
    assert heard(f"It costs {sign.format(european)} now", "en") == heard(f"It costs {sign.format(english_way)} now", "en")


@few
@given(st.lists(st.text("0123456789", min_size=4, max_size=4), min_size=3, max_size=6))
def test_a_bank_account_is_read_digit_by_digit(groups):
    spoken = canonical(" ".join(spell(group, "en") for group in groups))
    assert heard(f"IBAN DE89 {' '.join(groups)}", "en").endswith(f"d e eight nine {spoken}")


@few
@given(st.integers(1, 999), st.integers(1, 999), st.sampled_from(["zh", "en"]))
def test_a_dash_before_an_equals_sign_is_a_minus(first, second, language):
    spoken = heard(f"{first}-{second}={first - second}", language)
    minus, equals = ("减", "等于") if language == "zh" else (" minus ", " equals ")
    numbers = [integer(str(number), language) for number in (first, second)]
    assert spoken.startswith(canonical(minus.join(numbers)) + equals.rstrip())


@few
@given(st.integers(2, 999), st.sampled_from("abcxyz"), st.integers(4, 20), SIGN_AFTER)
def test_a_power_keeps_its_factor(factor, base, power, after):
    spoken = f"{english(factor)} {base} to the power of {english(power)}"
    assert heard(f"we add {factor}{base}^{power}{after}", "en") == canonical(f"we add {spoken}")


@few
@given(st.integers(1, 9), st.integers(0, 9), st.sampled_from([5, 10, 100]), SIGN_AFTER)
def test_a_decimal_before_a_slash_is_a_mark(whole, tenth, best, after):
    spoken = f"{english(whole)} point {english(tenth)} out of {english(best)}"
    assert heard(f"it got {whole}.{tenth}/{best}{after}", "en") == canonical(f"it got {spoken}")


@few
@given(st.integers(1, 12), st.integers(2000, 2039), st.sampled_from(["zh", "en"]))
def test_a_month_and_a_year(month, year, language):
    same = f"{year}年{month}月" if language == "zh" else f"{year}-{month:02d}"
    assert heard(f"{month:02d}/{year}", language) == heard(same, language)


@few
@given(st.integers(2, 99), st.integers(2, 99))
def test_scores_beside_a_falling_one_are_scores(first, second):
    low, high = sorted((first, second + 1))
    spoken = canonical(f"{chinese(high + 1)}比{chinese(low)}、{chinese(low)}比{chinese(high + 1)}")
    assert spoken in heard(f"中国女排（{high + 1}-{low}、{low}-{high + 1}）胜", "zh")


@few
@given(st.integers(10, 99), SIGN_BEFORE, SIGN_AFTER)
def test_hundredths_behind_metres_and_seconds_are_digits(rest, before, after):
    digits = spell(str(rest), "zh")
    assert heard(f"他{before}1米{rest}{after}", "zh") == canonical(f"他一米{digits}")
    assert heard(f"跑了{before}9秒{rest}{after}", "zh") == canonical(f"跑了九秒{digits}")


@few
@given(st.integers(1, 99), st.sampled_from(["楼", "汽油", "车间", "，开门"]))
def test_a_number_sign_behind_a_number_is_a_number_in_chinese(number, thing):
    assert heard(f"去{number}#{thing}", "zh") == heard(f"去{number}号{thing}", "zh")


@few
@given(st.sampled_from("京沪粤浙"), st.sampled_from("ABCD"), st.text("0123456789", min_size=5, max_size=5))
def test_the_dot_of_a_number_plate_is_silent(province, letter, digits):
    assert heard(f"车牌{province}{letter}·{digits}", "zh") == heard(f"车牌{province}{letter}{digits}", "zh")


@few
@given(st.integers(1, 9999), st.sampled_from(["ml", "g", "mg", "GB"]))
def test_a_plus_before_an_amount_is_no_telephone_number(number, unit):
    assert heard(f"鸡蛋+{number}{unit}", "zh") == heard(f"鸡蛋加{number}{unit}", "zh")


@few
@given(
    st.integers(0, 999), st.text("[]{}|^*_`\"'", min_size=1, max_size=4), st.sampled_from(["kV", "kg", "MB", "km/h", "mmHg"])
)
def test_silent_signs_do_not_part_a_unit_from_its_chinese_number(number, signs, unit):
    options = NormalizeOptions(homophones=False)
    first = normalize(f"{number}{signs}{unit}", language="zh", options=options).text
    assert normalize(first, language="zh", options=options).text == first


@pytest.mark.parametrize("language", ["zh", "en"])
def test_every_unit_is_named_without_digits(language):
    for unit in UNITS:
        assert re.search(r"\d", heard(f"5 {unit}", language)) is None


@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        ("an M8 screw", "an M eight screw"),
        ("let u be a vector", "let u be a vector"),
        ("COP28 in Dubai", "C O P twenty eight in Dubai"),
        ("Start IV fluids now", "Start I V fluids now"),
        ("the Sun: a star", "the Sun a star"),
        ("2 yrs", "two years"),
        ("5 + 250 ml", "five plus two hundred fifty milliliters"),
        ("call +1 212 555 0199", "call plus one two one two five five five zero one nine nine"),
    ],
)
def test_what_only_looks_like_it_stays(text, spoken):
    assert heard(text, "en") in (canonical(spoken), canonical(spoken.replace("C O P", "COP").replace("I V", "IV")))


# Scan: a token is read the same whatever sign stands beside it, and a family of readings holds for its whole family.


MARKDOWN = re.compile(r"[=*#>|+-]{1,6}\s|```|\d{1,2}[.)]\s")
QUOTES = frozenset("\"'“‘「『《")


def heard(text: str, language: str) -> str:
    return canonical(normalize(text, language=language, options=NormalizeOptions()).text)


@example(("Add 1/2", "auto", "Add one half"), "", ".")
@example(("on 10.0.0.1", "auto", "on one zero dot zero dot zero dot one"), "", ".")
@example(("比分3:2", "auto", "比分三比二"), "", "：")
@example(("42 cats", "auto", "forty two cats"), "<b>", "</b>")
@settings(max_examples=examples(50))
@given(st.sampled_from(ENGLISH + CHINESE), st.sampled_from(("", *BEFORE)), st.sampled_from(("", *AFTER)))
def test_a_token_beside_any_sign_is_the_same_token(row, before, after):
    source, language, spoken = row
    if not QUOTES.isdisjoint(before) and not QUOTES.isdisjoint(source):
        return  # a mark of inches closes a quotation that stands open
    if before and MARKDOWN.match(source):
        return  # a mark at the beginning of a line
    if language == "auto" and detect_language(source, "zh") != detect_language(source, "en"):
        return  # a text without a language is read in that of the marks beside it
    assert heard(before + source + after, language) == canonical(spoken)


NAMING = st.sampled_from(
    ["Order number", "Tracking number", "Your account is", "Invoice no.", "Reference:", "Confirmation code", "Ticket #", "PIN:"]
)


@settings(max_examples=examples(50))
@given(NAMING, st.text("0123456789", min_size=5, max_size=12))
def test_a_number_behind_what_it_names_is_read_digit_by_digit(words, digits):
    assert heard(f"{words} {digits} is ready.", "auto").endswith(f"{spell(digits, 'en')} is ready")


@settings(max_examples=examples(50))
@given(
    st.sampled_from(["订单号", "快递单号是", "卡号：", "验证码 ", "会员账号为"]), st.text("0123456789", min_size=5, max_size=12)
)
def test_a_number_behind_what_it_names_is_read_digit_by_digit_in_chinese(words, digits):
    assert heard(f"{words}{digits}，请保存", "auto").endswith(canonical(f"{spell(digits, 'zh')}请保存"))


@settings(max_examples=examples(50))
@given(st.sampled_from(["Boeing", "Room", "Highway", "Section", "error", "Flight"]), st.integers(101, 999))
def test_a_number_behind_the_name_of_a_kind_is_read_in_pairs(kind, number):
    assert heard(f"See {kind} {number} now.", "en") == canonical(f"See {kind} {pairs(str(number))} now")


@settings(max_examples=examples(50))
@given(st.integers(1, 9999), st.sampled_from(sorted(UNITS)), st.sampled_from(["day", "hour", "month", "person"]))
def test_a_slash_behind_a_unit_is_per(number, unit, counted_by):
    singular, more, _ = UNITS[unit]
    spoken = f"{english(number)} {singular if number == 1 else more} per {counted_by}"
    assert heard(f"It is {number} {unit}/{counted_by} now", "en") == canonical(f"It is {spoken} now")


@settings(max_examples=examples(50))
@given(st.integers(2, 999), st.sampled_from(sorted(UNITS)))
def test_a_unit_is_singular_before_what_it_describes(number, unit):
    assert heard(f"Take a {number} {unit} one", "en") == canonical(f"Take a {english(number)} {UNITS[unit][0]} one")


@example(2, "yr")
@settings(max_examples=examples(50))
@given(st.integers(2, 9999), st.sampled_from(sorted(UNITS)))
def test_nothing_between_a_value_and_its_unit_is_lost(number, unit):
    more = UNITS[unit][1]
    assert heard(f"It is {number} million {unit} now", "en") == canonical(f"It is {english(number)} million {more} now")
    assert heard(f"共{number}万{unit}。", "zh").endswith(f"万{UNITS[unit][2]}".replace("两", "二").lower())


@settings(max_examples=examples(50))
@given(st.sampled_from(sorted(TITLES)), st.sampled_from(["Smith", "Jones", "Anna Lee", "O'Hara"]))
def test_a_title_before_a_name_is_spoken_whatever_stands_before_it(title, name):
    whole = name.replace("'", "")
    assert heard(f"We met {title}. {name} there.", "en") == canonical(f"We met {TITLES[title]} {whole} there")


@settings(max_examples=examples(50))
@given(
    st.sampled_from(["etc.", "Inc.", "Jr.", "U.S.", "D.C.", "Ave.", "Dec.", "Fri."]), st.sampled_from(["The", "He", "It", "We"])
)
def test_an_abbreviation_at_the_end_of_a_sentence_leaves_its_stop(abbreviation, following):
    spoken = normalize(f"It was on Park {abbreviation} {following} left.", language="en").text
    assert f". {following} left." in spoken


# Ranges: a dash between two quantities is "to" whatever their units are, and a dash before a lone number is a minus.


DASHES = st.sampled_from(["-", "–", "—", "~", "～", "−"])
CHINESE_ENDS = [
    "周一 星期三 周五 礼拜六 周日",
    "3万 5分钟 1.5小时 10元 200人 18岁 3楼 第2章 5公里 30秒 3个月 4级 60分 2亿 3周 4成 9折 5千克",
    "9点 上午8点 下午3点 晚8点 12:30",
    "5月1日 12月 10月底 3月中旬",
    "2020年 1999年 2008年",
    "三天 十元 五个月 二十人 九层",
    "春季 夏季 秋季 冬季",
]
ENGLISH_ENDS = [
    "Monday Fri Wednesday Sun. Thurs",
    "9am 5:30pm 11am 7:05pm",
    "30min 1.5h 3kg 20kHz 500ml 12cm 6ft 8oz 16GB 5mph 3.5V 10k",
    "$1.5M $80k $3B",
    "24th 1st 3rd 12th",
    "January Feb Mar. September Dec",
]
MONTH_DAYS = st.builds("{} {}{}".format, st.sampled_from(["Jan", "March", "Sept.", "Dec"]), st.integers(4, 20), st.just("th"))


def reading(text: str, language: str) -> str:
    return normalize(text, language=language).text.strip("，。,. ")


def two_of(kinds: list[str]) -> st.SearchStrategy[tuple[str, str]]:
    return st.sampled_from(kinds).map(str.split).flatmap(lambda kind: st.tuples(st.sampled_from(kind), st.sampled_from(kind)))


@settings(max_examples=examples(40))
@given(two_of(CHINESE_ENDS), DASHES)
def test_two_chinese_quantities_are_read_as_themselves_with_to_between(ends, dash):
    first, last = ends
    assert reading(f"{first}{dash}{last}", "zh") == f"{reading(first, 'zh')}到{reading(last, 'zh')}"


@settings(max_examples=examples(40))
@given(two_of(ENGLISH_ENDS) | st.tuples(MONTH_DAYS, MONTH_DAYS), DASHES, st.sampled_from(["", " "]))
def test_two_english_quantities_are_read_as_themselves_with_to_between(ends, dash, space):
    first, last = (reading(f"{end} - {end}", "en").split(" to ")[0] for end in ends)
    assert reading(f"{ends[0]}{space}{dash}{space}{ends[1]}", "en") == f"{first} to {last}"


@pytest.mark.parametrize("lead", ["气温", "同比", "跌幅为", "8月", "温度是"])
@settings(max_examples=examples(40))
@given(st.integers(1, 40), st.sampled_from(["%", "℃"]))
def test_a_dash_before_a_lone_number_is_a_minus(lead, value, unit):
    assert ("零下" if unit == "℃" else "百分之负") in reading(f"{lead}-{value}{unit}", "zh")


# Languages: numbers and signs are read in the language of their sentence, and markup is no sentence.


CHINESE_LINES = st.sampled_from(["今天的数据如下：", "配置表", "我们一共有三个人。", "价格", "他买了很多东西"])
LABELS = st.sampled_from(
    ["", "CPU ", "iPhone ", "Total: ", "Learning rate = ", "USB Hub ", "Apple Watch ", "Model A ", "Loss "]
)
QUANTITIES = st.sampled_from(["50%", "$20", "3.5", "16GB", "10:30", "2024-05-01", "12", "1/3", "25℃", "5kg"])
ENGLISH_SENTENCES = st.sampled_from(
    ["I have {} of them.", "The result was {} in the end.", "We paid {} for it.", "Sales rose {} last quarter."]
)
ITEMS = st.sampled_from(["{}", "- {}", "* {}", "1. {}", "| {} | {} |", "> {}", "## {}", "**{}**"])
WRAPPERS = st.sampled_from(
    [
        '<p class="note of the day">{}</p>',
        "<b>{}</b>",
        '<span style="font-weight: bold of the">{}</span>',
        "<!-- that is what we have to do -->{}",
        '<div id="a" class="this is not the text">{}</div>',
    ]
)


def spoken(text: str, language: str = "auto") -> str:
    return normalize(text, language=language).text


@settings(max_examples=examples(40))
@given(CHINESE_LINES, LABELS, QUANTITIES, ITEMS, st.sampled_from(["", "\n第二行"]))
def test_a_line_without_a_sentence_is_read_in_the_language_of_the_lines_around(before, label, quantity, item, behind):
    text = f"{before}\n{item.replace('{}', label + quantity)}{behind}"
    assert spoken(text) == spoken(text, "zh")


@settings(max_examples=examples(40))
@given(st.lists(st.tuples(LABELS, QUANTITIES), min_size=1, max_size=5))
def test_a_chinese_table_is_chinese_in_every_row(rows):
    text = "| 项目 | 数值 |\n|---|---|\n" + "\n".join(f"| {label} | {quantity} |" for label, quantity in rows)
    assert spoken(text) == spoken(text, "zh")


@settings(max_examples=examples(40))
@given(CHINESE_LINES, ENGLISH_SENTENCES, QUANTITIES)
def test_an_english_sentence_in_a_chinese_text_stays_english(line, sentence, quantity):
    english = sentence.format(quantity)
    assert spoken(english, "en") in spoken(f"{line}\n{english}\n{line}")


@settings(max_examples=examples(40))
@given(LABELS, QUANTITIES, st.sampled_from(["The prices are as follows.", "We have measured all of it:"]))
def test_a_line_in_an_english_text_is_english(label, quantity, sentence):
    text = f"{sentence}\n- {label}{quantity}\n{sentence}"
    assert spoken(text) == spoken(text, "en")


@settings(max_examples=examples(40))
@given(WRAPPERS, CHINESE_LINES, QUANTITIES)
def test_markup_is_no_word_of_english(wrapper, line, quantity):
    text = wrapper.format(f"{line}{quantity}")
    assert spoken(text) == spoken(text, "zh")


# Trades: doses, series, cricket, chess, stars, engines, kelvin and inches are read as who knows the trade says them.


@few
@given(st.integers(1, 40), st.integers(1, 199))
def test_an_episode_has_its_season(season: int, episode: int):
    for written in (f"S{season:02}E{episode:02}", f"s{season}e{episode}"):
        assert canonical(normalize(f"we saw {written} today").text) == canonical(
            f"we saw season {english(season)} episode {english(episode)} today"
        )
        assert (
            normalize(f"他看了{written}。").text == f"他看了第{integer(str(season), 'zh')}季第{integer(str(episode), 'zh')}集。"
        )


@few
@given(st.integers(32, 900), st.integers(0, 10))
def test_runs_are_for_wickets_where_cricket_is_played(runs: int, wickets: int):
    said = normalize(f"At {runs}/{wickets} the batters declared.").text
    assert canonical(said) == canonical(f"At {english(runs)} for {english(wickets)} the batters declared")
