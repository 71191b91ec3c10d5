"""Elements: what each element of HTML does to the text in it, for pages, books, Markdown and texts alike.

Out:   Sound by the name of an element; which attributes make an element silent
Never: parsing
"""

import re
from collections.abc import Mapping
from enum import Enum, auto


class Sound(Enum):
    """What is heard of an element."""

    BLOCK = auto()
    """a paragraph of its own"""
    CELL = auto()
    """a pause between it and the one before"""
    LINE = auto()
    """the end of a line"""
    SILENT = auto()
    """nothing of what stands in it"""
    MARK = auto()
    """nothing of it, as long as it stays within its paragraph"""
    RAISED = auto()
    """a power, the end of an ordinal, or the mark of a note"""
    LETTER = auto()
    """a picture: spoken if its text in place of the picture is short enough for a letter"""
    FORMULA = auto()


def _names(listed: str) -> frozenset[str]:
    return frozenset(listed.split())


_THOUGHTS = (
    "think thinking thought reasoning scratchpad tool_call tool_calls function_call function_calls tool_result seed:think"
)
THOUGHTS = _names(_THOUGHTS)
"""what a model writes for itself, and not for who listens"""
_SOUNDS = {
    Sound.BLOCK: """p div h1 h2 h3 h4 h5 h6 ul ol li dl dt dd blockquote pre hr table caption tr thead tbody tfoot section
    article main header footer nav aside address figure figcaption details summary fieldset legend form center html body option
    paragraph sentence""",
    Sound.CELL: "td th",
    Sound.LINE: "br",
    Sound.SILENT: f"""script style head title template noscript svg audio video object iframe canvas map button select textarea
    datalist noframes metadata {_THOUGHTS}""",
    Sound.MARK: "rt rp rtc ref",
    Sound.RAISED: "sup",
    Sound.LETTER: "img",
    Sound.FORMULA: "math",
}
SOUNDS: Mapping[str, Sound] = {name: sound for sound, names in _SOUNDS.items() for name in _names(names)}
"""any other element is part of the sentence that it stands in"""
INLINE = _names(
    """a b i u s em strong span code small big font mark del ins q cite kbd label tt var samp ruby rb abbr time wbr sub bdi bdo
    dfn data strike input link meta source track path area base col"""
)
"""parts of words: their tags separate nothing; an unknown element's do"""
VOID = frozenset(["area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"])
"""they have no end"""

PROGRAM_SIGNS = re.compile(r"[!-$&(-+/:-@\[-`{-~]+|(?<!\w)['\"-]+|['\"]+(?!\w)|(?<=\w)\"|-(?=\W)")
"""what is not heard of a program"""
_PROSE_FENCES = _names("text txt plain plaintext markdown md none email mail poem quote csv tsv output")


def is_program(language: str) -> bool:
    """True for what stands in a fence of code, or an element of its class, with the name of a programming language."""
    return language != "" and language.lower() not in _PROSE_FENCES


LONGEST_MARK = 24
"""of a page number or the mark of a note; what is longer is text [characters]"""
LONGEST_LETTER = 3
"""of the text in place of a picture that is a letter [characters]"""

_KINDS = frozenset(["pagebreak", "noteref", "doc-pagebreak", "doc-noteref", "backlink", "doc-backlink"])
_CLASSES = _names(
    """pagenum pagenumber page-number page_number pageno pagebreak page-break noteref footnote-ref footnoteref footnote-backref
    fnref endnote-ref endnoteref annoref"""
)
_RAISED = _names("sup super superscript")
_PAGE_ID = re.compile(r"(?:page|pg|p)[_.-]?\d{1,5}", re.IGNORECASE)
_PAGE_TEXT = re.compile(r"[\[({]?\s?(?:(?:page|pg|p)\.?\s?)?\d{1,5}\s?[\])}]?", re.IGNORECASE)
_UNSEEN = re.compile(
    r"display\s{0,9}:\s{0,9}none|visibility\s{0,9}:\s{0,9}hidden|mso-hide\s{0,9}:\s{0,9}all"
    r"|(?:font-size|max-height|opacity)\s{0,9}:\s{0,9}0(?:px|pt|em|rem|%)?\s{0,9}(?:;|!|$)",
    re.IGNORECASE,
)
"""of the preview that an e-mail hides, as well"""


def is_hidden(attributes: Mapping[str, str]) -> bool:
    """True for an element that no reader sees."""
    return (
        attributes.get("hidden", "no").lower() not in ("no", "until-found")
        or attributes.get("aria-hidden", "").lower() == "true"
        or bool(_UNSEEN.search(attributes.get("style", "")[:1000]))
    )


def is_mark(attributes: Mapping[str, str]) -> bool:
    """True for the number of a page and for the mark of a note."""
    kinds = f"{attributes.get('epub:type', '')} {attributes.get('role', '')}".lower().split()
    classes = attributes.get("class", "").lower().split()
    return not _KINDS.isdisjoint(kinds) or not _CLASSES.isdisjoint(classes)


_POWERS = str.maketrans("0123456789+-−–()n", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁻⁻⁽⁾ⁿ")
_POWER = re.compile(r"[+\-−–]?\d{1,4}|n")
_ORDINAL = re.compile(r"st|nd|rd|th|er|e|o|a|º|ª", re.IGNORECASE)
_UNIT = re.compile(r"(?<![A-Za-z])(?:[kcmdµμn]?m|s|ft|in|yd|mi|[A-Za-z]|[b-df-hj-np-tvwxz]{2})\s?$")


def raised(before: str, text: str) -> str:
    """Returns what is spoken of raised text: a power in signs for one, the end of an ordinal; empty for the mark of a note.

    Args:
        before: what stands before it, at least its last characters.
    """
    text = text.strip()
    digit = before[-1:].isdigit()
    if _POWER.fullmatch(text) and (digit or _UNIT.search(before[-4:]) or before[-1:] in (")", "）", "]")):
        return text.translate(_POWERS)
    if digit and _ORDINAL.fullmatch(text):
        return text
    is_abbreviation = len(before) > 0 and before[-1].isupper() and text.isalpha()  # Mr, Mlle
    is_note = is_note_text(text) or (len(text) == 1 and not is_abbreviation)
    return "" if is_note else text


def is_note_text(text: str) -> bool:
    """True for what marks of notes are made of: a number or signs, in brackets or not."""
    return text.strip("[]()*†‡§,;. \u200b").isdigit() or not any(map(str.isalnum, text))


def is_page_number(attributes: Mapping[str, str], text: str) -> bool:
    """True for the number of a page that only its id tells from text."""
    return bool(_PAGE_ID.fullmatch(attributes.get("id", "")) and _PAGE_TEXT.fullmatch(text.strip()))


def is_raised(attributes: Mapping[str, str]) -> bool:
    """True for what is raised as `sup` is."""
    classes = attributes.get("class", "").lower().split()
    return not _RAISED.isdisjoint(classes) or "vertical-align:super" in attributes.get("style", "").replace(" ", "").lower()
