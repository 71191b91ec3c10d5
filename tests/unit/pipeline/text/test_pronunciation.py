"""The pronouncing dictionary of a checkpoint: words by entry, other words by the widest rules, and nothing else is touched."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.checkpoint.layout import PRONUNCIATION_FILE
from pipeline.checkpoint.locate import DEMO_FOLDER
from pipeline.checkpoint.manifest import write_manifest
from pipeline.errors import CheckpointError
from pipeline.text.pronunciation import WINDOWS, Pronunciation, context, read_pronunciation

LETTERS = "abcdefghijklmnopqrstuvwxyz"
TEXTS = st.lists(
    st.text(LETTERS + LETTERS.upper(), min_size=1, max_size=12) | st.sampled_from(["你好", ", ", "[laugh]", " ", "3"])
)
SPOKEN = Pronunciation(
    {"one": "WAN"}, {"(c)": "K", "(c)e": "S", "#(k)n": "", "(k)": "K", "(n)": "N", "(e)": "E", "(a)": "A", "(t)": "T"}
)


def test_a_word_is_its_entry_or_its_letters_by_the_widest_rule():
    found = {"one": "WAN", "One": "WAN", "ONE": "WAN", "cat": "KAT", "cent": "SENT", "knee": "NEE", "ken": "KEN", "bat": "AT"}
    assert {word: SPOKEN.spoken(word) for word in found} == found


def test_signs_tags_and_other_languages_stay():
    assert SPOKEN.spoken("One, [uv_break] 你好 one\u3002[laugh]") == "WAN, [uv_break] 你好 WAN\u3002[laugh]"


def test_chinese_words_are_written_with_homophones_and_the_longest_counts():
    spoken = Pronunciation({"音乐": "音岳", "音乐会": "音岳惠", "银行": "银航"}, {})
    found = {"听音乐": "听音岳", "音乐会。": "音岳惠。", "音乐[laugh]会": "音岳[laugh]会", "银行乐": "银航乐", "音": "音"}
    assert {text: spoken.spoken(text) for text in found} == found


@given(st.text(st.sampled_from("音乐会银行大"), max_size=9))
def test_homophones_change_no_length(text: str):
    spoken = Pronunciation({"音乐": "音岳", "乐会": "岳惠", "大银行": "大银航"}, {})
    assert len(spoken.spoken(text)) == len(text)


@given(st.text(LETTERS, min_size=1, max_size=9), st.data())
def test_a_context_is_the_letters_around_it(word: str, data: st.DataObject):
    place, width = data.draw(st.integers(0, len(word) - 1)), data.draw(st.integers(0, len(WINDOWS) - 1))
    before, letter, after = re.fullmatch(r"(.*)\((.)\)(.*)", context(word, place, width)).groups()
    assert (len(before), letter, len(after)) == (WINDOWS[width][0], word[place], WINDOWS[width][1])
    assert f"{before}{letter}{after}" in f"####{word}####"


@given(TEXTS)
def test_every_word_of_the_demo_voice_becomes_phones(demo_spoken: Pronunciation, pieces: list[str]):
    found = demo_spoken.spoken("".join(pieces))
    assert not re.search("[A-Za-z]", found.replace("[laugh]", ""))
    assert demo_spoken.spoken(found) == found


@pytest.fixture(scope="module")
def demo_spoken() -> Pronunciation:
    found = read_pronunciation(DEMO_FOLDER)
    assert found is not None
    return found


def test_the_file_is_read_back_and_vouched_for(tmp_path: Path):
    assert read_pronunciation(tmp_path) is None
    path = tmp_path / PRONUNCIATION_FILE
    path.parent.mkdir()
    path.write_bytes(SPOKEN.file())
    assert read_pronunciation(tmp_path) == SPOKEN
    write_manifest(tmp_path, {PRONUNCIATION_FILE: "0" * 64})
    with pytest.raises(CheckpointError, match=PRONUNCIATION_FILE):
        read_pronunciation(tmp_path)
