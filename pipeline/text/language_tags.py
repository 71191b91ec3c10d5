"""Language tags: what a BCP 47 tag says about the reading of a text.

In:    a tag or a name: zh, zh-CN, en-US, yue, English
Out:   auto, zh, en or dialect
Never: the text itself
"""

import re

from pipeline.text.normalize.tables import word_table

DIALECT = "dialect"
"""a Chinese language other than Mandarin: its characters are spoken in their Mandarin reading"""
KNOWN = "auto, or a BCP 47 tag or the name of Chinese or English, such as zh, zh-CN, en, en-US, yue or English"

_NAMES = word_table("language name")
_TAG = re.compile(r"[a-z]{2,8}(?:[-_][a-z0-9]{1,8})*")
_MANDARIN = ("zh", "zho", "chi", "cmn", "lzh")
_OTHER_CHINESE = frozenset(("yue", "wuu", "nan", "hak", "gan", "hsn", "cdo", "cjy", "cnp", "cpx", "csp", "czh", "czo", "mnp"))
_CANTONESE_REGIONS = frozenset(("hk", "mo"))


def reading_of(tag: str) -> str | None:
    """Returns the reading that a tag or a name asks for: auto, zh, en or DIALECT; None for other languages, and for what is
    neither."""
    lowered = tag.strip().lower()
    if not _TAG.fullmatch(lowered := _NAMES.get(lowered, lowered)):
        return None
    primary, *subtags = re.split("[-_]", lowered)
    if primary in _OTHER_CHINESE:
        return DIALECT
    if primary in _MANDARIN:
        return "zh" if (_OTHER_CHINESE | _CANTONESE_REGIONS).isdisjoint(subtags) else DIALECT
    return "auto" if lowered == "auto" else "en" if primary in ("en", "eng") else None
