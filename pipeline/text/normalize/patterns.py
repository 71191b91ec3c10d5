"""Patterns: parts of regular expressions that several modules of rules share.

In:    nothing
Out:   patterns
Owns:  nothing
Never: spoken words
"""

NOT_IN_WORD = r"(?<![A-Za-z0-9])"
NUMBER = r"(?:\d{1,3}(?:,\d{3}){1,5}(?!\d)|\d{1,20})(?:\.\d{1,20})?"
TO = r"\s?(?:[-–~]|—(?!—)|到|至|to)\s?"
MINUS = r"(?:(?<![\w.)%])(?P<minus>-))?"
EDGE = r"(?![A-Za-z0-9])"


def is_one(written: str) -> bool:
    """True if a written number is 1, which is followed by a singular unit."""
    return written.replace(",", "") == "1"
