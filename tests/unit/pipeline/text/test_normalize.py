"""Normalisation: everything is said, nothing unspeakable is left, and no text takes long."""

import re
import time
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.text.markup import CONTROL_TAGS, split_tags
from pipeline.text.normalize import MAX_WORD_LETTERS, detect_language, is_speakable
from pipeline.text.normalize import normalize as normalized


def normalize(text, language="auto"):
    return normalized(text, language=language, control_tags=True).text


ENGLISH = [
    ("Hello, world! How are you?", "Hello, world. How are you."),
    ("I have 2 cats and 13 dogs.", "I have two cats and thirteen dogs."),
    ("1,234 and 1000000", "one thousand two hundred thirty four and one million"),
    ("pi is 3.14", "pi is three point one four"),
    ("version 1.2.3", "version one point two point three"),
    ("50% of 0.5", "fifty percent of zero point five"),
    ("$1,234.50", "one thousand two hundred thirty four point five zero dollars"),
    ("$5 million", "five million dollars"),
    ("-7 degrees, 25 °C", "minus seven degrees, twenty five degrees Celsius"),
    ("at 3:05, 10:00 and 7:45", "at three oh five, ten o clock and seven forty five"),
    ("the 1st, 22nd and 3rd", "the first, twenty second and third"),
    ("pages 3-5", "pages three to five"),
    ("call 555-1234", "call five hundred fifty five, one thousand two hundred thirty four"),
    ("agent 007", "agent zero zero seven"),
    ("1/2 cup", "one over two cup"),
    ("10² and 1½", "ten two and one one over two"),
    ("GPT4 & H2O", "GPT four and H two O"),
    ("me@example.com", "me at example. com"),
    ("well-known", "well known"),
    ("one — two – three", "one, two, three"),
    ("line one\nline two\n\nline three", "line one. line two. line three"),
    ("wait... what?!", "wait. what."),
    ("café naïve Straße Ångström", "cafe naive Strasse Angstrom"),
    ("Ｈｅｌｌｏ　１２", "Hello twelve"),
    ("٣ and ३", "three and three"),
    ("hi😀there👩‍👩‍👧", "hi there"),
    ("zero\u200bwidth \u202edirection\u202c soft\u00adhyphen", "zerowidth direction softhyphen"),
    ('she said "no"', "she said no"),
]
APOSTROPHES = [
    ("I don't know", "I dont know"),
    ("It’s fine, isn’t it", "Its fine, isnt it"),
    ("I'll go, we're here, they've left, I'm in", "I will go, we are here, they have left, I am in"),
    ("I'd say we'd win", "I would say we would win"),
    ("the dogs' 'best' o'clock", "the dogs best oclock"),
]
CHINESE = [
    ("你好，世界！你好吗？", "你好，世界。你好吗。"),
    ("今天是2024年5月1日", "今天是二零二四年五月一日"),
    ("气温25℃，涨了3.5%", "气温二十五摄氏度，涨了百分之三点五"),
    ("１００个", "一百个"),
    ("一共1,234.5元", "一共一千二百三十四点五元"),
    ("￥5元和¥3万", "五元和三万元"),
    ("9:30出发，10:00到", "九点三十分出发，十点到"),
    ("3~5个，气温-7度", "三到五个，气温负七度"),
    ("占1/3", "占三分之一"),
    ("我用iPhone15", "我用iPhone十五"),
    ("“你好”（他说）：走吧；好……", "你好，他说，走吧，好，"),
    ("苹果、梨,香蕉.", "苹果、梨，香蕉。"),
    ("你好 世界", "你好世界"),
    ("٣个和९个", "三个和九个"),
]


@pytest.mark.parametrize(("text", "spoken"), ENGLISH + APOSTROPHES)
def test_english(text, spoken):
    assert normalize(text) == spoken


@pytest.mark.parametrize(("text", "spoken"), CHINESE)
def test_chinese(text, spoken):
    assert normalize(text) == spoken


def test_the_language_can_be_given():
    assert normalize("12", "zh") == "十二"
    assert normalize("12个", "en") == "twelve 个"


def test_the_language_is_the_one_of_most_words_and_tags_are_none():
    assert detect_language("你好吗 hello there") == "zh"
    assert detect_language("say 你好 to my friend") == "en"
    assert detect_language("[laugh][uv_break][lbreak] 你") == "zh"
    assert detect_language("42") == "en"


def test_tags_stay_in_their_place():
    assert normalize("Ha [laugh] 3[uv_break]cats [note]") == "Ha [laugh] three [uv_break]cats note"


def test_full_width_brackets_are_brackets():
    assert normalize("a［laugh］b［Stts］c") == "a[laugh]b Stts c"


@pytest.mark.parametrize(
    "text", ["", "   ", "!?...", "😀👍", "\u200b\u202e", "[laugh][uv_break]", "«»", "\ud800", "Привет", "[ ]"]
)
def test_text_with_nothing_to_say_is_dropped(text):
    assert not is_speakable(normalize(text))


def test_lone_surrogates_are_dropped():
    assert normalize("a\ud800b \udfffc") == "ab c"


@given(st.text())
def test_whatever_comes_only_what_the_model_knows_goes_on(text):
    spoken = normalize(text)
    words = "".join(piece for piece in split_tags(spoken) if piece not in CONTROL_TAGS)
    assert re.fullmatch(r"[\u3400-\u9fffA-Za-z，。、,. ]*", words)
    assert "  " not in spoken
    assert spoken == spoken.strip()
    assert is_speakable(spoken) or not spoken
    spoken.encode()


@given(st.text(alphabet=st.characters(codec="utf-8")), st.sampled_from(["en", "zh"]))
def test_no_digit_is_ever_dropped(text, language):
    """With every letter gone, what is left to say comes from the digits and signs alone."""
    digits = sum(unicodedata.category(character) == "Nd" for character in text)
    if digits:
        assert is_speakable(normalize(text, language))


@given(st.integers(0, 10**15 - 1))
def test_integers_keep_their_value(number):
    assert english_value(normalize(str(number), "en")) == number


SMALL_NUMBERS = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")


def english_value(words: str) -> int:
    """The slow twin: reads number words back."""
    small = {word: value for value, word in enumerate(SMALL_NUMBERS)} | {word: 10 * ten for ten, word in enumerate(TENS, 2)}
    large = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
    total = group = 0
    for word in words.split():
        if word in large:
            total, group = total + group * large[word], 0
        elif word == "hundred":
            group *= 100
        else:
            group += small[word]
    return total + group


def test_long_digit_runs_are_spelled():
    assert normalize("1" * 20) == " ".join(["one"] * 20)
    assert normalize("1" * 20, "zh") == "一" * 20


def test_no_word_is_longer_than_word_pieces_take():
    assert max(len(word) for word in normalize("x" * 1000).split()) == MAX_WORD_LETTERS
    assert normalize("x" * 1000).replace(" ", "") == "x" * 1000


PATHOLOGICAL = [
    *("1", "1 ", "1,", "1.1", "1:", "1/", "1-", "1,111", "12%", "½", "°C", "$"),
    *("[", "[]", "[laugh", "[S[Stts]tts]"),
    *("a\u0301\u0327", "\u0301\u0327", "\ufdfa"),
    *("-", "'", "a'", " \n", ". ,", "，", "\t", "a"),
]


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("unit", PATHOLOGICAL)
def test_time_is_bounded_on_pathological_text(unit, language):
    text = unit * (60_000 // len(unit)) + "a"
    began = time.process_time()
    normalize(text, language)
    assert time.process_time() - began < 3.0


def test_time_is_bounded_on_towers_of_marks():
    """The Unicode tables sort a run of marks in quadratic time: 240,000 would take them a minute."""
    began = time.process_time()
    assert normalize("a" + "\u0301\u0327" * 120_000) == "a"
    assert time.process_time() - began < 3.0
