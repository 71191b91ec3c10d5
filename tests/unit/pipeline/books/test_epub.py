"""EPUBs: read in their order, with their chapters, and refused in words where they are wrong, protected or too large."""

import time

import pytest

from pipeline.books import epub as reader
from pipeline.books.book import Chapter
from pipeline.books.epub import read_epub
from pipeline.books.xhtml import blocks_of
from pipeline.errors import InvalidDocument
from tests.support.books import CONTAINER, ONE, PAGE, epub, package, picture

CHAPTERS = (
    Chapter("One", ("The first words here.", "More words\nfollow.", "Still one.")),
    Chapter("Chapter Two", ("The last words.", "漢")),
)


@pytest.mark.parametrize("version", [2, 3])
def test_a_book_has_the_chapters_of_its_contents(version: int):
    book = read_epub(epub(version=version))
    assert (book.title, book.author, book.language) == ("A Book", "Ann Author", "en")
    assert book.chapters == CHAPTERS
    assert book.cover == picture()


@pytest.mark.parametrize(
    ("image", "kind"),
    [(b"", "png"), (picture()[:16] + bytes(8), "png"), (picture() + bytes(8 << 20), "png"), (b"RIFF....WEBP", "webp")],
    ids=["empty", "0 x 0", "more than 8 MiB", "another kind"],
)
def test_a_cover_that_cannot_be_shown_costs_the_cover_alone(image: bytes, kind: str):
    book = read_epub(epub(pic_png=image, book_opf=package().replace("image/png", f"image/{kind}")))
    assert (book.cover, book.chapters) == (None, CHAPTERS)


def test_without_contents_each_file_is_a_chapter():
    book = read_epub(epub(version=2, toc_ncx=None, book_opf=package(version=2).replace(' toc="ncx"', "")))
    assert [chapter.title for chapter in book.chapters] == ["One", ""]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"PK\x03\x04 no zip", "not an EPUB"),
        (epub(container_xml=None), "does not contain"),
        (epub(container_xml=CONTAINER.replace("book.opf", "none.opf")), "does not contain"),
        (epub(book_opf="<package>"), "not an EPUB"),
        (epub(book_opf=f'<!DOCTYPE x [<!ENTITY a "{"b" * 9}">]>{package().replace("A Book", "&a;")}'), "not an EPUB"),
        (epub(one_a_xhtml=PAGE.format(""), two_xhtml=PAGE.format("")), "no text"),
        (epub(**{"META-INF/encryption.xml": '<e><EncryptionMethod Algorithm="http://w3.org/aes"/></e>'}), "protected"),
    ],
)
def test_what_is_no_book_is_refused(content: bytes, says: str):
    with pytest.raises(InvalidDocument, match=says):
        read_epub(content)


def test_a_bomb_is_not_unpacked(monkeypatch: pytest.MonkeyPatch):
    bomb = epub(one_a_xhtml=b"a" * (17 << 20))
    assert len(bomb) < 100_000
    with pytest.raises(InvalidDocument, match="unpacks to more"):
        read_epub(bomb)
    monkeypatch.setattr(reader, "MOST_OF_ALL", 1000)
    with pytest.raises(InvalidDocument, match="unpacks to more"):
        read_epub(epub())
    monkeypatch.setattr(reader, "MOST_FILES", 5)
    with pytest.raises(InvalidDocument, match="7 files"):
        read_epub(epub())


def test_markup_that_is_wrong_is_read_all_the_same():
    wrong = PAGE.format(f"{ONE}<p>open <b>tags <p>and & signs &bogus; <table><td>cell").encode("utf-16")
    assert read_epub(epub(one_a_xhtml=wrong)).chapters[0].paragraphs[2:5] == ("open tags", "and & signs &bogus;", "cell")


OPEN = ("<!-- > ", "<![CDATA[ > ", "<![if > ", "<!--", "</a ", "<a b ", "<? ", "<a b='\"> ", "<i>a</i>", "<a>x")


@pytest.mark.parametrize("piece", OPEN)
def test_a_page_costs_no_more_than_its_length(piece: str):
    """What is left open, and text in many pieces: 20 s and more, where each looked through all the rest."""
    page = f"<p>Words.</p>{piece * (200_000 // len(piece))}".encode()
    began = time.process_time()
    assert next(blocks_of(page)).text == "Words."
    assert list(blocks_of(page + b"<p>The end.</p>"))[-1].text.endswith("The end.")
    assert time.process_time() - began < 4


def test_wrong_markup_is_no_error():
    number = "9" * 5000
    page = f"<p>e <![CDATA[ f ]]> g <!-- h --> i</p><p>&#{number};</p><p>a <!-- b > c</p>k <l"
    assert [block.text for block in blocks_of(page.encode())] == ["e g i", f"{number};", "a <!-- b > c", "k <l"]
