"""SSML cutting: a long document as short ones, each of them some elements with everything around them.

In:    an SSML document
Out:   documents, in order, which say the same
Owns:  nothing
Never: what an element means: pipeline/text/markup reads each document; DTDs, entities, files

A document is cut between paragraphs and sentences, at any depth, and between other elements of its outermost level.
"""

from collections.abc import Iterator, Sequence
from copy import copy
from xml.etree.ElementTree import Element, ParseError, tostring

from defusedxml import DefusedXmlException
from defusedxml.ElementTree import fromstring

from pipeline.books.book import Pauses
from pipeline.books.script import Part
from pipeline.errors import InvalidSsml

Node = Element | str
"""an element without the text behind it, or text"""

_BLOCKS = frozenset(["p", "s", "voice", "prosody", "lang", "express-as"])
_PARAGRAPHS = frozenset(["p", "s"])


def ssml_parts(written: str, pauses: Pauses) -> tuple[Part, ...]:
    """Returns the documents as parts; raises as cut_ssml()."""
    return tuple(Part(text, pause_ms=pauses.paragraph_ms if at else 0) for at, text in enumerate(cut_ssml(written)))


def cut_ssml(written: str) -> Iterator[str]:
    """Yields the documents.

    Raises:
        InvalidSsml: it is not well-formed.
    """
    try:
        root: Element = fromstring(written.encode(), forbid_dtd=True)
    except (DefusedXmlException, ParseError, UnicodeError, ValueError, LookupError):
        message = "SSML: not a well-formed document without DTD and entities; POST /v1/text/ssml says where"
        raise InvalidSsml(message, param="input") from None
    documents: list[list[Node]] = [[]]
    for run in _runs(root, ()):
        if _is_speakable(documents[-1]) and _is_speakable(run):
            documents.append([])
        documents[-1] += run
    for nodes in documents:
        yield tostring(_shell((root,), nodes), encoding="unicode")


def _runs(element: Element, around: Sequence[Element]) -> Iterator[list[Node]]:
    """Yields what can be a document of its own: each block with its surroundings, and what stands between them."""
    run: list[Node] = [element.text or ""]
    for child in element:
        if _name(child) in _BLOCKS:
            yield _wrapped(run, around)
            if any(_name(one) in _PARAGRAPHS for one in list(child.iter())[1:]):
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


def _name(element: Element) -> str:
    return str(element.tag).rpartition("}")[2]
