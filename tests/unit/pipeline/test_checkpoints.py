"""Finding and making checkpoints, the manifest that vouches for them, what they can do, and the demo checkpoint."""

import hashlib
import multiprocessing
import os
import subprocess
import time
import tomllib
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from pipeline.checkpoint import locate as checkpoints
from pipeline.checkpoint import random_model, random_weights
from pipeline.checkpoint.capabilities import ALL_CAPABILITIES, Capabilities, capabilities_file, read_capabilities
from pipeline.checkpoint.layout import (
    CAPABILITIES_FILE,
    EMBED_FILE,
    FILES,
    GPT_CONFIG_FILE,
    GPT_FILE,
    MANIFEST_FILE,
    MEL_DECODER_FILE,
    PRONUNCIATION_FILE,
    SMALL_FILES,
    SPEAKERS_FILE,
    SPECIAL_TOKENS_FILE,
    TOKENIZER_FILE,
)
from pipeline.checkpoint.locate import DEMO_FOLDER, generated_folder, hub_folder, resolve
from pipeline.checkpoint.manifest import file_sha256, read_manifest, read_verified, verify_files, write_manifest
from pipeline.checkpoint.random_weights import generate
from pipeline.checkpoint.weights import open_checkpoint
from pipeline.errors import CheckpointError
from pipeline.paths import cache_home
from pipeline.spec import CONTROL_TAGS, SPEED_TAGS
from pipeline.voices.catalogue import VoiceCatalogue
from pipeline.voices.seeds import read_statistics
from scripts.train_demo.assignments import SPEAKERS
from scripts.train_demo.export import CAPABILITIES, STAND_INS
from scripts.train_demo.tokens import EVENTS
from serve.commands.weights import make_random as make_checkpoint

SMALL_BYTES_LIMIT = 16 << 20


@pytest.fixture
def root(tmp_path: Path) -> Path:
    generate("small-random", tmp_path / "small-random")
    return tmp_path / "small-random"


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def resolve_when_told(home: Path, barrier: object, answers: object) -> None:
    barrier.wait()
    answers.put(str(resolve("small-random", home)))


def test_a_generated_checkpoint_is_byte_identical_every_time(root: Path, tmp_path: Path) -> None:
    generate("small-random", tmp_path / "again")
    assert contents(root) == contents(tmp_path / "again")


def test_recipe_version_is_raised_with_every_changed_byte(root: Path) -> None:
    # A cache would go on serving the old bytes: raise FOLDER_VERSION, and GENERATOR_VERSION for tensors, with these lines.
    portable = (EMBED_FILE, GPT_FILE, MEL_DECODER_FILE)  # the others hold cosines, whose last bit is the machine's
    manifest = read_manifest(root)
    digest = hashlib.sha256("".join(manifest[file] for file in portable).encode()).hexdigest()
    assert (random_weights.FOLDER_VERSION, random_weights.GENERATOR_VERSION) == (3, 2)
    assert digest == "166b8789329ffbe153c8480fffab5952e97d1df863f037672d670f03c06f5cd5"


def test_a_generated_checkpoint_is_small_and_has_every_file_of_upstream(root: Path) -> None:
    assert set(contents(root)) == {*FILES, CAPABILITIES_FILE, MANIFEST_FILE}
    assert sum(map(len, contents(root).values())) < SMALL_BYTES_LIMIT


def test_sha256sum_accepts_the_manifest(root: Path) -> None:
    listed = subprocess.run(["sha256sum", "-c", MANIFEST_FILE], cwd=root, capture_output=True, text=True, check=True)
    assert listed.stdout.count(": OK") == len(FILES) + 1


def test_every_tensor_is_its_own_and_finite(root: Path) -> None:
    contents = set()
    for file in FILES:
        if file.endswith(".safetensors"):
            for name, values in load_file(root / file).items():
                assert np.isfinite(values).all(), name
                if not name.endswith(("window", "fb")):
                    assert values.tobytes() not in contents, f"{file} {name} repeats another tensor"
                    contents.add(values.tobytes())


def test_layer_scales_are_of_order_one_so_that_no_layer_hides(root: Path) -> None:
    vocos, decoder = load_file(root / "asset/Vocos.safetensors"), load_file(root / "asset/Decoder.safetensors")
    for scale in (vocos["backbone.convnext.0.gamma"], decoder["decoder.decoder_block.0.weight"]):
        assert 0.1 < np.abs(scale).mean() < 1
    assert 0.5 < decoder["coef"].min() < decoder["coef"].max() < 1.5


def test_size_is_what_make_reports(tmp_path: Path) -> None:
    counts: list[int] = []
    generate("small-random", tmp_path / "small-random", on_bytes=counts.append)
    assert sum(counts) == random_weights.size("small-random")


def test_full_random_has_the_real_dimensions() -> None:
    recipe = random_model.RANDOM_MODELS["full-random"]
    assert len(recipe.tokens) == len(set(recipe.tokens)) == 21_178
    shapes = recipe.shapes()
    layer_parameters = sum(
        int(np.prod(shape)) for name, shape in shapes["asset/gpt/model.safetensors"].items() if name.startswith("layers.7.")
    )
    assert layer_parameters == 9_438_720
    assert shapes["asset/Embed.safetensors"]["emb_text.weight"] == (21_178, 768)


def test_unknown_kind_cannot_be_made(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="allowed are small-random, full-random"):
        generate("medium", tmp_path)


@pytest.mark.parametrize("kind", ["small-random", "full-random"])
def test_control_tokens_stand_last_in_upstreams_order(kind: str) -> None:
    tokens = random_model.RANDOM_MODELS[kind].tokens
    assert tokens[:5] == ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    assert " ".join(tokens[-51:-31]) == (
        "[Sasr] [Pasr] [Easr] [Stts] [Ptts] [Etts] [Sbreak] [Pbreak] [Ebreak] [uv_break] [v_break] [lbreak] [llbreak] "
        "[undefine] [laugh] [test] [spk_emb] [empty_spk] [music] [pure]"
    )
    assert tokens[-31] == "[break_0]"
    assert tokens[-1] == "[speed_9]"


def test_tokenizer_knows_letters_common_characters_and_control_tokens(root: Path) -> None:
    tokenizer = Tokenizer.from_file(str(root / TOKENIZER_FILE))
    encoded = tokenizer.encode("[Stts][spk_emb][speed_5]Hi Café, 今天好！龘[Ptts]", add_special_tokens=False)
    assert " ".join(encoded.tokens) == "[Stts] [spk_emb] [speed_5] h ##i c ##a ##f ##e , 今 天 好 ！ [UNK] [Ptts]"


def test_random_weights_are_generated_once_and_then_found(tmp_path: Path) -> None:
    first = resolve("small-random", tmp_path)
    made_at = (first / MANIFEST_FILE).stat().st_mtime_ns
    assert resolve("small-random", tmp_path) == first == generated_folder("small-random", tmp_path)
    assert (first / MANIFEST_FILE).stat().st_mtime_ns == made_at
    assert list(tmp_path.iterdir()) == [first]
    assert first.stat().st_mode & 0o777 == 0o755


@pytest.mark.slow
def test_two_processes_at_once_both_get_the_one_whole_checkpoint(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    barrier, answers = context.Barrier(2), context.Queue()
    processes = [context.Process(target=resolve_when_told, args=(tmp_path, barrier, answers)) for _ in range(2)]
    for process in processes:
        process.start()
    roots = {answers.get(timeout=120) for _ in processes}
    for process in processes:
        process.join(timeout=60)
    assert [process.exitcode for process in processes] == [0, 0]
    assert roots == {str(generated_folder("small-random", tmp_path))}
    assert verify_files(generated_folder("small-random", tmp_path))
    assert list(tmp_path.iterdir()) == [generated_folder("small-random", tmp_path)]


def test_loser_of_the_rename_takes_the_winners(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    winner = generated_folder("small-random", tmp_path)

    def make_while_another_wins(kind: str, folder: Path) -> None:
        generate(kind, folder)
        generate(kind, winner)
        (winner / "winner").touch()

    monkeypatch.setattr(checkpoints, "generate", make_while_another_wins)
    assert resolve("small-random", tmp_path) == winner
    assert (winner / "winner").exists()
    assert list(tmp_path.iterdir()) == [winner]


def test_what_a_dead_process_left_behind_is_removed_after_a_while(tmp_path: Path) -> None:
    dead, alive = tmp_path / ".small-random-draft-dead", tmp_path / ".small-random-draft-alive"
    dead.mkdir()
    alive.mkdir()
    long_ago = time.time() - checkpoints.ABANDONED_AFTER_S - 60
    os.utime(dead, (long_ago, long_ago))
    resolve("small-random", tmp_path)
    assert not dead.exists()
    assert alive.exists()


def test_cache_that_cannot_be_written_says_what_to_set(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=r"cannot be written .*CHATTTS_HOME"):
        resolve("small-random", tmp_path / "file")


def test_interrupted_making_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def disk_is_full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(random_weights, "write_manifest", disk_is_full)
    with pytest.raises(CheckpointError, match=r"could not be generated .*No space left.* bytes are needed"):
        resolve("small-random", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_hub_name_without_files_says_the_exact_command(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"chattts-serve weights fetch --accept-license cc-by-nc-4\.0"):
        resolve("hub:2Noise/ChatTTS", tmp_path)


def test_hub_name_with_files_is_found(tmp_path: Path) -> None:
    generate("small-random", hub_folder(tmp_path))
    assert resolve("hub:2Noise/ChatTTS", tmp_path) == hub_folder(tmp_path)
    (hub_folder(tmp_path) / GPT_CONFIG_FILE).unlink()
    with pytest.raises(CheckpointError, match=r"lacks asset/gpt/config\.json"):
        resolve("hub:2Noise/ChatTTS", tmp_path)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hub:other/model", "only hub:2Noise/ChatTTS is known"),
        ("dmeo", "no such folder; allowed are demo, small-random, full-random, hub:2Noise/ChatTTS or a folder"),
    ],
)
def test_unknown_name_says_what_is_allowed(name: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=message):
        resolve(name, tmp_path)


def test_folder_is_taken_as_it_is(root: Path, tmp_path: Path) -> None:
    assert resolve(str(root), tmp_path / "unused") == root
    with pytest.raises(CheckpointError, match="holds no asset/"):
        resolve(str(root / "asset"), tmp_path / "unused")
    assert not (tmp_path / "unused").exists()


def test_cache_home_is_set_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    monkeypatch.delenv("CHATTTS_HOME", raising=False)
    assert cache_home() == Path("/caches/chattts-serve")
    monkeypatch.setenv("CHATTTS_HOME", "/models")
    assert cache_home() == Path("/models")
    monkeypatch.delenv("CHATTTS_HOME")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_home() == Path.home() / ".cache" / "chattts-serve"


def test_changed_tokenizer_is_refused(root: Path) -> None:
    assert read_verified(root, TOKENIZER_FILE) == (root / TOKENIZER_FILE).read_bytes()
    assert set(verify_files(root)) == {*FILES, CAPABILITIES_FILE}
    content = bytearray((root / TOKENIZER_FILE).read_bytes())
    content[1000] ^= 1
    (root / TOKENIZER_FILE).write_bytes(content)
    for check in (lambda: read_verified(root, TOKENIZER_FILE), lambda: verify_files(root)):
        with pytest.raises(CheckpointError, match=r"tokenizer\.json: expected SHA-256 \w{64}, found \w{64}"):
            check()


def test_swapped_file_is_named_for_what_it_is(root: Path) -> None:
    (root / "asset/Vocos.safetensors").write_bytes((root / "asset/DVAE.safetensors").read_bytes())
    with pytest.raises(CheckpointError, match=r"these are the bytes of asset/DVAE\.safetensors"):
        read_verified(root, "asset/Vocos.safetensors")


def test_file_that_is_not_listed_is_refused(root: Path) -> None:
    lines = (root / MANIFEST_FILE).read_text().splitlines(keepends=True)
    (root / MANIFEST_FILE).write_text("".join(line for line in lines if GPT_CONFIG_FILE not in line))
    for check in (lambda: read_verified(root, GPT_CONFIG_FILE), lambda: verify_files(root)):
        with pytest.raises(CheckpointError, match="not listed in SHA256SUMS"):
            check()


def test_listed_file_that_is_gone_is_missed(root: Path) -> None:
    (root / SPECIAL_TOKENS_FILE).unlink()
    with pytest.raises(CheckpointError, match=r"special_tokens_map\.json: the file is missing"):
        verify_files(root)


def test_without_a_manifest_nothing_is_confirmed_but_files_must_be_there(root: Path) -> None:
    (root / MANIFEST_FILE).unlink()
    (root / SPECIAL_TOKENS_FILE).unlink()  # transformers 5 no longer writes it
    assert read_manifest(root) is None
    assert verify_files(root) == ()
    (root / TOKENIZER_FILE).unlink()
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: the file is missing"):
        verify_files(root)


@pytest.mark.parametrize("line", ["no hash here", "abc  asset/gpt/config.json", "z" * 64 + "  asset/gpt/config.json", "\xff"])
def test_unreadable_manifest_is_refused_with_the_line(line: str, root: Path) -> None:
    manifest = (root / MANIFEST_FILE).read_bytes()
    (root / MANIFEST_FILE).write_bytes(manifest + line.encode("latin-1") + b"\n")
    with pytest.raises(CheckpointError, match=r"SHA256SUMS: (line 11 is not|cannot be read)"):
        read_manifest(root)


def test_script_makes_into_an_absent_folder_and_refuses_a_full_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new" / "small-random"
    assert make_checkpoint.main(["small-random", str(out)]) == 0
    assert capsys.readouterr() == (f"{out}\n", "")  # quiet off a terminal
    assert verify_files(out)
    assert make_checkpoint.main(["small-random", str(out)]) == make_checkpoint.EXIT_REFUSED
    assert "is not an empty folder" in capsys.readouterr().err
    (tmp_path / "file").touch()
    assert make_checkpoint.main(["small-random", str(tmp_path / "file" / "below")]) == 1


# Capabilities of a checkpoint: by default everything; unknown ones are refused.


def checkpoint(root: Path, content: bytes) -> Path:
    (root / CAPABILITIES_FILE).parent.mkdir(parents=True)
    (root / CAPABILITIES_FILE).write_bytes(content)
    return root


def test_a_checkpoint_without_the_file_has_all_capabilities(tmp_path, demo_root):
    assert read_capabilities(tmp_path) == ALL_CAPABILITIES
    assert read_capabilities(demo_root) == ALL_CAPABILITIES.model_copy(update={"ends_with_text": False}), "random weights"
    assert ALL_CAPABILITIES.languages == ("zh", "en")
    assert set(ALL_CAPABILITIES.control_tags) == CONTROL_TAGS
    assert ALL_CAPABILITIES.speed_tokens
    assert ALL_CAPABILITIES.refine
    assert ALL_CAPABILITIES.ends_with_text
    assert ALL_CAPABILITIES.alignment is None


def test_what_is_written_is_read(tmp_path):
    little = Capabilities(languages=("en",), control_tags=("[laugh]",), speed_tokens=False, refine=False)
    assert read_capabilities(checkpoint(tmp_path, capabilities_file(little))) == little


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "taught.json: the file"),
        (b"[]", "taught.json: the file"),
        (b'{"language": ["en"]}', "language: .*; allowed are languages, control_tags, speed_tokens, refine, ends"),
        (b'{"languages": ["fr"]}', "languages"),
        (b'{"languages": []}', "languages"),
        (b'{"control_tags": ["[giggle]"]}', "giggle"),
        (b'{"alignment": {"heads": []}}', r"alignment\.heads"),
    ],
)
def test_mistakes_are_named(tmp_path, content, message):
    with pytest.raises(CheckpointError, match=message):
        read_capabilities(checkpoint(tmp_path, content))


def test_a_manifest_vouches_for_it(tmp_path):
    root = checkpoint(tmp_path, capabilities_file(ALL_CAPABILITIES))
    write_manifest(root, {CAPABILITIES_FILE: file_sha256(root / CAPABILITIES_FILE)})
    assert read_capabilities(root) == ALL_CAPABILITIES
    (root / CAPABILITIES_FILE).write_bytes(capabilities_file(Capabilities(refine=False)))
    with pytest.raises(CheckpointError, match="expected SHA-256"):
        read_capabilities(root)
    (root / CAPABILITIES_FILE).unlink()
    with pytest.raises(CheckpointError, match="missing"):
        read_capabilities(root)
    write_manifest(root, {})
    (root / CAPABILITIES_FILE).write_bytes(capabilities_file(ALL_CAPABILITIES))
    with pytest.raises(CheckpointError, match="not listed"):
        read_capabilities(root)


def test_without_speed_tokens_the_tags_of_speed_have_no_effect_either():
    assert Capabilities(speed_tokens=False).tags == CONTROL_TAGS - SPEED_TAGS
    assert Capabilities(control_tags=("[laugh]",)).tags == {"[laugh]"}
    assert ALL_CAPABILITIES.tags == CONTROL_TAGS
    assert len(SPEED_TAGS) == 10


# The demo checkpoint of the package: whole, small, described, and part of what is installed.


ROOT = Path(__file__).resolve().parents[3]
MOST_BYTES, MOST_BYTES_OF_A_FILE = 45_000_000, 20 << 20
FOUND = [path for path in sorted(DEMO_FOLDER.rglob("*")) if path.is_file()]


def test_every_file_is_there_and_vouched_for(tmp_path: Path):
    root = resolve("demo", tmp_path / "unused")
    files = {*FILES, *SMALL_FILES, SPEAKERS_FILE, CAPABILITIES_FILE, PRONUNCIATION_FILE}
    assert files == set(read_manifest(root)) == set(verify_files(root))
    assert not (tmp_path / "unused").exists(), "nothing is generated, nothing is copied"


def test_its_capabilities_are_those_an_export_writes():
    capabilities = read_capabilities(DEMO_FOLDER)
    assert (DEMO_FOLDER / CAPABILITIES_FILE).read_bytes() == capabilities_file(capabilities)
    assert capabilities == CAPABILITIES.model_copy(
        update={"languages": capabilities.languages, "alignment": capabilities.alignment}
    )
    speeds = {f"[speed_{level}]" for level in range(10)}
    assert {STAND_INS[tag] for tag in {*capabilities.control_tags} - speeds - {*EVENTS}} == {","}, "its other tags are pauses"


def test_the_demo_checkpoint_is_small_and_in_half_precision():
    assert sum(path.stat().st_size for path in FOUND) <= MOST_BYTES
    assert max(path.stat().st_size for path in FOUND) <= MOST_BYTES_OF_A_FILE
    for path in FOUND:
        if path.suffix == ".safetensors":
            with safe_open(path, "np") as file:
                assert {file.get_slice(name).get_dtype() for name in file.keys()} == {"F16"}, path  # noqa: SIM118


def test_an_installed_wheel_has_it():
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["pipeline"]
    packed = {path for pattern in patterns for path in (ROOT / "pipeline").glob(pattern)}
    assert {ROOT / "pipeline" / path.relative_to(DEMO_FOLDER.parents[1]) for path in FOUND} <= packed


def test_its_card_and_the_notice_name_the_teacher():
    for text in ((DEMO_FOLDER / "README.md").read_text(), (ROOT / "NOTICE").read_text()):
        for name in ("Kokoro-82M", "Apache", *(voice for pair in SPEAKERS for voice in pair)):
            assert name in text


def test_the_catalogue_holds_each_speaker_and_some_between():
    """A voice is a blend of the taught speakers; a seed's lies where the statistics of the taught ones put it."""
    width = open_checkpoint(DEMO_FOLDER).gpt_spec.width
    catalogue = VoiceCatalogue.load(ROOT / "configs/voices.yaml", width, read_statistics(DEMO_FOLDER, width))
    voices = [catalogue.get(info.name).embedding for info in catalogue.list()]
    shares = np.stack([voice[: len(SPEAKERS)].astype(np.float32) for voice in voices if voice is not None])
    shares /= np.linalg.norm(shares, axis=1, keepdims=True)
    assert (shares.max(axis=0) > 0.8).all()
    assert (np.sort(shares, axis=1)[:, -2] > 0.5).any()
