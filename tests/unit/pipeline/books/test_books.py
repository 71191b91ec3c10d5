"""Books: where a text is cut, what its silences are, and that nothing of it is lost."""

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.audio.formats import audio_format
from pipeline.books.assemble import raw, raw_size
from pipeline.books.book import Pauses, read_markdown, read_plain, script_of
from pipeline.books.cutting import ENOUGH, MOST, cut_paragraph
from pipeline.books.script import Part, Script, read_script
from pipeline.books.shelf import PartNotes, Shelf
from pipeline.books.ssml import cut_ssml
from pipeline.books.track import Track
from pipeline.errors import InvalidSsml
from pipeline.text.markup.ssml import parse

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


def test_parts_are_whole_sentences():
    sentence = "This sentence has about fifty letters in its words. "
    parts = list(cut_paragraph(sentence * 9))
    assert parts == [(sentence * 3).strip()] * 3
    assert len(parts[0]) >= ENOUGH
    assert list(cut_paragraph("Mr. Poe met Dr. No at 10 p.m. in St. Ives.")) == ["Mr. Poe met Dr. No at 10 p.m. in St. Ives."]
    assert list(cut_paragraph(" ... \n* * *")) == []


def test_the_largest_headings_begin_chapters():
    book = read_markdown("Before.\n\n# One\ntext\nmore\n\nnext\n## Below\nx\n\n# Two #\n```\n# no heading\n\ny\n```\n")
    assert [(chapter.title, chapter.paragraphs) for chapter in book.chapters] == [
        ("", ("Before.",)),
        ("One", ("text\nmore", "next", "Below", "x")),
        ("Two", ("```\n# no heading\n\ny\n```",)),
    ]
    assert book.title == ""


def test_one_heading_at_the_top_is_the_title():
    book = read_markdown("# The Book\r\n\r\n## One\r\n\r\na\r\n\r\n## Two\r\n\r\nb")
    assert (book.title, [chapter.title for chapter in book.chapters]) == ("The Book", ["The Book", "One", "Two"])
    assert [chapter.title for chapter in read_markdown("# Only\n\ntext").chapters] == ["Only"]


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
    shelf = Shelf(tmp_path / "job")
    shelf.make()
    shelf.keep_script(script)
    keys = [key for key in dict.fromkeys(script.keys) if key != script.keys[3]]
    samples = {key: np.arange(40 * (index + 1), dtype="<i2") for index, key in enumerate(keys)}
    for key, of_part in samples.items():
        shelf.keep(key, of_part.tobytes(), PartNotes())
    track = Track(script, shelf.lengths(), 8000)
    silence = np.zeros(80, "<i2"), np.zeros(24, "<i2")
    one, two = samples[script.keys[0]], samples[script.keys[1]]
    whole = np.concatenate([silence[0], one, two, silence[1], one]).tobytes()
    assert (track.parts, track.is_whole, track.samples * 2) == (3, False, len(whole))
    assert track.starts == [80, 120, 224]
    wav = audio_format("wav", 8000)
    file = b"".join(raw(shelf, track, wav, 0, raw_size(track, wav)))
    assert file.endswith(whole)
    for first in range(0, len(file), 7):
        for stop in range(first, len(file), 31):
            assert b"".join(raw(shelf, track, wav, first, stop)) == file[first:stop]


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
    shelf = Shelf(tmp_path / "job-1")
    shelf.make()
    shelf.keep_script(Script((Part("a"),)))
    shelf.remove()
    with pytest.raises(FileNotFoundError):
        shelf.keep("key", b"", PartNotes())
    assert list(tmp_path.iterdir()) == []
