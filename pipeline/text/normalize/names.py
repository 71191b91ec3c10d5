"""Names: reads versions, models with digits, abbreviations, contractions, acronyms and words.

In:    matches of Latin words and of digits that count nothing
Out:   words
Never: quantities, dates, addresses
"""

import re

from pipeline.text.normalize.latin import is_acronym, join_words, latin_word, letters
from pipeline.text.normalize.models import is_term, model_number
from pipeline.text.normalize.numbers import integer, pairs, plural_of, spell
from pipeline.text.normalize.options import Language
from pipeline.text.normalize.patterns import NOT_IN_WORD, SENTENCE_END
from pipeline.text.normalize.rule import Match, Outcome, Rule, alternatives, before, rule
from pipeline.text.normalize.tables import word_list
from pipeline.text.normalize.words import ABBREVIATIONS, CONTRACTIONS, GREEK, PARTICIPLES, SUBJECTS, WORD_ACRONYMS

_SHOUTING_WORDS = 3
_HAD_AFTER = re.compile(
    rf"\s(?:(?:never|just|already|always|not|ever|only|also|really|both|all|since|still|hardly|barely|recently|often|once|long|finally|"
    rf"[a-z]{{3,9}}ly)\s){{0,2}}(?:better\b|{alternatives(PARTICIPLES)}|[a-z]{{2,12}}ed(?<!\sneed)(?<!\sfeed)(?<!ceed)(?<!\sspeed)(?<!\sbleed)(?<!breed))\b",
    re.ASCII,
)
"""what follows 'd that is had: a participle, or better"""
_TIMES_AFTER = re.compile(
    r"(?: (?:as|more|less|the|a|per|daily|weekly|zoom|magnification|leverage|[a-z]{3,8}er)|/(?:day|week|wk|month|mo|year|yr))\b"
)
_SHORT_NAMES = frozenset(word_list("short names"))
_ORGANISATION_BEFORE = re.compile(r"\b(?:[Tt]he|by|from|with|to)\s$")
_ORGANISATION_AFTER = re.compile(rf"(?:'s)?\s(?:{alternatives(word_list('of an organisation'))})")


def _is_spelled(match: Match) -> bool:
    """True for WHO and IT where they are names, in a sentence of small letters."""
    context, stop = before(match, 12), match.end()
    if match[0] == "WHO":
        return bool(_ORGANISATION_BEFORE.search(context) or _ORGANISATION_AFTER.match(match.string, stop))
    return not re.match(r"\s[A-Z]{2}", match.string[stop : stop + 3]) and not re.search(r"[A-Z]{2}\s$", context)


def _is_shouting(match: Match) -> bool:
    """True if a word in capitals is one of many, as in a headline: then it is no acronym."""
    text = match.string[max(0, match.start() - 40) : match.end() + 40]
    words = [word for word in re.findall(r"[A-Za-z]+", text) if len(word) > 1]
    capitals = sum(word.isupper() for word in words)
    return (
        capitals >= _SHOUTING_WORDS and capitals == len(words) and any(word in WORD_ACRONYMS or len(word) > 4 for word in words)
    )


def _dotted(match: Match, language: Language) -> Outcome:
    parts = match[0].split(".")
    return (" point " if language == "en" else "点").join(integer(part, language) for part in parts)


def _version(match: Match, language: Language) -> Outcome:
    parts = [integer(part, language) for part in match["number"].split(".")]
    if language == "en":
        return f"version {' point '.join(parts)}"
    return ("V" if len(match["v"]) == 1 else latin_word(match["v"])) + "点".join(parts)


def _model(match: Match, language: Language) -> Outcome:
    """GPT-4o, RTX4090, iPhone15, A320, H2O, PM2.5, COVID-19, B2B."""
    parts = re.findall(r"[A-Za-z]+|\d+(?:\.\d+)?", match[0])
    if "-" in match[0] and parts[0].islower() and (len(parts[0]) > 2 or (len(parts[0]) == 1 and is_term(match))):
        return None  # mid-1990s, under-18; x-3
    if (
        re.fullmatch(r"[A-Za-z][24][A-Za-z]", match[0])
        and language == "en"
        and match[0].upper() in ("B2B", "B2C", "C2C", "P2P", "G2P")
    ):
        return f"{parts[0].upper()} to {parts[2].upper()}"
    spoken = []
    for index, part in enumerate(parts):
        if part[0].isdigit() and parts[index + 1 :] == ["s"]:
            spoken.append(plural_of(model_number(part, "en")))  # B52s
            break
        if part[0].isdigit():
            spoken.append(model_number(part, language))
        elif len(part) == 1 or (part.isupper() and (is_acronym(part) or len(parts) > 2)):
            spoken.append(letters(part) if index == 0 or part.isupper() else part)
        else:
            spoken.append(latin_word(part))
    return join_words(spoken)


def _model_apart(match: Match, language: Language) -> Outcome:
    """RTX 4090, HTTP 404: a number behind an acronym is its name, not a count."""
    return _model(match, language) if is_acronym(match[0].split()[0]) else None


def _number_letters(match: Match, language: Language) -> Outcome:
    """5G, 4K, 3D, 1080p, 4o, 2B: a number and the letters on it."""
    digits, tail = match["digits"], match["tail"]
    is_amount = len(digits) <= 2 or tail in "KMGTB"
    if tail == "x" and language == "en" and _TIMES_AFTER.match(match.string, match.end()):
        return f"{integer(digits, 'en')} times"
    spoken = pairs(digits) if language == "en" else (integer(digits, "zh") if is_amount else spell(digits, "zh"))
    if tail == "ers" and language == "en":
        return f"{spoken.removesuffix('e')}ers"  # 49ers
    if len(digits) > 4 and language == "en":
        spoken = integer(digits, "en")
    return join_words([spoken, tail.upper() if len(tail) == 1 and tail not in "o" else latin_word(tail)])


def _contraction(match: Match, language: Language) -> Outcome:
    written = match[0]
    subject, _, ending = written.lower().rpartition("'")
    if ending == "d" and subject in SUBJECTS:
        verb = "had" if _HAD_AFTER.match(match.string, match.end()) else "would"
        return f"{'I' if subject == 'i' else written[:-2]} {verb}"
    known = CONTRACTIONS.get(written.lower())
    if known:
        return known[0].upper() + known[1:] if written[0].isupper() else known
    if re.match(r"[A-Z]'[A-Z][a-z]", written):
        return written.replace("'", "")  # O'Hara
    if written.lower().endswith("'s") and is_acronym(written[:-2]):
        return f"{letters(written[:-2])} s"
    if re.search(r"(?:[sxz]|ch|sh)'s$", written):
        return f"{latin_word(written[:-2])}es"  # James's, the boss's
    return latin_word(written.replace("'", ""))


def _speaker(match: Match, language: Language) -> Outcome:
    """The BEN of BEN: Hello."""
    return match[0].capitalize() if match[0] in _SHORT_NAMES else None


def _dotted_letters(match: Match, language: Language) -> Outcome:
    return letters(match[0].replace(".", ""))


def _and_between(match: Match, language: Language) -> Outcome:
    return f"{letters(match['a'])} and {letters(match['b'])}"


def _grade(match: Match, language: Language) -> Outcome:
    return f"{match[1]} {'减' if language == 'zh' else 'minus'}"


def _word(match: Match, language: Language) -> Outcome:
    word = match[0]
    if word in ("WHO", "IT") and _is_spelled(match) and not _is_shouting(match):
        return letters(word)
    return latin_word(word, shouting=word.isupper() and len(word) > 1 and _is_shouting(match))


def _greek(match: Match, language: Language) -> Outcome:
    sign = match[0].lower()
    return GREEK[sign][language == "zh"]


_ABBREVIATED = alternatives(list(ABBREVIATIONS))
DOTTED: list[Rule] = [rule("0", r"\d{1,5}(?:\.\d{1,5}){2,7}(?!\.?\d)", _dotted, "numbers")]  # behind dates, before decimals
NAMES: list[Rule] = [  # behind them
    rule(
        "a",
        rf"{NOT_IN_WORD}(?P<v>[vV]|[Vv]er(?:sion)?)\.?\s?(?P<number>\d{{1,5}}(?:\.\d{{1,5}}){{0,5}})(?![\dA-Za-z]|\.\d)",
        _version,
        "numbers",
    ),
    rule(
        "a",
        rf"{NOT_IN_WORD}[A-Za-z]{{1,16}}[-]?\d{{1,8}}(?:\.\d{{1,4}})?(?:-?[A-Za-z]{{1,8}}(?![A-Za-z]))?(?![A-Za-z]*@)(?!\d)",
        _model,
        "numbers",
    ),
    rule("a", rf"{NOT_IN_WORD}[A-Z]{{2,5}}\s\d{{3,4}}(?![\dA-Za-z]|[,.:/-]\d)", _model_apart, "numbers"),
    rule("0", r"(?P<digits>\d{1,8})(?P<tail>[A-Za-z]{1,3})(?![A-Za-z0-9])", _number_letters, "numbers"),
    # At the end of a sentence the dot of an abbreviation is a stop as well.
    rule("a", rf"{NOT_IN_WORD}(?:[A-Za-z]\.){{1,7}}[A-Za-z](?=\.{SENTENCE_END})", _dotted_letters),
    rule("a", rf"{NOT_IN_WORD}(?P<word>{_ABBREVIATED})(?![A-Za-z0-9])", ABBREVIATIONS),
    rule("a", rf"{NOT_IN_WORD}(?:[A-Za-z]\.){{2,8}}(?![A-Za-z0-9])", _dotted_letters),
    rule("a", rf"{NOT_IN_WORD}(?P<a>[A-Z]{{1,4}})\s?&\s?(?P<b>[A-Z]{{1,4}})(?![A-Za-z0-9])", _and_between),
    rule("a", rf"{NOT_IN_WORD}([A-F])-(?=[\s.,;:!?)]|$)(?!\s(?:and|or|to)\s)", _grade),
    rule("a", rf"{NOT_IN_WORD}([CF])#(?![A-Za-z0-9#])", lambda match, _: f"{match[1]} sharp"),
    rule("a", r"[A-Za-z]{1,32}(?:'[A-Za-z]{1,10}){1,3}(?!'?[A-Za-z])", _contraction),
    rule("a", r"(?<![^\n])[A-Z]{2,4}(?=[ ]?(?:[:>(\n]|$))", _speaker),
    rule("a", r"[A-Za-z]+", _word),
    rule("g", r"[α-ωΑ-Ω](?![α-ωΑ-Ω])(?<![α-ωΑ-Ω].)", _greek),
]
