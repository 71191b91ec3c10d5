"""Lines: whether a sentence goes on behind the end of a line, and where a speaker may breathe in one.

In:    a line, or what stands before and behind a place
Out:   True: the end of the line is a blank; how good a pause would be
Never: lists, headings, tables; more of what follows than its first character, unless that is a small letter

E-mails, PDFs and subtitles end lines in the middle of sentences; verses, labels and lists end them between sentences.
"""

import re

_CLOSED = re.compile(r"[.!?…。！？:：;；][\"'”’」』)）\]】*_]{0,4}$")
ENDED = re.compile(r"[.!?…][^\w\s]{0,9}(?!\S)|[。！？]")
"""the end of a sentence in a line"""
_TITLE = re.compile(r"\b(?:Mr|Mrs|Ms|Dr|Prof|St|Gen|Capt|Sgt|Rev|Hon|vs|e\.g|i\.e)\.$")
_LABELLED = re.compile(r"[=|{}<>：]|:\s")
_OPEN_ENDS = frozenset(",，、(（")
_CHINESE = re.compile(r"[\u3400-\u9fff]")
_OPEN_CHINESE = frozenset("的和与或把被给从向对比跟为以及而且但在是有这那个一两每各将由于至到着地得只很更最不没")
_NO_BEGINNING = frozenset("的地得了着过吗呢吧们里中")
_VERSE = 13
"""fewer characters may be a verse"""
_LONG_LINE = 56
"""a line so long ends where the next word had no room [characters]"""
_LEAST_WORDS = 4
_SHORT_LINE = 4  # words


def _words(listed: str) -> frozenset[str]:
    return frozenset(listed.split())


_OPEN_WORDS = _words("""
    a an the of in on at to for from with by about into onto over under between through during without within upon against
    and or but nor as than that which who whose where when while because if whether although though since until unless
    my your his her its our their this these those every each some any no
    is are was were be been am has have had will would can could may might must shall should do does did
    not very so too more most much many such only just also even both either neither
""")
_JOINING = _words("and but or so because while when where which who that if as than though although since until unless")
_LEADING = _words("in on at to for from with by about into over under between through during without within against")
_JOINING_CHINESE = tuple(_words("而且 并且 以及 因为 然后 但是 所以 如果 或者 同时 不过 虽然 因此 于是 和 与"))
_APART = str.maketrans("，。！？；：、", " " * 7)
_SCALES = frozenset(["thousand", "million", "billion", "trillion"])
_NO_PAUSE = frozenset("年月日号点分秒时元个万亿")


def breath(before: str, after: str) -> int:
    """Returns how good a pause is between two stretches of a text without a sign: 3 before a conjunction, 0 inside a phrase.

    Args:
        before, after: the last and the first characters of them.
    """
    before, after = before.rstrip(), after.lstrip()
    last, first = before[-1:], after[:1]
    if not last or not first or last.isdigit() or first.isdigit() or last in "$€£¥￥#№":
        return 0
    if _CHINESE.match(first) and _CHINESE.match(last):
        if first in _NO_BEGINNING or first in _NO_PAUSE or last in _OPEN_CHINESE:
            return 3 if last in "万亿" else 0
        return 3 if after.startswith(_JOINING_CHINESE) or last in "万亿" else 1
    name, word, following = before.split()[-1], before.split()[-1].lower(), after.split()[0].lower()
    if word in _OPEN_WORDS or _TITLE.search(before[-8:]) or (name[0].isupper() and (first.isupper() or following == "of")):
        return 0
    if following in _JOINING or word in _SCALES:
        return 3
    return 2 if following in _LEADING else 1


def is_short(line: str) -> bool:
    """True if a line may be one of a list without signs."""
    return len(line.split()) <= _SHORT_LINE and not ENDED.search(line) and not _CHINESE.search(line)


def goes_on(line: str, following: str, *, is_list: bool = False, is_ended: bool = False) -> bool:
    """True if the sentence of a line goes on in what follows.

    Args:
        following: neither blank nor the beginning of an item, a heading or a row.
        is_list: all lines around are short.
        is_ended: what follows ends a sentence, in lines that begin with small letters.
    """
    line, following = line.rstrip(), following.lstrip(" \t\"'“‘(（「『《*_")
    if not line or not following:
        return False
    last, first = line[-1], following[0]
    if _TITLE.search(line[-8:]) and first.isupper():
        return True
    if _CLOSED.search(line[-6:]):
        return False
    if last in _OPEN_ENDS or (is_ended and first.islower()):
        return True
    if _CHINESE.match(first) or _CHINESE.match(last):
        return last in _OPEN_CHINESE or first in _NO_BEGINNING or len(_CHINESE.findall(line)) > _VERSE
    words = line[-400:].lower().translate(_APART).split()
    if words[-1].strip("\"'“‘(*_") in _OPEN_WORDS:
        return True
    if first.isupper():
        return len(line) >= _LONG_LINE and len(words) >= 2 * _LEAST_WORDS
    if not (first.islower() or first.isdigit()) or is_list:
        return False
    if last.isdigit() or (first.islower() and not _OPEN_WORDS.isdisjoint(words)):
        return True
    return len(words) >= _LEAST_WORDS and not _LABELLED.search(line)
