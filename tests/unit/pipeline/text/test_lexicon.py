"""Lexicons: the longest word wins, whole words only, nothing is looked up twice; every process sees the stored ones."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import StoreFull, StoreUnavailable, UnknownLexicon
from pipeline.store.sqlite import SqliteStore
from pipeline.text.language_tags import reading_of
from pipeline.text.lexicon.lexicon_library import LexiconLibrary
from pipeline.text.lexicon.matching import find
from pipeline.text.pinyin import SYLLABLE, TABLE, homophones
from pipeline.types import LexiconEntry, Pronunciation, PronunciationKind
from scripts.generate.pinyin_table import table


def entries(*words: str) -> list[LexiconEntry]:
    return [LexiconEntry(word, PronunciationKind.ALIAS, f"<{word}>") for word in words]


def replaced(text: str, *words: str, **more) -> str:
    """The text with every found word in its place."""
    done, place = "", 0
    for pronunciation in find(entries(*words), text, **more):
        done += text[place : pronunciation.start] + pronunciation.value
        place = pronunciation.stop
    return done + text[place:]


@pytest.mark.parametrize(
    ("text", "words", "expected"),
    [
        ("a cat, Cat; CAT", ["cat"], "a <cat>, <cat>; <cat>"),
        ("a cat, Cat; CAT", ["Cat"], "a cat, <Cat>; CAT"),
        ("concat cats cat5 5cat cat", ["cat"], "concat cats cat5 5cat <cat>"),
        ("new york city", ["york", "new york", "new york city"], "<new york city>"),
        ("new york citys", ["york", "new york", "new york city"], "<new york> citys"),
        ("在重庆市", ["重庆"], "在<重庆>市"),
        ("在重庆市", ["重庆", "庆市"], "在<重庆>市"),
        ("用GPT模型", ["GPT"], "用<GPT>模型"),
        ("C++ and C", ["C++", "C"], "<C++> and <C>"),
        ("naïve", ["na"], "naïve"),
        ("İstanbul", ["istanbul"], "İstanbul"),
        ("Éclair éclair", ["éclair"], "<éclair> <éclair>"),
        ("", ["a"], ""),
    ],
)
def test_words_are_found(text, words, expected):
    assert replaced(text, *words) == expected


def test_of_two_entries_for_a_word_the_first_counts():
    first, second = LexiconEntry("a", PronunciationKind.ALIAS, "x"), LexiconEntry("a", PronunciationKind.PINYIN, "y1")
    assert find([first, second], "a") == [Pronunciation(0, 1, PronunciationKind.ALIAS, "x")]


def test_nothing_is_looked_up_inside_a_given_pronunciation():
    taken = [Pronunciation(2, 5, PronunciationKind.ALIAS, "!")]
    assert replaced("a cat cat", "cat", "a", "a cat", existing=taken) == "<a> ! <cat>"
    assert replaced("[laugh] laugh", "laugh", control_tags=True) == "[laugh] <laugh>"
    assert replaced("[laugh] laugh", "laugh") == "[<laugh>] <laugh>"


@given(st.text(alphabet="abAB 你好1", max_size=60), st.lists(st.text(alphabet="abA 你好", min_size=1, max_size=4), max_size=8))
def test_hints_are_in_order_without_overlap_and_name_their_words(text, words):
    pronunciations = find(entries(*words), text)
    place = 0
    for pronunciation in pronunciations:
        assert place <= pronunciation.start < pronunciation.stop
        assert pronunciation.value[1:-1].lower() == text[pronunciation.start : pronunciation.stop].lower()
        place = pronunciation.stop


# Pinyin.


@pytest.mark.parametrize(
    ("written", "characters"),
    [("zhong4 guo2", 2), ("Zhong4-Guo2", 2), ("lü4", 1), ("lu:4", 1), ("lv4", 1), ("xi1'an1", 2), ("ma5", 1)],
)
def test_syllables_become_characters(written, characters):
    assert len(homophones(written)) == characters


@pytest.mark.parametrize("written", ["", " ", "zhong", "zhong6", "xyz1", "zhong4 xyz1", "中", "1"])
def test_what_is_no_syllable_is_none(written):
    assert homophones(written) is None


def test_the_table_is_what_its_sources_say():
    lines = dict(line.split(" ") for line in TABLE.read_text(encoding="utf-8").splitlines())
    assert lines == table()
    assert len(lines) > 1300
    assert all(SYLLABLE.fullmatch(syllable) and len(character) == 1 for syllable, character in lines.items())


# Stored.

WORDS = tuple(entries("a", "b"))


def test_a_kept_lexicon_is_known_to_every_replica_after_a_look(tmp_path):
    here, there = (LexiconLibrary(SqliteStore(tmp_path / "store")) for _ in range(2))
    here.put("mine", WORDS)
    assert here.get("mine") == WORDS
    with pytest.raises(UnknownLexicon):
        there.get("mine")
    there.refresh()
    assert there.get("mine") == WORDS
    there.put("mine", WORDS[:1])
    here.refresh()
    assert here.get("mine") == WORDS[:1]
    here.delete("mine")
    there.refresh()
    for library in (here, there):
        with pytest.raises(UnknownLexicon):
            library.get("mine")
    with pytest.raises(UnknownLexicon):
        here.delete("mine")


def test_versions_go_on_and_old_ones_are_let_go(tmp_path):
    store = SqliteStore(tmp_path / "store")
    library = LexiconLibrary(store)
    assert [library.put("mine", WORDS) for _ in range(5)] == list(range(1, 6))
    (entry,) = store.changes("lexicons").entries
    assert len(entry.versions) == 1, "no request names an old one"


def test_without_a_store_nothing_is_kept():
    with pytest.raises(StoreUnavailable):
        LexiconLibrary().put("mine", WORDS)
    with pytest.raises(UnknownLexicon):
        LexiconLibrary().get("mine")


def test_a_full_store_keeps_the_lexicon_there_is(tmp_path, monkeypatch):
    store = SqliteStore(tmp_path / "store")
    library = LexiconLibrary(store)
    library.put("mine", WORDS)

    def full(*args: object, **options: object) -> int:
        raise StoreFull("full")

    monkeypatch.setattr(store, "put", full)
    with pytest.raises(StoreFull):
        library.put("mine", WORDS[:1])
    library.refresh()
    assert library.get("mine") == WORDS


# Language tags: BCP 47 forms of the languages that are known; anything else is refused or counted.


READINGS = {
    "auto": ("auto", "AUTO"),
    "zh": (
        *("zh", "ZH", "zh-CN", "zh-cn", "zh_CN", "zh-TW", "zh-Hant", "zh-Hans-SG", "zho-CN"),
        *("chi", "cmn", "cmn-Hans-CN", "zh-cmn", "lzh", "Chinese", "中文", " zh\n"),
    ),
    "en": ("en", "en-US", "en-us", "en_GB", "EN-au", "en-US-u-ca-gregory", "eng", "eng-GB", "english"),
    "dialect": ("yue", "yue-Hant-HK", "zh-yue", "zh-HK", "zh-Hant-HK", "zh_MO", "wuu", "nan-TW", "hak"),
    None: ("fr", "ja-JP", "", "-", "zh-", "z", "French", "auto-en", "en US", "en--US", "x" * 40),
}


def test_every_form_of_a_known_language_is_known_and_no_other():
    assert {tag: reading_of(tag) for tags in READINGS.values() for tag in tags} == {
        tag: reading for reading, tags in READINGS.items() for tag in tags
    }
