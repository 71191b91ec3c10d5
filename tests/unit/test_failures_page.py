"""The table of failures: every id of the catalogue once at least, a test that exists, the seconds that were measured."""

import json
import re
from pathlib import Path

from tests.support.pages import table
from tests.support.recovery import FILE

TESTS = Path(__file__).resolve().parents[1]
ROWS = table("docs/reliability.md", "Failures, one by one")
IDS = [*(f"F-{number:02}" for number in range(1, 36)), *(f"N-{number}" for number in range(1, 10))]


def test_every_failure_has_its_row_in_order():
    assert sorted({row[0] for row in ROWS}) == IDS
    assert [row[0] for row in ROWS] == sorted(row[0] for row in ROWS)


def test_the_tests_it_names_exist():
    sources = "\n".join(path.read_text() for path in TESTS.rglob("test_*.py"))
    known = set(re.findall(r"^(?:async )?def (test_\w+)\(", sources, re.MULTILINE))
    for row in ROWS:
        assert row[-1].strip("` |") in known, row[0]


def test_the_seconds_are_those_that_were_measured():
    measured = json.loads(FILE.read_text())
    shown = {row[0]: float(row[4]) for row in ROWS if row[4] != "–"}
    assert shown == measured
