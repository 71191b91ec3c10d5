"""Edits: what of a source text is not read as it stands: tags, tokens of models, notes, faces, and ends of lines in a sentence.

In:    a source text
Out:   Edits, in order: what stands in place of some characters, or why they are dropped
Owns:  the shapes of inline markup; where a sentence goes on in the next line
Never: elements one by one (pipeline/text/markup/elements.py); the markup of whole lines (structure.py); numbers

Each pattern is bounded, and what is looked for once in the rest of a text and is not there is not looked for again.
"""

import re
from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

from pipeline.text.lines import ENDED, goes_on, is_short
from pipeline.text.markup.elements import INLINE, SOUNDS, THOUGHTS, Sound, raised
from pipeline.text.normalize.options import NormalizeOptions


class Edit(NamedTuple):
    """Characters [start, stop) of the source become `text`, or are dropped and leave `text` behind."""

    start: int
    stop: int
    text: str = ""
    code: str = "markup"
    """why they are dropped; empty: they are spoken as `text`"""


_ATTRIBUTE = r"\s{1,9}[\w:@.-]{1,60}(?:\s?=\s?(?:\"[^\"<>]{0,400}\"|'[^'<>]{0,400}'|[^\s\"'<>=]{1,200}))"
_SHAPES = (
    ("code", r"(?P<ticks>`{1,3})(?!`)[^`\n]{1,300}(?P=ticks)(?!`)"),
    ("raised", r"<sup>(?P<power>[^<>\n]{1,12})</sup>|(?<=[A-Za-z0-9)])\^(?P<power_2>[0-9n+-]{1,6}|st|nd|rd|th)\^"),
    ("pause", r"<break\b[^<>]{0,100}>|<#\d{1,4}(?:\.\d{1,3})?#>|\[\[slnc \d{1,6}\]\]"
     r"|\[(?:pause|break|silence|wait)(?:[:= ]\s?\d{1,5}(?:\.\d{1,3})?\s?(?:ms|s|sec|seconds)?)?\]"
     r"|\[(?:uv_break|v_break|lbreak|llbreak|break_\d)\]"),
    ("hidden", r"\[THINK\]|◁think▷|<[|｜](?:begin_of_thought|START_THINKING|tool[▁_]calls(?:_section)?[▁_]begin)[|｜]>"
     r"|<\|channel\|>(?:analysis|commentary)\b[^<>\n]{0,80}(?:<\|constrain\|>\w{1,20})?<\|message\|>|<\|channel>thought\b"),
    ("token", r"<\|start\|>(?:[a-z]{4,9}|functions\.\w{1,60})?(?: to=[\w.]{1,60})?|<\|channel\|?>(?:final|analysis|commentary)?"
     r"(?: to=[\w.]{1,60})?|<\|constrain\|>\w{0,20}|<channel\|>|◁/think▷"
     r"|<[|｜](?:im_start|start_header_id)[|｜]>(?:system|user|assistant|tool|model)?|<start_of_turn>(?:user|model)?"
     r"|<[|｜][^|｜<>\n]{1,60}[|｜]>|<</?SYS>>|&lt;/?(?:[biupa]|br|em|strong|span|div|[uo]l|li|h[1-6]|code|pre|break|speak)\b[^&<>\n]{0,100}&gt;"
     r"|\[/?(?:INST|SYS|TOOL_CALLS|TOOL_RESULTS|THINK|EOS|BOS)\]|\[(?:laugh(?:_\d)?|oral_\d|speed_\d)\]"),
    ("tag", rf"<(?P<close>/?)(?P<name>[A-Za-z][\w:.-]{{0,60}})(?P<attributes>(?:{_ATTRIBUTE}?){{0,20}})\s{{0,9}}/?>"),
    ("comment", r"<!--|<!DOCTYPE[^<>]{0,200}>"),
    ("board", r"\[(?P<ended>/)?(?i:(?P<board>colou?r|quote|spoiler|center|indent|highlight|noparse|strike|youtube|video|media|"
     r"attach|email|image|table|align|size|font|face|left|right|code|list|hide|user|url|img|sub|sup|h[1-6]|li|ul|ol|tr|td|th|(?<=/)[bius]"
     r"|[bius](?=\][\s\S]{1,400}?\[/[bius]\])))"
     r"(?:[= ][^\[\]\n]{1,300})?\](?!\()|(?<![^\n\]\s])\[\*\]"),
    ("wiki", r"!?\[\[(?P<target>(?:[^\[\]|\n]{1,200}\|){0,9})(?P<shown>[^\[\]|\n]{1,200})\]\]|__(?:NO)?TOC__"
     r"|\[(?P<address>https?://[^\s\[\]]{1,500}[ ])(?P<label>[^\[\]\n]{1,200})\]|\{\{(?![<%])(?P<template>[^{}\n]{1,400})\}\}"),
    ("note", r"\[\^[\w-]{1,30}\]|【\d{1,3}(?::\d{1,3})?†[^】\n]{0,80}】"
     r"|(?<=[^\s\[({])\[\d{1,3}(?:\s?[,;–-]\s?\d{1,3}){0,6}\](?!\(|\s?=[^=]|\.[a-z_])"
     r"|\[(?:citation needed|clarification needed|better source needed|who\?|when\?|来源请求|(?:note|注)\s?\d{1,2})\]"
     r"|(?<=[a-z.,;)”\"])\[[a-hj-rt-z]\](?![A-Za-z(])|(?<=\])\[[^\[\]\n]{0,80}\]"),
    ("cited", r"(?<=[A-Za-z,.;:)”\"’*_\u4e00-\u9fff。，])[ ]\[\d{1,3}(?:\s?[,;–-]\s?\d{1,3}){0,6}\](?=[\s.,;:)。，\[]|$)"),
    ("callout", r"(?<![^\n>\s])\[!(?P<callout>[A-Za-z]{3,12})\][+-]?"),
    ("brace", r"[ ]?\{[#.:][\w .#=:\"'-]{1,120}\}|\{\{[<%][^{}\n]{1,200}[>%]\}\}|\{%[^{}\n]{1,200}%\}"),
    ("pair", r"(?<![\w*\\])(?P<stars>\*{1,3})(?=[^\s*])(?P<stressed>[^*\n<>\[\]`~={}:^|\\]{1,120})(?<=\S)(?P=stars)(?![\w*])"
     r"|(?<![A-Za-z0-9*\\])(?P<dots>\*{1,3})(?P<stressed_2>[$€£¥￥+-]?\d[\d.,:/%]{0,20})(?P=dots)(?![A-Za-z0-9*])"
     r"|(?<![=\w])==(?=[^\s=])(?P<marked>[^=\n]{1,200})(?<=\S)==(?![=\w])"
     r"|(?<![+\w])\+\+(?=[^\s+])(?P<inserted>[^+\n]{1,200})(?<=\S)\+\+(?![+\w])"
     r"|(?<=[A-Za-z0-9)])~(?P<lowered>[0-9A-Za-z+-]{1,6})~(?!~)"),
    ("face", r"(?<![^\s\u4e00-\u9fff.,!?。，！？~])(?:[:;]['^-]?(?:[DPpOo3*|\\/]|[)(]{1,3})|=[)(DP]|[xX]D{1,3}|:'\(|"
     r"(?:<|&lt;)/?3{1,2})(?![\w/])|(?<![\w^(])(?:\^[_.-]?\^|[TQ]_+[TQ]|[oO0]_+[oO0]|>_+<|-_+-|u_u|[xX]_[xX]|Q[AaWw]Q|[oO]rz|;_;|=_=|¯\\?_\(ツ\)_/¯|\\[oOm0]/|ಠ_ಠ)(?![\w^])"
     r"|(?<!\\)[(（](?P<face>[^()（）\n]{3,14})[)）][╯︵┻━ノヽ彡]{0,8}"),
)  # fmt: skip
_MARKDOWN = frozenset(["board", "wiki", "callout", "note", "cited", "brace", "pair", "face"])
_SHAPE = re.compile("|".join(f"(?P<{name}_shape>{pattern})" for name, pattern in _SHAPES))
_MAY_BE = re.compile(r"[<&\[【◁`=~^{:;+*(（_\\]|XD|xD|Q[AaWw]Q|orz|Orz")
_QUOTED = re.compile(r"\s+[\w:.-]+\s?=\s?[\"']")
_FLAGS = [
    "",
    *["checked", "disabled", "hidden", "open", "controls", "async", "defer", "selected", "nowrap", "required", "noshade"],
]
_GAPS: dict[Sound | None, str] = {Sound.BLOCK: "\n", Sound.LINE: "\n", Sound.CELL: ", "}
_END_OF_HIDDEN = re.compile(
    r"\[/THINK\]|◁/think▷|<[|｜](?:end_of_thought|END_THINKING|tool[▁_]calls(?:_section)?[▁_]end|end|start|call|return|channel)[|｜]>"
    r"|<channel\|>"
)
_BOARD_ELEMENTS = {"quote": "blockquote", "list": "ul", "indent": "blockquote", "align": "div"}
_BOARD_PICTURES = frozenset(["img", "image", "youtube", "video", "media", "attach"])
_PICTURE_PAGE = re.compile(r"\[\[:?(?:File|Image|Category|文件|檔案|图像|分类|分類):", re.IGNORECASE)
_SHOWN_TEMPLATES = frozenset(["convert", "cvt", "lang", "nowrap", "nobr", "small", "transl", "abbr", "nobold", "zh"])
_EMPTY_TEMPLATES = frozenset(
    ["citation needed", "cn", "fact", "reflist", "clear", "who", "when", "sic", "toc", "stub", "来源请求"]
)
_KEEPS_CITED = re.compile(r"\b(?:in|see|by|of|from|to|and|with|cf\.?|ref\.?|refs\.?|at)$|\],$", re.IGNORECASE)
_FACE = re.compile(r"(?P<eye>\S)\s?[_.ω‿▽□﹏дД-]{1,3}\s?(?P=eye)|[\^°´`･・ω◕≧≦﹏▽□╥︶‿ಠ><;￣ﾟ_]", re.IGNORECASE)
_WORDS = re.compile(r"[\u4e00-\u9fff]|[A-Za-z0-9]{2}")

_LINE_END = re.compile(r"[^\S\n\r\u2028\u2029]{0,40}(?:\r\n|[\n\r\v\f\x85\u2028\u2029])[^\S\n\r\u2028\u2029]{0,40}")
_FENCE = re.compile(r"[ ]{0,12}(?:`{3,}|~{3,})[^`\n]{0,60}$")
_QUOTE = re.compile(r"(?:>[ ]{0,3}){1,6}")
_STRUCTURE = re.compile(
    r"[-*+•–—○●▪·][ \t]|\d{1,3}[.)、](?!\d)|[(（]?[A-Za-z\d]{1,3}[)）][ ]|[一二三四五六七八九十]{1,3}、|#{1,6}[ ]|\|"
    r"|[-=*_~#+]{3}|\[[^\]\n]{1,80}\]:|[$>][ ]|[A-Z][\w ]{0,24}[:：][ ]|[\u4e00-\u9fff]{1,6}[:：]"
    r"|(?:[a-z]|[ivx]{2,4})\.(?!\S)"
)
_APART = re.compile(r"\s*(?:#{1,6}[ ]|\||[-=*_~#+]{3})")
_TIMED = re.compile(r"\d{1,2}[:.][0-5]\d(?:\s?[-–]\s?\d{1,2}[:.][0-5]\d)?\s")
"""begins a line of a timetable"""
_APART_WORD = re.compile(
    r"(?:twen|thir|for|fif|six|seven|eigh|nine)ty$|^(?:well|self|non|half|ex|high|low|long|short)$", re.IGNORECASE
)


def edits(source: str, options: NormalizeOptions, behind: str = "") -> list[Edit]:
    """Returns the edits of a text; they do not overlap. Those of line ends in what stands before have places below 0."""
    fences = list(_fences(source)) if "```" in source or "~~~" in source else []
    found = list(_inline(source, options)) if _MAY_BE.search(source) else []
    edge = len(behind)
    ends = (edit._replace(start=edit.start - edge, stop=edit.stop - edge) for edit in _line_ends(behind + source))
    found += (edit for edit in ends if edit.start >= 0 or edit.stop <= 0)
    ordered: list[Edit] = []
    for edit in sorted(found, key=lambda edit: (edit.start, -edit.stop)):
        if (not ordered or edit.start >= ordered[-1].stop) and not any(start < edit.start < stop for start, stop in fences):
            ordered.append(edit)
    return ordered


def whole_lines(source: str) -> str:
    """Returns a text with a blank for each end of a line in a sentence; if it has one, any other is that of a paragraph."""
    pieces, place = [""], 0
    for edit in _line_ends(source):
        pieces += [source[place : edit.start].replace("\n", "\n\n"), edit.text]
        place = edit.stop
    return "".join([*pieces, source[place:].replace("\n", "\n\n")]) if place else source


def _inline(source: str, options: NormalizeOptions) -> Iterator[Edit]:
    known: set[str] = set()
    place = 0
    while match := _SHAPE.search(source, place):
        name = str(match.lastgroup).removesuffix("_shape")
        place = match.end()
        if name == "code" or not (options.markdown if name in _MARKDOWN else options.html):
            continue
        for edit in _edits_of(name, match, known):
            place = max(place, edit.stop)
            yield edit


def _edits_of(name: str, match: re.Match[str], known: set[str]) -> Iterator[Edit]:
    source, start, stop = match.string, match.start(), match.end()
    match name:
        case "raised":
            power = raised(source[max(0, start - 8) : start], match["power"] or match["power_2"])
            yield Edit(start, stop, power, "" if power else "markup")
        case "pause":
            yield Edit(start, stop, ", ")
        case "token":
            yield Edit(start, stop, " ")
        case "note" | "brace":
            yield Edit(start, stop)
        case "cited" if not _KEEPS_CITED.search(source, max(0, start - 12), start):
            yield Edit(start, stop)
        case "callout":
            yield Edit(start, match.start("callout"))
            yield Edit(match.end("callout"), stop, ". ")
        case "pair":
            group = next(key for key in ("stressed", "stressed_2", "marked", "inserted", "lowered") if match[key])
            yield Edit(start, match.start(group))
            yield Edit(match.end(group), stop)
        case "face" if match["face"] is None or _is_face(match["face"]):
            yield Edit(start, stop, " ", "emoji")
        case "comment":
            end = stop if match[0].startswith("<!D") else _behind("-->", source, stop, known)
            if end:
                yield Edit(start, end, " ")
        case "tag":
            yield from _tag(match, known)
        case "hidden":
            behind = _END_OF_HIDDEN.search(source, stop)
            is_first = "channel" in match[0] or not source[:start].strip()
            yield Edit(start, behind.start() if behind else len(source) if is_first else stop, " ")
        case "board":
            yield from _board(match, known)
        case "wiki":
            yield from _wiki(match)


def _board(match: re.Match[str], known: set[str]) -> Iterator[Edit]:
    """BBCode: [b]now[/b], [quote=Ann]; one without its end, such as a[i], is text."""
    start, stop, name = match.start(), match.end(), (match["board"] or "*").lower()
    gap = "\n" if name == "*" else _GAPS.get(SOUNDS.get(_BOARD_ELEMENTS.get(name, name)), "")
    if name == "*" or (match["ended"] and f"[{name}" in known):
        known.discard(f"[{name}")
        yield Edit(start, stop, gap)
    elif not match["ended"]:
        end = stop if f"[{name}" in known else _behind(f"[/{name}]", match.string, stop, known)
        if end and name in _BOARD_PICTURES:
            yield Edit(start, end, " ")
        elif end:
            known.add(f"[{name}")
            yield Edit(start, stop, gap)


def _wiki(match: re.Match[str]) -> Iterator[Edit]:
    """Wikitext: [[page|shown]], [address shown], {{template|argument}}; {{name}} of a form letter is text."""
    start, stop = match.span()
    if match["template"]:
        name, *arguments = (part.strip() for part in match["template"].split("|"))
        shown = " ".join(arguments[:2]) if name.lower() in ("convert", "cvt") else arguments[-1] if arguments else ""
        if arguments and name.lower() in _SHOWN_TEMPLATES:
            yield Edit(start, stop, shown, "")
        elif arguments or name.lower() in _EMPTY_TEMPLATES:
            yield Edit(start, stop)
        return
    group = "shown" if match["shown"] else "label"
    if not match[group] or match[0][0] == "!" or _PICTURE_PAGE.match(match[0]):
        yield Edit(start, stop, " ")
    else:
        yield Edit(start, match.start(group))
        yield Edit(match.end(group), stop)


def _is_face(inner: str) -> bool:
    signs = list(_FACE.finditer(inner))
    return not _WORDS.search(inner) and (len(signs) > 1 or any(sign["eye"] for sign in signs))


def _tag(match: re.Match[str], known: set[str]) -> Iterator[Edit]:
    source, start, stop, name = match.string, match.start(), match.end(), match["name"].lower()
    sound = SOUNDS.get(name)
    if "=" not in match["attributes"] and match["attributes"].strip().lower() not in _FLAGS:
        return  # a<b and c>d
    if sound is None and name not in INLINE:
        is_word = start > 0 and source[start - 1].isalnum() and not match["close"]  # List<String>
        if is_word or (match["attributes"] and not _QUOTED.match(match["attributes"])):
            return
    longest = 1000 if name == "ref" else 100
    if sound in (Sound.SILENT, Sound.MARK) and not match[0].endswith("/>"):
        is_thought = name in THOUGHTS
        is_open = f"<{name}" in known
        known.add(f"<{name}")
        if match["close"]:  # the template of a model may have written the beginning
            yield Edit(0 if is_thought and not is_open else start, stop, " ")
            return
        end = _behind(f"</{name}>", source, stop, known)
        if end and (sound is Sound.SILENT or end - stop < longest):
            yield Edit(start, end, "" if sound is Sound.MARK else " ")
        elif sound is Sound.SILENT and (not is_thought or not source[:start].strip()):
            yield Edit(start, len(source))
        else:
            yield Edit(start, stop)
        return
    yield Edit(start, stop, _GAPS.get(sound, "") if sound or name in INLINE else " ")


def _behind(end: str, source: str, place: int, known: set[str]) -> int:
    """Returns the place behind an end; 0: it is nowhere in the rest."""
    if end in known:
        return 0
    found = re.compile(re.escape(end), re.IGNORECASE).search(source, place)
    if found is None:
        known.add(end)
    return found.end() if found else 0


def _fences(source: str) -> Iterator[tuple[int, int]]:
    """Yields the places between the fences of code."""
    begin, place = -1, 0
    for line in source.splitlines(keepends=True):
        if _FENCE.match(line.rstrip()):
            if begin >= 0:
                yield begin, place
            begin = place if begin < 0 else -1
        place += len(line)
    if begin >= 0:
        yield begin, len(source)


def _line_ends(source: str) -> Iterator[Edit]:
    """Yields a blank, or nothing, in place of the ends of lines in a sentence."""
    ends = list(_LINE_END.finditer(source))
    if not ends:
        return
    edges = [0, *(end.end() for end in ends)]
    lines = [source[begin : end.start()] for begin, end in zip(edges, ends, strict=False)] + [source[edges[-1] :]]
    lists, ended = _lists(lines), _ended(lines)
    rows = {number for number in range(1, len(lines)) if "|" in lines[number - 1] and "|" in lines[number]}
    for number, (end, before, after) in enumerate(zip(ends, lines, lines[1:], strict=False)):
        quote = _QUOTE.match(after) if _QUOTE.match(before) else None
        rest = after[quote.end() :] if quote else after
        if (
            not before.strip()
            or not rest.strip()
            or _STRUCTURE.match(rest)
            or _APART.match(before)
            or (_TIMED.match(before) and _TIMED.match(rest))
        ):
            continue
        if not rows.isdisjoint((number, number + 1, number + 2)):
            continue  # one of a table
        stop = end.end() + (quote.end() if quote else 0)
        if before[-1] in "-\u00ad‐" and before[-2:-1].isalpha() and rest[0].islower():
            last = re.split(r"[\s-]", before[:-1][-24:])[-1]
            yield Edit(end.start(), stop, " ", "") if _APART_WORD.search(last) else Edit(end.start() - 1, stop, "", "")
        elif goes_on(before, rest, is_list=number in lists, is_ended=ended[number + 1]) or (
            _STRUCTURE.match(before.lstrip()) and end[0][-1] in " \t"
        ):
            yield Edit(end.start(), stop, " ", "")


def _lists(lines: list[str]) -> set[int]:
    """Returns the numbers of lines in lists: three and more short ones."""
    paragraphs = [list(group) for _, group in groupby(range(len(lines)), lambda number: not lines[number].strip())]
    return {
        number for group in paragraphs if len(group) > 2 and all(is_short(lines[index]) for index in group) for number in group
    }


def _ended(lines: list[str]) -> list[bool]:
    """Returns for each line whether a sentence ends in it, or goes on from it, in lines with small letters, to its end."""
    ended = [False] * (len(lines) + 1)
    for number, line in reversed(list(enumerate(lines))):
        ended[number] = line.lstrip(" \t>")[:1].islower() and (ended[number + 1] or bool(ENDED.search(line)))
    return ended
