"""Books: where a text is cut, how EPUBs and other documents are read, what is refused, and that nothing is lost."""

import itertools
import re
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.audio.encode import wav_header, wav_trailer
from pipeline.audio.formats import audio_format
from pipeline.books import epub as epub_reader
from pipeline.books import reader
from pipeline.books.assemble import raw, raw_size
from pipeline.books.book import Chapter, Pauses, read_plain, script_of
from pipeline.books.cutting import ENOUGH, MOST, cut_paragraph
from pipeline.books.epub import read_epub
from pipeline.books.job_files import JobFiles, PartNotes
from pipeline.books.markdown import read_html, read_markdown
from pipeline.books.page import blocks_of
from pipeline.books.question import Question, document_of
from pipeline.books.reader import read_document
from pipeline.books.script import Part, Script, read_script
from pipeline.books.ssml_cutting import cut_ssml
from pipeline.books.track import Track
from pipeline.child import ChildFailed, WarmChild
from pipeline.errors import InvalidDocument, InvalidRequest, InvalidSsml, NoSpeakableText, TextTooLong
from pipeline.text.markup.ssml import parse
from pipeline.text.normalize import normalize
from tests.support.books import NAV, ONE, PAGE, epub, package, picture

LONG = ["a" * 900 + " ", "yes, " * 200]
SENTENCES = st.lists(
    st.sampled_from(["It rained. ", "Dr. Smith came at 3 p.m. and stayed! ", "Why? ", "今天天气很好。", *LONG]), max_size=30
)


@given(SENTENCES)
def test_a_paragraph_loses_no_letter_and_no_part_is_too_long(sentences: list[str]):
    text = "".join(sentences)
    parts = list(cut_paragraph(text))
    assert re.sub(r"\s", "", "".join(parts)) == re.sub(r"\s", "", text)
    assert all(0 < len(part) <= MOST for part in parts)


WHOLE = ("$1,234.50", "Dr. Smith", "May 5, 2024", "1,234,567", "the United States of America", "2024年5月6日")


@pytest.mark.parametrize("phrase", WHOLE)
def test_a_long_sentence_is_cut_beside_a_phrase(phrase: str):
    filler = "好大海山水" if phrase.endswith("日") else "word "
    for count in range(54, 60) if phrase.endswith("日") else range(90, 120):
        long = f"{filler * count}{phrase} {filler * 60}."
        assert any(phrase in part for part in cut_paragraph(long)), count


def test_a_table_is_cut_between_its_rows():
    rows = [f"Ann{n} | She came late, and so did he. Then she left: early, at {n} pm | {n}" for n in range(40)]
    table = "\n".join(["Name | Note | Age", "--- | --- | ---", *rows])
    assert [row for part in cut_paragraph(f"{table}\nThat is all.") for row in part.split("\n")][2:-1] == rows
    assert [normalize(part).text for part in cut_paragraph("P1|x, y|1\nP2|z|2")] == ["P one, x, y, one. P two, z, two"]


def test_parts_are_whole_sentences():
    sentence = "This sentence has about fifty letters in its words. "
    parts = list(cut_paragraph(sentence * 9))
    assert parts == [(sentence * 3).strip()] * 3
    assert len(parts[0]) >= ENOUGH
    assert list(cut_paragraph("Mr. Poe met Dr. No at 10 p.m. in St. Ives.")) == ["Mr. Poe met Dr. No at 10 p.m. in St. Ives."]
    assert list(cut_paragraph(f"{'It was a day. ' * 9}Then my brother\nPeter came."))[-1].endswith("brother Peter came.")
    assert list(cut_paragraph(" ... \n* * *")) == []


def test_the_largest_headings_begin_chapters():
    book = read_markdown("Before.\n\n# One\ntext\nmore\n\nnext\n## Below\nx\n\n# Two #\n```\n# no heading\n\ny\n```\n")
    assert [(chapter.title, chapter.paragraphs) for chapter in book.chapters] == [
        ("", ("Before.",)),
        ("One", ("text more", "next", "Below", "x")),
        ("Two", ("# no heading\n\ny",)),
    ]
    assert book.title == ""


def test_one_heading_at_the_top_is_the_title():
    book = read_markdown("# The Book\r\n\r\n## One\r\n\r\na\r\n\r\n## Two\r\n\r\nb")
    assert (book.title, [chapter.title for chapter in book.chapters]) == ("The Book", ["The Book", "One", "Two"])
    assert [chapter.title for chapter in read_markdown("# Only\n\ntext").chapters] == ["Only"]


def test_signs_of_programs_and_hidden_previews_are_not_heard():
    program, plain, rest = read_markdown("```python\nx = f(1)  # ok\n```\n\n```\na = 1\n```\n\n`b = 2`").chapters[0].paragraphs
    assert (program.split(), plain, rest) == (["x", "f", "1", "ok"], "a = 1", "b = 2")
    assert [block.text for block in blocks_of("<p style='font-size:0px;color:red'>a</p><p style='font-size:0.9em'>b</p>")] == [
        "b"
    ]
    assert blocks_of("<pre class='a'><code class='calibre3'>a = 1</code></pre>")[0].text == "a = 1"


def test_silences_stand_between_paragraphs_and_chapters():
    script = script_of(read_markdown("# One\n\nA.\n\nB.\n\n# ***\n\n# Two\n\nC."), {}, Pauses(1, 2, 3))
    assert [(part.text, part.chapter, part.pause_ms) for part in script.parts] == [
        ("One", 0, 0),
        ("A.", 0, 3),
        ("B.", 0, 1),
        ("Two", 1, 2),
        ("C.", 1, 3),
    ]
    assert script.chapters == ("One", "Two")
    assert [part.pause_ms for part in script_of(read_plain("A.\n\n\nB."), {}, Pauses()).parts] == [0, 350]


def test_a_script_survives_json_with_its_keys():
    script = Script(
        (Part("Hello.", 0, 5, {"seed": 2}), Part("Hello."), Part("Hello.")), ("",), "t", speech={"seed": 1, "speed": 2.0}
    )
    again = read_script(script.to_json())
    assert (again, again.keys) == (script, script.keys)
    assert (script.keys[0] == script.keys[1], script.keys[1] == script.keys[2]) == (False, True)
    assert script.predicted_s[1] * 2 == pytest.approx(Script((Part("Hello."),)).predicted_s[0])


def test_any_range_of_a_track_is_that_of_the_whole(tmp_path: Path):
    script = Script((Part("a", pause_ms=10), Part("b", pause_ms=0), Part("a", pause_ms=3), Part("missing"), Part("b")))
    files = JobFiles(tmp_path / "job")
    files.make()
    files.keep_script(script)
    keys = [key for key in dict.fromkeys(script.keys) if key != script.keys[3]]
    samples = {key: np.arange(40 * (index + 1), dtype="<i2") for index, key in enumerate(keys)}
    for key, of_part in samples.items():
        files.keep(key, of_part.tobytes(), PartNotes())
    track = Track(script, files.lengths(), 8000)
    silence = np.zeros(80, "<i2"), np.zeros(24, "<i2")
    one, two = samples[script.keys[0]], samples[script.keys[1]]
    whole = np.concatenate([silence[0], one, two, silence[1], one]).tobytes()
    assert (track.parts, track.is_whole, track.samples * 2) == (3, False, len(whole))
    assert track.starts == [80, 120, 224]
    wav = audio_format("wav", 8000)
    file = b"".join(raw(files, track, wav, 0, raw_size(track, wav)))
    assert file == wav_header(8000, len(whole), marked=True) + whole + wav_trailer(len(whole))
    for first in range(0, len(file), 7):
        for stop in range(first, len(file), 31):
            assert b"".join(raw(files, track, wav, first, stop)) == file[first:stop]


def test_ssml_says_the_same_in_pieces():
    document = (
        '<speak version="1.0" xmlns="http://www.w3.org/2001/10/synthesis" xml:lang="en-US">Hello <break time="200ms"/> you, '
        '<emphasis>dear</emphasis> friend. <voice name="calm"><p>One &amp; more</p> <p>Two <sub alias="x">y</sub> z.</p>tail'
        '</voice><break time="1s"/><p><s>A b.</s><s>C d.</s></p><break time="300ms"/></speak>'
    )
    pieces = list(cut_ssml(document))
    assert len(pieces) == 6
    together = [passage for piece in pieces for passage in parse(piece).passages]
    whole = parse(document).passages
    assert "".join(passage.text for passage in together).split() == "".join(passage.text for passage in whole).split()
    assert sum(passage.silence_ms for passage in together) == sum(passage.silence_ms for passage in whole)
    assert {passage.prosody.voice for passage in together} == {None, "calm"}
    with pytest.raises(InvalidSsml):
        list(cut_ssml('<!DOCTYPE x [<!ENTITY a "b">]><speak>&a;</speak>'))


def test_deleted_files_stay_deleted_while_somebody_writes(tmp_path: Path):
    files = JobFiles(tmp_path / "job-1")
    files.make()
    files.keep_script(Script((Part("a"),)))
    files.remove()
    with pytest.raises(FileNotFoundError):
        files.keep("key", b"", PartNotes())
    assert list(tmp_path.iterdir()) == []


# EPUBs: read in their order, with their chapters, and refused in words where they are wrong, protected or too large.


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
        (epub(container_xml=None, book_opf=None), "does not contain the package"),
        (epub(one_a_xhtml=None, two_xhtml=None), "does not contain"),
        (epub(container_xml=None, book_opf=None, **{"word/document.xml": "<w/>"}), "a document of Word"),
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
    monkeypatch.setattr(epub_reader, "MOST_OF_ALL", 1000)
    with pytest.raises(InvalidDocument, match="unpacks to more"):
        read_epub(epub())
    monkeypatch.setattr(epub_reader, "MOST_FILES", 5)
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
    assert blocks_of(page)[0].text == "Words."
    assert blocks_of(page + b"<p>The end.</p>")[-1].text.endswith("The end.")
    assert time.process_time() - began < 4


def test_wrong_markup_is_no_error():
    number = "9" * 5000
    page = f"<p>e <![CDATA[ f ]]> g <!-- h --> i</p><p>&#{number};</p><p>a <!-- b > c</p>k <l"
    assert [block.text for block in blocks_of(page.encode())] == ["e f g i", "a <!-- b > c", "k <l"]


SPOKEN = ["p", "div", "span", "b", "em", "section", "ul", "li", "h2", "a", "blockquote", "table", "tr", "td", "figure", "foo"]
SILENT = ["script", "style", "template", "noscript", "svg", "video", "button"]
Node = str | tuple[str, list["Node"]]
LEAVES = st.sampled_from(["ann", "bob", "cat", "dog", "eve"])
MUTE = st.tuples(
    st.sampled_from(SILENT), st.lists(LEAVES | st.tuples(st.just("div"), st.lists(LEAVES, max_size=1)), max_size=2)
)
NODES = st.recursive(
    LEAVES | MUTE, lambda inner: st.tuples(st.sampled_from(SPOKEN), st.lists(inner, max_size=4)), max_leaves=25
)


def markup(node: Node, ends: Iterator[bool]) -> str:
    if isinstance(node, str):
        return f" {node} "
    name, inner = node
    is_closed = name in SILENT or next(ends)
    return f"<{name}>{''.join(markup(one, ends) for one in inner)}" + (f"</{name}>" if is_closed else "")


def spoken_words(node: Node) -> list[str]:
    if isinstance(node, str):
        return [node]
    name, inner = node
    return [] if name in SILENT else [word for one in inner for word in spoken_words(one)]


@given(st.lists(NODES, max_size=6), st.lists(st.booleans(), min_size=1))
def test_every_word_outside_silent_elements_is_spoken_once(nodes: list[Node], ends: list[bool]):
    words = [word for node in nodes for word in spoken_words(node)]
    for closed in ([True], ends):
        page = PAGE.format("".join(markup(node, itertools.cycle(closed)) for node in nodes))
        assert re.findall("[a-z]+", " ".join(block.text for block in blocks_of(page))) == words


@given(st.integers(0, 2000), st.sampled_from(["utf-8", "utf-16", "gb18030"]))
def test_a_page_that_is_cut_anywhere_is_read(place: int, encoding: str):
    page = PAGE.format(f"{ONE}<!-- a --><![CDATA[b]]><table><tr><td>c<td>d</table>漢字<rp>(<pre>e\nf</pre>").encode(encoding)
    blocks = blocks_of(page[: min(place, len(page))])
    assert blocks_of(page)[0].text == "One"
    assert all("\ufffd" not in block.text for block in blocks)


@pytest.mark.parametrize(
    "piece", ["<div>", "<b>", "<ul><li>", "<table><tr><td>", "<sup>", "<rt>", "> ", "- ", "[", "*a ", "<math><mrow>"]
)
def test_any_nesting_is_read(piece: str):
    deep = piece * 5_000
    assert "end" in " ".join(block.text for block in blocks_of(f"{deep}middle<p>end</p>"))
    chapters = read_markdown(f"{deep} middle\n\nend").chapters
    assert "end" in chapters[-1].paragraphs[-1]


@pytest.mark.parametrize(("page", "texts"), [
    ("<p>10<sup>6</sup> a<sup>2</sup> of<sup>1</sup> 1<sup>st</sup></p>", ["10⁶ a² of 1st"]),
    ("<p>It<a href='#n'><sup>2</sup></a> is<sup><a href='#n'>3</a></sup></p>", ["It is"]),
    ("<ol start='3'><li>a<li><p>b</p></ol>", ["3. a", "4. b"]), ("<tr><td>a<td>b.<td>c</tr>", ["a, b. c"]),
    ("<p>He <span role='doc-pagebreak'>12</span>ran.<i hidden>no</i> <b style='display: none'>no</b></p>", ["He ran."]),
    ("<p><img alt='O'>nce<img alt='a red boat'></p>", ["Once"]), ("<p>a<br>b</p>", ["a\nb"]),
    ("<p>So <math><msup><mi>x</mi><mn>2</mn></msup></math></p>", ["So x^2"]),
    ("<p>M<sup>r</sup> A<a href='#n'>[1]</a> <a id='page_9'>[Pg 9]</a>ran 10<span class='super'>6</span>", ["Mr A ran 10⁶"]),
    ("<head><title>t<p>b", ["t", "b"]), ("<ruby>漢<rt>kan<p>Then", ["漢", "Then"]), ("<a class='noteref'>1<p>Then", ["Then"]),
    ("<p>A <epub:switch><epub:case>one</epub:case><epub:default>two</epub:default></epub:switch></p>", ["A two"]),
])  # fmt: skip
def test_what_is_spoken_of_elements(page: str, texts: list[str]):
    assert [block.text for block in blocks_of(page)] == texts


@pytest.mark.parametrize(("encoding", "declared"), [
    ("gb18030", "gb2312"), ("utf-8", "utf-16"), ("utf-8", "gbk"), ("gb18030", "utf-8"), ("utf-16", "x"), ("big5", "big5"),
    ("gb18030", ""),
])  # fmt: skip
def test_declared_and_real_encodings_are_told_apart(encoding: str, declared: str):
    text = "海面很平靜，他們都在船上。" if encoding == "big5" else "海面很平静，他们的船在岸上。"
    page = f'<html><head><meta charset="{declared}"></head><p>{text}</p></html>'
    assert blocks_of(page.encode(encoding))[0].text == text


@pytest.mark.parametrize("change", [
    {"book_opf": package().replace("text/one%20a", "TEXT/One%20A")}, {"book_opf": package().replace("text/two", "text\\two")},
    {"book_opf": package().replace("text/two", "two")}, {"nav_xhtml": "<html"},
])  # fmt: skip
def test_names_and_contents_that_are_nearly_right(change: dict[str, str]):
    book = read_epub(epub(**change))
    texts = [text for chapter in book.chapters for text in (chapter.title, *chapter.paragraphs)]
    assert {"One", "The first words here.", "The last words."} <= set(texts)
    assert book.missing == ()


def test_a_missing_file_is_skipped_and_named():
    book = read_epub(epub(two_xhtml=None))
    assert (book.missing, book.chapters[0].title) == (("two.xhtml",), "One")


def test_anchors_that_do_not_exist_begin_chapters_all_the_same():
    contents = NAV.replace("one%20a.xhtml", "one%20a.xhtml#gone").replace("#two", "#lost")
    assert [chapter.title for chapter in read_epub(epub(nav_xhtml=contents)).chapters] == ["One", "Chapter Two"]


def test_front_matter_is_used_and_not_spoken():
    book = read_markdown("---\ntitle: The Mill\nauthor: Ann\n---\n\nOne\n===\n\nIt stood <!-- a\n\nb --> there.\n")
    assert (book.title, book.author) == ("The Mill", "Ann")
    assert book.chapters == (Chapter("One", ("It stood there.",)),)
    assert read_html(b"<title>Tea</title><h1>One</h1><p>a").title == "Tea"


@pytest.mark.parametrize("content", [b"{\\rtf1 a}", b"%PDF-1.4", b"<?xml version='1.0'?><FictionBook>a</FictionBook>"])
def test_other_documents_are_refused_by_what_they_are(content: bytes):
    with pytest.raises(InvalidDocument, match="save it as EPUB, HTML or plain text"):
        read_document(asked(content, file="a.txt"))


# The reader of documents: a process that answers with a script or a refusal, and whose limits are refusals too.


MOST_CHARACTERS = 100_000


@pytest.fixture(scope="module")
def process() -> Iterator[WarmChild]:
    child = WarmChild("pipeline.books.reader", timeout_s=60.0)
    yield child
    child.end()


def asked(content: str | bytes, kind: str = "text", **fields: object) -> Question:
    return Question(content if isinstance(content, bytes) else content.encode(), kind, MOST_CHARACTERS, **fields)  # type: ignore[arg-type]


QUESTIONS = {
    "text": asked("One.\n\nTwo.", pauses=Pauses(1, 2, 3)),
    "markdown": asked("# A\n\nOne.\n\n# B\n\nTwo.", "markdown"),
    "ssml": asked("<speak><p>One.</p><p>Two.</p></speak>", "ssml"),
    "script": asked("Ann: One.\nBob: Two.\nthree.", "script", cast={"Ann": {"voice": "calm"}, "Bob": {"seed": 1}}),
    "turns": asked('[{"text":"One.","own":{"seed":1},"speaker":"A"},{"text":"Two.","gap_ms":7}]', "turns"),
    "a file": asked("\ufeffOne.\r\n\r\nTwo.", file="a.txt"),
    **{name: asked("船是红色的，我们都在这里。\n\n海很平静。".encode(name), file="a.txt") for name in ("gb18030", "utf-16")},
    "an EPUB": asked(epub(), file="a.epub"),
    "a page": asked("<html><p>One.<p>Two.", file="a.htm"),
    "subtitles": asked(
        "1\n00:00:01,000 --> 00:00:02,000\nOne.\n\n2\n00:00:09,000 --> 00:00:10,000\n<i>Two.</i>\n", file="a.srt"
    ),
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_process_reads_what_the_module_reads(process: WarmChild, name: str) -> None:
    document = document_of(process.ask(QUESTIONS[name].to_bytes()))
    assert document == read_document(QUESTIONS[name])
    assert len(document.script.parts) >= 2
    assert (document.cover, document.is_book) == (
        picture() if name == "an EPUB" else b"",
        name in ("an EPUB", "a page"),
    )


@pytest.mark.parametrize(
    ("question", "kind", "says"),
    [
        (asked("a" * (MOST_CHARACTERS + 1)), TextTooLong, "100001 characters; the limit of a job is 100000"),
        (asked('[{"text":"%s"}]' % ("a" * (MOST_CHARACTERS + 1)), "turns"), TextTooLong, "100001 characters"),
        (asked("a\n\n" * 26_000), TextTooLong, "26000 parts; the limit of a job is 25000"),
        (asked("# a\n\n" * 301, "markdown"), TextTooLong, "301 chapters; the limit of a job is 300"),
        (asked("<speak>" + "<p>" * 5_000 + "a" + "</p>" * 5_000 + "</speak>", "ssml"), InvalidSsml, "nested more than 10 deep"),
        (asked("<speak " + " ".join(f'a{n}="1"' for n in range(17)) + ">a</speak>", "ssml"), InvalidSsml, "17 attributes"),
        (asked("<speak>" + "<s/>" * 20_001 + "</speak>", "ssml"), InvalidSsml, "more than 20000 elements"),
        (asked("<speak><p>" + "a " * 40_000 + "</p></speak>", "ssml"), InvalidSsml, "the limit is 65536"),
        (
            asked(f'<speak><voice name="{"a" * 20_000}">{"<p>a</p>" * 1000}</voice></speak>', "ssml"),
            InvalidSsml,
            "more than 8 times its",
        ),
        (asked("Ann: a\nCarl: b", "script", cast={"Ann": {}}), InvalidRequest, "line 2"),
        (asked("Ann: ...", "script", cast={"Ann": {}}), NoSpeakableText, "turn 1"),
        (asked(epub(), "script", file="a.epub"), InvalidDocument, "has no cast"),
        (asked("no archive", file="a.EPUB"), InvalidDocument, "does not begin like an archive"),
        (asked(b"\xff\xfe", file="a.txt"), InvalidDocument, "neither an EPUB, nor HTML, nor text in UTF-8"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_read_is_refused_in_words(
    monkeypatch: pytest.MonkeyPatch, question: Question, kind: type[Exception], says: str
) -> None:
    monkeypatch.setattr(reader, "MOST_PARTS", 25_000)
    monkeypatch.setattr(reader, "MOST_CHAPTERS", 300)
    monkeypatch.setattr("pipeline.books.ssml_cutting.MOST_ELEMENTS", 20_000)
    with pytest.raises(kind, match=says):
        read_document(question)


def test_a_process_refuses_in_the_same_words(process: WarmChild) -> None:
    with pytest.raises(InvalidSsml, match="10 deep") as refused:
        document_of(process.ask(asked("<speak>" + "<p>" * 99 + "</p>" * 99 + "</speak>", "ssml").to_bytes()))
    assert refused.value.param == "input"


def test_a_process_that_ends_is_started_again(process: WarmChild) -> None:
    question = QUESTIONS["text"].to_bytes()
    before = process.ask(question)
    assert process._process is not None
    process._process.send_signal(signal.SIGXCPU)  # as the kernel does at the limit of processor time
    process._process.wait()
    with pytest.raises(ChildFailed):
        process.ask(question)
    assert process.ask(question) == before


@pytest.mark.parametrize(("kind", "head", "piece", "tail"), [
    ("markdown", "# a", " ", "b"), ("markdown", "# a", "# ", "b"), ("text", "a", "\n ", "b"),
    ("text", "a", "\t\n", "b"), ("ssml", "<speak>", "<p>.</p>", "</speak>"),
    ("markdown", "", "*a* [b", ""), ("text", "<html>", "<p>a", ""), ("text", "<html>", "<b>", "a"),
    ("ssml", "<speak>", "<p>a</p>", "</speak>"), ("script", "A: a\n", "a\n", ""), ("script", "A: a\na", " ", ": b"),
])  # fmt: skip
def test_reading_is_linear(kind: str, head: str, piece: str, tail: str) -> None:
    def text(count: int) -> Question:
        return asked(head + piece * count + tail, kind, cast={"A": {}})

    def least_s(count: int) -> float:
        question, found = text(count), []
        for _ in range(3):
            began = time.thread_time()
            with suppress(InvalidRequest):
                read_document(question)
            found.append(time.thread_time() - began)
        return min(found)

    assert least_s(8_000) < 12 * least_s(2_000) + 0.005
