"""Homophones: the characters replaced are those of the ChatTTS package, and become the same ones. Its files are unchanged."""

from pathlib import Path

import ChatTTS
from ChatTTS.norm import Normalizer
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.text.normalize.chinese import HOMOPHONES, homophones
from serve.commands.weights.fetch import HASHES_FILE
from tests.support.effort import examples

RESOURCES = Path(ChatTTS.__file__).parent / "res"
UPSTREAM = Normalizer(str(RESOURCES / "homophones_map.json"))


def upstream(text: str) -> str:
    return UPSTREAM(text, do_text_normalization=False, do_homophone_replacement=True)


def test_the_files_of_the_package_are_unchanged():
    assert HOMOPHONES.read_bytes() == (RESOURCES / HOMOPHONES.name).read_bytes()
    assert HASHES_FILE.read_bytes() == (RESOURCES / HASHES_FILE.name).read_bytes()


def test_every_character_of_the_map_is_replaced_as_upstream_does():
    rare = "".join(map(chr, homophones()))
    assert len(rare) == 16_425
    assert rare.translate(homophones()) == upstream(rare)


@settings(max_examples=examples(200))
@given(st.text(alphabet=st.characters(min_codepoint=0x4E00, max_codepoint=0x9FFF)))
def test_any_chinese_text_is_replaced_as_upstream_does(text):
    assert text.translate(homophones()) == upstream(text)
