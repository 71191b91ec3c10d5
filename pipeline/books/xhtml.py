"""XHTML: the text of a page of a book, block by block.

In:    bytes of XHTML or HTML, however wrong
Out:   blocks of text, links
Never: scripts, styles, marks of footnotes, the readings above characters (ruby); an error for wrong markup; a cost that grows
       faster than the page, whatever is left open in it
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html import unescape
from html.parser import HTMLParser

_BLOCKS = frozenset(
    [
        *("p", "div", "h1", "h2", "h3", "h4", "h5", "h6", "li", "dt", "dd", "blockquote", "pre", "section", "article", "aside"),
        *("header", "footer", "main", "figure", "figcaption", "table", "tr", "td", "th", "caption", "ul", "ol", "dl", "hr"),
        *("body", "address", "nav"),
    ]
)
_HEADINGS = frozenset(["h1", "h2", "h3", "h4", "h5", "h6"])
_UNSPOKEN = frozenset(["script", "style", "head", "rt", "rp", "svg", "math", "template"])
_VOID = frozenset(["area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"])
_LONG_NUMBER = re.compile("&#(?=[0-9]{9})")
"""of no character; with more than 4,300 digits html.parser raises"""
_ENCODING = re.compile(rb"""<\?xml[^>]{0,200}encoding=["']([A-Za-z0-9_.-]{1,40})["']""")


@dataclass(slots=True)
class Block:
    """A paragraph, a heading, an item of a list."""

    text: str = ""
    is_heading: bool = False
    ids: list[str] = field(default_factory=list)
    """of the elements that begin with it or before it, since the block before"""


def blocks_of(content: bytes) -> Iterator[Block]:
    """Yields the blocks of a page; the last one may have ids and no text."""
    reader = _read(content)
    reader.end_block()
    yield from reader.blocks
    if reader.block.ids:
        yield reader.block


def links_of(content: bytes) -> Iterator[tuple[str, str]]:
    """Yields target and text of each link of a table of contents."""
    for target, *text in _read(content).links:
        yield target, " ".join("".join(text).split())


def _read(content: bytes) -> "_Reader":
    reader = _Reader()
    # Behind the last bracket nothing is markup; html.parser would look for the end of each of its tags through all the rest.
    markup, bracket, rest = _LONG_NUMBER.sub("", _decoded(content)).rpartition(">")
    reader.feed(markup + bracket)
    reader.close()
    reader.handle_data(unescape(rest))
    return reader


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.blocks: list[Block] = []
        self.block = Block()
        self.links: list[list[str]] = []
        """target, pieces of text"""
        self._text: list[str] = []  # of the block
        self._endless: set[str] = set()  # ends that stand nowhere in the rest
        self._unspoken: list[str] = []  # open elements whose text is not spoken, the outermost first
        self._in_link = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        if tag in _BLOCKS:
            self.end_block()
            self.block.is_heading = tag in _HEADINGS
        self.block.ids += [value for name in ("id", "name") if (value := attributes.get(name))]
        is_note = (attributes.get("epub:type") or "") == "noteref" or attributes.get("role") == "doc-noteref"
        is_nav = tag == "nav" and (attributes.get("epub:type") or "toc") != "toc"
        if tag not in _VOID and (tag in _UNSPOKEN or is_note or is_nav or self._unspoken[-1:] == [tag]):
            self._unspoken.append(tag)
        if tag == "br" and not self._unspoken:
            self._text.append("\n")
        if tag == "a" and not self._unspoken:
            self._in_link = True
            self.links.append([attributes.get("href") or ""])

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in _VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        if self._unspoken[-1:] == [tag]:
            self._unspoken.pop()
        if tag == "a":
            self._in_link = False
        if tag in _BLOCKS:
            self.end_block()

    def handle_data(self, data: str) -> None:
        if self._unspoken:
            return
        self._text.append(re.sub(r"\s+", " ", data))
        if self._in_link:
            self.links[-1].append(data)

    def parse_comment(self, i: int, report: bool = True) -> int:
        """Returns the place behind a comment; -1: it is left open."""
        return self._behind("-->", i)

    def parse_marked_section(self, i: int, report: bool = True) -> int:
        """Returns the place behind a section in brackets; -1: it is left open."""
        return self._behind("]]>" if self.rawdata[i : i + 9].upper() == "<![CDATA[" else "]>", i)

    def _behind(self, end: str, start: int) -> int:
        place = -1 if end in self._endless else self.rawdata.find(end, start)
        if place < 0:
            self._endless.add(end)
            return -1
        return place + len(end)

    def end_block(self) -> None:
        """Keeps the block if it has text; ids without text belong to the next one."""
        text = "\n".join(" ".join(line.split()) for line in "".join(self._text).split("\n")).strip()
        self._text.clear()
        if text:
            self.block.text = text
            self.blocks.append(self.block)
            self.block = Block()
        else:
            self.block = Block(ids=self.block.ids)


def _decoded(content: bytes) -> str:
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        return content.decode("utf-16", "replace")
    declared = _ENCODING.match(content.lstrip(b"\xef\xbb\xbf"))
    try:
        return content.decode(declared[1].decode() if declared else "utf-8-sig", "replace")
    except LookupError:
        return content.decode("utf-8", "replace")
