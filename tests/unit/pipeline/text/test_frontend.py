"""The front end: a request to prompts, with and without the refine pass; what a checkpoint does not know is counted."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from pipeline.checkpoint.layout import TOKENIZER_FILE
from pipeline.errors import NoSpeakableText, PartlyUnspeakable, TextTooLong
from pipeline.spec import CONTROL_TAGS
from pipeline.text.frontend import LocalTextFrontend
from pipeline.text.markup.ssml import parse
from pipeline.text.normalize import is_speakable
from pipeline.text.segment import SegmentLimits
from pipeline.types import Head, LexiconEntry, Passage, PronunciationKind, RefineParams, SpeechText, SynthesisRequest, Voice
from tests.support.effort import examples

CONFIG = SegmentLimits(max_segment_chars=30, first_segment_chars=16, base_steps=10, steps_per_char=2, refine_steps=50)
VOICES = {"v": Voice("v", np.ones(16, np.float16))}


@pytest.fixture(scope="module")
def frontend(demo_root):
    return LocalTextFrontend(demo_root, CONFIG, max_prompt=64, max_steps=60)


@pytest.fixture(scope="module")
def vocabulary(demo_root):
    return Tokenizer.from_file(str(demo_root / TOKENIZER_FILE))


def request(text, **more):
    return SynthesisRequest("r", text, "v", **more)


def plan(frontend, text, **more):
    return asyncio.run(frontend.plan(request(text, **more), VOICES)).prompts


def replan(frontend, requested, ids):
    """The refine pass has written `ids`."""

    async def both():
        return await frontend.replan(requested, VOICES, await frontend.plan(requested, VOICES), ids)

    return asyncio.run(both()).prompts


def test_one_prompt_a_segment_in_order(frontend):
    prompts = plan(frontend, "Hello there 2! And now a sentence. And one more of them.")
    assert [prompt.segment.text for prompt in prompts] == ["Hello there two.", "And now a sentence.", "And one more of them."]
    assert [prompt.segment.index for prompt in prompts] == [0, 1, 2]
    assert [prompt.segment.is_last for prompt in prompts] == [False, False, True]
    assert {prompt.head for prompt in prompts} == {Head.CODE}
    assert [prompt.max_steps for prompt in prompts] == [42, 48, 52]


def test_the_engine_bounds_the_steps(frontend):
    assert plan(frontend, "abcdefghijklmnopqrstuvwxyz abcdefghij klmnopq rst uvw")[-1].max_steps <= 60


def test_the_speed_token_reaches_the_prompt(frontend, vocabulary):
    (prompt,) = plan(frontend, "hi", speed_token=9)
    assert vocabulary.id_to_token(int(prompt.ids[2, 0])) == "[speed_9]"


def test_refining_plans_text_prompts(frontend):
    (prompt,) = plan(frontend, "hi", refine=RefineParams())
    assert (prompt.head, prompt.max_steps) == (Head.TEXT, 50)


def test_replanning_speaks_the_refined_texts(frontend, vocabulary):
    requested = request("Hello there 2! And now a sentence.", refine=RefineParams())
    refined = ["hello [uv_break] um there two", "and now like a sentence [laugh]"]
    ids = [np.array(vocabulary.encode(text, add_special_tokens=False).ids) for text in refined]
    prompts = replan(frontend, requested, ids)
    assert [prompt.segment.text for prompt in prompts] == refined
    assert [prompt.segment.index for prompt in prompts] == [0, 1]
    assert [prompt.head for prompt in prompts] == [Head.CODE, Head.CODE]


@pytest.mark.parametrize("refined", ["", "[uv_break]", ",", "a " * 100])
def test_a_refined_text_that_cannot_be_spoken_gives_way_to_its_source(frontend, vocabulary, refined):
    ids = np.array(vocabulary.encode(refined, add_special_tokens=False).ids, np.int64)
    (prompt,) = replan(frontend, request("hi", refine=RefineParams()), [ids])
    assert prompt.segment.text == "hi"


def test_a_transcript_is_left_without_what_the_checkpoint_does_not_know(english_root):
    """The words of a cloned voice's recording are a part of the prompt: unknown ones would be [UNK] in it."""
    english = LocalTextFrontend(english_root, CONFIG, max_prompt=64, max_steps=60)
    unknown = Tokenizer.from_file(str(english_root / TOKENIZER_FILE)).token_to_id("[UNK]")
    codes = np.zeros((3, 4), np.int64)

    def plan_with(transcript: str):
        voices = {"v": Voice("v", None, codes, transcript)}
        return asyncio.run(english.plan(request("hi"), voices))

    known, cut, empty = plan_with("one three"), plan_with("one 二二 three"), plan_with("二")
    assert (known.warnings, cut.warnings) == ((), (("unknown_in_voice_sample", 2),))
    assert np.array_equal(cut.prompts[0].ids, known.prompts[0].ids)
    assert empty.warnings == (("unknown_in_voice_sample", 1),)
    assert all(unknown not in script.prompts[0].ids[:, 0] for script in (known, cut, empty))


# What a checkpoint does not know is left out and counted: its vocabulary decides about words, its manifest about tags.


NO_DROPS = ("spoken_as_mandarin", "unsupported_language")


def open_frontend(root) -> LocalTextFrontend:
    return LocalTextFrontend(root, max_prompt=2048, max_steps=2048)


@pytest.fixture(scope="module")
def english(english_root):
    """Knows no Chinese character and no Chinese sign."""
    return open_frontend(english_root)


@pytest.fixture(scope="module")
def common(demo_root):
    """Knows English and the common Chinese characters."""
    return open_frontend(demo_root)


def request_for(text: str, **fields) -> SynthesisRequest:
    return SynthesisRequest("r", text, "v", **fields)


def read(front: LocalTextFrontend, text: str, **fields) -> SpeechText:
    return asyncio.run(front.read(request_for(text, **fields)))


def texts_of(speech_text: SpeechText) -> list[str]:
    return [segment.text for segment in speech_text.segments]


@pytest.mark.parametrize("text", ["今天天气真不错，我们一起去公园散步吧。", "你好", "一二三四五六七八九十", "你好！ ... ?"])
def test_a_text_of_unknown_words_is_refused_with_the_languages_that_are_known(english, text):
    with pytest.raises(NoSpeakableText, match=r"speaks en\b"):
        read(english, text)


NGINX = (LexiconEntry("nginx", PronunciationKind.ALIAS, "恩静"),)


@pytest.mark.parametrize(
    ("checkpoint", "text", "fields", "spoken", "dropped"),
    [
        ("english", "hello 世界 goodbye 再见。", {}, "hello goodbye.", ((6, 8), (17, 19))),
        ("english", "iPhone手机, 你have很好", {}, "iPhone, have", ((6, 8), (10, 11), (15, 17))),
        ("common", "“我很堃龘高兴”。", {"normalize": (("homophones", False),)}, "我很高兴。", ((3, 5),)),
        ("english", "use nginx now", {"lexicon": NGINX}, "use now", ((4, 9),)),
    ],
    ids=["words", "words that touch known ones", "characters", "a reading"],
)
def test_what_is_unknown_is_counted_and_the_rest_is_spoken(request, checkpoint, text, fields, spoken, dropped):
    result = read(request.getfixturevalue(checkpoint), text, **fields)
    assert texts_of(result) == [spoken]
    assert dict(result.warnings) == {"unknown_to_model": sum(stop - start for start, stop in dropped)}
    assert result.dropped == dropped


def test_numbers_are_read_in_a_language_the_checkpoint_speaks(english, common):
    assert texts_of(read(english, "共30元")) == ["thirty"]
    assert texts_of(read(english, "30", language="zh")) == ["thirty"]
    assert texts_of(read(common, "共30元")) == ["共三十元"]


def test_a_passage_of_unknown_words_is_skipped(english):
    document = parse('<speak>One.<voice name="v">今天</voice><break time="100ms"/>Two.</speak>')
    script = read(english, document.text, passages=document.passages)
    assert [(segment.text, segment.silence_ms) for segment in script.segments] == [("One.", 0), ("Two.", 100)]
    assert dict(script.warnings) == {"unknown_to_model": 2}


@pytest.mark.parametrize("strict", [False, True])
def test_a_silence_is_no_answer_to_unknown_words(english, strict):
    document = parse('<speak>今天<break time="100ms"/></speak>')
    with pytest.raises(NoSpeakableText):
        read(english, document.text, passages=document.passages, strict=strict)
    silence = parse('<speak>?<break time="100ms"/></speak>')
    assert read(english, silence.text, passages=silence.passages, strict=strict).closing_silence_ms == 100


def test_strict_refuses_what_is_unknown_and_nothing_else(english):
    assert texts_of(read(english, "hello 😀", strict=True)) == ["hello"]
    with pytest.raises(PartlyUnspeakable, match="unknown_to_model=2"):
        read(english, "hello 世界", strict=True)


def test_a_passage_in_an_unsupported_language_is_counted_and_strict_refuses_it(english):
    document = parse('<speak>One <lang xml:lang="zh-CN">2</lang></speak>')
    script = read(english, document.text, passages=document.passages)
    assert texts_of(script) == ["One", "two"]
    assert dict(script.warnings) == {"unsupported_language": 1}
    with pytest.raises(PartlyUnspeakable, match="unsupported_language=1"):
        read(english, document.text, passages=document.passages, strict=True)


# Control tags.


def test_unsupported_tags_are_counted_and_never_spoken(english):
    text = "Ha [laugh] ha [speed_3] ha [oral_2] ha [break_4] ha."
    script = read(english, text, control_tags=True)
    assert texts_of(script) == ["Ha ha ha ha ha."]
    assert dict(script.warnings) == {"control_tag_not_taught": sum(map(len, ("[laugh]", "[speed_3]", "[oral_2]", "[break_4]")))}
    with pytest.raises(PartlyUnspeakable, match="control_tag_not_taught"):
        read(english, text, control_tags=True, strict=True)


def test_supported_tags_are_tokens(english, common):
    assert texts_of(read(english, "Wait [uv_break] here [lbreak]", control_tags=True)) == ["Wait [uv_break] here [lbreak]"]
    every = " a ".join(sorted(CONTROL_TAGS))
    assert dict(read(common, f"a {every}", control_tags=True).warnings) == {}


def test_a_version_without_tags_drops_them_all(common):
    script = read(common, "Ha [laugh] ha [uv_break] ha.", control_tags=True, keep_control_tags=False)
    assert texts_of(script) == ["Ha ha, ha."], "a pause that is no token is a comma"
    assert dict(script.warnings) == {"control_tag_not_taught": 17}
    script = read(common, "one [uv_break] two [lbreak]", control_tags=True, keep_control_tags=False)
    assert texts_of(script)[0].startswith("one, two")


@pytest.mark.parametrize(("text", "segments", "closing_ms"), [
    ('One<break time="1s"/>two.', [("One", 0), ("two.", 1000)], 0), ("One. <#1.5#>Two.", [("One.", 0), ("Two.", 1500)], 0),
    ("[pause:500ms] one [wait 2 seconds] two", [("one", 500), ("two", 2000)], 0),
    ("One[[slnc 10]]two", [("One", 0), ("two", 10)], 0),
    ('你好<break time="99s" />世界', [("你好", 0), ("世界", 10_000)], 0), ("One [break 3]", [("One", 0)], 3000),
    ("One [pause] two", [("One, two", 0)], 0),
])  # fmt: skip
def test_a_mark_of_a_pause_with_a_length_is_silence(common, text, segments, closing_ms):
    script = read(common, text)
    assert [(segment.text, segment.silence_ms) for segment in script.segments] == segments
    assert script.closing_silence_ms == closing_ms
    assert all(text[slice(*segment.source)].strip() for segment in script.segments)


def test_marks_of_pauses_are_text_where_markup_is_not_read(common):
    assert len(read(common, "One [pause:1s] two", normalize={"html": False}).segments) == 1


# Whatever comes.

SOUP = st.lists(
    st.one_of(
        st.sampled_from(
            [*sorted(CONTROL_TAGS)[::5], "hello ", "你好", "龘", "。", "，", "12", " 3.5kg ", "é", "[Stts]", "\n", "A", "😀"]
        ),
        st.text(max_size=4),
        st.text(alphabet=st.characters(min_codepoint=0x3400, max_codepoint=0x9FFF), max_size=4),
    ),
    max_size=25,
).map("".join)
LETTER = st.text(alphabet=st.characters(categories=("L", "N")), max_size=12)


def check(front: LocalTextFrontend, vocabulary: Tokenizer, requested: SynthesisRequest) -> None:
    try:
        script = asyncio.run(front.read(requested))
        prompts = asyncio.run(front.plan(requested, VOICES)).prompts
    except (NoSpeakableText, TextTooLong):
        return
    spoken = {place for spans in script.spans for span in spans for place in range(span.source_start, span.source_stop)}
    gone = {place for start, stop in script.dropped for place in range(start, stop)}
    assert spoken | gone == set(range(len(requested.text)))
    assert not spoken & gone
    assert sum(count for code, count in script.warnings if code not in NO_DROPS) == len(gone)
    assert [prompt.segment for prompt in prompts] == list(script.segments)
    for prompt in prompts:
        assert vocabulary.token_to_id("[UNK]") not in prompt.ids[prompt.text_mask][:, 0]
        assert len(prompt.ids) > 4, "there is something between [speed_5] and [Ptts]"


@pytest.mark.slow
@settings(max_examples=examples(300))
@given(SOUP | LETTER, st.booleans(), st.sampled_from(["auto", "zh", "en", "dialect"]))
@pytest.mark.parametrize("root", ["english_root", "taught_root", "demo_root"])
def test_every_character_is_spoken_a_token_or_a_counted_drop(request, root, text, tags, language):
    front, vocabulary = _opened(request, root)
    check(front, vocabulary, SynthesisRequest("r", text, "v", control_tags=tags, language=language))


_OPENED = {}


def _opened(request, root):
    if root not in _OPENED:
        folder = request.getfixturevalue(root)
        _OPENED[root] = (open_frontend(folder), Tokenizer.from_file(str(folder / TOKENIZER_FILE)))
    return _OPENED[root]


@pytest.mark.parametrize("text", ["x" * 64, "w" * 500, "啊" * 500, "龘a" * 200, "nginx" * 30, "1" * 300])
def test_long_words_are_no_way_out(request, text):
    for root in ("english_root", "taught_root", "demo_root"):
        check(*_opened(request, root), SynthesisRequest("r", text, "v"))


def test_a_passage_without_words_is_dropped_and_counted(common):
    """A tag or a sign alone becomes no segment, but is not lost."""
    passages = (Passage("One."), Passage("[laugh]", control_tags=True), Passage("..."), Passage("Two."))
    requested = replace(request_for("One.[laugh]...Two."), passages=passages)
    script = asyncio.run(common.read(requested))
    assert texts_of(script) == ["One.", "Two."]
    assert script.dropped == ((4, 14),)
    assert dict(script.warnings) == {"without_words": 7, "punctuation": 3}
    assert all(is_speakable(text) for text in texts_of(script))
