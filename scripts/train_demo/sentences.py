"""Sentences: the texts for the teacher, composed of the words in the lexicon.

In:    a random generator
Out:   texts of words, commas and full stops, as the service's normaliser writes them
Owns:  the templates
Never: audio, phones

Three kinds: digits, words in any order (every word beside every other), and sentences with a grammar.
"""

import random
import re
from collections.abc import Callable

from scripts.train_demo.held_out import held_out_texts
from scripts.train_demo.phones import taught_words

MAX_CHARACTERS = 120  # the service's longest segment


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


DIGITS = _words("zero one two three four five six seven eight nine")
DAYS = _words("monday tuesday wednesday thursday friday saturday sunday")
MONTHS = _words("january february march april may june july august september october november december")

_SLOTS = {
    "digit": DIGITS,
    "day": DAYS,
    "month": MONTHS,
    "number": _words("ten eleven twelve thirteen fourteen fifteen sixteen twenty thirty forty fifty sixty") + DIGITS[2:],
    "who": _words("i you we they people children students friends"),
    "one": _words("he she everyone nobody somebody")
    + tuple(
        f"{article} {noun}"
        for article in ("the", "a", "my", "your")
        for noun in _words("doctor teacher student woman man girl boy friend dog brother sister mother father president")
    ),
    "noun": _words(
        "house car book room door window table river garden school office city country road water money music game letter word "
        "question answer voice story picture phone computer movie party hospital church bank station market street tree dog"
    ),
    "quality": _words(
        "big small old new good bad great little young early long short hot cold red green blue white black yellow brown happy "
        "beautiful easy hard different important whole other first last next real full open clear quiet free strong"
    ),
    "do": _words("see want need know like hear find make take give read write say buy call keep move open watch learn"),
    "did": _words("saw wanted found made took gave said bought called heard read learned changed watched opened moved"),
    "go": _words("go come walk move drive run"),
    "time": _words("today now again then later soon tonight sometimes always never"),
    "where": _words("here there outside inside everywhere somewhere home away"),
    "near": _words("in on under behind near by around above"),
    "start": _words("well yes no please hello sorry thanks and but so then maybe"),
}
_TEMPLATES = tuple(
    """
    the {quality} {noun} is {near} the {noun}
    {one} {did} the {quality} {noun}
    {who} {do} the {noun} {time}
    {start}, {who} {do} a {quality} {noun}
    {start}, {one} {did} {number} {noun}s on {day}
    my birth {noun} is on {day}, the {digit} of {month}
    it is {number} minutes past {digit}
    call {digit} {digit} {digit}, {digit} {digit} {digit} {digit}
    {who} can {go} {where} on {day}
    do you {do} my {noun}
    where is the {quality} {noun}
    what did {one} {do} {where}
    {one} has {number} {quality} {noun}s and {digit} {noun}s
    this is the {quality} {noun} of {one}
    that was a {quality}, {quality} {noun}
    in {month}, {who} {go} {where}
    {who} will {do} it {time}, and {who} will {go} {where}
    there are {number} {noun}s {near} the {noun}
    {digit} and {digit} are {number}
    if {who} {do} the {noun}, {one} {did} it {time}
    i think that {one} {did} the {noun} {where}
    please {do} the {noun} and {do} the {noun}
    how do {who} {go} to the {noun} from {where}
    it was {number} years before {one} {did} a {noun}
    """.strip().splitlines()
)


def sentence(draw: random.Random) -> str:
    """Returns one training text, never a held-out one."""
    kind = draw.choices((digits, word_string, grammatical, several), (22, 43, 25, 10))[0]
    while tuple(words_of(text := kind(draw))) in held_out_texts():
        pass
    return f"{text}." if draw.random() < 0.5 else text


def words_of(text: str) -> list[str]:
    """Returns the words a recogniser must find in the audio of a text."""
    return re.findall("[a-z]+", text.lower())


def digits(draw: random.Random) -> str:
    """Returns one to ten digits, sometimes with a comma between them."""
    words = [draw.choice(DIGITS) for _ in range(draw.randint(1, 10))]
    return " ".join(_with_commas(words, draw, 0.1))


def word_string(draw: random.Random) -> str:
    """Returns one to ten words in any order."""
    words = [draw.choice(taught_words()) for _ in range(draw.choices(range(1, 11), (1, 1, 2, 3, 4, 4, 4, 3, 2, 2))[0])]
    return " ".join(_with_commas(words, draw, 0.07))


def grammatical(draw: random.Random) -> str:
    """Returns a filled template, with taught words only."""
    while True:
        text = re.sub(r"{(\w+)}", lambda slot: draw.choice(_SLOTS[slot[1]]), draw.choice(_TEMPLATES).strip())
        if all(word in _taught() for word in re.findall("[a-z]+", text)):
            return text


def several(draw: random.Random) -> str:
    """Returns two to four sentences for one segment."""
    kinds: tuple[Callable[[random.Random], str], ...] = (digits, word_string, grammatical)
    text = grammatical(draw)
    for _ in range(draw.randint(1, 3)):
        longer = f"{text}. {draw.choice(kinds)(draw)}"
        if len(longer) >= MAX_CHARACTERS:
            break
        text = longer
    return text


def _with_commas(words: list[str], draw: random.Random, share: float) -> list[str]:
    return [f"{word}," if draw.random() < share else word for word in words[:-1]] + words[-1:]


def _taught() -> frozenset[str]:
    return frozenset(taught_words())
