"""The demo voice's workshop: texts, sounds, codes, networks and the checkpoint they end as."""

import json
import random
import subprocess
import sys
from dataclasses import replace
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
from pipeline.text.normalize import normalize
from pipeline.text.pronunciation import Pronunciation
from pipeline.text.tokenizer import PromptTokenizer
from pipeline.vocoder.windowed.network import CodeEmbedding, MelDecoder, Vocos
from pipeline.voices.seeds import draw_embedding, read_statistics
from scripts.train_demo import batches, pieces, train_gpt
from scripts.train_demo.codes import BOOKS, CODES, quantise, values_of
from scripts.train_demo.corpus import PREFIX, SPEAKER_POSITION, SUFFIX, TOKEN_IDS, VOCABULARY, tokenize
from scripts.train_demo.dvae import Dvae
from scripts.train_demo.export import characters, export, load_trained
from scripts.train_demo.held_out import held_out, held_out_texts
from scripts.train_demo.letter_sounds import alignments, learn
from scripts.train_demo.muon import orthogonal
from scripts.train_demo.network import Size, Speaking, speaker_vectors
from scripts.train_demo.phones import SYMBOLS, lexicon, pronounce, taught_words
from scripts.train_demo.recogniser import Recogniser, mistakes
from scripts.train_demo.sentences import MAX_CHARACTERS, sentence, words_of
from scripts.train_demo.syllables import parts_of, readings, syllables
from scripts.train_demo.teacher import SPEAKERS, speak
from scripts.train_demo.train_vocos import Vocos as TrainedVocos
from scripts.train_demo.warm_start import load_dvae, load_speaking, vocos_state
from tests.support.effort import examples
from tests.support.services import needed_program

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
    speaking = Speaking(TINY, coef)
    for table in (*speaking.emb_code, *speaking.head_code):
        torch.nn.init.normal_(table.own, 0, 0.02)
    torch.save(
        {"model": speaking.state_dict(), "size": {name: getattr(TINY, name) for name in Size.__slots__}}, folder / "gpt.pt"
    )
    torch.save({"model": TrainedVocos().state_dict()}, folder / "vocos.pt")
    torch.save({"model": Dvae(coef).state_dict()}, folder / "dvae.pt")
    return folder


@pytest.fixture(scope="module")
def checkpoint(work, tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoint")
    export(load_trained(work), folder, SAID)
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
@given(WORDS)
def test_the_exported_tokenizer_writes_the_corpus_tokens(tokenizer, words):
    phones = " ".join(map(pronounce, words))
    tokens = tokenizer.encode(f"{''.join(PREFIX)}{phones}{SUFFIX}", add_special_tokens=False).tokens
    assert tokens == tokenize(" ".join(words))


@pytest.mark.slow
@given(st.integers(0, 10**9))
def test_the_service_hands_corpus_texts_on_as_they_are(seed):
    text = sentence(random.Random(seed))
    assert tokenize(normalize(text, language="en").text.lower()) == tokenize(text)


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
    model = Speaking(TINY, torch.ones(100))
    rows, parts = model.text_rows(), parts_of("ma3")
    expected = sum(model.emb_text.weight[TOKEN_IDS[part]] for part in parts)
    assert torch.allclose(rows[TOKEN_IDS["ma3"]], expected)


# -- sound -------------------------------------------------------------------------------------------------------------


def piece(sounds: list[tuple[float, float, int, str]], tokens: tuple[str, ...]) -> pieces.Piece:
    return pieces.Piece(
        np.zeros(round(sounds[-1][1] * pieces.RATE), np.float32), tokens, tuple(pieces.Span(*entry) for entry in sounds)
    )


def test_pieces_are_joined_and_trimmed_without_losing_a_token():
    first = piece([(0.0, 0.2, 0, ","), (0.2, 0.5, 0, "X"), (0.5, 0.9, 1, ",")], ("X", ","))
    whole = pieces.trimmed(pieces.joined([first, first]), 0.1, 0.1)
    assert whole.tokens == ("X", ",", "X", ",")
    assert len(whole.samples) == round((0.1 + 0.3 + 0.4 + 0.2 + 0.3 + 0.1) * pieces.RATE)
    assert [span.place for span in whole.spans] == [0, 0, 1, 2, 2, 3]
    assert all(a.end == pytest.approx(b.start) for a, b in zip(whole.spans, whole.spans[1:], strict=False))


@pytest.mark.slow
def test_flites_own_phones_are_the_tokens_and_words_keep_their_marks():
    needed_program("flite", "flite")
    spoken = pieces.english("the apple, they read", 0)
    assert spoken is not None
    named = {symbol: name for name, symbol in SYMBOLS.items()}
    plain = [named.get(token[-1], token) for token in spoken.tokens]
    assert plain == ["dh", "iy", "ae", "p", "ax", "l", ",", "dh", "ey", "r", "eh", "d"]
    assert [place for place, token in enumerate(spoken.tokens) if not token.startswith("##")] == [0, 2, 6, 7, 9]
    assert spoken.spans[-1].end == pytest.approx(len(spoken.samples) / pieces.RATE, abs=0.01)


@pytest.mark.slow
def test_syllables_are_found_in_what_espeak_says():
    needed_program("espeak-ng", "espeak-ng")
    spoken = pieces.mandarin("ni3hao3, zhong1guo2 ren2.", 1)
    assert spoken is not None
    assert spoken.tokens == ("ni3", "hao3", ",", "zhong1", "guo2", "ren2", ".")
    assert [span.sound for span in spoken.spans if span.place == 3] == ["initial:zh", "final:ong"]
    assert np.abs(spoken.samples).max() > 0.1


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


@pytest.mark.slow
def test_the_recogniser_hears_the_teacher():
    needed_program("flite", "flite")
    recogniser = Recogniser()
    utterance = speak("five seven two", SPEAKERS[0])
    assert recogniser.transcribe(utterance.samples, utterance.rate, "digits") == ["five", "seven", "two"]
    assert recogniser.transcribe(np.zeros(16_000, np.float32), 16_000, "digits") in ([], ["eight"])


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


@torch.no_grad()
def test_the_mean_of_states_is_exported(work, tmp_path):
    saved = torch.load(work / "gpt.pt")
    doubled = saved | {"model": {name: 2 * tensor for name, tensor in saved["model"].items()}}
    torch.save(doubled, tmp_path / "later.pt")
    name = "layers.0.mlp.up_proj.weight"
    for shares, factor in (((), 1.5), ((0.25, 0.75), 1.75)):
        mean = load_trained(work, [work / "gpt.pt", tmp_path / "later.pt"], shares).speaking
        assert torch.allclose(mean.state_dict()[name], factor * saved["model"][name])


def test_random_speakers_lie_on_the_line_of_the_taught_ones(checkpoint):
    statistics = read_statistics(checkpoint, 64)
    drawn = np.stack([draw_embedding(seed, 64, statistics) for seed in range(200)]).astype(np.float32)
    taught = speaker_vectors(torch.tensor([speaker.place for speaker in SPEAKERS]), 64).numpy()
    assert np.abs(drawn.mean(0) - taught.mean(0)).max() < 0.2
    assert drawn[:, 0].std() > 0.4
    assert not drawn[:, 2:].any()


# -- training ----------------------------------------------------------------------------------------------------------


def test_a_step_learns_from_everything():
    """Every parameter gets a gradient, but the codes' own rows that no example has."""
    torch.manual_seed(0)
    model = Speaking(TINY, torch.ones(100))
    item = batches.Item(
        tokens=torch.tensor([TOKEN_IDS[token] for token in (*tokenize("one two")[:-1], *readings("好"), SUFFIX)]),
        codes=torch.randint(CODES, (30, BOOKS)).short(),
        mel=torch.randn(30, 200).half(),
        spoken=torch.linspace(3, 7, 30),
        sound=torch.full((30,), TOKEN_IDS[SYMBOLS["w"]]),
        speaker=0,
    )
    shorter = replace(item, codes=item.codes[:20], mel=item.mel[:20], spoken=item.spoken[:20], sound=item.sound[:20], speaker=1)
    batch = batches.collate([item, shorter], TINY.width, 0.4, random.Random(0))
    total, parts = train_gpt.losses(model, batch)
    total.backward()
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in model.parameters())
    assert set(parts) == {"book 0", "book 1", "book 2", "book 3", "accuracy", "mel", "guide", "phone"}


def test_padding_changes_no_loss():
    torch.manual_seed(0)
    model = Speaking(TINY, torch.ones(100)).eval()
    tokens = torch.tensor([TOKEN_IDS[token] for token in tokenize("one")])
    codes = torch.randint(CODES, (12, BOOKS))
    longer = torch.nn.functional.pad(torch.cat([tokens, torch.zeros(12, dtype=torch.long)]), (0, 16))[None]
    placed = torch.zeros(1, longer.shape[1], BOOKS, dtype=torch.long)
    placed[0, len(tokens) : len(tokens) + 12] = codes
    is_code = torch.zeros(1, longer.shape[1], dtype=torch.bool)
    is_code[0, len(tokens) : len(tokens) + 12] = True
    voice = speaker_vectors(torch.zeros(1), TINY.width)
    with torch.no_grad():
        whole, _ = model.trunk(model.embed(longer, placed, is_code, voice))
        real = len(tokens) + 12
        alone, _ = model.trunk(model.embed(longer[:, :real], placed[:, :real], is_code[:, :real], voice))
    assert torch.allclose(whole[:, :real], alone, atol=1e-5)
    assert SPEAKER_POSITION == 1


def test_steps_of_muon_are_nearly_orthogonal():
    for shape in ((2, 16, 48), (2, 48, 16)):
        values = torch.linalg.svdvals(orthogonal(torch.randn(shape)))
        assert values.min() > 0.5
        assert values.max() < 1.5


@torch.no_grad()
def test_training_goes_on_from_an_exported_checkpoint(work, checkpoint):
    """Up to half precision: the same tables, layers, mel decoder, rows of syllables, DVAE and vocoder."""
    trained, again = load_trained(work), Speaking(TINY, torch.ones(100))
    unknown = load_speaking(again, checkpoint)
    assert set(unknown) <= {"[speed_2]", "[speed_8]"}
    for name, tensor in trained.speaking.state_dict().items():
        if "shared" not in name and "own" not in name and not name.startswith(("head_phone", "emb_text")):
            assert torch.allclose(again.state_dict()[name], tensor, atol=2e-3), name
    for tables in ("emb_code", "head_code"):
        for ours, theirs in zip(getattr(again, tables), getattr(trained.speaking, tables), strict=True):
            assert torch.allclose(ours.rows(), theirs.rows(), atol=2e-3)
    row = TOKEN_IDS["ma3"]
    assert torch.allclose(again.text_rows()[row], trained.speaking.text_rows()[row], atol=2e-3)
    mel = torch.randn(1, 100, 8)
    assert torch.allclose(load_dvae(checkpoint).encode(mel), trained.dvae.encode(mel), atol=2e-2)
    assert set(vocos_state(checkpoint)) == set(trained.vocos.state_dict())


@torch.no_grad()
def test_a_checkpoint_with_mandarin_has_a_row_per_character(work, tmp_path):
    export(load_trained(work, languages=("en", "zh")), tmp_path, SAID)
    assert read_capabilities(tmp_path).languages == ("en", "zh")
    prompts = PromptTokenizer(tmp_path, max_prompt=512)
    assert prompts.knows("我用two，今天。")
    assert not prompts.knows("龘")
    rows, speaking = in_torch(open_checkpoint(tmp_path).embed())["emb_text.weight"], load_trained(work).speaking
    (row,) = Tokenizer.from_file(str(tmp_path / TOKENIZER_FILE)).encode("马", add_special_tokens=False).ids
    assert torch.allclose(rows[row], speaking.text_rows()[TOKEN_IDS["ma3"]], atol=2e-3)


@torch.no_grad()
def test_paces_between_the_taught_ones_blend_two(work, tmp_path):
    export(load_trained(work), tmp_path, SAID)
    learned = load_trained(work).speaking.text_rows()
    rows, known = (
        in_torch(open_checkpoint(tmp_path).embed())["emb_text.weight"],
        Tokenizer.from_file(str(tmp_path / TOKENIZER_FILE)),
    )
    slow, plain, fast = (learned[TOKEN_IDS[f"[speed_{level}]"]] for level in (2, 5, 8))
    expected = {0: slow, 2: slow, 3: (2 * slow + plain) / 3, 5: plain, 7: (plain + 2 * fast) / 3, 8: fast, 9: fast}
    for level, row in expected.items():
        assert torch.allclose(rows[known.token_to_id(f"[speed_{level}]")], row, atol=2e-3), level


@pytest.mark.nightly
def test_the_workshop_runs_from_end_to_end_and_resumes(tmp_path):
    """Corpus, three trainings of a step or two, export; a second call of each goes on where the first one stopped."""
    needed_program("flite", "flite")
    needed_program("espeak-ng", "espeak-ng")
    needed_program("wn", "wordnet")
    pytest.importorskip("misaki", reason="the extra train is not installed: the lexicon of the export")
    tiny = [f"--{name.replace('_', '-')}={getattr(TINY, name)}" for name in Size.__slots__]

    def run(module, *arguments):
        command = [sys.executable, "-m", f"scripts.train_demo.{module}", *map(str, arguments)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    corpus = ("--shards", 3, "--sentences", 30, "--with-samples", 3, "--processes", 1)
    run("corpus", tmp_path / "corpus", *corpus)
    assert run("corpus", tmp_path / "corpus", *corpus).count("there already") == 3
    for steps in (1, 2):
        run("train_vocos", tmp_path, "--steps", steps)
        run("train_dvae", tmp_path, "--steps", steps)
        run("train_gpt", tmp_path, "--tokens", 1000 * steps, "--batch-tokens", 500, *tiny)
    logged = [json.loads(line)["tokens"] for line in (tmp_path / "gpt.jsonl").read_text().splitlines()]
    assert logged == sorted(logged)
    assert len(logged) == 2
    assert (tmp_path / "gpt.png").read_bytes().startswith(b"\x89PNG")
    run("export", tmp_path, tmp_path / "out")
    assert open_checkpoint(tmp_path / "out").gpt_spec.width == TINY.width
