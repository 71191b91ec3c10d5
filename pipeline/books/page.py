"""Page: the text of a page of HTML or XHTML, block by block.

In:    bytes in any encoding, or text; however wrong
Out:   Blocks; the links of a table of contents; the tree of a file that is nearly XML
Owns:  how a page is decoded
Never: what an element means (pipeline/text/markup/elements.py); entities, DTDs, a network; an error for wrong markup

A page that is well-formed XML is read as such, any other as browsers do: libxml2 reads both. Of 20 wrong pages 17 had the same
text in the same order with html5lib, which takes 2.1 s for the tree of 1 MB, and this 0.05 s. In the readers' process alone.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from html import escape
from html.entities import html5
from typing import Any

from lxml import etree

from pipeline.text.markup.elements import (
    LONGEST_LETTER,
    LONGEST_MARK,
    PROGRAM_SIGNS,
    SOUNDS,
    VOID,
    Sound,
    is_hidden,
    is_mark,
    is_note_text,
    is_page_number,
    is_program,
    is_raised,
    raised,
)

Element = Any
"""of lxml, which has no types"""

_LEVELS = {f"h{level}": level for level in range(1, 7)}
_SPACES = re.compile(r"\s+")
_INVISIBLE = "\ufeff\u200b\u200c\u2060"


@dataclass(slots=True)
class Block:
    """A paragraph, a heading, an item of a list, a row of a table."""

    text: str = ""
    level: int = 0
    """of a heading, 1 to 6; 0: it is none"""
    ids: list[str] = field(default_factory=list)
    """of the elements that begin with it or before it, since the block before"""


def blocks_of(page: bytes | str) -> list[Block]:
    """Returns the blocks of a page; the last one may have ids and no text."""
    reader = _Reader()
    reader.read(tree_of(page))
    return reader.blocks


def links_of(page: bytes) -> Iterator[tuple[str, str]]:
    """Yields target and text of each link of a table of contents."""
    for link in elements_of(tree_of(page), "a"):
        kinds = [_attributes(nav).get("epub:type", "toc") for nav in link.iterancestors() if name_of(nav) == "nav"]
        if "href" in link.attrib and all(kind == "toc" for kind in kinds):
            yield link.attrib["href"], text_of(link)


def elements_of(root: Element, name: str) -> list[Element]:
    """Returns the elements of a name in small letters, whatever their namespace."""
    return [element for element in root.iter(etree.Element) if name_of(element) == name]


def text_of(element: Element) -> str:
    """Returns all text of an element in one line."""
    return " ".join("".join(element.itertext(etree.Element)).split()).strip(_INVISIBLE)


def name_of(element: Element) -> str:
    """Returns the name of an element in small letters, without its namespace or prefix."""
    return str(element.tag).rpartition("}")[2].rpartition(":")[2].lower()


_ENTITY = re.compile(r"&([A-Za-z][A-Za-z0-9]{1,30});")
_KEPT_ENTITIES = frozenset(["amp", "lt", "gt", "quot", "apos"])
_ILLEGAL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]|&#(?:[xX][0-9A-Fa-f]{7}|[0-9]{8})[0-9A-Fa-f]*;?")
_PROLOGUE = re.compile(
    r"\s*(?:<\?xml[^>]{0,500}\?>)?\s*(?:<!DOCTYPE\s[^\[>]{0,2000}(?:\[[^\]]{0,20000}\]\s*)?>)?", re.IGNORECASE
)
_CDATA = re.compile(r"<!\[CDATA\[(.*?)\]\]>", re.DOTALL)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_RAW = ("script", "style", "textarea", "iframe", "noframes")
_SILENT = re.compile(
    rf"<({'|'.join(name for name, sound in SOUNDS.items() if sound is Sound.SILENT and name not in ('head', 'title'))})"
    r"(?:\s[^<>]{0,2000})?(?<!/)>",
    re.IGNORECASE,
)
_TITLE = re.compile(r"<title(?:\s[^<>]{0,500})?>", re.IGNORECASE)
_TAG = re.compile(r"<[^<>]*>")
_CLOSED = re.compile(r"<([A-Za-z][\w:.-]{0,60})((?:\s[^<>]{0,2000})?)/>")


def tree_of(page: bytes | str) -> Element:
    """Returns the tree of a page, whose root is any element."""
    text = page if isinstance(page, str) else decoded(page)
    text = _ENTITY.sub(_character, _ILLEGAL.sub("", text.lstrip(_INVISIBLE)))
    is_xml = "xmlns" in text[:3000] or text.lstrip().startswith("<?xml")
    text = _PROLOGUE.sub("", text, count=1)
    if is_xml:
        try:
            parser = etree.XMLParser(encoding="utf-8", resolve_entities=False, no_network=True, huge_tree=True)
            return etree.fromstring(text.encode(), parser)
        except etree.XMLSyntaxError:
            text = _CLOSED.sub(_opened, text)
    text = _without(text)
    parser = etree.HTMLParser(encoding="utf-8", no_network=True, huge_tree=True)
    root = etree.fromstring(f"<html><body>{text}".encode(), parser)
    if parser.error_log.filter_from_fatals():  # deeper than the parser goes: its text without its structure
        root = etree.fromstring(f"<html><body>{_TAG.sub('<hr>', text)}".encode(), parser)
    return root


def _character(match: re.Match[str]) -> str:
    name = match[1]
    return match[0] if name in _KEPT_ENTITIES else html5.get(f"{name};", match[0])


def _opened(match: re.Match[str]) -> str:
    name, attributes = match[1], match[2]
    return match[0] if name.lower() in VOID else f"<{name}{attributes}></{name}>"


def _without(text: str) -> str:
    """Returns a page without sections of characters and comments; what is left open is text."""
    before, end, behind = text.rpartition("]]>")
    text = _CDATA.sub(lambda match: escape(match[1], quote=False), before + end) + behind
    before, end, behind = text.rpartition("-->")
    text = _COMMENT.sub("", before + end) + behind.replace("<!--", "&lt;!--")
    if "</title" not in text.lower():
        text = _TITLE.sub("", text)
    before, end, behind = text.rpartition(">")
    return _without_silent(before + end) + behind.replace("<", "&lt;")


def _without_silent(text: str) -> str:
    """Returns a page without its silent elements: what is open in them stays in them, and one without an end is none."""
    pieces, place, endless = list[str](), 0, set[str]()
    for start in _SILENT.finditer(text):
        name = start[1].lower()
        if start.start() >= place:
            end = None if name in endless else re.compile(rf"</{name}\s{{0,9}}>", re.IGNORECASE).search(text, start.end())
            if end is None and name in _RAW:
                continue
            if end is None:
                endless.add(name)
            pieces.append(text[place : start.start()])
            place = end.end() if end else start.end()
    return "".join(pieces) + text[place:]


class _Reader:
    """Walks a tree once, without recursion."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self._block = Block()
        self._pieces: list[str] = []
        self._silence: Element | None = None  # the outermost element that is silent
        self._is_mark = False  # it is so within its paragraph alone
        self._is_program = False  # the block is one
        self._verbatim = 0  # open elements whose white space counts
        self._numbers: list[int | None] = []  # of the open lists; None: its items have none
        self._number = ""  # of the item whose text has not begun

    def read(self, root: Element) -> None:
        for event, element in etree.iterwalk(root, events=("start", "end", "comment", "pi")):
            if event == "start":
                self._start(element)
                self._say(element.text)
            else:
                if event == "end":
                    self._end(element)
                self._say(element.tail if element is not root else "")
        self._end_block()
        if self._block.ids:
            self.blocks.append(self._block)

    def _start(self, element: Element) -> None:
        name, attributes = name_of(element), _attributes(element)
        sound = Sound.RAISED if name == "span" and is_raised(attributes) else SOUNDS.get(name)
        if sound is Sound.BLOCK and self._is_mark:
            self._silence, self._is_mark = None, False
        if self._silence is None and sound is Sound.BLOCK:
            self._end_block()
            self._block.level = _LEVELS.get(name, 0)
        self._block.ids += [value for key in ("id", "name") if (value := attributes.get(key))]
        if self._silence is not None:
            return
        if is_hidden(attributes) or sound is Sound.SILENT or _is_other(name, element, attributes):
            self._silence = element
        elif sound is Sound.MARK or (_is_short(element) and self._is_mark_here(name, element, attributes)):
            self._silence, self._is_mark = element, True
        elif (
            sound is Sound.FORMULA
            or (sound is Sound.RAISED and len(element) < 2)
            or "math" in attributes.get("class", "").split()
        ):
            self._say(self._reading(sound, element, attributes))
            self._silence, self._is_mark = element, True
        elif sound is Sound.LINE:
            self._pieces.append("\n")
        elif sound is Sound.CELL:
            self._begin_cell()
        elif sound is Sound.LETTER and len(attributes.get("alt", "")) <= LONGEST_LETTER:
            self._say(attributes.get("alt"))
        self._enter(name, attributes)

    def _enter(self, name: str, attributes: Mapping[str, str]) -> None:
        if name in ("ul", "ol"):
            start = attributes.get("start", "1")
            is_note = "footnotes-list" in attributes.get("class", "")
            is_numbered = name == "ol" and not is_note and start.isdecimal() and len(start) < 7
            self._numbers.append(int(start) if is_numbered else None)
        elif name == "li" and self._numbers and (number := self._numbers[-1]) is not None:
            self._number, self._numbers[-1] = f"{number}. ", number + 1
        self._verbatim += name == "pre"
        prefix, _, language = attributes.get("class", "").partition("language-")
        self._is_program |= name == "code" and self._verbatim > 0 and prefix == "" and is_program(language)

    def _is_mark_here(self, name: str, element: Element, attributes: Mapping[str, str]) -> bool:
        if is_mark(attributes) or is_page_number(attributes, text := text_of(element)):
            return True
        is_behind_text = bool(self._pieces) and not self._pieces[-1].endswith((" ", "\n", "(", "[", "（", "§", "-", "–"))
        return name == "a" and "#" in attributes.get("href", "") and is_behind_text and is_note_text(text) and bool(text)

    def _begin_cell(self) -> None:
        while self._pieces and not self._pieces[-1].strip():
            self._pieces.pop()
        if self._pieces:
            self._pieces.append(" " if self._pieces[-1].rstrip()[-1] in ",.!?;:，。！？；：" else ", ")

    def _end(self, element: Element) -> None:
        name = name_of(element)
        if element is self._silence:
            self._silence, self._is_mark = None, False
            if SOUNDS.get(name) is not Sound.BLOCK:
                return
        if self._silence is not None:
            return
        if name in ("ul", "ol") and self._numbers:
            self._numbers.pop()
        self._verbatim -= name == "pre" and self._verbatim > 0
        if SOUNDS.get(name) is Sound.BLOCK:
            self._end_block()

    def _reading(self, sound: Sound | None, element: Element, attributes: Mapping[str, str]) -> str:
        """Returns what is spoken in place of an element."""
        if sound is Sound.RAISED:
            around = [element.getparent(), *element]
            is_note = any(link is not None and name_of(link) == "a" and "href" in link.attrib for link in around)
            return "" if is_note else raised("".join(self._pieces[-2:]), text_of(element))
        if sound is Sound.FORMULA:
            return f" {attributes.get('alttext') or _formula(element)} "
        return f"${text_of(element)}$"

    def _say(self, text: str | None) -> None:
        if text and self._silence is None:
            self._pieces.append(text if self._verbatim else _SPACES.sub(" ", text))

    def _end_block(self) -> None:
        """Keeps the block if it has text; ids without text belong to the next one."""
        written = "".join(self._pieces).replace("\ufffd", "")
        written, self._is_program = PROGRAM_SIGNS.sub(" ", written) if self._is_program else written, False
        lines = (" ".join(line.split()) for line in written.split("\n"))
        text = "\n".join(lines).strip().strip(_INVISIBLE)
        self._pieces.clear()
        if text:
            self._block.text = self._number + text
            self.blocks.append(self._block)
            self._block, self._number = Block(), ""
        else:
            self._block = Block(ids=self._block.ids)


def _attributes(element: Element) -> dict[str, str]:
    """Returns the attributes with small names, and a namespace's as epub:type."""
    if not element.attrib:
        return {}
    attributes = {}
    for name, value in element.attrib.items():
        namespace, _, local = str(name).rpartition("}")
        attributes[f"epub:{local}" if namespace.endswith("/ops") else local.lower()] = str(value)
    return attributes


def _is_other(name: str, element: Element, attributes: Mapping[str, str]) -> bool:
    """True for a list of pages or figures, and for a case of epub:switch, whose default is read."""
    is_case = name == "case" and (outer := element.getparent()) is not None and name_of(outer) == "switch"
    return is_case or (name == "nav" and attributes.get("epub:type", "toc") != "toc")


def _is_short(element: Element) -> bool:
    length = 0
    return all((length := length + len(text.strip())) <= LONGEST_MARK for text in element.itertext())


def _formula(element: Element) -> str:
    """Returns a formula as one writes it in a line, or as TeX if its source is there."""
    for note in elements_of(element, "annotation"):
        if "tex" in note.attrib.get("encoding", "").lower():
            return f"${text_of(note)}$"
    return _written(element)


def _written(element: Element, depth: int = 0) -> str:
    name, inner = name_of(element), [_written(child, depth + 1) for child in element.iterchildren(etree.Element) if depth < 50]
    if name in ("msup", "mfrac") and len(inner) == 2:
        sign, last = "^" if name == "msup" else "/", inner[1] if len(inner[1]) < 2 else f"({inner[1]})"
        return f"{inner[0]}{sign}{last}"
    if not inner or name.startswith("annotation"):
        return "" if name.startswith("annotation") else f" {text_of(element)} " if name == "mo" else text_of(element)
    return "".join(inner)


_MARKS = ((b"\xef\xbb\xbf", "utf-8"), (b"\xff\xfe\0\0", "utf-32"), (b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"))
_DECLARED = re.compile(
    rb"""<\?xml[^>]{0,200}?encoding\s{0,9}=\s{0,9}["']\s{0,9}([\w.:-]{1,40})|"""
    rb"""<meta\s[^>]{0,300}?charset\s{0,9}=\s{0,9}["']?\s{0,9}([\w.:-]{1,40})""",
    re.IGNORECASE,
)
_WIDER = {
    **dict.fromkeys(["gb2312", "gbk", "gb_2312-80", "x-gbk", "cp936"], "gb18030"),
    **dict.fromkeys(["iso-8859-1", "latin-1", "latin1", "ascii", "us-ascii", "iso8859-1"], "windows-1252"),
    **dict.fromkeys(["shift_jis", "sjis", "x-sjis"], "cp932"),
    **dict.fromkeys(["big5", "x-x-big5"], "big5hkscs"),
}
"""as browsers do, the encoding that has the declared one in it"""
_FREQUENT = frozenset("的一是不了在有我他这這個个人们們来來上，。“”「」")
_MOST_WRONG = 0.1  # of the characters that are not ASCII


def decoded(content: bytes) -> str:
    """Returns the text of a page: by its byte order mark, by what it declares if that is true, else by what it can be."""
    for mark, name in _MARKS:
        if content.startswith(mark):
            return content.decode(name, "ignore").lstrip("\ufeff")
    if b"\0" in content[:4]:
        return content.decode("utf-16-le" if content[1:2] == b"\0" else "utf-16-be", "ignore")
    names = [_WIDER.get(name, name) for name in (_declared(match) for match in _DECLARED.finditer(content[:4096]))]
    for name in [*(name for name in names if not name.startswith(("utf-16", "utf-32", "ucs"))), "utf-8"]:
        try:
            return content.decode(name)
        except (UnicodeDecodeError, LookupError):
            continue
    text = content.decode("utf-8", "replace")
    wrong = text.count("\ufffd")
    if wrong <= _MOST_WRONG * sum(not character.isascii() for character in text) or wrong < 2 < len(content) // 1000:
        return text.replace("\ufffd", "")
    guesses = (content.decode(name, "replace") for name in ("gb18030", "big5hkscs"))
    best = max(guesses, key=lambda guess: sum(map(_FREQUENT.__contains__, guess)) - 2 * guess.count("\ufffd"))
    is_chinese = sum("\u3000" <= character <= "\u9fff" for character in best) * 3 > sum(byte > 127 for byte in content)
    return best.replace("\ufffd", "") if is_chinese and "\ufffd" not in best[:-2] else content.decode("cp1252", "replace")


def _declared(match: re.Match[bytes]) -> str:
    return (match[1] or match[2]).decode("ascii", "replace").lower()
