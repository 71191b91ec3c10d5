"""Markup: SSML, control tags and scripts: what is understood, counted and refused; nothing is lost or executed."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.checkpoint.locate import DEMO_FOLDER
from pipeline.errors import InvalidRequest, InvalidSsml
from pipeline.spec import CONTROL_TAGS
from pipeline.text.markup.control_tags import neutralise, split_tags
from pipeline.text.markup.dialogue import Said, read_script
from pipeline.text.markup.ssml import MAX_BYTES, parse
from pipeline.text.markup.ssml_elements import MAX_BREAK_MS, SILENT_DB, STYLES, VOICES
from pipeline.text.markup.ssml_reader import MAX_DEPTH, MAX_ELEMENTS, MAX_TURNS
from pipeline.text.normalize import vocabulary_of
from pipeline.text.pinyin import homophones
from pipeline.text.speech_text import build_speech_text
from pipeline.text.tokenizer import PromptTokenizer
from pipeline.text.whole import whole_words
from pipeline.types import Mark, Passage, Pronunciation, PronunciationKind, Prosody, SynthesisRequest

XMLNS = 'xmlns:mstts="https://www.w3.org/2001/mstts"'


def speak(inside: str) -> str:
    return f"<speak {XMLNS}>{inside}</speak>"


def passages(inside: str) -> tuple[Passage, ...]:
    return parse(speak(inside)).passages


def only(inside: str) -> Passage:
    (passage,) = passages(inside)
    return passage


def test_plain_text_is_one_passage():
    assert only(" Hello\n  there. ").text == " Hello there. "


@pytest.mark.parametrize(("element", "silence_ms"), [
    ('<break time="250ms"/>', 250), ('<break time="1.5s"/>', 1500), ('<break time="+2s"/>', 2000), ("<break/>", 750),
    ('<break strength="x-strong"/>', 1250), ('<break time="100ms"/> <break time="200ms"/>', 300),
])  # fmt: skip
def test_breaks_are_silence_before_what_follows(element, silence_ms):
    first, second = passages(f"one {element} two")
    assert (first.silence_ms, second.silence_ms) == (0, silence_ms)
    assert (first.text.strip(), second.text.strip()) == ("one", "two")


def test_silence_at_the_end_and_at_the_beginning():
    first, last = passages('<mstts:silence type="Leading" value="1s"/>one<mstts:silence type="Tailing" value="2s"/>')
    assert (first.silence_ms, last) == (1000, Passage("", silence_ms=2000))
    assert passages('one<break time="10ms"/>')[-1] == Passage("", silence_ms=10)
    assert passages('<break strength="none"/>') == ()


@pytest.mark.parametrize(("attributes", "prosody"), [
    ('rate="slow"', Prosody(rate=0.75)), ('rate="150%"', Prosody(rate=1.5)), ('rate="+50%"', Prosody(rate=1.5)),
    ('rate="-25%"', Prosody(rate=0.75)), ('rate="0.5"', Prosody(rate=0.5)), ('volume="soft"', Prosody(gain_db=-6.0)),
    ('volume="+3dB"', Prosody(gain_db=3.0)), ('volume="silent"', Prosody(gain_db=SILENT_DB)),
    ('volume="0"', Prosody(gain_db=SILENT_DB)), ('volume="100"', Prosody(gain_db=0.0)),
])  # fmt: skip
def test_prosody(attributes, prosody):
    assert only(f"<prosody {attributes}>x</prosody>").prosody == prosody


def test_manners_nest_and_end_with_their_element():
    spoken = passages(
        'a<voice name="nova">b<prosody rate="2"><prosody rate="0.5" volume="+6dB">c</prosody>d</prosody></voice>e'
    )
    assert [passage.prosody for passage in spoken] == [
        Prosody(), Prosody(voice="nova"), Prosody("nova", 1.0, 6.0), Prosody("nova", 2.0), Prosody(),
    ]  # fmt: skip
    assert "".join(passage.text for passage in spoken) == "abcde"


def test_sentences_end_and_stay_in_one_passage():
    assert only("<p><s>One</s><s>two</s></p>three").text == "One\ntwo\nthree"


def test_languages_nest():
    spoken = passages('a<lang xml:lang="zh-CN">b<s xml:lang="en-GB">c</s></lang><p xml:lang="fr">d</p>')
    assert [passage.language for passage in spoken] == ["auto", "zh", "en", "auto"]
    assert parse(speak('<p xml:lang="fr">d</p>')).warnings == (("unsupported_language", 1),)


def test_a_block_ends_a_word():
    spoken = whole_words(passages('<p>One</p><s>Two</s><lang xml:lang="en-US">three</lang>'))
    assert [passage.text for passage in spoken] == ["One\nTwo\n", "three"]


def test_words_say_how_they_sound():
    passage = only(
        'Call <say-as interpret-as="digits">110</say-as>, <sub alias="World Wide Web">WWW</sub> '
        '<phoneme alphabet="pinyin" ph="chong2">重</phoneme><phoneme alphabet="x-homophone" ph="崇">重</phoneme>'
        '<say-as interpret-as="date" format="dmy">1/2/2026</say-as>'
    )
    assert passage.text == "Call 110, WWW 重重1/2/2026"
    assert passage.pronunciations == (
        Pronunciation(5, 8, PronunciationKind.SAY_AS, "digits"),
        Pronunciation(10, 13, PronunciationKind.ALIAS, "World Wide Web"),
        Pronunciation(14, 15, PronunciationKind.PINYIN, "chong2"),
        Pronunciation(15, 16, PronunciationKind.ALIAS, "崇"),
        Pronunciation(16, 24, PronunciationKind.SAY_AS, "date:dmy"),
    )


def test_styles_are_a_pace_and_a_loudness():
    assert only('<mstts:express-as style="Calm">x</mstts:express-as>').prosody == STYLES["calm"]


@pytest.mark.parametrize(
    ("inside", "text"),
    [
        ("<paragraph>One</paragraph><sentence>Two</sentence>", "One\nTwo\n"),
        ("<dialog><turn>One</turn><turn>Two</turn></dialog>", "One\nTwo\n"),
        ("One<foo/>two", "One two"),
        ("im<w>poss</w>ible", "impossible"),
        ("im<x:y>poss</x:y>ible", "impossible"),
        ("im<emphasis>poss</emphasis>ible", "impossible"),
    ],
)
def test_blocks_separate_words_and_what_stands_inside_words_does_not(inside, text):
    assert parse(speak(inside)).text == text


@pytest.mark.parametrize(
    ("written", "duration_ms"),
    [("1.5 s", 1500), ("0.5S", 500), ("500", 500), ("3", 3000), (f"{MAX_BREAK_MS + 1}ms", MAX_BREAK_MS), ("soon", 750)],
)
def test_breaks_last_as_long_as_they_say_within_the_limit(written, duration_ms):
    assert parse(speak(f'<break time="{written}"/>x')).passages[0].silence_ms == duration_ms


def test_a_voice_is_chosen_by_its_gender_or_language():
    assert only('<voice gender="female">x</voice>').prosody.voice in VOICES["female"]
    assert only('<voice gender="male" variant="2">x</voice>').prosody.voice == VOICES["male"][1]
    assert only('<voice language="zh-CN">5</voice>').language == "zh"


@pytest.mark.parametrize(
    ("alphabet", "sounds"),
    [
        ("pinyin", "chong2 qing4"), ("pinyin", "chóng qìng"), ("pinyin", "Chong2-qing4"), ("x-amazon-pinyin", "chong2qing4"),
        ("sapi", "chong 2 qing 4"), ("x-pinyin", "chong2'qing4"), ("pinyin", "chong2 . qing4"),
    ],
)  # fmt: skip
def test_pinyin_is_read_as_each_vendor_spells_it(alphabet, sounds):
    passage = only(f'<phoneme alphabet="{alphabet}" ph="{sounds}">重庆</phoneme>')
    assert homophones(passage.pronunciations[0].value) == homophones("chong2 qing4")


def test_phones_are_spoken_where_the_checkpoint_has_them(demo_frontend):
    document = parse(speak('I say <phoneme alphabet="ipa" ph="/təˈmeɪtoʊ/">tomato</phoneme> now.'))
    assert document.warnings == ()
    requested = SynthesisRequest("x", document.text, "alloy", document.passages)
    spoken = build_speech_text(requested, vocabulary=demo_frontend)
    assert [segment.text for segment in spoken.segments] == ["I say ᴛəᴍɛᴛᴏ now."]
    letters = vocabulary_of(str.isascii, CONTROL_TAGS)
    spoken = build_speech_text(requested, vocabulary=letters)
    assert [segment.text for segment in spoken.segments] == ["I say tomato now."]
    assert dict(spoken.warnings) == {"unsupported_phoneme": 1}


@pytest.fixture(scope="module")
def demo_frontend():
    return vocabulary_of(PromptTokenizer(DEMO_FOLDER, max_prompt=2048).knows, CONTROL_TAGS)


def test_marks_know_how_much_text_is_before_them():
    document = parse(speak('one <mark name="a"/>two<break time="1s"/>three<mark name="b"/>'))
    assert document.marks == (Mark("a", 4), Mark("b", 12))
    assert document.text == "one twothree"


def test_marks_know_how_much_silence_is_before_them():
    document = parse(
        speak('<mark name="a"/><break time="1s"/><mark name="b"/><break time="200ms"/><mark name="c"/>one<break/>')
    )
    assert document.marks == (Mark("a", 0), Mark("b", 0, 1000), Mark("c", 0, 1200))


@pytest.mark.parametrize(
    ("inside", "code"),
    [
        ("<foo>x</foo>", "unknown_element"),
        ("<speak>x</speak>", "unknown_element"),
        ("<metadata>not spoken</metadata>x", "unspoken_element"),
        ('<prosody pitch="high">x</prosody>', "unsupported_prosody"),
        ('<say-as interpret-as="wat">x</say-as>', "unknown_say_as"),
        ('<phoneme alphabet="ipa" ph="x">x</phoneme>', "unsupported_phoneme"),
        ('<mstts:express-as style="angry-bird">x</mstts:express-as>', "unknown_style"),
        ('<mstts:express-as style="calm" styledegree="2">x</mstts:express-as>', "unsupported_style"),
        ('<mstts:express-as style="calm" role="Girl">x</mstts:express-as>', "unsupported_style"),
        ('<emphasis level="reduced">x</emphasis>', "unsupported_emphasis"),
        ('<mstts:silence type="Comma" value="1s"/>x', "unsupported_silence"),
        ('<sub alias="y"><foo>x</foo></sub>', "nested_element"),
        ('<lang xml:lang="fr">x</lang>', "unsupported_language"),
        ('<amazon:effect name="whispered">x</amazon:effect>', "unknown_element"),
        (f'<break time="{MAX_BREAK_MS + 1}ms"/>x', "break_shortened"),
        ('<break time="-1s"/>x', "unknown_value"),
        ('<break time="soon"/>x', "unknown_value"),
        ('<break time="3"/>x', "unknown_value"),
        ('<break strength="huge"/>x', "unknown_value"),
        ("<voice>x</voice>", "unknown_voice"),
        ("<sub>x</sub>", "unknown_value"),
        ('<prosody rate="9000%">x</prosody>', "unknown_value"),
        ('<prosody rate="quick">x</prosody>', "unknown_value"),
        ('<prosody volume="11000">x</prosody>', "unknown_value"),
        ('<phoneme alphabet="pinyin" ph="xyz1">x</phoneme>', "unsupported_phoneme"),
    ],
)
def test_what_cannot_be_honoured_is_spoken_and_counted_and_refused_when_strict(inside, code):
    document = parse(speak(inside))
    assert document.text == "x"
    assert document.warnings == ((code, 1),)
    with pytest.raises(InvalidSsml, match=code):
        parse(speak(inside), strict=True)


@pytest.mark.parametrize(
    "document",
    [
        "", "hello", "<speak>", "<speak>a & b</speak>", "<p>x</p>",
        "<speak>\ud83d</speak>", "<speak>\x00</speak>",
        '<?xml version="1.0" encoding="utf-16"?><speak>x</speak>',
        '<!DOCTYPE speak [<!ENTITY a "aaaa">]><speak>&a;</speak>',
        '<!DOCTYPE speak SYSTEM "file:///etc/passwd"><speak>x</speak>',
        '<!DOCTYPE lolz [<!ENTITY a "a"><!ENTITY b "&a;&a;">]><speak>&b;</speak>',
        "<speak>" + "x" * MAX_BYTES + "</speak>",
        "<speak>" + "<p>" * MAX_DEPTH + "x" + "</p>" * MAX_DEPTH + "</speak>",
        "<speak>" + "<p>" * 9000 + "</p>" * 9000 + "</speak>",
        "<speak>" + "<p/>" * MAX_ELEMENTS + "</speak>",
        "<speak>" + "<break/>" * (MAX_TURNS + 1) + "</speak>",
    ],
)  # fmt: skip
def test_what_is_no_document_of_ours_is_refused(document):
    with pytest.raises(InvalidSsml) as refused:
        parse(document)
    assert refused.value.param == "input"
    assert len(refused.value.message) < 300


def test_control_tags_in_the_text_are_text_unless_allowed():
    inside = "a [laugh] <emphasis>b</emphasis> [S[Stts]tts]"
    assert only(inside).text == "a laugh [uv_break]b S Stts tts "
    assert parse(speak(inside), control_tags=True).text == "a [laugh] [uv_break]b [S[Stts]tts]"


TREES = st.recursive(
    st.text(alphabet="ab你 .[]&<>\"'", max_size=6).map(
        lambda text: text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    ),
    lambda inner: st.tuples(
        st.sampled_from(["p", "s", "lang", "emphasis", "foo", "voice name='x'", "prosody rate='fast'", "sub alias='y'"]),
        st.lists(inner, max_size=3),
    ).map(lambda drawn: f"<{drawn[0]}>{''.join(drawn[1])}</{drawn[0].split()[0]}>"),
    max_leaves=12,
)


@given(TREES)
def test_every_letter_of_a_document_is_in_its_text(inside):
    document = parse(speak(f"x{inside}x"))
    letters = "".join(letter for letter in document.text.replace("[uv_break]", "") if letter in "ab你x")
    text = inside
    while "<" in text:
        text = text[: text.index("<")] + text[text.index(">") + 1 :]
    assert letters == "".join(
        letter for letter in f"x{text.replace('&amp;', '').replace('&lt;', '').replace('&gt;', '')}x" if letter in "ab你x"
    )
    for passage in document.passages:
        assert all(0 <= hint.start < hint.stop <= len(passage.text) for hint in passage.pronunciations)


@given(
    st.text(max_size=300)
    | st.text(alphabet="<>/speakbr'=\" &;![]-?", max_size=300).map(lambda inside: f"<speak>{inside}</speak>")
)
def test_anything_is_a_document_or_an_invalid_one(text):
    with contextlib.suppress(InvalidSsml):
        parse(text)


# Control tags pass by allow-list; nothing else keeps its brackets.


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


# Scripts of `Name: text` lines.


CAST = ("Anna", "Mr. Ray", "小明")


def test_a_script_is_what_its_speakers_say_in_order():
    script = """
        Anna: Who is there?
        It is late, half past ten, at 22:30.
          Note: I wait.
        MR. RAY : It is me.

        小明：你好。
        https://example.com is my page.
        Anna:
        Come in.
    """
    assert read_script(script, CAST) == [
        Said("Anna", "Who is there?\nIt is late, half past ten, at 22:30.\nNote: I wait."),
        Said("Mr. Ray", "It is me."),
        Said("小明", "你好。\nhttps://example.com is my page."),
        Said("Anna", "Come in."),
    ]


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("Anna: Hello.\n\nCarl: Who?", "line 3 of the script begins with a name that cast .*: .* one of the 3 names"),
        ("Anna: Hello.\nHe said: no.", "line 2 of the script begins with a name"),
        ("\nHello.", "line 2 of the script has no speaker before it"),
        ("Carl：你好", "line 1 of the script begins with a name"),
    ],
)
def test_a_line_of_nobody_is_refused_with_its_number(script, message):
    with pytest.raises(InvalidRequest, match=message) as refused:
        read_script(script, CAST)
    assert refused.value.param == "script"
    assert "Carl" not in refused.value.message
