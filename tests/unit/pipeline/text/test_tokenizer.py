"""Prompts: the layouts of both kinds, and no way for a text to write a mark of its own."""

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from pipeline.checkpoint.layout import PRONUNCIATION_FILE, TOKENIZER_FILE
from pipeline.checkpoint.locate import DEMO_FOLDER
from pipeline.checkpoint.manifest import write_manifest
from pipeline.errors import CheckpointError, TextTooLong
from pipeline.spec import CONTROL_TAGS
from pipeline.text.pronunciation import HETERONYMS, WINDOWS, Pronunciation, context, read_pronunciation
from pipeline.text.refine_guard import FILLERS, accepts, diff, words
from pipeline.text.tokenizer import PROMPT_MARKS, PromptTokenizer
from pipeline.types import Change, Head, RefineParams, Segment, Voice

SPEAKER = np.linspace(-1, 1, 16).astype(np.float16)
SAMPLE = np.arange(12).reshape(3, 4)


@pytest.fixture(scope="module")
def vocabulary(demo_root):
    return Tokenizer.from_file(str(demo_root / TOKENIZER_FILE))


@pytest.fixture(scope="module")
def tokenizer(demo_root):
    return PromptTokenizer(demo_root, max_prompt=200)


def segment(text):
    return Segment(text, index=3, is_last=False)


VOICE = Voice("v", SPEAKER)


def code(tokenizer, text="hello", voice=VOICE, speed=5):
    return tokenizer.code_prompt(segment(text), voice, speed_token=speed, max_steps=77)


def tokens(vocabulary, prompt):
    return [vocabulary.id_to_token(int(token_id)) for token_id in prompt.ids[prompt.text_mask][:, 0]]


def test_a_code_prompt_is_marks_speaker_speed_and_text(tokenizer, vocabulary):
    prompt = code(tokenizer, "a [laugh]b")
    assert tokens(vocabulary, prompt) == ["[Stts]", "[spk_emb]", "[speed_5]", "a", "[laugh]", "b", "[Ptts]"]
    assert (prompt.head, prompt.max_steps, prompt.eos_token, prompt.segment.index) == (Head.CODE, 77, None, 3)
    assert prompt.ids.dtype == np.int64
    assert (prompt.ids == prompt.ids[:, :1]).all()
    assert prompt.text_mask.dtype == np.bool_
    assert prompt.text_mask.all()
    assert prompt.speaker is SPEAKER
    assert prompt.speaker_position == 1


def test_no_embedding_means_the_empty_speaker(tokenizer, vocabulary):
    prompt = code(tokenizer, voice=Voice("default", None), speed=0)
    assert tokens(vocabulary, prompt)[:3] == ["[Stts]", "[empty_spk]", "[speed_0]"]
    assert prompt.speaker is None
    assert prompt.speaker_position is None


def test_a_sample_stands_before_as_text_and_after_as_codes(tokenizer, vocabulary):
    prompt = code(tokenizer, "b", Voice("v", SPEAKER, SAMPLE, "a [Stts]"))
    assert tokens(vocabulary, prompt)[2:4] == ["a", vocabulary.id_to_token(vocabulary.encode("Stts").ids[1])]
    assert prompt.text_mask.tolist() == [True] * (len(prompt.ids) - 3) + [False] * 3
    assert np.array_equal(prompt.ids[-3:], SAMPLE)


def test_a_refine_prompt_is_text_and_manner(tokenizer, vocabulary):
    prompt = tokenizer.refine_prompt(segment("a b"), RefineParams(oral=1, laugh=2, pause=7), max_steps=9)
    assert tokens(vocabulary, prompt) == ["[Sbreak]", "a", "b", "[Pbreak]", "[oral_1]", "[laugh_2]", "[break_7]"]
    assert (prompt.head, prompt.max_steps) == (Head.TEXT, 9)
    assert vocabulary.id_to_token(prompt.eos_token) == "[Ebreak]"
    assert prompt.speaker is None


SOUP = st.lists(
    st.sampled_from([*"[]_ 9aSts你", *PROMPT_MARKS, "[UNK]", "[CLS]", "[PAD]", "[music]", "[laugh]", "tts]", "[S", "spk"])
)


@given(SOUP.map("".join) | st.text())
def test_no_text_can_write_a_mark(tokenizer, vocabulary, text):
    try:
        names = tokens(vocabulary, code(tokenizer, text))
    except TextTooLong:
        return
    assert names[:3] == ["[Stts]", "[spk_emb]", "[speed_5]"]
    assert names[-1] == "[Ptts]"
    special = {token for token in names[3:-1] if token.startswith("[")}
    assert special <= CONTROL_TAGS | {"[UNK]"}, "only an unknown word may become [UNK]"


def test_the_written_word_unk_is_not_the_unknown_token(tokenizer, vocabulary):
    assert "[UNK]" not in tokens(vocabulary, code(tokenizer, "[UNK] [CLS] [PAD]"))


def test_prompts_end_at_the_limit(demo_root):
    fits = code(PromptTokenizer(demo_root, max_prompt=64), "a " * 60)
    assert len(fits.ids) == 64
    with pytest.raises(TextTooLong, match=r"65 positions.*64"):
        code(PromptTokenizer(demo_root, max_prompt=64), "a " * 61)
    with pytest.raises(TextTooLong):
        code(PromptTokenizer(demo_root, max_prompt=64), "a " * 58, Voice("v", SPEAKER, SAMPLE, ""))
    with pytest.raises(TextTooLong):
        PromptTokenizer(demo_root, max_prompt=64).refine_prompt(segment("a " * 60), RefineParams(), max_steps=1)


def test_refined_text_keeps_tags_and_loses_manner_and_marks(tokenizer, vocabulary):
    ids = vocabulary.encode("a [uv_break] b [break_3] [oral_2] c [Stts] [UNK] [laugh] d", add_special_tokens=False).ids
    assert tokenizer.decode_refined(ids) == "a [uv_break] b c [laugh] d"
    assert tokenizer.decode_refined([]) == ""


def test_a_missing_file_a_broken_one_and_a_foreign_one_are_refused(tmp_path, vocabulary):
    with pytest.raises(CheckpointError, match="the file is missing"):
        PromptTokenizer(tmp_path, max_prompt=64)
    file = tmp_path / TOKENIZER_FILE
    file.parent.mkdir(parents=True)
    file.write_text("{]")
    with pytest.raises(CheckpointError, match="tokenizers"):
        PromptTokenizer(tmp_path, max_prompt=64)
    file.write_text(vocabulary.to_str().replace("[speed_7]", "[speed_x]"))
    with pytest.raises(CheckpointError, match=r"\[speed_7\]"):
        PromptTokenizer(tmp_path, max_prompt=64)


# The pronouncing dictionary of a checkpoint: words by entry, other words by the widest rules, and nothing else is touched.


LETTERS = "abcdefghijklmnopqrstuvwxyz"
TEXTS = st.lists(
    st.text(LETTERS + LETTERS.upper(), min_size=1, max_size=12) | st.sampled_from(["你好", ", ", "[laugh]", " ", "3"])
)
SPOKEN = Pronunciation(
    {"one": "WAN"}, {"(c)": "K", "(c)e": "S", "#(k)n": "", "(k)": "K", "(n)": "N", "(e)": "E", "(a)": "A", "(t)": "T"}
)


def test_a_word_is_its_entry_or_its_letters_by_the_widest_rule():
    spellings = {
        "one": "WAN",
        "One": "WAN",
        "ONE": "WAN",
        "cat": "KAT",
        "cent": "SENT",
        "knee": "NEE",
        "ken": "KEN",
        "bat": "AT",
    }
    assert {word: SPOKEN.spoken(word) for word in spellings} == spellings


def test_signs_tags_and_other_languages_stay():
    assert SPOKEN.spoken("One, [uv_break] 你好 one\u3002[laugh]") == "WAN, [uv_break] 你好 WAN\u3002[laugh]"


def test_chinese_words_are_written_with_homophones_and_the_longest_counts():
    spoken = Pronunciation({"音乐": "音岳", "音乐会": "音岳惠", "银行": "银航"}, {})
    spellings = {"听音乐": "听音岳", "音乐会。": "音岳惠。", "音乐[laugh]会": "音岳[laugh]会", "银行卡": "银航卡", "音": "音"}
    assert {text: spoken.spoken(text) for text in spellings} == spellings


@pytest.mark.parametrize(
    "text",
    [
        *(
            "我没收到你的信",
            "几个人参加比赛",
            "这种地方很少",
            "他是好学生",
            "多数数据不准",
            "他的确认函",
            "总结实践经验",
            "时间断断续续",
        ),
        *("朝阳区", "一个人生活", "他还没收拾好"),
    ],
)
def test_an_entry_across_the_border_of_two_words_is_no_word(demo_spoken: Pronunciation, text: str):
    torn = {
        "没收": "寞收",
        "人参": "人深",
        "种地": "仲地",
        "好学": "号学",
        "数数": "鼠数",
        "的确": "嫡确",
        "结实": "皆实",
        "间断": "健断",
        "朝阳": "招阳",
        "人生": "人升",
    }
    assert not any(same in demo_spoken.spoken(text) for same in torn.values())


@pytest.mark.parametrize(
    ("text", "word", "same"),
    [
        ("财产被没收了", "没收", "寞收"),
        ("他们种地", "种地", "仲地"),
        ("银行的音乐会", "银行", "银航"),
        ("一百八十", "一百", "义百"),
    ],
)
def test_an_entry_that_is_a_word_is_spoken_so(demo_spoken: Pronunciation, text: str, word: str, same: str):
    assert demo_spoken.words[word] == same
    assert same in demo_spoken.spoken(text)


@pytest.mark.parametrize(
    ("first", "second", "word"),
    [
        ("I will read it", "he had read it", "read"), ("to lead them", "a lead pipe", "lead"),
        ("they live here", "live music", "live"), ("it is close", "close the door", "close"),
        ("a new record", "to record it", "record"), ("use it", "the use of it", "use"),
        ("one minute", "minute details", "minute"), ("the wind blew", "to wind it up", "wind"),
        ("a desert", "to desert them", "desert"), ("the object", "they object to it", "object"),
        ("the present", "to present it", "present"), ("in tears", "he tears up", "tears"),
    ],
)  # fmt: skip
def test_the_words_around_a_word_of_two_sounds_choose_one(demo_spoken: Pronunciation, first: str, second: str, word: str):
    sounds = []
    for text in (first, second):
        place = text.split().index(word)
        sounds.append(demo_spoken.spoken(text).split()[place])
    assert sounds[0] != sounds[1]


def test_words_of_two_sounds_are_many_and_of_known_phones(demo_spoken: Pronunciation):
    rows = [line.split("\t") for line in HETERONYMS.read_text(encoding="utf-8").splitlines() if not line.startswith(("#", "@"))]
    english = [row for row in rows if row[0].isascii()]
    assert len(english) >= 35
    phones = set("".join(value for word, value in demo_spoken.words.items() if word.isascii()))
    for word, usual, other, kind, *beside in english:
        assert usual != other, word
        assert set(usual + other) <= phones, word
        assert kind in ("verb", "noun") or any(beside), word


@given(TEXTS)
def test_every_spoken_character_has_its_place(demo_spoken: Pronunciation, pieces: list[str]):
    text = " ".join(pieces)
    places = demo_spoken.places(text)
    assert len(places) == len(demo_spoken.spoken(text))
    assert places == sorted(places)


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
    spoken = demo_spoken.spoken("".join(pieces))
    assert not re.search("[A-Za-z]", spoken.replace("[laugh]", ""))
    assert demo_spoken.spoken(spoken) == spoken


@pytest.fixture(scope="module")
def demo_spoken() -> Pronunciation:
    pronunciation = read_pronunciation(DEMO_FOLDER)
    assert pronunciation is not None
    return pronunciation


def test_the_file_is_read_back_and_vouched_for(tmp_path: Path):
    assert read_pronunciation(tmp_path) is None
    path = tmp_path / PRONUNCIATION_FILE
    path.parent.mkdir()
    path.write_bytes(SPOKEN.file())
    assert read_pronunciation(tmp_path) == SPOKEN
    write_manifest(tmp_path, {PRONUNCIATION_FILE: "0" * 64})
    with pytest.raises(CheckpointError, match=PRONUNCIATION_FILE):
        read_pronunciation(tmp_path)


# The refine guard: tags and fillers may come in, no word may go.


WORDS = st.lists(st.sampled_from(["hello", "you", "know", "like", "那", "个", "你", "好", "x"]), min_size=1, max_size=12)


@pytest.mark.parametrize(("source", "refined"), [
    ("Hello there.", "hello [uv_break] there"), ("Hello there.", "um hello you know there [laugh]"),
    ("你好，世界。", "嗯你好[uv_break]那个世界就是说"), ("you go", "you know you go"), ("I like it so", "like i like it so so"),
    ("那个人", "那个那个人"), ("a [laugh] b", "a b"),
])  # fmt: skip
def test_additions_that_are_allowed(source, refined):
    assert accepts(source, refined)


@pytest.mark.parametrize(("source", "refined"), [
    ("Hello there.", "hello"), ("Hello there.", "there hello"), ("Hello there.", "hello their"),
    ("Hello there.", "hello there friend"), ("Hello there.", ""), ("你好世界", "你好视界"), ("a b", "a b " + "um " * 50),
    ("a b", "a b " + "[laugh]" * 50),
])  # fmt: skip
def test_losses_changes_and_floods_that_are_not(source, refined):
    assert not accepts(source, refined)


@given(WORDS, st.lists(st.tuples(st.integers(0, 12), st.sampled_from([*FILLERS, *sorted(CONTROL_TAGS)])), max_size=1))
def test_fillers_and_tags_anywhere_are_accepted(meant, added):
    refined = list(meant)
    for place, filler in added:
        refined.insert(min(place, len(refined)), filler)
    assert accepts(" ".join(meant), " ".join(refined))


@given(WORDS)
def test_a_word_that_is_lost_is_noticed(meant):
    for place in range(len(meant) + 1):
        with_one_more = [*meant[:place], "unique", *meant[place:]]
        assert not accepts(" ".join(with_one_more), " ".join(meant))
        assert not accepts(" ".join(meant), " ".join(with_one_more))


@given(WORDS, WORDS)
def test_the_difference_leads_from_one_to_the_other(before, after):
    changes = diff(" ".join(before), " ".join(after))
    assert words(" ".join(change.source for change in changes)) == words(" ".join(before))
    assert words(" ".join(change.refined for change in changes)) == words(" ".join(after))
    assert all((change.op == "equal") == (change.source == change.refined) for change in changes)


def test_long_texts_are_not_compared_word_by_word():
    long = "so " * 10_000
    assert [change.op for change in diff(long, long)] == ["equal"]
    assert [change.op for change in diff(long, f"um {long}")] == ["replace"]


def test_the_difference_names_what_came_in():
    assert diff("Hello there.", "hello [uv_break] there") == [
        Change("equal", "hello", "hello"), Change("insert", "", "[uv_break]"), Change("equal", "there", "there"),
    ]  # fmt: skip
