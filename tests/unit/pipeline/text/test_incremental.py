"""Incremental text: the parts follow from the text and the flushes alone, and a cut changes no reading."""

import re
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import pipeline.text
from pipeline.text.incremental import LEAST_WEIGHT, GrowingText, Part, _needs_more
from pipeline.text.lines import goes_on, is_short
from pipeline.text.normalize import normalize
from pipeline.text.segment import letter_weight
from pipeline.text.speech_text import build_speech_text
from pipeline.types import SpeechText, SynthesisRequest
from tests.support.effort import examples

FAMILY = "👨\u200d👩\u200d👧\u200d👦"
ENGLAND = "🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f"

WORDS = (
    *("the", "Apples", "I", "A", "we", "don't", "Then", "said", "house", "It", "O'Neill", "naïve"),
    *("Dr.", "Mrs.", "e.g.", "etc.", "Ph.D.", "U.S.", "J.", "St.", "approx.", "Fig.", "No. 5", "p.m.", "vs."),
    *("5", "3.5", "1,000", "$5", "2024", "5 km", "10:30", "12/05/2024", "5%", "1.", "v2.0", "GPT-4o", "GPT", "NASA", "5°C"),
    *("**bold**", "`code`", "# title", "<b>", "</b>", "<br/>", "<!-- no.", "-->", "[link](https://a.com/b?c=d.)", "&amp;"),
    *("https://example.com/a?b=c.d", "me@example.com", "@who", "#tag", "…", "...", "(so", "so)", '"', "“", "”", "'"),
    *("😀", FAMILY, ENGLAND, "👍🏽", "1️⃣", "\u0301", "\u200b", "[laugh]", "\ufffd", "```"),
    *("a | b", "Pear|2", "| x | y |", "--- | ---", "`", "```sh\n", "\n```\n", "a < b", "x<y", "](a", "<b class='x", "|x| = 3"),
    *("你好", "今天天气很好", "三百", "他说", "“走吧", "A股", "3月5日", "一、二"),
)
ENDS = (
    *(". ", "! ", "? ", "?! ", "... ", "… ", '." ', ".) ", "\n", "\n\n", " \n ", ", ", " ", ".", ": ", ""),
    *("。", "！", "？", "。”", "，"),
)


def written(words: Sequence[str]) -> st.SearchStrategy[str]:
    """Texts of sentences, and of what looks like them."""
    stretch = st.lists(st.sampled_from(words), min_size=1, max_size=6).map(" ".join)
    return st.lists(st.tuples(stretch, st.sampled_from(ENDS)), max_size=8).map(
        lambda stretches: "".join(words + end for words, end in stretches)
    )


WRITTEN = written(WORDS)
# In a text of two languages the numbers of a line without prose are read in that of its part: the card says so.
OF_ONE_LANGUAGE = written([word for word in WORDS if not re.search("[\u4e00-\u9fff]", word)]) | written(
    [word for word in WORDS if not re.search("[A-Za-z]", word)]
)
ANY = st.text(st.characters() | st.sampled_from("aB. \n!?。“”\"')(<>[]1你好\ud83d\ude00\u200d"), max_size=80)


def parts_of(text: str, places: list[int], flushes: set[int], *, sentences: bool) -> list[Part]:
    """The parts of a text that arrives in pieces that end at these places, flushed at some of them and at the end."""
    growing, parts = GrowingText(sentences=sentences), []
    for start, stop in pairwise([0, *places, len(text)]):
        parts += growing.add(text[start:stop])
        if stop in flushes:
            parts.append(growing.flush())
    return [part for part in [*parts, growing.flush()] if part is not None]


def spoken(text: str) -> SpeechText:
    return build_speech_text(SynthesisRequest("r", text, "default"))


def squeezed(text: str) -> str:
    """Without spaces, and with signs of one width: a sign after no word has that of the words around."""
    return re.sub(r"\s", "", text).translate(str.maketrans("。，、", ".,,"))


@pytest.mark.parametrize("sentences", [False, True])
@given(text=WRITTEN | ANY, data=st.data())
def test_the_parts_follow_from_the_text_and_its_flushes_alone(sentences, text, data):
    place = st.integers(0, len(text))
    flushes = data.draw(st.sets(place, max_size=3))
    whole = parts_of(text, sorted(flushes), flushes, sentences=sentences)
    some = sorted({*data.draw(st.lists(place, max_size=8)), *flushes})
    assert parts_of(text, some, flushes, sentences=sentences) == whole
    assert parts_of(text, list(range(1, len(text))), flushes, sentences=sentences) == whole, "one character after the other"


@given(text=WRITTEN | ANY, flushes=st.sets(st.integers(0, 80), max_size=3))
def test_every_character_is_in_one_part(text, flushes):
    text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    for sentences in (False, True):
        after = 0
        for part in parts_of(text, sorted(place for place in flushes if place < len(text)), flushes, sentences=sentences):
            assert not text[after : part.start].strip(), "only white space belongs to no part"
            assert text[part.start :].startswith(part.text)
            after = part.start + len(part.text)
        assert not text[after:].strip()


@given(text=WRITTEN, flush=st.integers(0, 60))
def test_without_sentences_a_part_has_the_segments_readings_and_warnings_of_one_shot(text, flush):
    flush = min(flush, len(text))
    parts = parts_of(text, [flush], {flush}, sentences=False)
    expected = [half for half in (text[:flush], text[flush:]) if half.strip()]
    assert [part.text for part in parts] == expected
    for part, half in zip(parts, expected, strict=True):
        if re.search("[A-Za-z]{3}", half.replace("[laugh]", "")):
            assert spoken(part.text) == spoken(half)


@pytest.mark.slow
@given(text=OF_ONE_LANGUAGE)
@example("the the the. the the the the the the. the。the the Apples\nApples. ")
@example("the the the the the\n\n... Apples. ")
@example("the the <!-- no. <b>。the -->. ")
def test_a_cut_behind_a_sentence_changes_no_reading(text):
    check_readings(text)


@pytest.mark.slow
@given(text=WRITTEN, language=st.sampled_from(["en", "zh"]))
@example("I met Dr. Smith there. He said e.g. this one. It costs $5. Then we left at 5 p.m. She stayed.", "en")
@example("Look at this thing… \nThen we go on with it.", "en")
@example("We went to the house of St. Peter. Then we saw it.", "en")
@example('the the the the "\nthe。”the 5" the. ', "en")
def test_a_cut_behind_a_sentence_changes_no_reading_in_a_given_language(text, language):
    check_readings(text, language=language)


def check_readings(text: str, **options) -> None:
    parts = parts_of(text, [], set(), sentences=True)
    read = [normalize(part.text, behind=part.behind, **options) for part in parts]
    whole = normalize(text, **options)
    assert squeezed("".join(piece.text for piece in read)) == squeezed(whole.text)
    counts: dict[str, int] = {}
    for warning in (warning for piece in read for warning in piece.warnings):
        counts[warning.code] = counts.get(warning.code, 0) + warning.count
    counts.pop("punctuation", None)  # signs without a word beside them: their number depends on where a text begins
    assert counts == {warning.code: warning.count for warning in whole.warnings if warning.code != "punctuation"}


CERTAIN = [
    "Hello there, how are you? I ",
    "Hello there, how are you? I'",
    "It was all over by then. We",
    "He said “it is all over now!” Th",
    "He said “it is over now.”\nTh",
    "It was all over in 2024. We",
    "今天天气非常好。我",
    "This is a title of mine\nAn",
    "“今天天气非常好。”他",
    "今天天气非常好。so",
]
UNCERTAIN = [
    "Hello there, how are you?",  # ?! may follow
    "Hello there, how are you? ",
    "Hello there, how are you? I",  # the headline, IN CAPITALS
    "Hello there, how are you? IN",
    "Hello there, how are you? and",  # "How?" he asked
    "Hello there, how are you? 5",
    "Hello there, how are you? 😀",
    "This was said to us by Dr. Sm",
    "This was said by the U.S. Go",
    "Here are our three things: 1. Ap",
    "It costs exactly three.Th",
    "See https://example.com/a?b！th",
    "今天天气非常好！[了",  # an image of markdown
    "This is a title of mine\nI ",  # which is the first
    "He said “it is over now.” Th",  # a Chinese sentence may have it inside
    "So it goes on and on... 你好",
    "It costs exactly 1.5",
    "These are all there are:\n100. Th",  # a list
    "Look at <!-- this thing. Then",
    "Look at <b class='x. Y",
    "Yes, so. Th",  # too short to be spoken alone
    "今天天气非常好。",
    "今天天气非常好。”",
    "今天天气非常好。 \u200d",
    "| It has begun now. Always | Yes. No",  # the first row of a table
    "| A cell with words. Then more " * 20,
]


def test_a_sentence_waits_for_two_characters_and_doubts_wait_for_the_flush():
    for text in CERTAIN:
        (part,) = GrowingText(sentences=True).add(text)
        assert text.startswith(part.text), text
        assert len(text) - len(part.text) <= 2, text
    for text in UNCERTAIN:
        growing = GrowingText(sentences=True)
        assert growing.add(text) == [], text
        assert growing.waiting == len(text)
        assert (growing.flush(), growing.waiting) == (Part(text, 0), 0), text


def test_a_chain_of_sentences_leaves_sentence_by_sentence():
    growing, parts = GrowingText(sentences=True), []
    for character in "First, we open the door. Then we go through it. Now close it, please. ":
        parts += growing.add(character)
    assert [(part.text, part.start) for part in parts] == [("First, we open the door. ", 0), ("Then we go through it. ", 25)]
    assert growing.flush() == Part("Now close it, please. ", 48, "First, we open the door. Then we go through it. ")
    assert all(len(part.text) >= LEAST_WEIGHT for part in parts)


def test_halves_of_a_character_join_across_pieces_and_alone_become_one_sign():
    growing = GrowingText(sentences=False)
    growing.add("So \ud83d")
    assert growing.waiting == 4
    growing.add("\ude00 it is \ude00\ud83d")
    assert growing.flush() == Part("So 😀 it is \ufffd\ufffd", 0)
    growing.add("\ude00")
    assert growing.flush() == Part("\ufffd", 13), "a flush between two halves separates them"
    assert normalize("So \ufffd it is").text == "So it is"


def test_the_cost_grows_with_the_text_alone():
    growing, parts = GrowingText(sentences=True), []
    text = "This is one more sentence of it. " * (examples(100) * 20)
    for start in range(0, len(text), 1000):
        parts += growing.add(text[start : start + 1000])
    assert len(parts) == len(text) // 33 - 1
    assert GrowingText(sentences=True).add(text)[-1] == parts[-1]


# The scan of a growing text: where regular expressions over the whole text find its ends, in time that grows with the text.


END = re.compile(r"(?P<signs>[.!?。！？]+)[\"'”’」』)）\]】》]*(?P<gap>\s*)|[^\S\n]*\n\s*")
OPENING = re.compile("[\"'“‘「『(（【《]*")
SIGNS_AND_MARKUP = st.lists(
    st.sampled_from(
        ["Hello there my friend of mine", "你好你好你好你好", "Dr", "12", "\u3000", "\t", *"Aa.!?。！？”)]([<>“\n "]
    ),
    max_size=40,
).map("".join)


def ends_of(text: str) -> list[int]:
    """Where the parts of a text end, as far as they are certain: the rule in regular expressions, without a memory."""
    begin, ends = 0, []
    for end in END.finditer(text):
        following = text[OPENING.match(text, end.end()).end() :][:2]
        if not following or (len(following) == 1 and following.isupper()):
            break
        if is_certain(text, begin, end, following):
            begin = end.end()
            ends.append(begin)
    return ends


def is_certain(text: str, begin: int, end: re.Match[str], following: str) -> bool:
    signs, gap, start, first = end["signs"] or "", end["gap"] or "", end.start(), following[0]
    sentence = text[max(begin, start - 6000) : start]
    word, number = re.search("[A-Za-z]+$", sentence), re.search(r"(?<!\d)\d{1,3}$", sentence)
    line = text[text.rfind("\n", 0, start) + 1 : end.start("gap") if signs else start]
    is_single = text.count("\n", start, end.end()) == 1
    row = text[max(begin, start - 400) : start].rpartition("\n")[2]
    above = text[:start].rpartition("\n")[0].rpartition("\n")[2]
    line, above = (re.sub(r"<\||\|>", "", part) for part in (line, above))  # tokens of models
    fences = list(re.finditer(r"^[^\S\n]*`{3,}[^\S\n]*[!-_a-~]{0,50}[^\S\n]*$", text[: end.end()], re.MULTILINE))
    tags = re.sub("<!--.*?-->", lambda found: f"{found[0].replace('<', '-')[:-1]}>", sentence, flags=re.DOTALL)
    return (
        first.isalpha()
        and (not first.islower() or bool(set(signs) & set("。！？")))
        and not (first.isupper() and following[1].isupper())
        and (".." not in signs or (first.isupper() and re.search("[^\\W_] ?\\Z", text[:start])))
        and (signs != "" or (end[0].endswith("\n") and (not first.isupper() or following[1].isalpha())))
        and not (("|" in above or "|" in line) and "\n" not in end[0])
        and not (
            is_single
            and not ("|" in above and "|" in line)
            and ("|" in line or is_short(line) or goes_on(line[-400:], following))
        )
        and (
            not signs
            or "\n" in gap
            or "。" in signs
            or (bool(gap) and (signs[-1] != "." or end.end("signs") == end.start("gap")))
            or (not gap and bool(set(signs) & set("！？")) and text[max(0, start - 1)] >= "\u2e80")
        )
        and any(map(str.isalpha, sentence))
        and not (len(fences) % 2 and start - fences[-1].end() < 1000)
        and not (row.count("`") % 2 and re.search(r"`(?=\S|\Z)[^`]*\Z", row[-60:]))
        and not is_open(tags, "<", ">", "=")
        and not is_open(sentence, "](", ")", '"')
        and (signs != "" or sentence[-1].isalpha())
        and not (signs == "." and (is_abbreviation(word[0]) if word else number is not None))
        and letter_weight(text[begin : min(start, begin + LEAST_WEIGHT)]) >= LEAST_WEIGHT
    )


def is_open(sentence: str, opening: str, closing: str, mark: str) -> bool:
    """Whether markup that begins with `opening` may go on behind a sentence."""
    place = sentence.find("<!--") if opening == "<" and "<!--" in sentence else sentence.rfind(opening)
    inner = sentence[place:]
    if inner.startswith("<!--"):
        return len(inner) < 6000
    is_one = len(inner) < 400 and place > sentence.rfind(closing) and re.match(r".[^\W\d_]|.[(/|!?]", inner)
    return bool(is_one) and (mark in inner or not re.search(r"\s", inner))


def is_abbreviation(word: str) -> bool:
    """Whether the normaliser reads its dot as the end of a sentence."""
    return len(word) == 1 or normalize(f"{word}. Smith").text != f"{normalize(word).text}. Smith"


@given(text=WRITTEN | ANY | SIGNS_AND_MARKUP, pieces=st.lists(st.integers(0, 300), max_size=4))
def test_the_parts_end_where_the_regular_expressions_say(text, pieces):
    text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    growing, ends = GrowingText(sentences=True), []
    for start, stop in zip([0, *sorted(pieces)], [*sorted(pieces), len(text)], strict=True):
        ends += [part.start + len(part.text) for part in growing.add(text[start:stop])]
    assert ends == ends_of(text)


def test_the_abbreviations_are_those_of_the_normaliser():
    folder = Path(pipeline.text.__file__).parent / "normalize"
    tables = "".join((folder / name).read_text() for name in ("words.py", "abbreviations.py"))
    words = {form for word in re.findall(r"[A-Za-z]{2,6}(?=[.|])", tables) for form in (word, word.lower(), word.title())}
    assert {word for word in words if _needs_more(word)} == {word for word in words if is_abbreviation(word)}


HOSTILE = {  # each is scanned again, or looked back over, by a rule that is not linear
    "blanks": "Hello" + " " * 8000 + "w",
    "lines": "\n " * 4000,
    "dots behind a long word": "a" * 800 + "1. B" * 2000,
    "signs": "Hello" + "." * 8000,
    "closing": "Hello there my friend of mine." + ")" * 8000,
    "opening": "Hello there my friend of mine. " + "“" * 8000,
    "open markup": "Hello there my friend of mine <" + "a. B " * 1600,
    "without a letter": "1.<" * 2700,
    "words": "".join(f"{chr(97 + n % 26)}{chr(97 + n // 26 % 26)}xqzj. A" for n in range(900)),
    "prose": "It was all over by then. We left. " * 240,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_twice_the_text_takes_twice_the_time_at_once_and_letter_by_letter(name):
    def took(text: str, step: int) -> float:
        growing, began = GrowingText(sentences=True), time.process_time()
        for place in range(0, len(text), step):
            growing.add(text[place : place + step])
        return time.process_time() - began

    text = HOSTILE[name]
    for step in (len(text), 1):
        for _ in range(3):  # of a loaded machine the best of three
            if took(text * 2, step) < 3 * took(text, step) + 0.01:
                break
        else:
            pytest.fail("it grows faster than the text")
