"""Voices: names, seeds, and strings from strangers."""

import lzma
import re
import tracemalloc
from pathlib import Path

import numpy as np
import pybase16384
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.checkpoint.layout import SPEAKERS_FILE
from pipeline.errors import CheckpointError, ConfigError, UnknownVoice
from pipeline.types import MAX_SEED
from pipeline.voices.catalogue import VoiceCatalogue
from pipeline.voices.seeds import draw_embedding, read_statistics, standard_normal
from pipeline.voices.strings import MAX_SAMPLE_STEPS, decode_embedding, decode_sample

WIDTH = 256
SHIPPED = Path(__file__).resolve().parents[4] / "configs" / "voices.yaml"
OPENAI_NAMES = [
    "alloy", "ash", "ballad", "coral", "echo", "fable", "marin", "nova", "onyx", "sage", "shimmer", "verse", "cedar",
]  # fmt: skip
FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME}]


def packed(content: bytes) -> bytes:
    return lzma.compress(content, format=lzma.FORMAT_RAW, filters=FILTERS)


def speaker_string(values: np.ndarray) -> str:
    return pybase16384.encode_to_string(packed(values.astype("<f2").tobytes()))


def sample_string(codes: np.ndarray, shape: tuple[int, int] | None = None) -> str:
    sizes = np.array(shape or codes.T.shape, "<u2").tobytes()
    return pybase16384.encode_to_string(sizes + packed(codes.T.astype("<u2").tobytes()))


EMBEDDING = np.random.default_rng(1).normal(size=WIDTH).astype(np.float16)
CODES = np.random.default_rng(2).integers(0, 626, (50, 4))


def load(tmp_path, text, width=WIDTH):
    file = tmp_path / "voices.yaml"
    file.write_text(text, encoding="utf-8")
    return VoiceCatalogue.load(file, width)


def refusal(tmp_path, text):
    with pytest.raises(ConfigError) as refused:
        load(tmp_path, text)
    assert "voices.yaml" in str(refused.value)
    return str(refused.value)


def test_without_a_file_there_are_default_and_seeds():
    voices = VoiceCatalogue.load(None, WIDTH)
    assert voices.get("default").embedding is None
    assert voices.get("seed:7").embedding.shape == (WIDTH,)
    assert [info.name for info in voices.list()] == ["default"]


def test_the_shipped_catalogue_has_every_openai_name():
    voices = VoiceCatalogue.load(SHIPPED, WIDTH)
    embeddings = {voices.get(name).embedding.tobytes() for name in OPENAI_NAMES}
    assert len(embeddings) == len(OPENAI_NAMES), "two names share a voice"
    assert {alias for info in voices.list() for alias in info.aliases} == set(OPENAI_NAMES)


def test_an_alias_is_the_voice_it_stands_for(tmp_path):
    voices = load(tmp_path, "voices: {anna: {seed: 5, aliases: [a, default], languages: [en], description: warm}}")
    assert voices.get("a") is voices.get("anna") is voices.get("default")
    assert voices.get("a").name == "anna"
    assert np.array_equal(voices.get("a").embedding, voices.get("seed:5").embedding)
    (info,) = voices.list()
    assert (info.name, info.aliases, info.languages, info.description, info.origin) == (
        "anna",
        ("a", "default"),
        ("en",),
        "warm",
        "seed:5",
    )


FIRST_NAMES = (  # of the first example in the documentation of each service, and of its clients' defaults
    "JBFqnCBsd6RMkjVDRZzb", "21m00Tcm4TlvDq8ikWAM", "EXAVITQu4vr4xnSDxMaL", "hpp4J3VqNfWAUOO0d1Us", "aura-2-thalia-en",
    "aura-asteria-en", "aura-2-helena-en", "aura-2-andromeda-en", "flux-alexis-en", "flux-brooke-en", "af_heart", "af_bella",
    "English-US.Female-1", "Magpie-Multilingual.EN-US.Aria", "en_US-lessac-medium", "en-US-AvaNeural", "en-US-SaraNeural",
    "zh-CN-XiaoxiaoNeural", "vivian", "tara",
)  # fmt: skip
DEEP = {f"voice-{seed}" for seed in (802, 1147, 1158, 1778, 141, 790, 425)}


def test_public_names_of_other_services_are_voices():
    voices = VoiceCatalogue.load(SHIPPED, WIDTH)
    shipped = {info.name for info in voices.list()}
    assert {voices.get(name).name for name in FIRST_NAMES} <= shipped - {"default"}
    assert len({voices.get(name).name for name in FIRST_NAMES}) >= 5
    assert {voices.get(name).name for name in ("am_adam", "aura-orion-en", "English-US.Male-1", "zh-CN-YunxiNeural")} <= DEEP
    assert not DEEP & {voices.get(name).name for name in FIRST_NAMES if name != "JBFqnCBsd6RMkjVDRZzb"}
    assert {alias for info in voices.list() for alias in info.aliases} == set(OPENAI_NAMES), "lists are not filled with them"


@given(st.data())
def test_a_name_is_the_same_in_any_case(data):
    voices = VoiceCatalogue.load(SHIPPED, WIDTH)
    name = data.draw(st.sampled_from([*FIRST_NAMES, *OPENAI_NAMES, "voice-287", "default", "seed:7"]))
    other = "".join(data.draw(st.sampled_from((letter.lower(), letter.upper()))) for letter in name)
    assert voices.get(other).name == voices.get(name).name == voices.get(name).name.lower()


@pytest.mark.parametrize(
    "names", ["{v: [a], w: [A]}", "{nobody: [a]}", "{v: [W]}", "{v: ['two words']}", "{v: ['']}", "[a]", "{v: a}"]
)
def test_a_public_name_means_one_voice(tmp_path, names):
    refusal(tmp_path, f"voices: {{v: {{seed: 1}}, w: {{seed: 2}}}}\npublic_names: {{vendor: {names}}}")


@pytest.mark.parametrize("name", ["seed:0", f"seed:{MAX_SEED}"])
def test_seed_names_reach_to_both_ends(name):
    voice = VoiceCatalogue.load(None, WIDTH).get(name)
    assert voice.name == name
    assert np.isfinite(voice.embedding).all()


NO_SEEDS = [
    "seed:", "seed:-1", f"seed:{MAX_SEED + 1}", "seed:007", "seed:1e3", "seed:١", "seed:1\n", " seed:1",
    "seed:" + "9" * 5000,
]  # fmt: skip


@pytest.mark.parametrize("name", ["", "../etc", "Alloys", *NO_SEEDS])
def test_other_names_are_unknown(name):
    with pytest.raises(UnknownVoice) as refused:
        VoiceCatalogue.load(SHIPPED, WIDTH).get(name)
    assert refused.value.param == "voice"
    assert "seed:<0 .. 4294967295>" in refused.value.message
    assert len(refused.value.message) < 300


def test_near_names_are_named():
    with pytest.raises(UnknownVoice, match="did you mean shimmer"):
        VoiceCatalogue.load(SHIPPED, WIDTH).get("Shimer")


def test_seeds_differ_and_repeat():
    assert np.array_equal(draw_embedding(5, 768), draw_embedding(5, 768))
    assert not np.array_equal(draw_embedding(5, 768), draw_embedding(6, 768))


def test_the_real_width_uses_the_speaker_statistics():
    std, mean = np.load(Path(SHIPPED).parents[1] / "pipeline" / "voices" / "speaker_stat.npy")
    assert std.dtype == np.float16
    assert std.shape == mean.shape == (768,)
    assert (std > 0).all()
    assert np.array_equal(draw_embedding(9, 768), standard_normal(9, 768) * std + mean)
    assert np.array_equal(draw_embedding(9, 512), standard_normal(9, 512))


def test_draws_are_normal():
    draws = np.concatenate([standard_normal(seed, 1024) for seed in range(50)]).astype(np.float64)
    assert abs(draws.mean()) < 0.02
    assert abs(draws.std() - 1) < 0.02


def test_strings_come_back_exactly(tmp_path):
    voices = load(
        tmp_path,
        f"voices: {{anna: {{embedding: {speaker_string(EMBEDDING)}, sample: {sample_string(CODES)}, sample_text: hello}}}}",
    )
    voice = voices.get("anna")
    assert np.array_equal(voice.embedding, EMBEDDING)
    assert voice.embedding.dtype == np.float16
    assert np.array_equal(voice.sample_codes, CODES)
    assert voice.sample_codes.dtype == np.int64
    assert voice.sample_text == "hello"
    assert voices.list()[1].origin == "embedding"


@pytest.mark.parametrize("text", [
    "", "hello", "一", "一" * 300, speaker_string(EMBEDDING)[:-5], speaker_string(EMBEDDING)[5:],
    speaker_string(EMBEDDING[:-1]), speaker_string(np.append(EMBEDDING, EMBEDDING[0])),
    speaker_string(np.where(np.arange(WIDTH) == 3, np.nan, EMBEDDING)),
    speaker_string(np.where(np.arange(WIDTH) == 3, np.inf, EMBEDDING)), speaker_string(np.zeros(WIDTH)), "\u3d01",
    "\x00" * 20,
])  # fmt: skip
def test_strings_that_are_no_embedding_are_refused(text):
    with pytest.raises(ValueError):
        decode_embedding(text, WIDTH)


@pytest.mark.slow
@pytest.mark.parametrize("decode", [lambda text: decode_embedding(text, WIDTH), decode_sample])
def test_a_bomb_is_refused_without_inflating_it(decode):
    bomb = packed(bytes(2**26))
    text = pybase16384.encode_to_string(bomb)
    short = text[:400]
    sized = pybase16384.encode_to_string(np.array([4, 10], "<u2").tobytes() + bomb[:600])
    tracemalloc.start()
    for candidate in (text, short, sized):
        with pytest.raises(ValueError):
            decode(candidate)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * 2**20


@pytest.mark.parametrize(("text", "why"), [
    (sample_string(CODES, (50, 4)), "codebooks"), (sample_string(CODES, (4, 51)), "bytes"),
    (sample_string(CODES, (4, 0)), "steps"), (sample_string(CODES, (4, MAX_SAMPLE_STEPS + 1)), "steps"),
    (sample_string(np.full((3, 4), 626)), "626"), (pybase16384.encode_to_string(b"ab"), "sizes"), ("", "characters"),
])  # fmt: skip
def test_strings_that_are_no_sample_are_refused(text, why):
    with pytest.raises(ValueError, match=why):
        decode_sample(text)


@given(st.text(alphabet=st.characters(min_codepoint=0x3D00, max_codepoint=0x8E10), max_size=400) | st.text(max_size=50))
def test_no_string_does_worse_than_be_refused(text):
    for decode in (lambda: decode_embedding(text, WIDTH), lambda: decode_sample(text)):
        with pytest.raises(ValueError) as refused:
            decode()
        assert len(str(refused.value)) < 300


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("voices: {anna: {sead: 5}}", "voices.anna.sead: unknown key; did you mean seed"),
        ("voice: {anna: {seed: 5}}", "voice: unknown key; did you mean voices"),
        ("voices: {anna: {seed: 5, colour: red}}", "allowed are seed, embedding"),
        ("voices: {anna: {}}", "voices.anna: .*either seed or embedding"),
        ("voices: {anna: {seed: 5, embedding: x}}", "voices.anna: .*either seed or embedding"),
        ("voices: {anna: {seed: 5, sample: x}}", "belong together"),
        ("voices: {anna: {seed: 5, sample_text: x}}", "belong together"),
        ("voices: {anna: {seed: -1}}", "voices.anna.seed: .*greater than or equal to 0"),
        ("voices: {anna: {seed: 4294967296}}", "voices.anna.seed: .*4294967295"),
        ("voices: {anna: {embedding: hello}}", "voices.anna: .*base16384"),
        ("voices: {anna: {seed: 5}, bob: {seed: 6, aliases: [anna]}}", "voices.bob: the name 'anna' already belongs"),
        ("voices: {anna: {seed: 5, aliases: [a, a]}}", "voices.anna: the name 'a' already belongs"),
        ("voices: {Anna: {seed: 5}}", "voices.Anna: the name 'Anna' must match"),
        ("voices: {'seed:5': {seed: 5}}", "must match"),
        ("voices: {anna: {seed: 5, aliases: [a/b]}}", "must match"),
        ("voices: {anna: {seed: 5}, anna: {seed: 6}}", "line 1: the key anna appears twice"),
        ("voices: {anna: {seed: 5,\n seed: 6}}", "line 2: the key seed appears twice"),
        ("voices: [anna]", "voices: .*dictionary"),
        ("just words", "the file: .*"),
        ("voices: {", "not YAML"),
        ("voices: !!python/object/apply:os.getcwd []", "not YAML"),
        ("[" * 5000, "not YAML"),
    ],
)
def test_the_error_of_a_wrong_catalogue_names_place_and_mistake(tmp_path, text, message):
    assert re.search(message, refusal(tmp_path, text), re.DOTALL)


def test_a_missing_catalogue_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        VoiceCatalogue.load(tmp_path / "none.yaml", WIDTH)


def test_an_empty_catalogue_is_one(tmp_path):
    assert [info.name for info in load(tmp_path, "# nothing\n").list()] == ["default"]


def test_a_checkpoints_own_statistics_shape_the_voices_that_seeds_draw():
    statistics = np.stack([np.full(WIDTH, 0.5), np.full(WIDTH, 3.0)]).astype(np.float16)
    own, plain = VoiceCatalogue.load(None, WIDTH, statistics), VoiceCatalogue.load(None, WIDTH)
    expected = (plain.get("seed:7").embedding * np.float16(0.5) + np.float16(3)).astype(np.float16)
    assert np.array_equal(own.get("seed:7").embedding, expected)


@pytest.mark.parametrize(
    "content",
    [b"no array", np.ones((2, WIDTH + 1), np.float16), np.ones((2, WIDTH)), np.full((2, WIDTH), np.nan, np.float16)],
    ids=["bytes", "width", "dtype", "nan"],
)
def test_damaged_statistics_are_refused(tmp_path, content):
    path = tmp_path / SPEAKERS_FILE
    path.parent.mkdir()
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        np.save(path, content)
    with pytest.raises(CheckpointError, match=r"speaker_stat\.npy"):
        read_statistics(tmp_path, WIDTH)


def test_a_checkpoint_without_statistics_says_so(tmp_path):
    assert read_statistics(tmp_path, WIDTH) is None
