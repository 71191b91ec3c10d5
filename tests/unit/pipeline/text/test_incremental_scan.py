"""The scan of a growing text: where regular expressions over the whole text find its ends, in time that grows with the text."""

import re
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pipeline.text
from pipeline.text.incremental import LEAST_WEIGHT, GrowingText, _needs_more
from pipeline.text.normalize import normalize
from pipeline.text.segment import letter_weight
from tests.unit.pipeline.text.test_incremental import ANY, WRITTEN

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
    word, number = re.search("[A-Za-z]+$", sentence), re.search(r"(?<!\d)\d{1,2}$", sentence)
    return (
        first.isalpha()
        and (not first.islower() or bool(set(signs) & set("。！？")))
        and not (first.isupper() and following[1].isupper())
        and (".." not in signs or first.isupper())
        and (signs != "" or not first.isupper() or following[1].isalpha())
        and (
            not signs
            or "\n" in gap
            or "。" in signs
            or (bool(gap) and (signs[-1] != "." or end.end("signs") == end.start("gap")))
            or (not gap and bool(set(signs) & set("！？")) and text[max(0, start - 1)] >= "\u2e80")
        )
        and any(map(str.isalpha, sentence))
        and sentence.rfind("<") <= sentence.rfind(">")
        and sentence.rfind("](") <= sentence.rfind(")")
        and (signs != "" or sentence[-1].isalpha())
        and not (signs == "." and (is_abbreviation(word[0]) if word else number is not None))
        and letter_weight(text[begin : min(start, begin + LEAST_WEIGHT)]) >= LEAST_WEIGHT
    )


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
