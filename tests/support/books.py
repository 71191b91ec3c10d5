"""Books: EPUBs of both versions, a picture, and what is wrong with others."""

import io
import struct
import zipfile
import zlib
from collections.abc import Mapping

CONTAINER = (
    '<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container" version="1.0"><rootfiles>'
    '<rootfile full-path="OPS/book.opf" media-type="application/oebps-package+xml"/></rootfiles></container>'
)
PAGE = '<html xmlns="http://www.w3.org/1999/xhtml" xmlns:epub="http://www.idpf.org/2007/ops"><head><title>no</title></head><body>{}</body></html>'
ONE = (
    '<h1 id="one">One</h1><p>The <i>first</i> words&nbsp;here.<a epub:type="noteref" href="#n">1</a></p><script>no()</script>'
    "<p>More words<br/>follow.</p>"
)
TWO = '<p>Still one.</p><h2 id="two">Chapter Two</h2><div><p>The last words.</p></div><ruby>漢<rt>kan</rt></ruby>'


def picture(side: int = 8) -> bytes:
    """A grey PNG."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    rows = (b"\0" + bytes([128]) * side) * side
    head = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def package(*, version: int = 3) -> str:
    contents = (
        '<item id="nav" href="nav.xhtml" media-type="application/xhtml+xml" properties="nav"/>'
        if version == 3
        else '<item id="ncx" href="toc.ncx" media-type="application/x-dtbncx+xml"/>'
    )
    cover = 'properties="cover-image"' if version == 3 else ""
    meta = "" if version == 3 else '<meta name="cover" content="pic"/>'
    return (
        '<package xmlns="http://www.idpf.org/2007/opf" xmlns:dc="http://purl.org/dc/elements/1.1/"><metadata><dc:title>A Book'
        f"</dc:title><dc:creator>Ann Author</dc:creator><dc:language>en</dc:language>{meta}</metadata><manifest>{contents}"
        f'<item id="pic" href="pic.png" media-type="image/png" {cover}/>'
        '<item id="a" href="text/one%20a.xhtml" media-type="application/xhtml+xml"/>'
        '<item id="b" href="text/two.xhtml" media-type="application/xhtml+xml"/></manifest>'
        '<spine toc="ncx"><itemref idref="nav" linear="no"/><itemref idref="a"/><itemref idref="b"/></spine></package>'
    )


NAV = PAGE.format(
    '<nav epub:type="toc"><ol><li><a href="text/one%20a.xhtml">One</a></li><li><a href="text/two.xhtml#two">Chapter <b>Two</b>'
    '</a></li></ol></nav><nav epub:type="landmarks"><a href="text/two.xhtml">Start</a></nav>'
)
NCX = (
    '<ncx xmlns="http://www.daisy.org/z3986/2005/ncx/"><navMap><navPoint><navLabel><text>One</text></navLabel>'
    '<content src="text/one%20a.xhtml"/></navPoint><navPoint><navLabel><text>Chapter Two</text></navLabel>'
    '<content src="text/two.xhtml#two"/></navPoint></navMap></ncx>'
)


def epub(*, version: int = 3, **changes: str | bytes | None) -> bytes:
    """An EPUB; `changes` stand in place of files, by what is behind the last slash without its dots; None leaves one out."""
    files: Mapping[str, str | bytes] = {
        "mimetype": "application/epub+zip",
        "META-INF/container.xml": CONTAINER,
        "OPS/book.opf": package(version=version),
        **({"OPS/nav.xhtml": NAV} if version == 3 else {"OPS/toc.ncx": NCX}),
        "OPS/text/one a.xhtml": PAGE.format(ONE),
        "OPS/text/two.xhtml": PAGE.format(TWO),
        "OPS/pic.png": picture(),
    }
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as file:
        for path, text in files.items():
            name = path.rsplit("/", 1)[-1].replace(".", "_").replace(" ", "_")
            chosen = changes.pop(name, text)
            if chosen is not None:
                file.writestr(path, chosen)
        for path, added in changes.items():
            file.writestr(path, added or "")
    return content.getvalue()
