"""Homophones: the characters replaced are those of the ChatTTS package, and become the same ones."""

from pathlib import Path

import ChatTTS
from ChatTTS.norm import Normalizer
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.text.normalize.chinese import homophones
from tests.support.effort import examples

UPSTREAM = Normalizer(str(Path(ChatTTS.__file__).parent / "res" / "homophones_map.json"))


def upstream(text: str) -> str:
    return UPSTREAM(text, do_text_normalization=False, do_homophone_replacement=True)


def test_every_character_of_the_map_is_replaced_as_upstream_does():
    rare = "".join(map(chr, homophones()))
    assert len(rare) == 16_425
    assert rare.translate(homophones()) == upstream(rare)


@settings(max_examples=examples(200))
@given(st.text(alphabet=st.characters(min_codepoint=0x4E00, max_codepoint=0x9FFF)))
def test_any_chinese_text_is_replaced_as_upstream_does(text):
    assert text.translate(homophones()) == upstream(text)
