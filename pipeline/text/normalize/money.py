"""Money: reads amounts with the sign or code of a currency.

In:    matches of written amounts
Out:   words
Never: other quantities
"""

import re
from decimal import Decimal

from pipeline.text.normalize.measures import is_attribute
from pipeline.text.normalize.numbers import counted, english, integer, number, plural_of
from pipeline.text.normalize.options import Language
from pipeline.text.normalize.patterns import MINUS, NUMBER, is_one
from pipeline.text.normalize.rule import Match, Outcome, Rule, alternatives, rule
from pipeline.text.normalize.words import CURRENCIES, SCALES

_PREFIXED = alternatives(list(CURRENCIES))
_CODES = alternatives([code for code in CURRENCIES if code.isalpha() or code in "€£¥₩₹₽฿₫₺₿$"])
_SCALE = alternatives([scale for scale in SCALES if scale != "m"])
_JAPAN = re.compile(
    r"\b(?:Tokyo|Japan(?:ese)?|yen|Osaka|Kyoto|Nikkei|Toyota|Nintendo|Sony|Honda|ramen|sushi)\b|日[元本圆币]|东京|大阪|京都|北海道",
    re.ASCII,
)
_ZH_SCALE = "(?:[十百千万亿]{1,3})"


def money_words(sign: str, written: str, scale: str, language: Language, *, is_singular: bool = False) -> str:
    """one thousand two hundred thirty four dollars and fifty cents; 一千二百三十四点五元."""
    singular, plural, hundredth, chinese_name = CURRENCIES[sign]
    plural = singular if is_singular else plural
    whole, _, places = written.replace(",", "").partition(".")
    if language == "zh":
        exact = f"{whole}.{places.rstrip('0')}".rstrip(".")
        if scale in SCALES:
            exact, scale = _in_myriads(exact, SCALES[scale])
        return f"{counted(exact)}{scale}{chinese_name}"
    if scale and scale not in SCALES:
        return f"{_from_myriads(f'{whole}.{places}', scale)} {plural}"
    if scale:
        return f"{number(written, 'en')} {SCALES[scale]} {plural}"
    if not hundredth or len(places) > 2 or not int(places or 0):
        exact = written if places.strip("0") else whole
        return f"{number(exact, 'en')} {singular if is_one(exact) else plural}"
    cents = int(places.ljust(2, "0"))
    small = hundredth if cents == 1 or is_singular else {"cent": "cents", "penny": "pence"}[hundredth]
    if not int(whole):
        return f"{english(cents)} {small}"
    if is_singular and hundredth == "penny":
        return f"{integer(whole, 'en')} {singular} {english(cents)}"
    return f"{integer(whole, 'en')} {singular if is_one(whole) else plural} and {english(cents)} {small}"


_ZH_ZEROS = {"十": 1, "百": 2, "千": 3, "万": 4, "亿": 8}


def _from_myriads(exact: str, scale: str) -> str:
    """10 万 as English counts it: one hundred thousand."""
    value = Decimal(exact) * 10 ** sum(_ZH_ZEROS[sign] for sign in scale)
    unit, name = (1, "") if value < 10**6 else (10**6, " million") if value < 10**9 else (10**9, " billion")
    spoken = f"{value / unit:f}"
    return number(spoken.rstrip("0").rstrip(".") if "." in spoken else spoken, "en") + name


def _in_myriads(exact: str, scale: str) -> tuple[str, str]:
    """12.3 million as Chinese counts it: 1230 万."""
    value = (
        Decimal(exact)
        * {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12, "lakh": 10**5, "crore": 10**7}[scale]
    )
    unit, name = next(
        ((unit, name) for unit, name in ((10**12, "万亿"), (10**8, "亿"), (10**4, "万")) if value >= unit), (1, "")
    )
    spoken = f"{value / unit:f}"
    return spoken.rstrip("0").rstrip(".") if "." in spoken else spoken, name


def _currency(match: Match) -> str:
    """Returns the sign or code; ¥ is the yen where the text around it speaks of Japan."""
    around = match.string[max(0, match.start() - 60) : match.end() + 30]
    return "JPY" if match["sign"] == "¥" and _JAPAN.search(around) else match["sign"]


def _money(match: Match, language: Language) -> Outcome:
    minus = {"zh": "负", "en": "minus "}[language] if match["minus"] else ""
    code = match.groupdict().get("code")
    scale = (match["scale"] or "").replace("w", "万")
    spoken = money_words(code or _currency(match), match["number"], scale, language, is_singular=is_attribute(match))
    low = match.groupdict().get("low")
    if low:
        return f"{number(low, language)}{'到' if language == 'zh' else ' to '}{spoken}"
    return f"{minus}{spoken}"


def _money_code(match: Match, language: Language) -> Outcome:
    return money_words(_currency(match), match["number"], match["scale"] or "", language)


def _notes(match: Match, language: Language) -> Outcome:
    """Two $50s."""
    return plural_of(integer(match["number"], "en")) if language == "en" else None


def _yuan(match: Match, language: Language) -> Outcome:
    """1,200.00元: without the zeros."""
    places = match["places"].rstrip("0")
    return number(f"{match['whole']}.{places}".rstrip("."), "zh") if language == "zh" else None


def _european(match: Match, language: Language) -> Outcome:
    """€1.250,00, 12,99 zl: the comma before the cents; 1.799 €/l is the price of fuel."""
    written = match["number"].replace(".", "").replace(",", ".")
    return money_words(match["sign"], written, "", language)


_WITH_COMMAS = alternatives(
    [*("€", "EUR", "PLN", "zl", "kr", "SEK", "NOK", "DKK", "CZK", "HUF", "R$", "BRL", "Rp", "IDR", "₫", "VND", "₺", "₽", "RUB")]
)
_EUROPEAN = r"(?:\d{1,3}(?:\.\d{3}){1,3}(?:,\d\d)?|\d{1,6},\d\d)(?!\d)"
RULES: list[Rule] = [
    rule("$", r"[$€£](?P<number>\d{1,3})s(?![A-Za-z0-9])", _notes, "numbers"),
    rule("0", r"(?P<whole>\d{1,3}(?:,\d{3}){1,3}|\d{1,9})\.(?P<places>0|\d0)(?=\s?元(?!/))", _yuan, "numbers"),
    rule("$a", rf"(?P<sign>{_WITH_COMMAS})\s?(?P<number>{_EUROPEAN})(?![\d.,]\d|\s?/)", _european, "numbers"),
    rule("0", rf"(?P<number>{_EUROPEAN})\s?(?P<sign>{_WITH_COMMAS})(?![A-Za-z0-9]|\s?/)", _european, "numbers"),
    rule(
        "$a-",
        rf"{MINUS}(?P<sign>{_PREFIXED})\s?(?:(?P<low>{NUMBER})\s?[-–~]\s?(?P=sign)?)?(?P<number>{NUMBER})"
        rf"(?:[ -]?(?P<scale>(?:{_SCALE}|m)\b|{_ZH_SCALE}|w(?![A-Za-z])))?"
        r"(?:\s?(?P<code>USD|CAD|AUD|NZD|HKD|SGD|EUR|GBP|CNY|JPY)(?![A-Za-z0-9])|\s?(?:元|美元|欧元|英镑|日元|人民币|港元|韩元)(?!/))?",
        _money,
        "numbers",
    ),
    rule(
        "0",
        rf"(?P<number>{NUMBER})\s?(?:(?P<scale>thousand|million|billion|trillion|{_ZH_SCALE}|[kKMB])\s?)?(?P<sign>{_CODES})(?![A-Za-z0-9])",
        _money_code,
        "numbers",
    ),
]
