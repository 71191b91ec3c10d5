"""Normalisation: every character of any text is spoken in its language or reported, and no text takes long."""

import re
import subprocess
import sys
import unicodedata
from itertools import pairwise
from pathlib import Path

import cn2an
import opencc
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipeline.spec import CONTROL_TAGS
from pipeline.text.normalize import (
    MAX_WORD_LETTERS,
    PLAIN,
    NormalizeOptions,
    Reading,
    detect_language,
    is_speakable,
    language_runs,
    normalize,
)
from pipeline.text.normalize.numbers import chinese, roman
from pipeline.text.normalize.reach import Reach, may_match
from pipeline.text.normalize.scan import _ORDER
from pipeline.text.normalize.shadow import shadow
from pipeline.text.normalize.written import write
from pipeline.text.normalized_text import NormalizedText
from tests.support.effort import examples
from tests.unit.pipeline.text.test_heldout import rows as heldout_rows

DATA = Path(__file__).resolve().parents[3] / "data"


def table(name: str) -> list[tuple[str, str, str]]:
    lines = (DATA / name).read_text(encoding="utf-8").splitlines()
    rows = [line.split("\t") for line in lines if line and not line.startswith("# source\t")]
    return [(source.replace("\\n", "\n"), language, spoken) for source, language, spoken in rows]


CHINESE = table("spoken_zh.tsv")
ENGLISH = table("spoken_en.tsv")


def normalized(text: str, language: str = "auto", **options) -> str:
    return normalize(text, language=language, options=NormalizeOptions(**options)).text


@pytest.mark.parametrize("rows", [CHINESE, ENGLISH], ids=["zh", "en"])
def test_every_row_is_read_as_a_native_speaker_would(rows):
    read = [(source, language, normalized(source, language)) for source, language, _ in rows]
    assert [row for row, (_, _, spoken) in zip(read, rows, strict=True) if row[2] != spoken] == []


@pytest.mark.xfail(strict=True, reason="a bare number is a count; docs/decisions/0048-rules-for-integers.md")
@pytest.mark.parametrize(("text", "spoken"), [
    ("Tune to 1010 on your dial.", "Tune to ten ten on your dial."), ("1997，香港回归。", "一九九七，香港回归。"),
    ("我是1995的，属猪。", "我是一九九五的，属猪。"), ("2012那部灾难片很有名。", "二零一二那部灾难片很有名。"),
])  # fmt: skip
def test_integers_that_are_still_read_as_counts(text, spoken):
    assert normalized(text) == spoken


@pytest.mark.parametrize("form", ["s2t", "s2hk", "s2tw"])
def test_traditional_characters_are_read_as_their_simplified_twins(form):
    convert, back = opencc.OpenCC(form).convert, opencc.OpenCC("t2s").convert
    held_out = [(text, "auto") for name in ("zh", "kinds_zh") for text, _ in heldout_rows(name)]
    texts = [(source, language) for source, language, _ in CHINESE] + held_out
    twins = [(text, convert(text), language) for text, language in texts if back(convert(text)) == back(text)]
    assert len(twins) > 0.99 * len(texts)
    assert [text for text, twin, language in twins if normalized(text, language) != normalized(twin, language)] == []


@given(st.text(alphabet="買張隻條週一後電話號碼2、,.' 0169:萬元/個amp", max_size=40))
@settings(max_examples=examples(200))
def test_the_shadow_of_a_text_has_its_length(text):
    assert len(shadow(text)) == len(text)


def test_the_tables_are_large_and_say_each_thing_once():
    assert len(CHINESE) >= 125
    assert len(ENGLISH) >= 125
    sources = [(source, language) for source, language, _ in CHINESE + ENGLISH]
    assert len(set(sources)) == len(sources)


# --- what is promised of any text


def check(source: str, spoken: NormalizedText, *, control_tags: bool) -> None:
    """The promises of NormalizedText, character by character."""
    place = spoken_place = dropped = 0
    for span in spoken.spans:
        assert (span.source_start, span.spoken_start) == (place, spoken_place), "spans tile both sides"
        assert span.source_stop > span.source_start
        place, spoken_place = span.source_stop, span.spoken_stop
        words = spoken.text[span.spoken_start : span.spoken_stop]
        if span.kind == "dropped":
            assert not words
            dropped += span.source_stop - span.source_start
        elif span.kind == "control":
            assert control_tags
            assert words in CONTROL_TAGS
            assert source[span.source_start : span.source_stop] == words
        else:
            assert re.fullmatch(r"[\u4e00-\u9fffA-Za-z，。、,. ]+", words), "only what ChatTTS was trained on"
    assert (place, spoken_place) == (len(source), len(spoken.text))
    assert sum(warning.count for warning in spoken.warnings) == dropped
    assert all(warning.count > 0 and re.fullmatch("[a-z_]+", warning.code) for warning in spoken.warnings)
    assert "  " not in spoken.text
    assert not re.match("[，。、,. ]", spoken.text)
    assert not re.search(r"[，。、,.] ?[，。、,.]", spoken.text)
    assert max((len(word) for word in re.findall("[A-Za-z]+", spoken.text)), default=0) <= MAX_WORD_LETTERS


AWKWARD = (
    *sorted(CONTROL_TAGS), "[Stts]", "[spk_emb]", "[speed_5]", "[Ptts]", "[", "]", "<b>", "</b>", "<!--", "-->",
    "&amp;", "&#91;", "&lt;", "**", "```", "](http://a)", "https://", "www.", "@", "a@b.com", "#", "$", "€", "¥",
    "%", "‰", "1", "23", "456", "7890", "1,234", "3.14", ".5", ":", "/", "-", "–", "~", "月", "日", "年", "个", "第",
    "2024", "12:30", "am", "kg", "km/h", "℃", "°", "′", "½", "²", "Ⅳ", "①", "v2", "GPT", "iPhone", "don't", "O'",
    "\ud800", "\udfff", "\u202e", "\u200b", "\u200d", "\ufeff", "\x00", "\ue000", "\ufffe", "\u0301", "\u20e3",
    "\ufe0f", "👍", "👩‍👩‍👧", "🇨🇳", "1️⃣", "漢", "㐀", "𠀀", "の", "한", "Привет", "αβ", "ﷺ", "㍿", "　", "\t", "\n", "\r\n",
    "\u2028", " ", "，", "。", "、", "“", "”", "…", "—", "a", "Zebra", "x^2", "3:2", "1/2", "10-20", "+", "=", "<", ">",
    "\\", "|", "_", "`", "'", '"', "{", "}", "^", "!", "?", ";", "e9",
)  # fmt: skip
ANY_TEXT = st.one_of(
    st.text(),
    st.text(alphabet=st.characters()),  # lone surrogates as well
    st.lists(st.one_of(st.sampled_from(AWKWARD), st.text(max_size=3)), max_size=30).map("".join),
)
OPTIONS = st.builds(
    NormalizeOptions,
    **{
        name: st.booleans()
        for name in ("numbers", "dates", "units", "urls", "emails", "phone", "markdown", "html", "homophones")
    },
    emoji=st.sampled_from(["speak", "drop", "pause"]),
)


@pytest.mark.slow
@settings(max_examples=examples(600))
@given(ANY_TEXT, st.sampled_from(["auto", "zh", "en"]), OPTIONS, st.booleans())
def test_every_character_is_spoken_a_control_token_or_a_reported_drop(text, language, options, control_tags):
    check(text, normalize(text, language=language, options=options, control_tags=control_tags), control_tags=control_tags)


@example("@漢", "auto")
@example("10[kV", "zh")
@example("RU", "auto")
@example("0/u", "auto")
@example("#漢字", "en")
@example("第LA", "zh")
@example("ÐOȜu", "auto")
@given(ANY_TEXT, st.sampled_from(["auto", "zh", "en"]))
def test_normalized_text_is_not_changed_again(text, language):
    """Nothing speakable is rewritten: a second pass changes no word. What is unreadable is the blank that it leaves."""
    written = write(text, tags=(), readings=(), entities=True)
    blanks = {written.starts[place] for place in written.unreadable}
    text = "".join(" " if place in blanks else character for place, character in enumerate(text))
    first = normalize(text, language=language, options=NormalizeOptions(homophones=False)).text
    words = re.findall(r"[\u4e00-\u9fff]+|[a-z]+", first)
    again = normalize(first, language=language, options=NormalizeOptions(homophones=False)).text
    assert re.findall(r"[\u4e00-\u9fff]+|[a-z]+", again) == words


@given(
    st.text(alphabet=st.characters(codec="utf-8")) | st.text(alphabet="-–~ 13万元周一月kgh:ampQ.%$第年十至", max_size=60),
    st.sampled_from(["en", "zh"]),
    OPTIONS,
)
def test_no_digit_is_ever_dropped(text, language, options):
    spoken = normalize(text, language=language, options=options)
    for span in spoken.spans:
        if span.kind == "dropped" and all(warning.code != "markup" for warning in spoken.warnings):
            dropped = text[span.source_start : span.source_stop]
            is_face = re.fullmatch(r"[:;<][/'^-]?3+|0_+[oO0]|[oO]_+0", dropped.strip())
            assert is_face or not any(unicodedata.category(character) == "Nd" for character in dropped)


# --- control tags


def test_a_tag_is_a_control_token_only_where_tags_are_allowed():
    allowed = normalize("Ha [laugh] 3[uv_break]cats [note]", control_tags=True)
    assert allowed.text == "Ha [laugh] three[uv_break]cats note"
    assert [span.kind for span in allowed.spans].count("control") == 2
    assert normalize("Ha [laugh] 3[uv_break]cats").text == "Ha three, cats"


@pytest.mark.parametrize("text", [
    "[S[Stts]tts]", "[la[laugh]ugh]", "[uv_[uv_break]break]", "&#91;laugh&#93;", "&lsqb;laugh&rsqb;", "［laugh］",
    "[\u200blaugh]", "[lau\u00adgh]", "[ｌａｕｇｈ]", "[**laugh**]", "[<b>laugh</b>]", "[laugh", "laugh]", "﹇laugh﹈",
    "\x5blaugh\x5d",
])  # fmt: skip
def test_no_writing_becomes_a_tag(text):
    assert "[" not in normalize(text).text
    rest = normalize(text, control_tags=True)
    check(text, rest, control_tags=True)
    for span in rest.spans:
        if span.kind == "control":
            assert text[span.source_start : span.source_stop] in CONTROL_TAGS


# --- languages


def test_the_language_can_be_given():
    assert normalized("12", "zh") == "十二"
    assert normalized("12个", "en") == "twelve个"
    assert normalize("12:30", fallback="zh").text == "十二点三十分"


def test_the_language_is_the_one_of_most_words():
    assert detect_language("你好吗 hello there") == "zh"
    assert detect_language("say 你好 to my friend") == "en"
    assert detect_language("42") == "en"
    assert detect_language("42", fallback="zh") == "zh"
    assert detect_language("USB接口") == "zh"


def test_runs_follow_the_writing_and_signs_follow_their_surroundings():
    assert language_runs("我用 iPhone 15 拍照") == [(0, 3, "zh"), (3, 9, "en"), (9, 15, "zh")]
    assert language_runs("他说 I have 2 cats 就走了") == [(0, 3, "zh"), (3, 16, "en"), (16, 20, "zh")]
    assert language_runs("") == []


def test_each_sentence_has_its_own_language():
    assert normalized("我有2个。I have 2. 他也有2个。") == "我有两个。I have two. 他也有两个。"


@given(ANY_TEXT)
def test_runs_cover_the_text_and_alternate(text):
    runs = language_runs(text)
    assert [start for start, _, _ in runs] == [0, *(stop for _, stop, _ in runs[:-1])][: len(runs)]
    assert not text or runs[-1][1] == len(text)
    assert all(first[2] != second[2] for first, second in pairwise(runs))


# --- options


@pytest.mark.parametrize(
    ("option", "text", "on", "off"),
    [
        ("numbers", "120 cats", "one hundred twenty cats", "one two zero cats"),
        ("dates", "on 2024-05-01", "on May first, twenty twenty four", "on two zero two four, zero five, zero one"),
        ("units", "5kg", "five kilograms", "five kg"),
        ("urls", "see a-b.com/x", "see A dash B dot com slash X", "see a b dot com x"),
        ("emails", "to ann@example.com", "to ann at example dot com", "to ann at example dot com"),
        ("phone", "拨打13800138000", "拨打幺三八，零零幺三，八零零零", "拨打幺三八零零幺三八零零零"),
        ("markdown", "**a** word", "a word", "a word"),
        ("html", "<b>hi</b> you &amp; me", "hi you and me", "b, hi, b, you and amp, me"),
    ],
)
def test_what_is_switched_off_is_read_plainly(option, text, on, off):
    assert normalized(text) == on
    assert normalized(text, **{option: False}) == off


def test_emoji_are_spoken_dropped_or_a_pause():
    assert normalized("hi 👍 there", emoji="speak") == "hi thumbs up there"
    assert normalized("你好👍", emoji="speak") == "你好拇指向上"
    assert normalized("hi 👍 there") == "hi there"
    assert normalized("hi 👍 there", emoji="pause") == "hi, there"
    assert [(warning.code, warning.count) for warning in normalize("a👩‍👩‍👧b🇨🇳").warnings] == [("emoji", 7)]


def test_homophones_can_be_switched_off():
    assert normalized("瀹茶") == "月茶"
    assert normalized("瀹茶", homophones=False) == "瀹茶"


@pytest.mark.parametrize(("written", "spoken"), [
    ("佢哋喺度食嘢，唔該晒。", "佢哋喺度食嘢，唔该晒。"), ("你有冇見過？", "你有冇见过。"),
    ("香港嘅天氣好熱", "香港嘅天气好热"), ("嚟睇咗啲戲", "嚟睇咗啲戏"),
    ("他们在这里吃东西，谢谢。", "他们在这里吃东西，谢谢。"), ("他在瀹茶", "他在月茶"),
])  # fmt: skip
def test_cantonese_keeps_its_characters_and_mandarin_its_replacements(written, spoken):
    assert normalize(written).text == spoken


def test_plain_interprets_nothing():
    assert normalize("2024年5kg 50%", options=PLAIN).text == "二零二四年五kg五零百分号"


# --- readings, warnings, spans


def test_a_given_reading_is_spoken_unchanged():
    spoken = normalize("我在重庆银行，余额5元", readings=[Reading(2, 4, "虫庆")])
    assert spoken.text == "我在虫庆银行，余额五元"
    assert any(span.source_start == 2 and span.source_stop == 4 for span in spoken.spans)


def test_a_reading_stands_apart_from_the_words_beside_it():
    assert normalize("ask SQL now", readings=[Reading(4, 7, "sequel")]).text == "ask sequel now"
    assert normalize("[laugh] x", readings=[Reading(0, 7, "ha")], control_tags=True).text == "ha x"


def test_spans_lead_from_the_words_back_to_the_text():
    source = "I paid $1,234.50 ok"
    spoken = normalize(source)
    pairs_found = {
        source[span.source_start : span.source_stop]: spoken.text[span.spoken_start : span.spoken_stop] for span in spoken.spans
    }
    assert pairs_found["$1,234.50"] == "one thousand two hundred thirty four dollars and fifty cents"
    assert pairs_found["paid"] == "paid"


@pytest.mark.parametrize(("text", "code", "count"), [
    ("hi 😀", "emoji", 1), ("hi \u200b\u202e there", "invisible", 2), ("hi Привет there", "unsupported_script", 6),
    ("hi \ud800 there", "surrogate", 1), ("hi \ue000\ue001 there", "private_use", 2), ("你好㐀", "rare_character", 1),
    ("你㐀好", "rare_character", 1), ("heאlo", "unsupported_script", 1), ("a\ue000b", "private_use", 1),
    ("<i>hi</i> there", "markup", 7), ("♔ hi", "emoji", 1), ("⍟ hi", "symbol", 1), ("!?", "punctuation", 2),
])  # fmt: skip
def test_drops_are_counted_by_their_reason(text, code, count):
    assert {(warning.code, warning.count) for warning in normalize(text).warnings} == {(code, count)}


@pytest.mark.parametrize("text", ["", "   ", "!?...", "😀👍", "\u200b\u202e", "«»", "\ud800", "Привет", "[ ]"])
def test_a_text_without_words_is_empty(text):
    spoken = normalize(text, control_tags=True)
    assert spoken.text == ""
    assert not is_speakable(spoken.text)
    check(text, spoken, control_tags=True)


def test_control_tokens_alone_are_nothing_to_say():
    assert not is_speakable(normalize("[laugh][uv_break]", control_tags=True).text)


# --- numbers, against libraries that do nothing else


@given(st.integers(0, 10**12 - 1))
def test_chinese_integers_are_those_of_cn2an(number):
    assert chinese(number).replace("两", "二") == cn2an.an2cn(number, "low")


def test_roman_numerals_are_well_formed_ones():
    assert [roman(numeral) for numeral in ("I", "IV", "IX", "XIV", "XL", "MCMXCIX")] == [1, 4, 9, 14, 40, 1999]
    assert [roman(numeral) for numeral in ("IIII", "VX", "IC", "Q")] == [None] * 4


def test_a_long_digit_run_is_spelled():
    assert normalized("1" * 20) == " ".join(["one"] * 20)
    assert normalized("1" * 20, "zh") == "一" * 20


def test_no_word_is_longer_than_word_pieces_take():
    spoken = normalized("x" * 1000)
    assert max(len(word) for word in spoken.split()) == MAX_WORD_LETTERS
    assert spoken.replace(" ", "") == "x" * 1000


# --- work

NASTY = [  # 100,000 characters each, of the kind that is most work for one step
    *("1 ", "1,", "1.1", "1-", "12:30 ", "(1", "[", "[S[Stts]tts]", "<b ", "&amp", "a", "a-", "/a", "AB "),
    *("👩\u200d", "\ud800", "\u202e", "a\u0301\u0327", "年1", " ", "，"),
]
UNITS = [
    "1", "1,111", "$1", "2024-", "1/", "1e", "[laugh", "](http://a", "<", "<!--", "`", "|-", "\n#", "a.", "a@", "a'",
    "http://", "www.a", "@a", "#a", "aA", "a1", "🇨", "\u0301\u0327", "㐀", "漢", ". ,", "²", "1:", "1~", "12%", "½",
    "°C", "$", "1x", "+1 ", "]", "[]", "[a](", "<b", "&", "&#1", "*", "_", "|", "#", "A", "a_", "a/", "No.", "v1.",
    "1a", "Henry I", "\ufdfa", "👍", "👩\u200d👩", "\u200b", "\ufe0f", "α", "の", "-", "- ", '"', "\n", " \n", "。", "\t",
    "…", "—", "~", "第", "1年", "月", "电话", "is", "~1", "=", "^", "x²", "5'", "1h", "GPT-4", "Mr.", "I'll ", "C++",
    "1st ",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("unit", NASTY)
def test_the_work_grows_with_the_text_and_no_faster(unit):
    """At 100,000 characters a second or so each, and minutes with one quadratic step."""
    text = unit * (min(examples(100_000), 100_000) // len(unit)) + "a"
    assert normalize(text, options=NormalizeOptions(emoji="speak"), control_tags=True).spans[-1].source_stop == len(text)


@pytest.mark.slow
@pytest.mark.parametrize("unit", UNITS + NASTY)
def test_repetition_breaks_no_promise(unit):
    for language in ("auto", "zh"):
        text = unit * (1_000 // len(unit)) + "a"
        check(
            text,
            normalize(text, language=language, options=NormalizeOptions(emoji="speak"), control_tags=True),
            control_tags=True,
        )


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_towers_of_marks_and_of_emoji_are_soon_read():
    assert normalized("a" + "\u0301\u0327" * 120_000) == "a"
    assert normalized("a" + "👍" * 4096) == "a"
    assert normalized("a" + "\u200d👩" * 50_000) == "a"


# --- what a process pays


@pytest.mark.slow
def test_importing_reads_no_tables():
    """Ingress processes import these modules; OpenCC's and the homophones' tables are read where the first text is."""
    code = (
        "import serve.deployments.ingress; from pipeline.text.normalize.chinese import homophones, simplifier; "
        "assert homophones.cache_info().currsize == simplifier.cache_info().currsize == 0"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=DATA.parents[1])
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_characters_whose_simplified_form_is_out_of_reach_stay_as_written():
    """OpenCC knows simplified forms beyond the block that ChatTTS knows."""
    for code in range(0x4E00, 0xA000):
        spoken = normalize(chr(code), language="zh", options=NormalizeOptions(homophones=False)).text
        assert all("\u4e00" <= letter <= "\u9fff" for letter in spoken), chr(code)


# Reach: the shortcut past rules that cannot match leaves out none that can.


EVERY_RULE = Reach(_ORDER)


def check_reach(text: str) -> None:
    for place in range(len(text)):
        near = EVERY_RULE.at(text, place)
        for rule in _ORDER:
            match = rule.pattern.match(text, place)
            assert rule in near or not match or match.end() == place, (rule.pattern.pattern, text, place)


@pytest.mark.slow
def test_no_rule_that_matches_is_left_out_of_the_tables():
    for source, _, _ in CHINESE + ENGLISH:
        check_reach(source)


@pytest.mark.slow
@settings(max_examples=examples(200))
@given(ANY_TEXT, st.sampled_from([row[0] for row in CHINESE + ENGLISH]), st.integers(0, 40))
def test_no_rule_that_matches_is_left_out_of_any_text(text, row, cut):
    check_reach(row[:cut] + text[:20] + row[cut:])


def test_most_rules_are_left_out():
    assert len(EVERY_RULE.at("hello world", 0)) < len(_ORDER) / 10


@pytest.mark.parametrize(("pattern", "first", "following", "can"), [
    ("[A-Z][a-z]+", "M", " ", True), ("[A-Z][a-z]+", "m", " ", False), ("(?i:mon)", "M", "", True),
    ("(?i:mon)-", "m", "-", True), ("(?i:mon)-", "m", ".", False), (r"\d{1,3}(?=年)", "5", "年", True),
    (r"\d{1,3}(?=年)", "5", "月", False), (r"\d{1,3}(?=年)", "5", "", False), (r"\d+(?!年)", "5", "年", True),
    (r"(?<=x)\d+$", "5", "", True), (r"\d\s?(?:kg|mg)", "5", "k", True), (r"\d\s?(?:kg|mg)", "5", "g", False),
    (r"[^\d]+5", "-", "5", True), (r"[^\d]+5", "4", "5", False), (r"--x", "-", "-", True), (r"--x", "+", "-", False),
    (r"(?P<a>\d)-(?P=a)", "5", "-", True), (r".x", "-", "x", True), (r"[\s\S]{0,9}?x", "-", "y", True),
    (r"[^一-九a]", "é", "", True), (r"[^一-九a]", "a", "", False), (r"[^年]", "月", "", True),
    (r"[一-九]", "中", "", True), (r"\d{2}月", "1", "年", False),
])  # fmt: skip
def test_what_a_pattern_needs(pattern, first, following, can):
    assert may_match(re.compile(pattern, re.ASCII), first, following) is can


@given(
    st.text("ab1-. ", min_size=1, max_size=8), st.sampled_from([r"a+-?", r"(?:a|1)\.b", r"1{1,3}(?=-)", r"[ab]\s\d", r"-(?!b)"])
)
def test_it_agrees_with_matching(text, pattern):
    run = re.match(r"[a-z]+|\d+|.", text)
    if re.compile(pattern, re.ASCII).match(text):
        assert may_match(re.compile(pattern, re.ASCII), text[0], text[run.end() : run.end() + 1])
