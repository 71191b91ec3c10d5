"""SSML cutting: a long document as short ones, each of them some elements with everything around them.

In:    an SSML document
Out:   documents, in order, which say the same
Owns:  how much of what stands around the pieces may be repeated, and how many elements and attributes there may be
Never: what an element means: pipeline/text/markup reads each document; DTDs, entities, files

A document is cut between paragraphs and sentences, at any depth, and between other elements of its outermost level.
"""

from collections.abc import Iterator, Sequence
from copy import copy
from xml.etree.ElementTree import Element, TreeBuilder, tostring
from xml.sax import SAXParseException

from defusedxml import DefusedXmlException

from pipeline.books.book import Pauses
from pipeline.books.script import Part
from pipeline.errors import InvalidSsml
from pipeline.text.markup.ssml import MAX_BYTES, tree_of
from pipeline.text.markup.ssml_reader import MAX_DEPTH, element_name, invalid

Node = Element | str
"""an element without the text behind it, or text"""

_BLOCKS = frozenset(["p", "s", "voice", "prosody", "lang", "express-as"])
_PARAGRAPHS = frozenset(["p", "s"])

MOST_ELEMENTS = 200_000
MOST_ATTRIBUTES = 16
"""of one element"""
MOST_GROWTH = 8
FREE_CHARACTERS = 256 << 10
"""the documents together have at most MOST_GROWTH times the characters of the whole, and so many more"""


def ssml_parts(written: str, pauses: Pauses) -> tuple[Part, ...]:
    """Returns the documents as parts; raises as cut_ssml()."""
    return tuple(Part(text, pause_ms=pauses.paragraph_ms if at else 0) for at, text in enumerate(cut_ssml(written)))


def cut_ssml(written: str) -> Iterator[str]:
    """Yields the documents.

    Raises:
        InvalidSsml: it is not well-formed, or beyond the limits.
    """
    try:
        root = tree_of(written, _BoundedBuilder())
    except (DefusedXmlException, SAXParseException, UnicodeError, ValueError, LookupError):
        message = "SSML: not a well-formed document without DTD and entities; POST /v1/text/ssml says where"
        raise InvalidSsml(message, param="input") from None
    remaining = FREE_CHARACTERS + MOST_GROWTH * len(written)
    for nodes in _joined(_runs(root, ())):
        document = tostring(_shell((root,), nodes), encoding="unicode")
        remaining -= len(document)
        if remaining < 0:
            raise invalid(
                f"cut into paragraphs, with the elements around each, the document has more than {MOST_GROWTH} times its "
                f"{len(written)} characters: shorten the attributes of what stands around many paragraphs"
            )
        if len(document) > MAX_BYTES:
            raise invalid(f"a paragraph has {len(document)} characters with its markup; the limit is {MAX_BYTES}: cut it")
        yield document


class _BoundedBuilder(TreeBuilder):
    """Builds the tree of a document, as long as it is within the limits."""

    def __init__(self) -> None:
        super().__init__()
        self._depth = self._elements = 0

    def start(self, tag: str, attrs: dict[str, str], /) -> Element:
        self._depth += 1
        self._elements += 1
        if self._depth > MAX_DEPTH:
            raise invalid(f"elements are nested more than {MAX_DEPTH} deep")
        if self._elements > MOST_ELEMENTS:
            raise invalid(f"more than {MOST_ELEMENTS} elements: send the document as several jobs")
        if len(attrs) > MOST_ATTRIBUTES:
            raise invalid(f"an element has {len(attrs)} attributes; the limit is {MOST_ATTRIBUTES}")
        return super().start(tag, attrs)

    def end(self, tag: str, /) -> Element:
        self._depth -= 1
        return super().end(tag)


def _joined(runs: Iterator[list[Node]]) -> Iterator[list[Node]]:
    """Yields runs, those without words together with the one before them."""
    joined: list[Node] = []
    has_words = False
    for run in runs:
        if (is_speakable := _is_speakable(run)) and has_words:
            yield joined
            joined, has_words = [], False
        joined += run
        has_words = has_words or is_speakable
    yield joined


def _runs(element: Element, around: Sequence[Element]) -> Iterator[list[Node]]:
    """Yields what can be a document of its own: each block with its surroundings, and what stands between them."""
    run: list[Node] = [element.text or ""]
    for child in element:
        if element_name(child) in _BLOCKS:
            yield _wrapped(run, around)
            if any(element_name(element) in _PARAGRAPHS for element in list(child.iter())[1:]):
                yield from _runs(child, (*around, child))
            else:
                yield _wrapped([child], around)
            run = []
        else:
            run.append(child)
        run.append(child.tail or "")
    yield _wrapped(run, around)


def _wrapped(run: list[Node], around: Sequence[Element]) -> list[Node]:
    is_empty = all(isinstance(node, str) and not node.strip() for node in run)
    return [] if is_empty else [_shell(around, run)] if around else run


def _is_speakable(nodes: Sequence[Node]) -> bool:
    return any(any(map(str.isalnum, node if isinstance(node, str) else "".join(node.itertext()))) for node in nodes)


def _shell(around: Sequence[Element], nodes: Sequence[Node]) -> Element:
    """Returns copies of elements, the first outermost, around copies of nodes."""
    outermost = innermost = Element(around[0].tag, around[0].attrib)
    for element in around[1:]:
        inner = Element(element.tag, element.attrib)
        innermost.append(inner)
        innermost = inner
    for node in nodes:
        if isinstance(node, Element):
            innermost.append(_alone(node))
        elif len(innermost):
            innermost[-1].tail = (innermost[-1].tail or "") + node
        else:
            innermost.text = (innermost.text or "") + node
    return outermost


def _alone(element: Element) -> Element:
    """Returns an element without the text behind it."""
    alone = copy(element)
    alone.tail = None
    return alone
