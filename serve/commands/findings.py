"""Findings: what doctor says about one thing that it looked at.

Out:   Finding, Status
Never: a check
"""

from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    """How serious a finding is."""

    FINE = "fine"
    WARN = "warn"
    """the service works, but not as it should"""
    FAIL = "fail"
    """the service does not start, or does not work"""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    check: str
    status: Status
    result: str
    advice: str = ""
    """what to do; empty if there is nothing to do"""
