"""The training of the demo voice: what the teacher reads, the recordings it leaves, and what learns from them."""

import gzip
import json
import random
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipeline.checkpoint.in_torch import in_torch
from pipeline.checkpoint.layout import SMALL_FILES, VOCOS_FILE
from pipeline.checkpoint.locate import DEMO_FOLDER
from pipeline.checkpoint.manifest import file_sha256, read_manifest
from pipeline.checkpoint.weights import open_checkpoint
from pipeline.config import VocoderConfig
from pipeline.spec import SAMPLE_RATE, SAMPLES_PER_STEP
from pipeline.vocoder.windowed.network import build_network
from scripts import distill_vocoder
from scripts.distill_vocoder import AROUND, Small, begun
from scripts.train_demo import prose, train_gpt
from scripts.train_demo.adversarial import Contest
from scripts.train_demo.assignments import SPEAKERS, Assignment, _shares, _with_events
from scripts.train_demo.bank import HELD_OUT, Bank
from scripts.train_demo.codes import BOOKS, CODES, END
from scripts.train_demo.features import FLOOR
from scripts.train_demo.network import IGNORED, Size, Speaking, speaker_vectors
from scripts.train_demo.phones import SYMBOLS
from scripts.train_demo.plan import line, tables
from scripts.train_demo.prose import Text
from scripts.train_demo.read_plan import LAG_S, PLAN, _write, aligned
from scripts.train_demo.sounds import Unit, sounds
from scripts.train_demo.teacher_phones import symbols_of
from scripts.train_demo.tokens import BREATH, LAUGH, PREFIX, SUFFIX, TABLES, TOKEN_IDS
from scripts.train_demo.training import Schedule
from scripts.train_demo.vocoder import Critic, FourierHead, Vocos
from tests.support.reference_vocoder import decode_whole

ROOT = Path(__file__).resolve().parents[3]
TINY = Size(width=64, layers=3, heads=2, mlp_width=96, decoder_width=32, decoder_layers=2)
ENGLISH = (Unit("h", "h"), Unit("##ˈI", "ˈI"), Unit(" ", " "), Unit("ˈɑ", "ˈɑ"), Unit("##ɹ", "ɹ"), Unit(".", "."))
MANDARIN = (Unit("zhong1", "ꭧʊ→ŋ"), Unit("guo2", "kwo↗"), Unit(",", ","), Unit(" ", " "), Unit("an1", "a→n"), Unit(".", "."))
NAMES = {number: token for token, number in TOKEN_IDS.items()}


@pytest.fixture
def numbered(monkeypatch):
    """An alphabet in place of the teacher's, which is not installed."""
    monkeypatch.setattr("scripts.train_demo.plan.alphabet", lambda: {chr(code): code % 170 for code in range(0x12000)})


def planned(units: tuple[Unit, ...], **changed: object) -> dict[str, object]:
    return line(Assignment(Text("...", "en"), units, (1.0, 0.0, 0.0), "[speed_5]")) | changed


def sounding(ticks: list[int], is_silent: set[int] = frozenset()) -> torch.Tensor:
    """Returns noise for each tick of each phone, silence for some phones; all that much earlier than the ticks say."""
    noise = torch.rand(sum(ticks) * 600, generator=torch.Generator().manual_seed(1)) - 0.5
    edges = np.cumsum([0, *ticks]) * 600
    for phone in {0, len(ticks) - 1} | is_silent:
        noise[edges[phone] : edges[phone + 1]] = 0
    return noise.roll(-round(LAG_S * SAMPLE_RATE))


# -- what is read ------------------------------------------------------------------------------------------------------


def test_english_phones_share_tokens_as_the_voice_has_them(numbered):
    entry = planned(ENGLISH)
    assert [NAMES[number] for number in entry["tokens"]] == [*PREFIX, "ʜ", "##ꭤ", "ᴀ", "##ʀ", ".", SUFFIX]
    assert entry["spans"] == [
        [3, TOKEN_IDS["ʜ"], 1],
        [4, TOKEN_IDS["##ꭤ"], 2],
        [4, TOKEN_IDS["##ꭤ"], 1],
        [5, TOKEN_IDS["ᴀ"], 2],
        [6, TOKEN_IDS["##ʀ"], 1],
        [7, TOKEN_IDS["."], 1],
    ]


def test_a_syllable_is_one_token_of_two_sounds(numbered):
    entry = planned(MANDARIN)
    assert [NAMES[number] for number in entry["tokens"]][3:-1] == ["zhong1", "guo2", ",", "an1", "."]
    assert [(place, NAMES[sound], count) for place, sound, count in entry["spans"]] == [
        (3, "initial:zh", 1),
        (3, "final:ong", 3),
        (4, "initial:g", 1),
        (4, "final:uo", 3),
        (5, ",", 1),
        (5, ",", 1),
        (6, "final:an", 3),
        (7, ".", 1),
    ]


@given(st.integers(0, 10**9))
def test_no_syllable_of_a_text_is_lost(seed):
    draw = random.Random(seed)
    text = "".join(draw.choice("今天我们去公园吃饭然后回家睡觉老师上课小猫很大") for _ in range(draw.randint(1, 20)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("scripts.train_demo.sounds._ipa", lambda syllable: syllable)  # misaki's, which is not installed
        units = sounds(text)
    assert units is None or sum(unit.token != " " for unit in units) == len(text)


def test_events_stand_where_words_may_end(numbered):
    seen = set()
    for seed in range(300):
        units = _with_events(random.Random(seed), ENGLISH)
        events = [unit.token for unit in units if unit.token in (BREATH, LAUGH)]
        seen |= set(events)
        entry = planned(units)
        assert [NAMES[number] for number in entry["tokens"] if NAMES[number] in (BREATH, LAUGH)] == events
    assert seen == {BREATH, LAUGH}


def test_shares_are_one_speakers_or_a_blend():
    drawn = [_shares(random.Random(seed)) for seed in range(300)]
    assert all(abs(sum(shares) - 1) < 0.01 for shares in drawn)
    pure = {shares for shares in drawn if max(shares) == 1.0 and min(shares) == 0.0}
    assert len(pure) == len(SPEAKERS)
    assert 80 < sum(shares not in pure for shares in drawn) < 150


def test_prose_gives_texts_of_plain_signs(monkeypatch):
    monkeypatch.setattr(prose, "_english", lambda draw: "“Well” — he said; 12 apples!")
    monkeypatch.setattr(prose, "held_out_texts", frozenset)
    found = prose.text(random.Random(0), 0.0, 0.0).written
    assert not set(found) & set("“”—;12"), found
    assert found.endswith("!")


# -- recordings --------------------------------------------------------------------------------------------------------


def test_every_step_has_the_token_that_sounds(numbered):
    entry = planned(ENGLISH)
    ticks = [6, 4, 2, 4, 2, 2, 4, 4, 4, 6]
    assert len(ticks) == len(entry["ids"]) + 2
    audio = sounding(ticks, {8})
    cut = aligned(audio, torch.tensor(ticks), entry, tables())
    assert len(cut["samples"]) == len(cut["sound"]) * SAMPLES_PER_STEP == len(cut["spoken"]) * SAMPLES_PER_STEP
    names = [NAMES[number] for number in cut["sound"].tolist()]
    assert list(dict.fromkeys(names)) == ["ʜ", "##ꭤ", "ᴀ", "##ʀ", "."]
    loud = cut["samples"].reshape(-1, SAMPLES_PER_STEP).float().abs().mean(1) > 1000
    assert [name for name, is_loud in zip(names, loud.tolist(), strict=True) if is_loud][-1] == "##ʀ"
    assert not loud[names.index(".") + 1 :].any()
    assert (cut["spoken"][1:] >= cut["spoken"][:-1]).all()


def test_a_pause_that_the_teacher_counts_to_a_phone_is_the_stops(numbered):
    """The last phone is said to last 20 ticks, of which it sounds 4."""
    entry = planned(ENGLISH)
    ticks = [6, 4, 2, 4, 2, 2, 4, 20, 4, 6]
    audio = sounding(ticks, {8})
    audio[sum(ticks[:7], 4) * 600 - round(LAG_S * SAMPLE_RATE) :] = 0
    cut = aligned(audio, torch.tensor(ticks), entry, tables())
    names = [NAMES[number] for number in cut["sound"].tolist()]
    assert names.count("##ʀ") <= 8
    assert names.count(".") >= 5


def test_a_breath_is_heard_in_its_pause(numbered):
    entry = planned((*ENGLISH[:2], Unit(BREATH, ", "), *ENGLISH[3:]))
    ticks = [6, 4, 2, 4, 8, 8, 2, 4, 4, 4, 6]
    audio = sounding(ticks, {4, 5})
    cut = aligned(audio, torch.tensor(ticks), entry, tables())
    pauses = [NAMES[number] == BREATH for number in cut["sound"].tolist()]
    quiet = cut["samples"].reshape(-1, SAMPLES_PER_STEP)[torch.tensor(pauses)].float().abs()
    assert 20 < quiet.max() < 2500


def recorded(folder: Path, count: int = HELD_OUT + 8) -> None:
    """Writes a chunk of noise that says random tokens, and a plan's first line."""
    (folder / "chunks").mkdir(parents=True)
    draw, generator = random.Random(1), torch.Generator().manual_seed(1)
    ready = []
    for number in range(count):
        tokens = [*(TOKEN_IDS[token] for token in PREFIX), *(draw.randrange(4, 80) for _ in range(draw.randint(3, 9)))]
        steps = draw.randint(50, 90)
        samples = torch.randint(-9000, 9000, (steps * SAMPLES_PER_STEP,), generator=generator).short()
        ready.append(
            {
                "text": str(number),
                "tokens": torch.tensor([*tokens, TOKEN_IDS[SUFFIX]], dtype=torch.int16),
                "shares": torch.eye(3)[number % 3],
                "samples": samples,
                "spoken": torch.linspace(3, len(tokens) - 1, steps).half(),
                "sound": torch.randint(4, 80, (steps,), generator=generator).short(),
            }
        )
    _write(folder / "chunks" / "00000.pt", ready)
    with gzip.open(folder / PLAN, "wt") as file:
        file.write(json.dumps(tables()) + "\n")


@pytest.fixture(scope="module")
def bank(tmp_path_factory):
    folder = tmp_path_factory.mktemp("train")
    recorded(folder)
    whole = Bank(folder / "chunks", "cpu", TINY.width)
    whole.codes = torch.randint(CODES, (int(whole.step_counts.sum()), BOOKS), generator=torch.Generator().manual_seed(2))
    return whole


def test_positions_predict_the_next_step_and_the_end(bank):
    numbers = [9, 10, 13]
    batch = bank.batch(numbers, 0.0)
    for row, number in enumerate(numbers):
        text, steps = int(bank.token_counts[number]), bank.steps_of(number)
        count = steps.stop - steps.start
        assert torch.equal(batch.codes[row, text : text + count], bank.codes[steps])
        assert torch.equal(batch.targets[row, text - 1 : text - 1 + count], bank.codes[steps])
        assert (batch.targets[row, text - 1 + count] == END).all()
        assert (batch.targets[row, text + count :] == IGNORED).all()
        assert (batch.targets[row, : text - 1] == IGNORED).all()
        assert torch.equal(batch.phones[row, text - 1 : text - 1 + count], bank.sound[steps].long())
        looked = batch.guide[row, text - 1 : text - 1 + count].argmax(-1)
        assert (looked - bank.spoken[steps].float()).abs().max() <= 0.6


def test_noise_changes_codes_and_never_what_is_predicted(bank):
    torch.manual_seed(0)
    plain, noisy = bank.batch([8, 9, 10, 11], 0.0), bank.batch([8, 9, 10, 11], 0.9)
    assert torch.equal(plain.targets, noisy.targets)
    assert 0.05 < (plain.codes != noisy.codes)[plain.is_code].float().mean() < 0.9


def test_a_pass_has_every_recording_that_is_not_held_out(bank):
    groups = list(bank.groups(600, random.Random(0)))
    assert {number for group in groups for number in group} == set(range(HELD_OUT, len(bank.texts)))


def test_crops_are_frames_and_the_samples_between_their_middles(bank):
    torch.manual_seed(0)
    mel, samples = bank.crops(6, 32)
    assert mel.shape == (6, 100, 32)
    assert samples.shape == (6, 31 * 256)
    assert mel.min() >= FLOOR
    first = bank.first_steps[[9]][:, None]
    plain, wave = bank.crops_at(first, 32, is_louder=False)
    begin = int(first) * SAMPLES_PER_STEP
    assert torch.equal(wave[0], bank.samples[begin : begin + 31 * 256].float() / 32767)
    assert torch.equal(plain[0], bank.mel_of(9).reshape(-1, 100)[:32].T)


# -- learning ----------------------------------------------------------------------------------------------------------


def test_a_step_learns_from_everything(bank):
    """Every parameter gets a gradient, but the codes' own rows that no recording has."""
    torch.manual_seed(0)
    model = Speaking(TINY, torch.ones(100), TABLES)
    total, parts = train_gpt.losses(model, bank.batch([8, 9, 10, 11], 0.4), bank)
    total.backward()
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in model.parameters())
    assert set(parts) == {"book 0", "book 1", "book 2", "book 3", "accuracy", "mel", "guide", "phone"}


@torch.no_grad()
def test_padding_changes_no_loss(bank):
    torch.manual_seed(0)
    model = Speaking(TINY, torch.ones(100), TABLES).eval()
    batch = bank.batch([9], 0.0)
    real = int(bank.lengths[9])
    whole, _ = model.trunk(model.embed(batch.tokens, batch.codes, batch.is_code, batch.speakers))
    alone, _ = model.trunk(model.embed(batch.tokens[:, :real], batch.codes[:, :real], batch.is_code[:, :real], batch.speakers))
    assert torch.allclose(whole[:, :real], alone, atol=1e-5)


def test_blends_lie_between_speakers():
    pure = speaker_vectors(torch.eye(3), 16)
    between = speaker_vectors(torch.tensor([[0.5, 0.5, 0.0]]), 16)[0]
    assert torch.allclose(pure @ pure.T, torch.eye(3))
    assert torch.allclose(between.norm(), torch.tensor(1.0))
    assert between @ pure[0] == between @ pure[1] > 0.7


def test_overlapping_windows_give_what_torch_gives():
    head, features = FourierHead(24), torch.randn(2, 9, 24)
    with torch.no_grad():
        ours = head(features)
        log_magnitude, phase = head.out(features).transpose(1, 2).chunk(2, 1)
        spectrum = torch.polar(log_magnitude.exp().clamp(max=100), phase)
        theirs = torch.istft(spectrum, 1024, 256, 1024, head.window, center=True)
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-4)


def test_judges_learn_once_the_generator_is_no_longer_alone(bank):
    torch.manual_seed(0)
    model, critic = Vocos(16, 1), Critic(((256, 64),), (2,))
    contest = Contest(model.parameters(), critic, lambda mel: (model(mel), mel.new_zeros(())), "cpu")
    mel, originals = bank.crops(2, 32)
    before = {name: [value.clone() for value in part.parameters()] for name, part in (("model", model), ("critic", critic))}
    contest.learn((originals, mel), share=1.0, is_alone=True)
    assert all(map(torch.equal, before["critic"], critic.parameters()))
    assert not all(map(torch.equal, before["model"], model.parameters()))
    parts = contest.learn((originals, mel), share=1.0, is_alone=False)
    assert not all(map(torch.equal, before["critic"], critic.parameters()))
    assert {"mel", "spectra", "persuasion", "critic", "own"} == set(parts)


def test_the_rate_rises_stays_and_falls_to_zero():
    assert Schedule(1e9).share(0) == 0.01
    assert Schedule(1e9).share(500) == 1.0
    assert Schedule(1000, 800).share(500) == pytest.approx(0.5, abs=0.01)
    assert Schedule(1000, 1000).share(500) == 0.0


def test_a_graph_computes_what_its_operators_mean(tmp_path):
    """Weights in 8 bits, a bias in units of the product, a slice that is counted from the end, a division of zero by zero."""
    onnx = pytest.importorskip("onnx")
    from scripts.train_demo.graph import Graph

    helper, numpy_helper = onnx.helper, onnx.numpy_helper
    weight = np.random.default_rng(0).integers(0, 255, (3, 2, 3)).astype(np.uint8)
    bias, zero, scale = np.array([0.5, -1.0, 2.0], np.float32), np.array(128, np.uint8), np.array(0.01, np.float32)
    constants = {"weight": weight, "zero": zero, "scale": scale, "bias": bias, "shape": np.array([1, 3, 1])}
    constants |= {"from": np.array([-2]), "to": np.array([1 << 40]), "axis": np.array([2]), "nothing": np.zeros(1, np.float32)}
    convolution = {"kernel_shape": [3], "pads": [1, 1], "strides": [1], "dilations": [1], "group": 1}
    nodes = [
        ("DynamicQuantizeLinear", ["x"], ["quantised", "x_scale", "x_zero"], {}),
        ("ConvInteger", ["quantised", "weight", "x_zero", "zero"], ["product"], convolution),
        ("Mul", ["x_scale", "scale"], ["scales"], {}),
        ("Div", ["bias", "scales"], ["divided"], {}),
        ("Floor", ["divided"], ["floored"], {}),
        ("Cast", ["floored"], ["whole"], {"to": 6}),
        ("Reshape", ["whole", "shape"], ["shaped"], {}),
        ("Add", ["product", "shaped"], ["summed"], {}),
        ("Cast", ["summed"], ["cast"], {"to": 1}),
        ("Mul", ["cast", "scales"], ["y"], {}),
        ("Slice", ["y", "from", "to", "axis"], ["end"], {}),
        ("Div", ["nothing", "nothing"], ["silence"], {}),
    ]
    graph = helper.make_graph(
        [helper.make_node(kind, inputs, outputs, **attributes) for kind, inputs, outputs, attributes in nodes],
        "g",
        [helper.make_tensor_value_info("x", 1, [1, 2, 8])],
        [helper.make_tensor_value_info("end", 1, [1, 3, 2])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    onnx.save(helper.make_model(graph), str(tmp_path / "g.onnx"))
    x = torch.randn(1, 2, 8)
    end, silence = Graph(tmp_path / "g.onnx", ("end", "silence"), "cpu").run({"x": x})
    kernel = torch.from_numpy((weight.astype(np.float32) - 128) * 0.01)
    expected = torch.nn.functional.conv1d(x, kernel, torch.from_numpy(bias), padding=1)
    torch.testing.assert_close(end, expected[:, :, -2:])
    assert silence.item() == 0.0


@pytest.mark.slow
def test_the_trainings_run_from_recordings_to_a_checkpoint_and_resume(tmp_path):
    recorded(tmp_path)
    tiny = [f"--{name.replace('_', '-')}={getattr(TINY, name)}" for name in Size.__slots__]

    def run(module: str, *arguments: object) -> str:
        command = [sys.executable, "-m", f"scripts.train_demo.{module}", *map(str, arguments)]
        completed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert completed.returncode == 0, completed.stderr
        return completed.stdout

    for seconds in (0.1, 0.2):
        run("train_gpt", tmp_path, "--seconds", seconds, "--positions", 600, *tiny)
    steps = [json.loads(line)["steps"] for line in (tmp_path / "gpt.jsonl").read_text().splitlines()]
    assert steps == sorted(steps)
    run("train_vocoder", tmp_path, "--seconds", 0.1, "--rows", 1)
    run("train_joint", tmp_path, "--seconds", 0.1, "--positions", 400)
    run("train_dvae", tmp_path, "--seconds", 0.1)
    for name in ("gpt.pt", "vocoder.pt", "dvae.pt"):
        assert all(value.isfinite().all() for value in torch.load(tmp_path / name)["model"].values()), name


# The teacher's phones as the project's phone characters.


AMERICAN = "AIOWYɑɔæʌəᵊɐᵻɛɜɪiuʊbdfhjklmnpstvwzɡŋɹɾTʔðθʃʒʤʧ"


@pytest.mark.parametrize(
    ("phones", "names"),
    [
        ("fəɹɡˈɛt", "f er g eh t"),
        ("wˈɜɹld", "w er l d"),
        ("wˈɔTəɹ", "w ao t er"),
        ("bˈʌʔn", "b ah t n"),
        ("ˌʌndəɹstˈænd", "ah n d er s t ae n d"),
        ("ʤˈʌʤᵻz", "jh ah jh ax z"),
        ("jˈuθ", "y uw th"),
    ],
)
def test_words(phones: str, names: str):
    assert [symbol for symbol, _ in symbols_of(phones)] == [SYMBOLS[name] for name in names.split()]


def test_the_mark_and_the_r_belong_to_the_vowel():
    assert symbols_of("mˈɜɹdəɹ") == [(SYMBOLS["m"], 1), (SYMBOLS["er"], 3), (SYMBOLS["d"], 1), (SYMBOLS["er"], 2)]


@given(st.lists(st.tuples(st.sampled_from(["", "ˈ", "ˌ"]), st.sampled_from(AMERICAN)), min_size=1), st.sampled_from(["", "ˈ"]))
def test_every_character_is_counted_once(marked: list[tuple[str, str]], end: str):
    phones = "".join(mark + phone for mark, phone in marked) + end
    symbols = symbols_of(phones)
    assert sum(count for _, count in symbols) == len(phones)
    assert all(count > 0 and symbol in SYMBOLS.values() for symbol, count in symbols)


@pytest.mark.parametrize("phones", ["kˈæ7t", "ˈ", "kæt dɔɡ"])
def test_a_foreign_sign_is_an_error(phones: str):
    with pytest.raises(ValueError, match="no phone of the teacher"):
        symbols_of(phones)


def test_the_whole_lexicon_has_characters():
    pytest.importorskip("misaki")
    for name in ("us_gold", "us_silver"):
        for entry in json.loads((files("misaki") / "data" / f"{name}.json").read_text(encoding="utf-8")).values():
            for phones in [entry] if isinstance(entry, str) else entry.values():
                assert not phones or symbols_of(phones)


@pytest.mark.parametrize(
    ("word", "names"),
    [
        ("invited", "ih n v ay t ax d"),
        ("stopped", "s t aa p t"),
        ("companies", "k ah m p ax n iy z"),
        ("dont", "d ow n t"),
        ("im", "ay m"),
        ("the", "dh ax"),
    ],
)
def test_pronunciations_are_the_teachers(word: str, names: str):
    pytest.importorskip("misaki")
    pronunciations = pytest.importorskip("scripts.train_demo.pronunciations")
    written = next((one for one in pronunciations.CONTRACTIONS.split() if one.replace("'", "") == word), word)
    assert pronunciations.characters(written) == "".join(SYMBOLS[name] for name in names.split())


# The small vocoder: what it begins with, and a training that goes on where it was stopped.


def test_it_begins_as_a_part_of_its_teacher_and_has_at_most_a_million_parameters():
    checkpoint = open_checkpoint(DEMO_FOLDER)
    teacher = in_torch(checkpoint.mel_decoder()), in_torch(checkpoint.vocos())
    small = Small(*begun(*teacher), "cpu")
    assert sum(tensor.numel() for tensor in small.learned) <= 1_000_000
    assert sum(tensor.numel() for part in small.files().values() for tensor in part.values()) * 2 < 2_000_000
    for mine, whole in zip(small.parts, teacher, strict=True):
        assert mine.keys() <= whole.keys()
        for name in {"backbone.embed.weight", "decoder.conv_in.0.weight"} & mine.keys():
            is_row = (mine[name].flatten(1)[:, None] == whole[name].flatten(1)).all(-1).any(1)
            assert is_row.all()


def test_with_room_for_all_of_it_the_small_one_is_its_teacher(monkeypatch):
    for name in ("BOTTLENECK", "OUTPUTS", "WIDTH", "LAYERS", "DECODER_MLP", "VOCOS_MLP"):
        monkeypatch.setattr(distill_vocoder, name, 10_000)
    checkpoint = open_checkpoint(DEMO_FOLDER)
    small = Small(*begun(in_torch(checkpoint.mel_decoder()), in_torch(checkpoint.vocos())), "cpu")
    rows = np.random.default_rng(1).standard_normal((40 + 2 * AROUND, 256), np.float32)
    with torch.no_grad():
        _, samples = small(torch.from_numpy(rows)[None])
    expected = decode_whole(build_network(VocoderConfig(), checkpoint), rows)[512 * AROUND : -512 * AROUND + 256]
    assert np.allclose(samples[0], expected, atol=1e-5)


@pytest.mark.slow
def test_the_training_writes_a_checkpoint_and_resumes(tmp_path):
    command = [sys.executable, "-m", "scripts.distill_vocoder", "demo", str(tmp_path), "--sentences", "24", "--rows", "2"]
    losses = []
    for seconds in ("6", "16"):
        completed = subprocess.run([*command, "--seconds", seconds], cwd=ROOT, capture_output=True, text=True, check=False)
        assert completed.returncode == 0, completed.stderr
        lines = (tmp_path / "distillation/small.jsonl").read_text().splitlines()
        losses.append([float(line.split('"own": ')[-1].rstrip("}")) for line in lines])
    assert losses[1][: len(losses[0])] == losses[0]
    assert losses[1][-1] < losses[0][0], "it learns"
    checkpoint, manifest = open_checkpoint(tmp_path), read_manifest(tmp_path)
    assert manifest[VOCOS_FILE] == read_manifest(DEMO_FOLDER)[VOCOS_FILE]
    assert all(manifest[file] == file_sha256(tmp_path / file) for file in SMALL_FILES)
    assert np.isfinite(
        decode_whole(build_network(VocoderConfig(size="small"), checkpoint), np.zeros((20, 256), np.float32))
    ).all()
