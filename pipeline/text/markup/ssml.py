"""SSML: a marked-up text as passages, each with one prosody, with exact silence between them.

In:    an SSML document: str
Out:   Document: passages, marks, warnings about everything that is not supported
Never: voices' embeddings, tokens, anything outside the document: no DTD, no entities, no files

    speak voice lang p s break prosody(rate, volume) say-as sub phoneme(pinyin, x-homophone) emphasis mark
    mstts:express-as mstts:silence(Leading, Tailing)

The text of any other element is spoken and the element counted; `strict` refuses it. ssml_elements.py has one function per
element. Sources: W3C SSML 1.1, and Microsoft's documentation of its `mstts` elements.
"""

from dataclasses import dataclass
from typing import Protocol
from xml.etree.ElementTree import Element, TreeBuilder
from xml.sax import ContentHandler, SAXParseException
from xml.sax.xmlreader import AttributesImpl

from defusedxml import DefusedXmlException
from defusedxml.sax import parseString

from pipeline.text.markup.ssml_elements import ELEMENTS
from pipeline.text.markup.ssml_reader import SsmlReader, element_name, invalid
from pipeline.types import Mark, Passage, Turn

MAX_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Document:
    """A marked-up text: the content of an SSML document, or a dialogue."""

    passages: tuple[Passage, ...]
    marks: tuple[Mark, ...]
    """name, and the number of characters of text before it"""
    warnings: tuple[tuple[str, int], ...]
    """code and count of everything that is not supported"""
    turns: tuple[Turn, ...] = ()
    """of a dialogue, whose passages they are"""

    @property
    def text(self) -> str:
        """The text content: the texts of the passages in order."""
        return "".join(passage.text for passage in self.passages)


def parse(written: str, *, control_tags: bool = False, strict: bool = False) -> Document:
    """Reads a document.

    Args:
        control_tags: whether [laugh] and the like in its text are control tags.
        strict: refuse a document with anything unsupported, instead of counting it.

    Raises:
        InvalidSsml: not well-formed, outside the limits, or strict and with warnings.
    """
    reader = SsmlReader(ELEMENTS, control_tags=control_tags)
    reader.read(_tree(written))
    document = Document(tuple(reader.passages), tuple(reader.marks), tuple(sorted((+reader.warnings).items())))
    if strict and document.warnings:
        codes = ", ".join(f"{code} x{count}" for code, count in document.warnings)
        raise invalid(f"strict=1 refuses what is not supported: {codes}")
    return document


class Target(Protocol):
    """What a document is built with: an xml.etree.ElementTree.TreeBuilder, or one with limits."""

    def start(self, tag: str, attrs: dict[str, str], /) -> Element: ...

    def end(self, tag: str, /) -> Element: ...

    def data(self, data: str, /) -> None: ...

    def close(self) -> Element: ...


class _Events(ContentHandler):
    """Names stay as they are written, prefix included: vendors' prefixes are often not declared."""

    def __init__(self, target: Target) -> None:
        super().__init__()
        self._target = target

    def startElement(self, name: str, attrs: "AttributesImpl[str]") -> None:
        self._target.start(name, dict(attrs.items()))

    def endElement(self, name: str) -> None:
        self._target.end(name)

    def characters(self, content: str) -> None:
        self._target.data(content)


def tree_of(written: str, target: Target) -> Element:
    """Builds the tree of a document without DTD and entities.

    Raises:
        DefusedXmlException, SAXParseException, UnicodeError, ValueError, LookupError: it is none.
    """
    parseString(written.encode(), _Events(target), forbid_dtd=True)
    return target.close()


def _tree(written: str) -> Element:
    try:
        size = len(written.encode())
        if size > MAX_BYTES:
            raise invalid(f"the document has {size} bytes; the limit is {MAX_BYTES}")
        root = tree_of(written, TreeBuilder())
    except DefusedXmlException:
        raise invalid("DTDs and entities are not allowed; write characters as they are, or as &amp; &lt; &gt; &#...;") from None
    except SAXParseException as error:
        line, column = error.getLineNumber(), (error.getColumnNumber() or 0) + 1
        raise invalid(
            f"not well-formed at line {line}, column {column}: every element is closed, & is &amp;, and < is &lt;"
        ) from None
    except (UnicodeError, ValueError, LookupError):
        raise invalid("the document is not Unicode text, or declares another encoding than UTF-8") from None
    if element_name(root) != "speak":
        raise invalid("the outermost element is not speak")
    return root
