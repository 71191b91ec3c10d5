"""The text of a body: what a version without markup leaves of it, and the forms of its language."""

from pipeline.types import Passage, Pronunciation, PronunciationKind, Prosody
from serve.speech.schemas.text import TextBody, plain


def test_of_a_document_words_tags_and_silence_are_left():
    passage = Passage(
        "Word.", (Pronunciation(0, 4, PronunciationKind.SAY_AS, "characters"),), True, "en", Prosody("nova", 1.5, 3.0), 500
    )
    assert plain(passage) == Passage("Word.", control_tags=True, language="en", silence_ms=500)


def test_a_language_tag_becomes_its_reading():
    readings = {tag: TextBody(input="x", language=tag).reading for tag in ("auto", "zh-CN", "EN_us", "yue")}
    assert readings == {"auto": "auto", "zh-CN": "zh", "EN_us": "en", "yue": "dialect"}
