"""Chat: reads what people shorten in messages: gr8, 2nite, tmrw, idk, r u.

In:    matches of Latin words, some with a digit
Out:   words
Owns:  the table of such words
Never: abbreviations of careful writing, acronyms
"""

import re

from pipeline.text.normalize.options import Language
from pipeline.text.normalize.patterns import NOT_IN_WORD
from pipeline.text.normalize.rule import Match, Outcome, Rule, after, alternatives, before, rule

_SOUNDS = {  # a digit stands for its sound
    "2day": "today",
    "2nite": "tonight",
    "2night": "tonight",
    "2moro": "tomorrow",
    "2morrow": "tomorrow",
    "2mrw": "tomorrow",
    "l8": "late",
    "l8r": "later",
    "l8er": "later",
    "gr8": "great",
    "m8": "mate",
    "w8": "wait",
    "sk8": "skate",
    "str8": "straight",
    "b4": "before",
    "4ever": "forever",
    "any1": "anyone",
    "some1": "someone",
    "every1": "everyone",
    "no1": "no one",
}
_SHORT = {
    "ppl": "people",
    "pls": "please",
    "plz": "please",
    "thx": "thanks",
    "tnx": "thanks",
    "tmrw": "tomorrow",
    "tmr": "tomorrow",
    "msg": "message",
    "msgs": "messages",
    "wk": "week",
    "wks": "weeks",
    "yr": "year",
    "yrs": "years",
    "bday": "birthday",
    "btw": "by the way",
    "idk": "I dont know",
    "tbh": "to be honest",
    "brb": "be right back",
    "imo": "in my opinion",
    "imho": "in my humble opinion",
    "afaik": "as far as I know",
    "omw": "on my way",
    "ngl": "not gonna lie",
    "lmk": "let me know",
    "rn": "right now",
    "ttyl": "talk to you later",
    "wdym": "what do you mean",
    "nvm": "never mind",
}
_PAIRS = {"r u": "are you", "c u": "see you"}
_PAIRS |= {
    f"{verb} u": f"{verb} you"
    for verb in ("can", "could", "did", "do", "give", "have", "love", "miss", "see", "tell", "thank", "will", "would")
}
_CAPITALIZED = frozenset(["gr8", "l8r", "2nite", "2day", "pls", "plz", "thx", "btw", "idk", "tbh", "brb", "nvm", "ppl", "msg"])
_YOU_AFTER = re.compile(
    r" (?:are|r|can|have|got|owe|want|know|see|guys|think|need|should|could|were|did|gonna|wanna)\b", re.ASCII
)
_AMOUNT_BEFORE = re.compile(r"(?:\d|\b(?:thousand|million|billion|trillion))\s?$", re.ASCII)


def _known(match: Match, language: Language) -> Outcome:
    """Returns the words of a shortened one; in capitals it may be a name: M8 is a screw."""
    written = match[0]
    if written.endswith(" U"):
        return None  # the letters R U
    if language != "en" or not (written.islower() or written.lower() in _CAPITALIZED or written.lower() in _PAIRS):
        return None
    if written.startswith(("wk", "yr")) and _AMOUNT_BEFORE.search(before(match, 10)):
        return None  # 2 yrs: a unit
    words = (_SOUNDS | _SHORT | _PAIRS)[written.lower()]
    return words[0].upper() + words[1:] if written[0].isupper() else words


def _you(match: Match, language: Language) -> Outcome:
    """The u of "u owe me", not that of a formula."""
    return "you" if language == "en" and _YOU_AFTER.match(after(match, 8)) else None


_END = r"(?![A-Za-z0-9@_]|[-'.][A-Za-z0-9])"
RULES: list[Rule] = [
    rule("0a", rf"{NOT_IN_WORD}(?<![@#_./-])(?i:{alternatives(_SOUNDS)}){_END}", _known),
    rule("a", rf"{NOT_IN_WORD}(?<![@#_./-])(?i:{alternatives(_PAIRS)}){_END}", _known),
    rule("a", rf"{NOT_IN_WORD}(?<![@#_./-])(?i:{alternatives(_SHORT)}){_END}", _known),
    rule("a", rf"{NOT_IN_WORD}u{_END}", _you),
]
