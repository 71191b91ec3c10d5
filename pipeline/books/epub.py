"""EPUB: a book in its reading order, within limits.

In:    the bytes of an EPUB 2 or 3
Out:   Book; or InvalidDocument
Never: unpacking to disk, entities, DTDs, scripts, a network; more memory than its limits

The service reads one in a process of its own (pipeline/books/reader.py).
"""

import io
import posixpath
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import unquote, urldefrag
from xml.etree.ElementTree import Element, ParseError

from defusedxml import DefusedXmlException
from defusedxml.ElementTree import fromstring

from pipeline.audio.labels import picture_of
from pipeline.books.book import Book, Chapter
from pipeline.books.xhtml import blocks_of, links_of
from pipeline.errors import InvalidDocument

MOST_FILES = 10_000
MOST_OF_ONE = 16 << 20
MOST_OF_ALL = 64 << 20
"""bytes that the files which are read may unpack to"""
MOST_COVER = 8 << 20

_FONTS = ("http://www.idpf.org/2008/embedding", "http://ns.adobe.com/pdf/enc#RC")

Place = tuple[str, str]
"""a file of the book, and the id of an element in it; empty: its beginning"""


@dataclass(frozen=True, slots=True)
class _Item:
    """A file of the book."""

    path: str
    kind: str
    properties: frozenset[str]


def read_epub(content: bytes) -> Book:
    """Reads a book.

    Raises:
        InvalidDocument: it is no EPUB, protected, or larger than the limits.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as file:
            return _read(_Files(file))
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, EOFError, UnicodeError, RuntimeError, OSError) as error:
        raise InvalidDocument(f"not an EPUB: its archive cannot be read ({type(error).__name__})", param="file") from None
    except (ParseError, DefusedXmlException, ValueError, LookupError, RecursionError):
        message = "not an EPUB: its container, package or table of contents is not as EPUB 2 or 3 says"
        raise InvalidDocument(message, param="file") from None


class _Files:
    """The files in an archive, within the limits."""

    def __init__(self, file: zipfile.ZipFile) -> None:
        self._file = file
        self._remaining = MOST_OF_ALL
        self._names = set(file.namelist())
        if len(self._names) > MOST_FILES:
            raise InvalidDocument(f"the EPUB has {len(self._names)} files; the limit is {MOST_FILES}", param="file")

    def __contains__(self, path: str) -> bool:
        return path in self._names

    def size_of(self, path: str) -> int:
        """Returns how large a file says that it is [bytes]."""
        return self._file.getinfo(path).file_size

    def read(self, path: str, most: int = MOST_OF_ONE) -> bytes:
        """Returns a file; its own statement of its size is not trusted."""
        if path not in self._names:
            raise InvalidDocument("the EPUB names a file that it does not contain", param="file")
        most = min(most, self._remaining)
        with self._file.open(path) as member:
            content = member.read(most + 1)
        if len(content) > most:
            limits = f"{MOST_OF_ONE >> 20} MiB for one file, {MOST_OF_ALL >> 20} MiB for all that are read"
            raise InvalidDocument(f"the EPUB unpacks to more than its limits: {limits}", param="file")
        self._remaining -= len(content)
        return content

    def tree(self, path: str) -> Element:
        """Returns a file of XML."""
        root: Element = fromstring(self.read(path), forbid_dtd=False, forbid_entities=True, forbid_external=True)
        return root


def _read(files: _Files) -> Book:
    _check_open(files)
    package_path = _all(files.tree("META-INF/container.xml"), "rootfile")[0].attrib["full-path"]
    package, folder = files.tree(package_path), posixpath.dirname(package_path)
    items = {
        item.attrib["id"]: _Item(
            _join(folder, item.attrib["href"]), item.get("media-type", ""), frozenset(item.get("properties", "").split())
        )
        for item in _all(package, "item")
        if "id" in item.attrib and "href" in item.attrib
    }
    titles = _contents(files, package, items)
    read = [
        items[itemref.get("idref", "")]
        for itemref in _all(package, "itemref")
        if itemref.get("linear") != "no" and itemref.get("idref") in items
    ]
    chapters = tuple(_chapters(files, [item.path for item in read if "nav" not in item.properties], titles))
    if not chapters:
        raise InvalidDocument("the EPUB has no text", param="file")
    first = {name: _text_of(package, name) for name in ("title", "creator", "language")}
    return Book(chapters, first["title"], first["creator"], first["language"], _cover(files, package, items))


def _check_open(files: _Files) -> None:
    if "META-INF/encryption.xml" not in files:
        return
    methods = [method.get("Algorithm") for method in _all(files.tree("META-INF/encryption.xml"), "EncryptionMethod")]
    if any(method not in _FONTS for method in methods):
        raise InvalidDocument("the EPUB is protected (DRM), and its text cannot be read", param="file")


def _contents(files: _Files, package: Element, items: Mapping[str, _Item]) -> dict[Place, str]:
    """Returns the titles of the table of contents by their places; empty: there is none."""
    for item in items.values():
        if "nav" in item.properties:
            return _titles(item.path, links_of(files.read(item.path)))
    spines = _all(package, "spine")
    ncx = items.get(spines[0].get("toc", "")) if spines else None
    if ncx is None:
        return {}
    points = (
        (content.get("src", ""), " ".join("".join(label.itertext()).split()))
        for point in _all(files.tree(ncx.path), "navPoint")
        for label, content in zip(_all(point, "navLabel")[:1], _all(point, "content")[:1], strict=False)
    )
    return _titles(ncx.path, points)


def _titles(path: str, links: Iterator[tuple[str, str]]) -> dict[Place, str]:
    titles: dict[Place, str] = {}
    for target, title in links:
        href, fragment = urldefrag(target)
        if title:
            titles.setdefault((_join(posixpath.dirname(path), href) if href else path, fragment), title)
    return titles


def _chapters(files: _Files, paths: list[str], titles: Mapping[Place, str]) -> Iterator[Chapter]:
    """Yields the chapters: as the table of contents has them, without one as the files begin."""
    title, paragraphs = "", list[str]()
    for path in paths:
        begins = True
        for block in blocks_of(files.read(path)):
            headings = [
                titles[place] for place in [(path, "")][: int(begins)] + [(path, key) for key in block.ids] if place in titles
            ]
            if headings or (begins and not titles):
                if title or paragraphs:
                    yield Chapter(title, tuple(paragraphs))
                title, paragraphs = (headings or [block.text if block.is_heading else ""])[0], []
            begins = False
            if block.text and not (block.is_heading and not paragraphs and _is_same(block.text, title)):
                paragraphs.append(block.text)
    if title or paragraphs:
        yield Chapter(title, tuple(paragraphs))


def _is_same(heading: str, title: str) -> bool:
    """True if a heading only repeats the title of its chapter, or a part of it."""
    heading_letters, title_letters = ("".join(filter(str.isalnum, text.casefold())) for text in (heading, title))
    return bool(heading_letters) and heading_letters in title_letters


def _cover(files: _Files, package: Element, items: Mapping[str, _Item]) -> bytes | None:
    """Returns the first cover that a file can show; None: all that are named cannot be shown."""
    named = [meta.get("content", "") for meta in _all(package, "meta") if meta.get("name") == "cover"]
    candidates = [item for item in items.values() if "cover-image" in item.properties]
    candidates += [items[name] for name in named if name in items]
    pictures = dict.fromkeys(item.path for item in candidates if item.kind.startswith("image/") and item.path in files)
    for path in pictures:
        if files.size_of(path) <= MOST_COVER and picture_of(content := files.read(path, MOST_COVER)):
            return content
    return None if pictures else b""


def _text_of(package: Element, name: str) -> str:
    texts = [" ".join("".join(element.itertext()).split()) for element in _all(package, name)]
    return next(filter(None, texts), "")[:300]


def _all(root: Element, name: str) -> list[Element]:
    """Returns the elements of a name, whatever their namespace."""
    return [element for element in root.iter() if isinstance(element.tag, str) and element.tag.rpartition("}")[2] == name]


def _join(folder: str, href: str) -> str:
    return posixpath.normpath(posixpath.join(folder, unquote(href)))
