"""Latin: reads single words of Latin letters: acronyms letter by letter, compounds part by part.

In:    words of Latin letters
Out:   words
Never: digits, patterns of whole expressions
"""

import re

from pipeline.text.normalize.words import MIXED_CASE, SPELLED_ACRONYMS, WORD_ACRONYMS

MAX_WORD_LETTERS = 64  # WordPiece gives up at 100: a longer word would reach the model as one unknown token
VOWEL = re.compile(r"[AEIOUYaeiouy]")
_CAMEL = re.compile(r"[A-Z]{2,}(?=[A-Z][a-z])|[A-Z]{2,}(?![a-z])|[A-Z]?[a-z]+|[A-Z]")
_ENGLISH_WORD = re.compile(  # letters that English puts at the beginning and at the end of a syllable
    r"[AEIOUY].*[AEIOUY]|^[^AEIOUY]{1,2}[AEIOUY][^AEIOUY]{1,2}$|^(?:[^AEIOUY]{0,2}|STR|THR|SCR|SPR|SHR|SPL|CHR)[AEIOUY]{1,2}"
    r"(?:GHT|TCH|NTH|FTH|RST|LTH|RTH|XTH|DTH|PTH|NGTH|NCH|RCH|NST|MPT|CK|ND|NT|NK|LL|RD|RK|RM|RN|RT|ST|SK|LK|LM|LT|LD|LP|NG|PT|"
    r"CT|FT|WN|WL|RL|SS|SH|TH|CH|RB|RP|LF|FF|MB|MP|GN|WD|GG|DD)S?$"
)
_LONG_WORD = re.compile(rf"[A-Za-z]{{{MAX_WORD_LETTERS}}}(?=[A-Za-z])")


def join_words(words: list[str]) -> str:
    """Joins words, with a space between Latin ones."""
    spoken = ""
    for word in words:
        if not word:
            continue
        spoken += f" {word}" if spoken and spoken[-1].isascii() and word[0].isascii() else word
    return spoken


def letters(word: str) -> str:
    """Returns the letters of a word in capitals with spaces, as upstream's examples write T T S."""
    return " ".join(word.upper())


def is_acronym(word: str) -> bool:
    """True if a word in capitals is read letter by letter."""
    if word in SPELLED_ACRONYMS:
        return True
    if word in WORD_ACRONYMS or not 2 <= len(word) <= 6 or not word.isupper():
        return False
    return len(word) <= 3 or not VOWEL.search(word) or not _ENGLISH_WORD.search(word)


def latin_word(word: str, *, shouting: bool = False) -> str:
    """Returns the reading of a word of Latin letters: acronyms letter by letter, ChatTTS as Chat T T S."""
    if word.islower() and len(word) <= MAX_WORD_LETTERS:
        return word
    if word.isupper():
        spoken = letters(word) if is_acronym(word) and not shouting else word
    elif word in MIXED_CASE or re.search(r"[a-z][A-Z]{2,}|^[A-Z]{2,}[a-z]", word):
        spoken = _camel(word)
    else:
        spoken = word
    return _LONG_WORD.sub(r"\g<0> ", spoken)


def _camel(word: str) -> str:
    if word in MIXED_CASE:
        return MIXED_CASE[word]
    if re.fullmatch(r"[A-Z]{2,6}s", word):
        return f"{latin_word(word[:-1])} s" if is_acronym(word[:-1]) else word
    return " ".join(letters(part) if part.isupper() and len(part) > 1 else part for part in _CAMEL.findall(word))


def camel_words(part: str) -> str:
    if not part.isascii():
        return part
    return " ".join(latin_word(word) for word in _CAMEL.findall(part))
