"""Lexicon matching: finds the words of a lexicon in a text.

In:    LexiconEntries, written text
Out:   Pronunciations: characters and their sound, in order, without overlap
Never: the text a pronunciation becomes; lookups in its own replacements

The longest word at a position wins. A word of letters matches whole words only; Chinese words have no borders. A word with a
capital matches exactly, a word without one in any case.
"""

from collections.abc import Iterable, Sequence

from pipeline.spec import CONTROL_TAGS
from pipeline.text.markup.control_tags import split_tags
from pipeline.types import LexiconEntry, Pronunciation

Key = tuple[bool, str]


def find(
    entries: Sequence[LexiconEntry], text: str, *, existing: Sequence[Pronunciation] = (), control_tags: bool = False
) -> list[Pronunciation]:
    """Returns a pronunciation for every occurrence of an entry's word, and those `existing`, in order.

    Args:
        existing: pronunciations the text has already; no word is looked for in them.
        control_tags: the text may have control tags; no word is looked for in them either.
    """
    if not entries:
        return list(existing)
    known: dict[Key, LexiconEntry] = {}
    for entry in reversed(entries):  # the first of two entries for one word counts
        known[_key(entry.word)] = entry
    lengths = sorted({len(entry.word) for entry in entries}, reverse=True)
    small = _small(text)
    closed = {pronunciation.start: pronunciation.stop for pronunciation in existing}
    if control_tags:
        closed |= dict(_tags(text))
    pronunciations = list(existing)
    borders = sorted(closed)
    ahead = 0
    place = 0
    while place < len(text):
        if place in closed:
            place = max(place + 1, closed[place])
            continue
        while ahead < len(borders) and borders[ahead] < place:
            ahead += 1
        end = borders[ahead] if ahead < len(borders) else len(text)
        for length in lengths:
            stop = place + length
            match = None
            if stop <= end and _is_whole(text, place, stop):
                match = known.get((True, text[place:stop])) or known.get((False, small[place:stop]))
            if match is not None:
                pronunciations.append(Pronunciation(place, stop, match.kind, match.value))
                place = stop
                break
        else:
            place += 1
    return sorted(pronunciations, key=lambda pronunciation: pronunciation.start)


def _key(word: str) -> Key:
    """Returns whether the case counts, and the word as it is looked up."""
    return (True, word) if _small(word) != word else (False, word)


def _small(text: str) -> str:
    """Returns the text in small letters of the same length: characters that would become two stay."""
    return "".join(low if len(low := character.lower()) == 1 else character for character in text)


def _is_whole(text: str, start: int, stop: int) -> bool:
    """True if neither end is inside a word."""
    joined_before = start > 0 and _joins(text[start - 1]) and _joins(text[start])
    joined_after = stop < len(text) and _joins(text[stop - 1]) and _joins(text[stop])
    return not joined_before and not joined_after


def _joins(character: str) -> bool:
    """True for letters and digits of scripts that put spaces between words."""
    return (
        character.isalnum()
        and not "\u2e80" <= character <= "\u9fff"
        and not "\uf900" <= character <= "\ufaff"
        and character < "\U00020000"
    )


def _tags(text: str) -> Iterable[tuple[int, int]]:
    place = 0
    for piece in split_tags(text):
        if piece in CONTROL_TAGS:
            yield place, place + len(piece)
        place += len(piece)
