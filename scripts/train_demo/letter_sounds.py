"""Letter sounds: learns from a pronouncing dictionary how letters in their context sound.

In:    words and their phone characters
Out:   rules for pipeline/text/pronunciation.py
Owns:  the alignment of letters with phones
Never: audio

A letter stands for none, one or two phones. Letters and phones are aligned along the likeliest path; the likelihoods are
first those of standing near each other, then they are counted anew three times. Then each window of context, from narrow to
wide, adds the rules that say more letters right than the narrower windows do.

    python -m scripts.train_demo.letter_sounds      # the share of held-out words that it gets right
"""

import argparse
import math
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from functools import cache

from wordfreq import top_n_list

from pipeline.checkpoint.capabilities import Language
from pipeline.text.pinyin import homophones
from pipeline.text.pronunciation import LONGEST_CHINESE_WORD, WINDOWS, Pronunciation, context
from scripts.train_demo.pronunciations import pronunciations
from scripts.train_demo.syllables import CHARACTER, default_reading, readings
from scripts.train_demo.word_errors import edits

MOST_PHONES = 2  # of a letter
ITERATIONS = 3
LEAST_GAIN = 2  # letters that a rule must set right
SILENT = -1.0  # of a letter, before anything is counted
UNSEEN = -12.0  # logarithm of the likelihood of a pair that was never counted
HELD_OUT_SHARE = 0.1
FREQUENT_WORDS = 60_000


def learn(words: Mapping[str, str]) -> dict[str, str]:
    """Returns context -> phones, as Pronunciation reads them."""
    words = {word: phones for word, phones in words.items() if len(phones) <= MOST_PHONES * len(word)}  # not "www"
    letters = [
        (word, place, sound)
        for word, sounds in zip(words, alignments(words), strict=True)
        for place, sound in enumerate(sounds)
    ]
    rules: dict[str, str] = {}
    readings = [""] * len(letters)
    for width in range(len(WINDOWS)):
        contexts = [context(word, place, width) for word, place, _ in letters]
        counts: dict[str, Counter[str]] = defaultdict(Counter)
        right: Counter[str] = Counter()
        for key, (_, _, sound), before in zip(contexts, letters, readings, strict=True):
            counts[key][sound] += 1
            right[key] += sound == before
        best = {key: counted.most_common(1)[0] for key, counted in counts.items()}
        changes = {key: sound for key, (sound, count) in best.items() if count >= right[key] + LEAST_GAIN}
        rules |= changes
        readings = [changes.get(key, before) for key, before in zip(contexts, readings, strict=True)]
    return rules


def alignments(words: Mapping[str, str]) -> list[list[str]]:
    """Returns the phones of each letter of each word."""
    likelihoods = _together(words)
    aligned: list[list[str]] = []
    for _ in range(ITERATIONS):
        aligned = [_align(word, phones, likelihoods) for word, phones in words.items()]
        pairs = Counter(
            (letter, sound)
            for word, sounds in zip(words, aligned, strict=True)
            for letter, sound in zip(word, sounds, strict=True)
        )
        totals = Counter(letter for word in words for letter in word)
        likelihoods = {pair: math.log(count / totals[pair[0]]) for pair, count in pairs.items()}
    return aligned


def _together(words: Mapping[str, str]) -> dict[tuple[str, str], float]:
    """Returns how much more often than by chance each letter stands near each sound: logarithms."""
    pairs: Counter[tuple[str, str]] = Counter()
    for word, phones in words.items():
        for place, letter in enumerate(word):
            middle = (place + 0.5) / len(word) * len(phones)
            near = range(max(0, math.floor(middle) - 1), min(len(phones), math.floor(middle) + 2))
            pairs.update((letter, phones[begin : begin + 1]) for begin in near)
    letters, sounds = Counter[str](), Counter[str]()
    for (letter, sound), count in pairs.items():
        letters[letter] += count
        sounds[sound] += count
    total = pairs.total()
    ratios = {pair: math.log(count * total / letters[pair[0]] / sounds[pair[1]]) for pair, count in pairs.items()}
    return ratios | {(letter, ""): SILENT for letter in letters}


def _align(word: str, phones: str, likelihoods: Mapping[tuple[str, str], float]) -> list[str]:
    """Returns the likeliest phones of each letter."""
    best: list[dict[int, tuple[float, int]]] = [{0: (0.0, 0)}]
    for letter in word:
        ends: dict[int, tuple[float, int]] = {}
        for begin, (score, _) in best[-1].items():
            for end in range(begin, min(begin + MOST_PHONES, len(phones)) + 1):
                step = likelihoods.get((letter, phones[begin:end]), UNSEEN)
                if end not in ends or score + step > ends[end][0]:
                    ends[end] = (score + step, begin)
        best.append(ends)
    sounds, end = [], len(phones)
    for ends in reversed(best[1:]):
        begin = ends[end][1]
        sounds.append(phones[begin:end])
        end = begin
    return sounds[::-1]


def score(words: Iterable[tuple[str, str]], spoken: Pronunciation) -> tuple[float, float]:
    """Returns the shares of words, and of phones, that are right."""
    right = wrong_phones = phones = total = 0
    for word, expected in words:
        reading = spoken.of(word)
        total, right = total + 1, right + (reading == expected)
        phones, wrong_phones = phones + len(expected), wrong_phones + edits(expected, reading)
    return right / total, 1 - wrong_phones / phones


@cache
def taught_pronunciation(languages: tuple[Language, ...]) -> Pronunciation:
    """Returns rules from all English words, their exceptions, and Chinese words with homophones."""
    words = pronunciations()
    rules = Pronunciation({}, learn(words))
    exceptions = {word: phones for word, phones in words.items() if rules.of(word) != phones}
    return Pronunciation(exceptions | (homophones_in_words() if "zh" in languages else {}), rules.rules)


def homophones_in_words() -> dict[str, str]:
    """Returns word -> its spelling with homophones, for words of two to LONGEST_CHINESE_WORD characters."""
    words = top_n_list("zh", FREQUENT_WORDS)
    spelled = {
        word: _spelled(word) for word in words if re.fullmatch(rf"{CHARACTER.pattern}{{2,{LONGEST_CHINESE_WORD}}}", word)
    }
    return {word: reading for word, reading in spelled.items() if reading != word}


def _spelled(word: str) -> str:
    spelled = []
    for character, reading in zip(word, readings(word), strict=True):
        same = character if default_reading(character) == reading else homophones(reading)
        spelled.append(same if same is not None and default_reading(same) == reading else character)
    return "".join(spelled)


def main() -> None:
    """Prints how well rules from nine tenths of the words say the others."""
    argparse.ArgumentParser(description="Measure the rules of letters on held-out words.").parse_args()
    words = list(pronunciations().items())
    random.Random(0).shuffle(words)
    held_out = round(len(words) * HELD_OUT_SHARE)
    spoken = Pronunciation({}, learn(dict(words[held_out:])))
    of_words, of_phones = score(words[:held_out], spoken)
    print(f"{len(spoken.rules)} rules, {of_words:.1%} of {held_out} held-out words right, {of_phones:.1%} of their phones")


if __name__ == "__main__":
    main()
