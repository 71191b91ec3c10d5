"""The demo voice's workshop: texts, sounds, codes, networks and the checkpoint they end as."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from pipeline.checkpoint.capabilities import read_capabilities
from pipeline.checkpoint.in_torch import in_torch
from pipeline.checkpoint.layout import TOKENIZER_FILE
from pipeline.checkpoint.manifest import verify_files
from pipeline.checkpoint.weights import open_checkpoint
from pipeline.text.pronunciation import Pronunciation
from pipeline.text.tokenizer import PromptTokenizer
from pipeline.vocoder.windowed.network import CodeEmbedding, MelDecoder, Vocos
from pipeline.voices.seeds import draw_embedding, read_statistics
from scripts.train_demo.assignments import SPEAKERS
from scripts.train_demo.codes import BOOKS, CODES, quantise, values_of
from scripts.train_demo.dvae import Dvae
from scripts.train_demo.export import characters, export, load_trained
from scripts.train_demo.held_out import held_out, held_out_texts
from scripts.train_demo.letter_sounds import alignments, learn
from scripts.train_demo.muon import orthogonal
from scripts.train_demo.network import Size, Speaking, speaker_vectors
from scripts.train_demo.phones import STOPS, SYMBOLS, lexicon, pronounce, taught_words
from scripts.train_demo.recogniser import mistakes
from scripts.train_demo.sentences import MAX_CHARACTERS, sentence, words_of
from scripts.train_demo.syllables import parts_of, readings, syllables
from scripts.train_demo.tokens import PREFIX, SUFFIX, TABLES, TOKEN_IDS, VOCABULARY
from scripts.train_demo.vocoder import Vocos as TrainedVocos
from tests.support.effort import examples

ROOT = Path(__file__).resolve().parents[3]
ONSETS = "b bl br d dr f fl fr gl gr l m n p pl pr r s st t"
SAID = Pronunciation({"two": SYMBOLS["t"] + SYMBOLS["uw"]}, {"(a)": SYMBOLS["ae"]})
TINY = Size(width=64, layers=3, heads=2, mlp_width=96, decoder_width=32, decoder_layers=2)
WORDS = st.lists(st.text("abcdefghijklmnopqrstuvwxyz", min_size=1, max_size=9) | st.sampled_from(taught_words()), max_size=9)


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """Untrained networks where the trained ones would lie."""
    folder = tmp_path_factory.mktemp("work")
    torch.manual_seed(0)
    coef = torch.rand(100) + 1
    speaking = Speaking(TINY, coef, TABLES)
    for table in (*speaking.emb_code, *speaking.head_code):
        torch.nn.init.normal_(table.own, 0, 0.02)
    torch.save(
        {"model": speaking.state_dict(), "size": {name: getattr(TINY, name) for name in Size.__slots__}}, folder / "gpt.pt"
    )
    torch.save({"model": TrainedVocos(48, 2).state_dict()}, folder / "vocoder.pt")
    torch.save({"model": Dvae(coef).state_dict()}, folder / "dvae.pt")
    return folder


@pytest.fixture(scope="module")
def checkpoint(work, tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoint")
    export(load_trained(work, ("en",)), folder, SAID)
    return folder


@pytest.fixture(scope="module")
def tokenizer(checkpoint):
    return Tokenizer.from_file(str(checkpoint / TOKENIZER_FILE))


# -- text --------------------------------------------------------------------------------------------------------------


@given(st.integers(0, 10**9))
def test_a_sentence_is_taught_words_within_a_segment(seed):
    text = sentence(random.Random(seed))
    assert set(words_of(text)) <= set(taught_words())
    assert len(text) <= MAX_CHARACTERS + 1


def test_every_phone_of_the_dictionary_is_a_token():
    assert all(set(symbols) <= set(SYMBOLS.values()) for symbols in lexicon().values())


@given(st.text("abcdefghijklmnopqrstuvwxyz", min_size=1, max_size=30))
def test_any_word_has_a_pronunciation_of_phones(word):
    assert set(pronounce(word)) <= set(SYMBOLS.values())


@settings(max_examples=examples(50))
@given(WORDS, st.sampled_from(STOPS))
def test_the_exported_tokenizer_writes_the_taught_tokens(tokenizer, words, stop):
    symbols = [pronounce(word) for word in words]
    tokens = tokenizer.encode(f"{''.join(PREFIX)}{' '.join(symbols)}{stop}{SUFFIX}", add_special_tokens=False).tokens
    marked = [mark + symbol for word in symbols for mark, symbol in zip(("", *["##"] * len(word)), word, strict=False)]
    assert tokens == [*PREFIX, *marked, stop, SUFFIX]
    assert set(tokens) <= set(TOKEN_IDS)


@pytest.mark.slow
def test_a_sentence_that_is_judged_is_not_taught():
    taught = {tuple(words_of(sentence(random.Random(seed)))) for seed in range(20_000)}
    assert len(taught) > 10_000
    assert not held_out_texts() & taught


def test_held_out_sentences_are_of_their_kind():
    assert [len(held_out(kind)) for kind in ("words", "digits", "everyday", "balanced", "names")] == [50, 25, 30, 30, 25]
    assert all(set(words_of(line)) <= set(taught_words()) for kind in ("words", "digits") for line in held_out(kind))
    known = characters()
    assert all(letter in known for line in held_out("mandarin") for letter in line if letter.isalpha())


# -- pronunciation -----------------------------------------------------------------------------------------------------


def test_rules_say_the_words_they_were_learned_from_and_others_like_them():
    ends = {"at": "AT", "ate": "ET", "ight": "IT"}
    onsets = ONSETS.split()
    words = {f"{onset}{end}": onset.upper() + sound for onset in onsets for end, sound in ends.items()}
    assert all("".join(sounds) == expected for sounds, expected in zip(alignments(words), words.values(), strict=True))
    spoken = Pronunciation({}, learn(words))
    assert {word: spoken.of(word) for word in words} == words
    assert [spoken.of(word) for word in ("smate", "slat", "slight")] == ["SMET", "SLAT", "SLIT"]


# -- Mandarin ----------------------------------------------------------------------------------------------------------


def test_every_syllable_has_three_parts_and_every_character_a_syllable():
    assert {part for syllable in syllables() for part in parts_of(syllable)} <= set(VOCABULARY)
    assert parts_of("zhong4") == ("initial:zh", "final:ong", "tone:4")
    assert len({parts_of(syllable)[1] for syllable in ("zi1", "zhi1", "ji1")}) == 3, "i is three sounds"
    assert set(characters().values()) <= set(syllables())
    assert readings("重庆很重要") == ["chong2", "qing4", "hen3", "zhong4", "yao4"]


def test_a_syllable_is_the_sum_of_its_parts():
    model = Speaking(TINY, torch.ones(100), TABLES)
    rows, parts = model.text_rows(), parts_of("ma3")
    expected = sum(model.emb_text.weight[TOKEN_IDS[part]] for part in parts)
    assert torch.allclose(rows[TOKEN_IDS["ma3"]], expected)


def test_codes_stand_for_the_numbers_they_were_rounded_from():
    numbers = torch.rand(1000, 8) * 1.6 - 0.8
    assert (values_of(quantise(numbers)) - numbers).abs().max() <= 0.13


@given(st.lists(st.sampled_from(["one", "two", "nine"]), max_size=6), st.lists(st.sampled_from(["one", "two"]), max_size=6))
def test_mistakes_are_an_edit_distance(words, others):
    assert mistakes(words, words) == 0
    assert mistakes(words, others) == mistakes(others, words)
    assert abs(len(words) - len(others)) <= mistakes(words, others) <= max(len(words), len(others))


def test_words_that_sound_alike_are_one_word():
    assert mistakes(["right", "two"], ["write", "too"]) == 0
    assert mistakes(["right"], ["light"]) == 1


# -- networks and the checkpoint they end as ---------------------------------------------------------------------------


def test_the_exported_checkpoint_opens_and_vouches_for_every_file(checkpoint):
    assert {"asset/speaker_stat.npy", "asset/taught.json"} <= set(verify_files(checkpoint))
    assert not read_capabilities(checkpoint).refine
    opened = open_checkpoint(checkpoint)
    assert (opened.gpt_spec.width, opened.gpt_spec.layers, opened.gpt_spec.audio_vocab) == (64, 3, CODES + 1)
    for part in (opened.gpt, opened.embed, opened.mel_decoder, opened.dvae, opened.vocos):
        assert all(np.isfinite(tensor).all() for tensor in part().values())


@torch.no_grad()
def test_the_service_computes_what_was_trained(work, checkpoint):
    """In half precision: the mel decoders, the quantiser's way back and Vocos, each against its training twin."""
    trained, opened = load_trained(work), open_checkpoint(checkpoint)
    steps, frames = torch.randn(1, 20, 64), torch.ones(1, 40, 1)
    expected = trained.speaking.mel_decoder(steps).transpose(1, 2)
    assert torch.allclose(MelDecoder(in_torch(opened.mel_decoder()))(steps, frames), expected, atol=2e-2)
    codes = torch.randint(CODES, (1, 20, BOOKS))
    tensors = in_torch(opened.dvae())
    ours = MelDecoder(tensors)(CodeEmbedding(tensors)(codes.float()), frames)
    assert torch.allclose(ours, trained.dvae.decode(codes).transpose(1, 2), atol=2e-2)
    mel = torch.randn(1, 40, 100)
    samples = Vocos(in_torch(opened.vocos()))(mel, frames)[:, : 39 * 256]
    assert torch.allclose(samples, trained.vocos(mel.transpose(1, 2)), atol=2e-2 * samples.abs().max())


@torch.no_grad()
def test_the_heads_and_embeddings_go_over_row_by_row(work, checkpoint):
    speaking, embed = load_trained(work).speaking, in_torch(open_checkpoint(checkpoint).embed())
    for book in range(BOOKS):
        assert torch.allclose(embed[f"emb_code.{book}.weight"], speaking.emb_code[book].rows(), atol=1e-3)
        at = f"head_code.{book}.parametrizations.weight"
        rows = embed[f"{at}.original1"]
        scaled = rows * embed[f"{at}.original0"] / rows.norm(dim=1, keepdim=True)
        assert torch.allclose(scaled, speaking.head_code[book].rows(), atol=1e-3)


def test_random_speakers_lie_between_the_taught_ones(checkpoint):
    statistics = read_statistics(checkpoint, 64)
    drawn = np.stack([draw_embedding(seed, 64, statistics) for seed in range(300)]).astype(np.float32)
    taught = speaker_vectors(torch.eye(len(SPEAKERS)), 64).numpy()
    assert not drawn[:, len(SPEAKERS) :].any()
    nearest = (drawn @ taught.T).argmax(1)
    assert np.bincount(nearest, minlength=len(SPEAKERS)).min() > 60


# -- training ----------------------------------------------------------------------------------------------------------


def test_steps_of_muon_are_nearly_orthogonal():
    for shape in ((2, 16, 48), (2, 48, 16)):
        values = torch.linalg.svdvals(orthogonal(torch.randn(shape)))
        assert values.min() > 0.5
        assert values.max() < 1.5


@torch.no_grad()
def test_a_checkpoint_with_mandarin_has_a_row_per_character(work, tmp_path):
    export(load_trained(work), tmp_path, SAID)
    assert read_capabilities(tmp_path).languages == ("en", "zh")
    prompts = PromptTokenizer(tmp_path, max_prompt=512)
    assert prompts.knows("我用two，今天。")
    assert not prompts.knows("龘")
    rows, speaking = in_torch(open_checkpoint(tmp_path).embed())["emb_text.weight"], load_trained(work).speaking
    (row,) = Tokenizer.from_file(str(tmp_path / TOKENIZER_FILE)).encode("马", add_special_tokens=False).ids
    assert torch.allclose(rows[row], speaking.text_rows()[TOKEN_IDS["ma3"]], atol=2e-3)


@torch.no_grad()
def test_paces_between_the_taught_ones_blend_two(work, tmp_path):
    export(load_trained(work, ("en",)), tmp_path, SAID)
    learned = load_trained(work).speaking.text_rows()
    rows, known = (
        in_torch(open_checkpoint(tmp_path).embed())["emb_text.weight"],
        Tokenizer.from_file(str(tmp_path / TOKENIZER_FILE)),
    )
    slow, plain, fast = (learned[TOKEN_IDS[f"[speed_{level}]"]] for level in (2, 5, 8))
    expected = {0: slow, 2: slow, 3: (2 * slow + plain) / 3, 5: plain, 7: (plain + 2 * fast) / 3, 8: fast, 9: fast}
    for level, row in expected.items():
        assert torch.allclose(rows[known.token_to_id(f"[speed_{level}]")], row, atol=2e-3), level
