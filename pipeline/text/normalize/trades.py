"""Trades: reads the notations of one trade: doses, series of television, cricket, chess, stars of hotels, engines.

In:    matches of letters, digits and signs
Out:   words
Never: quantities with a unit, dates; a notation that the words around it do not bear out, where it may be another
"""

import re

from pipeline.text.normalize.latin import join_words
from pipeline.text.normalize.numbers import counted, english, integer, spell
from pipeline.text.normalize.options import Language
from pipeline.text.normalize.patterns import EDGE, NOT_IN_WORD
from pipeline.text.normalize.rule import Gap, Match, Outcome, Rule, after, alternatives, before, numeric, rule
from pipeline.text.normalize.tables import row_table, word_list

_DOSES = row_table("dose")  # English, Chinese
_SURE_DOSES = {written: spoken for written, spoken in _DOSES.items() if "." in written or written in ("qhs", "qod", "prn")}
_AMOUNT = (
    r"\d\s?(?:mg|mcg|[µμ]g|g|kg|mL|ml|cc|IU|units?|tab(?:let)?s?\.?|caps(?:ule)?s?\.?|puffs?|drops?|gtts?|毫克|毫升|片|粒|滴)"
)
_DOSE_BEFORE = re.compile(
    rf"(?:{_AMOUNT}|\b(?:[Tt]ake|[Gg]ive|[Ii]nject|服|口服|每日))"
    rf"[\s,，]{{0,2}}(?:(?:(?i:{alternatives(_DOSES)}|q\d{{1,2}}h)\.?|daily|for|\d{{1,2}}|days)[\s,，]{{0,2}}){{0,4}}$",
    re.ASCII,
)
_PERIODS = {"h": ("hour", "小时"), "d": ("day", "天"), "w": ("week", "周"), "m": ("month", "月")}
_CRICKET = re.compile(rf"\b(?:{alternatives(word_list('cricket'))}|not out|all out|run[- ]chase)\b|板球")
_BOWLED = re.compile(r"\b(?:took|takes|taking|figures of|claimed|return(?:ed|s)|spell of|with|finished with)\s$")
_CHESS_WORDS = row_table("chess")  # English, Chinese
_MOVE = r"(?:[KQRBN][a-h]?[1-8]?x?[a-h][1-8]|[a-h](?:x[a-h])?[1-8](?:=[QRBN])?|O-O(?:-O)?|0-0(?:-0)?)[+#]?"
_MOVE_END = r"[!?]{0,2}(?![A-Za-z0-9=+#-])"
_NUMBERED_BEFORE = re.compile(rf"(?:^|[\s(])\d{{1,3}}(?:\.{{1,3}}|…)\s?(?:{_MOVE}[!?]{{0,2}}\s)?$")
_CHESS = re.compile(rf"\b(?:{alternatives(word_list('chess names'))})\b|象棋")
_LODGING = alternatives(word_list("lodging"))
_RATED_BEFORE = re.compile(
    r"(?:\b(?:rated|rating|gave (?:it|them|us)|review|deserves|solid|full|scored?)|打了|给了|给)[: ]{0,2}$"
)
_ENGINE_AFTER = re.compile(rf"[\s-](?:{alternatives(word_list('of engines'))})\b")


def _dose(match: Match, language: Language) -> Outcome:
    """b.i.d., prn; bid, po and the like behind an amount."""
    written = match["dose"].lower().replace(" ", "")
    if not (written in _SURE_DOSES and match["dose"].islower()) and not _DOSE_BEFORE.search(before(match, 48)):
        return None
    return _DOSES[written][language == "zh"]


def _every(match: Match, language: Language) -> Outcome:
    """q8h, q4-6h."""
    low, high, period = match["low"], match["high"], _PERIODS[match["period"][0].lower()]
    if language == "zh":
        return f"每{counted(low)}{f'到{counted(high)}' if high else ''}{'个' if period[1] == '月' else ''}{period[1]}一次"
    if low == "1" and not high:
        return f"every {period[0]}"
    return f"every {english(int(low))} {f'to {english(int(high))} ' if high else ''}{period[0]}s"


def _episode(match: Match, language: Language) -> Outcome:
    """S03E12, S1E1-3."""
    season, first, last = (str(int(match[name])) if match[name] else "" for name in ("season", "first", "last"))
    if language == "zh":
        return f"第{integer(season, 'zh')}季第{integer(first, 'zh')}{'到' if last else ''}{last and integer(last, 'zh')}集"
    episodes = f"episodes {integer(first, 'en')} to {integer(last, 'en')}" if last else f"episode {integer(first, 'en')}"
    return f"season {integer(season, 'en')} {episodes}"


def _is_near(words: re.Pattern[str], match: Match) -> bool:
    return bool(words.search(before(match, 120)) or words.search(after(match, 120)))


def _innings(match: Match, language: Language) -> Outcome:
    """245/6: runs for wickets; 5/34: wickets for runs."""
    first, second = int(match["first"]), int(match["second"])
    is_date = first < 32 and re.search(r"\b(?:[Oo]n|[Bb]y|[Uu]ntil|[Ss]ince|[Ff]rom|[Bb]efore)\s$", before(match, 8))
    is_score = not is_date and (first >= 32 or (first > 9 and second > 0)) and second < 11 and first > second
    is_figures = first < 11 and second > 12 and _BOWLED.search(before(match, 20))
    if language == "zh" or not (is_score or is_figures) or not _is_near(_CRICKET, match):
        return None
    return f"{english(first)} for {english(second)}{' declared' if match['declared'] else ''}"


def _not_out(match: Match, language: Language) -> Outcome:
    return f"{english(int(match['runs']))} not out" if language == "en" and _is_near(_CRICKET, match) else None


def _move(match: Match, language: Language) -> Outcome:
    """Nf3, exd5, O-O, e8=Q+."""
    written = match["move"]
    is_piece = written[0] in "KQRBNO0" or "x" in written
    if not _NUMBERED_BEFORE.search(before(match, 20)) and not (is_piece and _is_near(_CHESS, match)):
        return None
    parts = re.findall(r"[O0](?:-[O0]){1,2}|[KQRBN=+#]|[a-hx]|\d", written)
    return join_words(
        [_CHESS_WORDS[part][language == "zh"] if part in _CHESS_WORDS else spell(part, language) for part in parts]
    )


def _stars(match: Match, language: Language) -> Outcome:
    """5* hotel, rated 4*."""
    is_lodging = re.match(rf"(?:\s?(?:or|and|to|-|/|或|到)\s?\d\*)?[\s-]?(?:{_LODGING})", after(match, 24))
    if not is_lodging and not _RATED_BEFORE.search(before(match, 16)):
        return None
    if language == "zh":
        return f"{integer(match['stars'], 'zh')}星{'级' if is_lodging and '好评' not in is_lodging[0] else ''}"
    return f"{english(int(match['stars']))} star{'' if is_lodging or match['stars'] == '1' else 's'}"


def _engine(match: Match, language: Language) -> Outcome:
    """The V8 of an engine, which is no version."""
    is_engine = match["count"] in ("6", "8", "10", "12") or _ENGINE_AFTER.match(match.string, match.end())
    return f"V {integer(match['count'], 'en')}" if language == "en" and is_engine else None


_DOT = r"(?:(?<=\.[a-z])\.(?=[,;:)]|\s[a-z\d(]))?"
"""that of b.i.d. within a sentence"""
RULES: list[Rule] = [
    rule("a", rf"{NOT_IN_WORD}(?P<dose>(?i:{alternatives(_DOSES)})){EDGE}(?!-){_DOT}", _dose),
    numeric(
        "a",
        rf"{NOT_IN_WORD}(?:q\.?\s?|Q(?=[\d–-]{{1,5}}[Hh](?!o)))(?P<low>\d{{1,2}})(?:\s?[-–]\s?(?P<high>\d{{1,2}}))?\s?"
        rf"(?P<period>h(?:rs?|ours?)?|H|d(?:ays?)?|w(?:ks?|eeks?)?|mo(?:nths?)?){EDGE}",
        _every,
    ),
    numeric(
        "a",
        rf"{NOT_IN_WORD}[sS](?P<season>\d{{1,2}})\s?[eE](?P<first>\d{{1,3}})(?:[-–][eE]?(?P<last>\d{{1,3}}))?{EDGE}",
        _episode,
    ),
    numeric(
        "0",
        r"(?<![\d/.,$€£-])(?P<first>\d{1,3})/(?P<second>\d{1,3})(?P<declared>d\b|\sdec(?:\b|\.))?(?![\d/A-Za-z]|[.,]\d)",
        _innings,
    ),
    numeric("0", r"(?<![\d/.,$€£-])(?P<runs>\d{1,3})\*(?![\d*\w])", _not_out),
    numeric("0", r"(?<![\d.,])(?P<stars>[1-7])\*(?![\d*])", _stars),
    numeric(".…", rf"(?<=\d)(?:\.{{1,3}}|…)\s?(?={_MOVE}{_MOVE_END})(?!\.[a-h]?\d)", Gap.COMMA),
    numeric("a0", rf"(?<![A-Za-z0-9-])(?P<move>{_MOVE}){_MOVE_END}", _move),
    numeric("a", rf"{NOT_IN_WORD}V-?(?P<count>\d{{1,2}}){EDGE}(?!\.\d)", _engine),
]
