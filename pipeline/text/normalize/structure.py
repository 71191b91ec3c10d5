"""Structure: finds the markup of whole lines: lists, headings, tables, fences and rules.

In:    a written text
Out:   place -> the end and the outcome of the markup that begins there
Never: words, markup inside a line (marks.py)

Each line is matched once. A table is a line that begins with a bar, or one beside a line of dashes and bars; its cells are
separated by pauses. The stop behind the number of a list item is a pause, so that the number stays with its item.
"""

import re
from collections.abc import Iterator

from pipeline.text.markup.elements import PROGRAM_SIGNS, is_program
from pipeline.text.normalize.rule import Drop, Gap

Marked = dict[int, tuple[int, Gap | Drop]]

_ITEM = re.compile(
    r"(?P<quote>[ ]{0,12}(?:>[ ]|>(?=[>A-Za-z\u4e00-\u9fff*_`])){1,6})?(?P<indent>[ ]{0,24})"
    r"(?:(?P<bullet>[-*+•★☆–][ ]{1,6}(?=\S))(?P<box>\[[ xX]?\][ ]{1,4})?|(?P<heading>#{1,6}[ ]{1,4}))?"
    r"(?P<number>(?:\d{1,3}(?:\.\d{1,3}){0,3}|[A-Za-z](?=\)))(?P<stop>[.)](?![\d.])(?=[ ]{1,4}\S|[\u4e00-\u9fff]|[A-Z][a-z])))?"
)
_FENCE = re.compile(r"[ ]{0,12}(?:`{3,}|~{3,})[ ]?(?P<language>[A-Za-z0-9+#._-]{0,20})[ ]{0,8}$")
_RULE = re.compile(r"[ ]{0,12}(?:([-*_=~#+—<>^])[ ]?)(?:\1[ ]?){2,}$|[ ]{0,12}[+|—=][-+|—=: ]{2,}[+|—=]?[ ]{0,12}$")
_ALIGNMENT = re.compile(r"[ ]{0,12}\|?[ ]{0,9}:?-{1,}:?[ ]{0,9}(?:\|[ ]{0,9}:?-{1,}:?[ ]{0,9})*\|?[ ]{0,12}$")
_CLOSING = re.compile(r"[ ]+#{1,6}[ ]*$")
_REFERENCE = re.compile(r"[ ]{0,3}\[(?!\^)[^\]\n]{1,80}\]: {1,4}\S+(?: {1,4}\"[^\"\n]{0,200}\")?[ ]*$")
_FOOTNOTE = re.compile(r"\[\^[A-Za-z0-9_-]{1,20}\]:?[ ]?")
_PROMPT = re.compile(r"[ ]{0,4}(?:\$|>>>|\.\.\.)[ ](?=[A-Za-z./~_])")
_BANNER = re.compile(r"[ ]{0,4}(?:([=*#~_-])\1{2,}|==)[ ]{1,4}(?=\S)")
_BANNER_END = re.compile(r"[ ]{1,4}(?:([=*#~_-])\1{2,}|==)[ ]*$")


def marked_lines(text: str) -> Marked:
    """Returns the line markup of a text."""
    marks: Marked = {}
    lines = list(_lines(text))
    tables = _table_lines(text, lines)
    in_fence = is_in_program = False
    for index, (start, stop) in enumerate(lines):
        line = text[start:stop]
        if fence := _FENCE.match(line):
            in_fence = not in_fence
            is_in_program = in_fence and is_program(fence["language"])
            marks[start] = (stop, Drop("markup", Gap.STOP))
        elif index in tables:
            marks |= _row(line, start, stop)
        elif not in_fence:
            marks |= _marked(line, start, stop)
        elif prompt := _PROMPT.match(line):
            marks[start] = (start + prompt.end(), Drop("markup", Gap.STOP))
        elif is_in_program:
            signs = PROGRAM_SIGNS.finditer(line)
            marks |= {start + sign.start(): (start + sign.end(), Drop("markup", Gap.SPACE)) for sign in signs}
    return marks


def _lines(text: str) -> Iterator[tuple[int, int]]:
    start = 0
    while start <= len(text):
        stop = text.find("\n", start)
        stop = len(text) if stop < 0 else stop
        if stop > start:
            yield start, stop
        start = stop + 1


def _table_lines(text: str, lines: list[tuple[int, int]]) -> set[int]:
    """Returns the indices of the lines of tables."""
    bars = {index for index, (start, stop) in enumerate(lines) if "|" in text[start:stop]}
    rows = {index for index in bars if text[slice(*lines[index])].lstrip().startswith("|")}
    for index in sorted(bars):
        if index - 1 in rows and index - 1 not in bars:
            continue
        if _ALIGNMENT.match(text[slice(*lines[index])]):
            rows |= {index} | ({index - 1} & bars)
        elif index - 1 in rows:
            rows.add(index)
    written = {index: text[slice(*lines[index])].rstrip() for index in rows}
    lone = {index for index, line in written.items() if line.endswith("|") and line.count("|") > 1}
    return {index for index in rows if index in lone or rows & {index - 1, index + 1}}


def _row(line: str, start: int, stop: int) -> Marked:
    """Returns the markup of a row: pauses between its cells; a row of dashes is dropped."""
    if _ALIGNMENT.match(line) or _RULE.match(line):
        return {start: (stop, Drop("markup", Gap.STOP))}
    marks: Marked = {}
    first, last = len(line) - len(line.lstrip(" |")), len(line.rstrip(" |"))
    for place in (place for place, sign in enumerate(line) if sign == "|"):
        if not line[max(0, place - 1) : place].endswith("\\"):
            gap = Gap.COMMA if first <= place < last else Gap.NONE
            marks[start + place] = (start + place + 1, Drop("markup", gap))
    return marks


def _marked(line: str, start: int, stop: int) -> Marked:
    """Returns the markup of a line outside tables and fences."""
    if _RULE.match(line) or _REFERENCE.match(line):
        return {start: (stop, Drop("markup", Gap.STOP))}
    marks: Marked = {}
    item = _ITEM.match(line)
    assert item is not None, "every part of the pattern may be missing"
    begin = item.start("stop") if item["stop"] else -1
    lead = max(item.end("quote"), item.end("bullet"), item.end("box"), item.end("heading"))
    if lead > 0:
        marks[start] = (start + lead, Drop("markup", Gap.STOP if item["bullet"] or item["heading"] else Gap.NONE))
    if begin >= 0:
        marks[start + begin] = (start + begin + 1, Gap.COMMA)
    lead = max(lead, 0)
    if sign := (_PROMPT.match(line, lead) or _BANNER.match(line, lead)):
        marks[start + lead] = (start + sign.end(), Drop("markup"))
    if item["heading"] and (closing := _CLOSING.search(line, lead)):
        marks[start + closing.start()] = (start + closing.end(), Drop("markup", Gap.STOP))
    elif (end := _BANNER_END.search(line, max(0, len(line) - 80))) and end.start() >= lead:
        marks[start + end.start()] = (start + end.end(), Drop("markup", Gap.STOP))
    if note := _FOOTNOTE.match(line, lead):
        marks[start + lead] = (start + note.end(), Drop("markup"))
    return marks
