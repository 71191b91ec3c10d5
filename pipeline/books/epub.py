"""EPUB: a book in its reading order, within limits.

In:    the bytes of an EPUB 2 or 3
Out:   Book; or InvalidDocument
Never: unpacking to disk, entities, DTDs, scripts, a network; more memory than its limits

The service reads one in a process of its own (pipeline/books/reader.py).
"""

import io
import posixpath
import unicodedata
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
from pipeline.books.page import Block, blocks_of, elements_of, links_of, text_of, tree_of
from pipeline.errors import InvalidDocument

MOST_FILES = 10_000
MOST_OF_ONE = 16 << 20
MOST_OF_ALL = 64 << 20
"""bytes that the files which are read may unpack to"""
MOST_COVER = 8 << 20

_MOST_FOLDERS = 12  # around a file
_MOST_MISSING = 20  # files that are named
_LONGEST_NAME = 80
_OTHERS = {
    "word/document.xml": "a document of Word (.docx)",
    "xl/workbook.xml": "a table of Excel (.xlsx)",
    "content.xml": "a document of LibreOffice (.odt)",
}
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
    except KeyError:
        raise InvalidDocument("the EPUB names a file that it does not contain", param="file") from None
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, EOFError, UnicodeError, RuntimeError, OSError) as error:
        raise InvalidDocument(f"not an EPUB: its archive cannot be read ({type(error).__name__})", param="file") from None
    except (ParseError, DefusedXmlException, ValueError, LookupError, RecursionError):
        message = "not an EPUB: its container, package or table of contents is not as EPUB 2 or 3 says"
        raise InvalidDocument(message, param="file") from None


class _Files:
    """The files in an archive, within the limits. Paths are those of the archive, as path_of() returns them."""

    def __init__(self, file: zipfile.ZipFile) -> None:
        self._file = file
        self._remaining = MOST_OF_ALL
        self.names = file.namelist()
        if len(self.names) > MOST_FILES:
            raise InvalidDocument(f"the EPUB has {len(self.names)} files; the limit is {MOST_FILES}", param="file")
        self._exact = set(self.names)
        self._plain = {_plain(name): name for name in self.names}
        self._ends: dict[str, str] = {}  # the ends of plain paths; two files have one: empty
        for plain, name in self._plain.items():
            folders = plain.split("/")[:_MOST_FOLDERS]
            for count in range(1, len(folders)):
                self._ends["/".join(folders[count:])] = "" if "/".join(folders[count:]) in self._ends else name

    def path_of(self, path: str) -> str | None:
        """Returns the path of a file as the archive has it; None: it is not there.

        The name may be written otherwise, and all files may stand in another folder.
        """
        if path in self._exact:
            return path
        plain = _plain(path)
        name = plain.rpartition("/")[2]
        return self._plain.get(plain) or self._ends.get(plain) or self._ends.get(name) or self._plain.get(name)

    def size_of(self, path: str) -> int:
        """Returns how large a file says that it is [bytes]."""
        return self._file.getinfo(path).file_size

    def read(self, path: str, most: int = MOST_OF_ONE) -> bytes:
        """Returns a file; its own statement of its size is not trusted.

        Raises:
            KeyError: it is not there.
        """
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
    package_path = _package_of(files)
    package, folder = files.tree(package_path), posixpath.dirname(package_path)
    items = {
        item.attrib["id"]: _Item(
            _join(folder, item.attrib["href"]), item.get("media-type", ""), frozenset(item.get("properties", "").split())
        )
        for item in _all(package, "item")
        if "id" in item.attrib and "href" in item.attrib
    }
    titles = _contents(files, package, items)
    refs = [ref for ref in _all(package, "itemref") if ref.get("idref") in items]
    read = [items[ref.attrib["idref"]] for ref in [ref for ref in refs if ref.get("linear") != "no"] or refs]
    paths = [(item.path, files.path_of(item.path)) for item in read if "nav" not in item.properties]
    missing = tuple(posixpath.basename(path)[:_LONGEST_NAME] for path, real in paths if real is None)
    if missing and len(missing) == len(paths):
        raise InvalidDocument("the EPUB names files that it does not contain, and has no other text", param="file")
    chapters = tuple(_chapters(files, [real for _, real in paths if real], titles))
    if not chapters:
        raise InvalidDocument("the EPUB has no text", param="file")
    first = {name: _text_of(package, name) for name in ("title", "creator", "language")}
    cover = _cover(files, package, items)
    return Book(chapters, first["title"], first["creator"], first["language"], cover, missing[:_MOST_MISSING])


def _package_of(files: _Files) -> str:
    """Returns the path of the package: as the container names it, without one the only package that there is."""
    container = files.path_of("META-INF/container.xml")
    if container is None and (other := next((kind for name, kind in _OTHERS.items() if files.path_of(name)), "")):
        raise InvalidDocument(f"not an EPUB, but {other}: save it as EPUB, HTML or plain text, and send that", param="file")
    encryption = files.path_of("META-INF/encryption.xml")
    methods = [method.get("Algorithm") for method in _all(files.tree(encryption), "EncryptionMethod")] if encryption else []
    if any(method not in _FONTS for method in methods):
        raise InvalidDocument("the EPUB is protected (DRM), and its text cannot be read", param="file")
    packages = [name for name in files.names if name.lower().endswith(".opf")]
    if container is not None:
        try:
            roots = _all(files.tree(container), "rootfile")
        except (ParseError, DefusedXmlException):
            roots = []
        packages = [path for root in roots if (path := files.path_of(root.get("full-path", "")))] or packages
    if not packages:
        raise InvalidDocument("not an EPUB: the archive does not contain the package of one", param="file")
    return packages[0]


def _contents(files: _Files, package: Element, items: Mapping[str, _Item]) -> dict[Place, str]:
    """Returns the titles of the table of contents by their places; empty: there is none that can be read."""
    contents = [item.path for item in items.values() if "nav" in item.properties]
    spines = _all(package, "spine")
    contents += [item.path for item in items.values() if item.kind == "application/x-dtbncx+xml"]
    if spines and (ncx := items.get(spines[0].get("toc", ""))):
        contents.append(ncx.path)
    for path in filter(None, map(files.path_of, contents)):
        content = files.read(path)
        titles = _titles(files, path, links_of(content)) or _titles(files, path, _points_of(content))
        if titles:
            return titles
    return {}


def _points_of(ncx: bytes) -> Iterator[tuple[str, str]]:
    """Yields target and text of each point of a table of contents of EPUB 2."""
    for point in elements_of(tree_of(ncx), "navpoint"):
        labels, contents = elements_of(point, "navlabel"), elements_of(point, "content")
        if labels and contents:
            yield contents[0].get("src", ""), text_of(labels[0])


def _titles(files: _Files, path: str, links: Iterator[tuple[str, str]]) -> dict[Place, str]:
    titles: dict[Place, str] = {}
    for target, title in links:
        href, fragment = urldefrag(target)
        file = files.path_of(_join(posixpath.dirname(path), href)) if href else path
        if title and file:
            titles.setdefault((file, unquote(fragment)), title)
    return titles


def _chapters(files: _Files, paths: list[str], titles: Mapping[Place, str]) -> Iterator[Chapter]:
    """Yields the chapters: as the table of contents has them, without one as the files begin."""
    title, paragraphs, has_contents = "", list[str](), bool(titles)
    for path in paths:
        blocks = blocks_of(files.read(path))
        ids = {key for block in blocks for key in block.ids}
        own = {fragment: name for (file, fragment), name in titles.items() if file == path}
        lost = [name for fragment, name in own.items() if fragment and fragment not in ids]
        begins = True
        for block in blocks:
            headings = [own[key] for key in ([""] if begins else []) + block.ids if key in own]
            headings = headings or [name for name in lost if block.level and _is_same(block, name)] or lost[: int(begins)]
            lost = [name for name in lost if name not in headings[:1]]
            if headings or (begins and not has_contents):
                if title or paragraphs:
                    yield Chapter(title, tuple(paragraphs))
                title, paragraphs = (headings or [block.text if block.level else ""])[0], []
            begins = False
            if block.text and (paragraphs or not _is_same(block, title)):
                paragraphs.append(block.text)
    if title or paragraphs:
        yield Chapter(title, tuple(paragraphs))


def _is_same(block: Block, title: str) -> bool:
    """True if a block only repeats the title of its chapter; a heading may repeat a part of it."""
    block_letters, title_letters = ("".join(filter(str.isalnum, text.casefold())) for text in (block.text, title))
    return bool(block_letters) and (block_letters in title_letters if block.level else block_letters == title_letters)


def _cover(files: _Files, package: Element, items: Mapping[str, _Item]) -> bytes | None:
    """Returns the first cover that a file can show; None: all that are named cannot be shown."""
    named = [meta.get("content", "") for meta in _all(package, "meta") if meta.get("name") == "cover"]
    candidates = [item for item in items.values() if "cover-image" in item.properties]
    candidates += [items[name] for name in named if name in items]
    images = (item for item in candidates if item.kind.startswith("image/"))
    pictures = dict.fromkeys(path for item in images if (path := files.path_of(item.path)))
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
    return posixpath.normpath(posixpath.join(folder, unquote(href.replace("\\", "/"))))


def _plain(path: str) -> str:
    """Returns the form of a path that all ways to write it have in common."""
    plain = unicodedata.normalize("NFC", unquote(path)).replace("\\", "/").casefold()
    return posixpath.normpath(plain).lstrip("./")
