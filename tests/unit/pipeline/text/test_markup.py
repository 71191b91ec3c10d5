"""Control tags pass by allow-list; nothing else keeps its brackets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.spec import CONTROL_TAGS
from pipeline.text.markup.control_tags import neutralise, split_tags

FORBIDDEN = ["[Stts]", "[Ptts]", "[Etts]", "[spk_emb]", "[empty_spk]", "[speed_10]", "[Sbreak]", "[Ebreak]", "[UNK]", "[CLS]"]
SOUP = st.lists(st.sampled_from([*"[]_09aSts 你", *FORBIDDEN, *sorted(CONTROL_TAGS), "tts]", "[S", "laugh", "speed_"])).map(
    "".join
)


@pytest.mark.parametrize("tag", sorted(CONTROL_TAGS))
def test_allowed_tags_stay_as_they_are(tag):
    assert neutralise(f"a{tag}b") == f"a{tag}b"
    assert split_tags(f"a{tag}b") == ["a", tag, "b"]


@pytest.mark.parametrize("tag", [*FORBIDDEN, "[LAUGH]", "[laugh ]", "[break_8]", "[oral_10]", "[laugh_3]", "[]"])
def test_other_brackets_are_dropped_and_their_words_stay(tag):
    cleaned = neutralise(f"a{tag}b")
    assert cleaned == f"a {tag[1:-1]} b"


@pytest.mark.parametrize(
    ("given_text", "cleaned"),
    [
        ("[S[Stts]tts]", " S Stts tts "),
        ("[[laugh]laugh]", " [laugh]laugh "),
        ("[la[laugh]ugh]", " la[laugh]ugh "),
        ("an [unclosed bracket swallows nothing", "an  unclosed bracket swallows nothing"),
        ("]]x[[", "  x  "),
    ],
)
def test_nested_and_unclosed_brackets(given_text, cleaned):
    assert neutralise(given_text) == cleaned


@given(SOUP)
def test_every_bracket_left_belongs_to_an_allowed_tag(text):
    cleaned = neutralise(text)
    rest = "".join(piece for piece in split_tags(cleaned) if piece not in CONTROL_TAGS)
    assert "[" not in rest
    assert "]" not in rest
    assert neutralise(cleaned) == cleaned


@given(SOUP)
def test_only_brackets_are_lost(text):
    assert neutralise(text).replace("[", " ").replace("]", " ") == text.replace("[", " ").replace("]", " ")
