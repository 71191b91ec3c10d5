"""Patterns: parts of regular expressions that several modules of rules share.

Out:   patterns
Never: spoken words
"""

import re

from pipeline.text.normalize.rule import alternatives
from pipeline.text.normalize.tables import word_list

COUNTED_AFTER = re.compile(
    rf"\s(?!(?:{alternatives(word_list('verbs in s'))})\b)"
    r"(?:(?:more|other|new|of|different)\s)?(?:[a-z]{2,11}s|people|men|women|children)\b",
    re.ASCII,
)
"""what follows a number that counts: a plural"""
NOT_IN_WORD = r"(?<![A-Za-z0-9])"
NUMBER = r"(?:\d{1,3}(?:,\d{3}){1,5}(?!\d)|\d{1,2}(?:,\d\d){1,4},\d{3}(?!\d)|\d{1,20})(?:\.\d{1,20})?"
TO = r"\s?(?:[-–~]|—(?!—)|到|至|to)\s?"
MINUS = r"(?:(?<![\w.)%])(?P<minus>-))?"
SENTENCE_END = (
    r"(?:[\"')\]]{0,2} {0,20}(?:\n|\Z)|[\"')\]]{0,2} {1,3}[\"']?"
    r"(?:The|This|That|These|Those|It|He|She|We|They|You|I|There|In|On|At|But|And|So|However|When|If|A|An|His|Her|Its|Our|Their|My|Your|What|Who|Why|How|Then|For|As|After|Before|No|Yes|Not|Now|One|Some|"
    r"Many|Most|All|Please|See|Take|Bring|With|By|From|To)\b(?!\.))"
)
"""what follows the dot of an abbreviation that ends a sentence: the end of a line, or a word that begins the next sentence"""
EDGE = r"(?![A-Za-z0-9])"


def is_one(written: str) -> bool:
    """True if a written number is 1, which is followed by a singular unit."""
    return written.replace(",", "") == "1"
