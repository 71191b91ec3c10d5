"""Every way a checkpoint can be wrong is refused with the file, what was expected and what was found."""

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from pipeline.checkpoint.in_torch import in_torch
from pipeline.checkpoint.layout import (
    DVAE_FILE,
    EMBED_FILE,
    GPT_CONFIG_FILE,
    GPT_FILE,
    MANIFEST_FILE,
    MEL_DECODER_FILE,
    VOCOS_FILE,
)
from pipeline.checkpoint.manifest import verify_files
from pipeline.checkpoint.weights import Checkpoint, GptSpec, check_shapes, open_checkpoint
from pipeline.errors import CheckpointError

DEMO_SPEC = GptSpec(
    layers=3,
    width=128,
    heads=4,
    head_dim=32,
    mlp_width=384,
    max_positions=4096,
    rope_theta=10000.0,
    rms_eps=1e-6,
    audio_vocab=626,
    text_vocab=3941,
    codebooks=4,
)
PARTS = {GPT_FILE: "gpt", EMBED_FILE: "embed", MEL_DECODER_FILE: "mel_decoder", DVAE_FILE: "dvae", VOCOS_FILE: "vocos"}


@pytest.fixture
def root(demo_root: Path, tmp_path: Path) -> Path:
    """With its manifest: a changed byte is seen by its hash."""
    return Path(shutil.copytree(demo_root, tmp_path / "small-random"))


@pytest.fixture
def unlisted(root: Path) -> Path:
    """Without a manifest: what is wrong must be seen by itself."""
    (root / MANIFEST_FILE).unlink()
    return root


def load_part(root: Path, file: str) -> dict[str, torch.Tensor]:
    return in_torch(getattr(open_checkpoint(root), PARTS[file])())


def change_tensors(root: Path, file: str, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(root / file)
    change(tensors)
    save_file(tensors, root / file)


def change_config(root: Path, **values: object) -> None:
    config = json.loads((root / GPT_CONFIG_FILE).read_text()) | values
    (root / GPT_CONFIG_FILE).write_text(json.dumps({key: value for key, value in config.items() if value is not ...}))


def test_dimensions_are_read_from_the_files(root: Path) -> None:
    checkpoint = open_checkpoint(root)
    assert checkpoint == Checkpoint(root, DEMO_SPEC)
    with pytest.raises(dataclasses.FrozenInstanceError):
        checkpoint.root = root  # type: ignore[misc]


@pytest.mark.parametrize("file", PARTS)
def test_part_is_what_the_file_holds(file: str, root: Path) -> None:
    tensors = load_file(root / file)
    tensors.pop("embed_tokens.weight", None)  # nothing uses it
    part = load_part(root, file)
    assert part.keys() == tensors.keys()
    assert all(torch.equal(part[name], tensors[name]) and part[name].dtype == torch.float32 for name in tensors)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_checkpoint_comes_as_float32(unlisted: Path, dtype: torch.dtype) -> None:
    change_tensors(unlisted, VOCOS_FILE, lambda tensors: tensors.update({name: t.to(dtype) for name, t in tensors.items()}))
    stored = load_file(unlisted / VOCOS_FILE)
    for name, tensor in load_part(unlisted, VOCOS_FILE).items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, stored[name].float())


def test_a_file_that_changes_later_changes_nothing(unlisted: Path) -> None:
    part = load_part(unlisted, VOCOS_FILE)
    before = {name: tensor.clone() for name, tensor in part.items()}
    with (unlisted / VOCOS_FILE).open("r+b") as file:
        file.seek(-1000, 2)
        file.write(b"x" * 1000)
    assert all(torch.equal(part[name], tensor) for name, tensor in before.items())


def test_integers_are_no_weights(unlisted: Path) -> None:
    change_tensors(unlisted, VOCOS_FILE, lambda tensors: tensors.update({"head.out.bias": tensors["head.out.bias"].int()}))
    with pytest.raises(CheckpointError, match=r"Vocos\.safetensors: head\.out\.bias is I32, expected one of BF16, F16, F32"):
        load_part(unlisted, VOCOS_FILE)


def test_further_tensors_are_left_out(unlisted: Path) -> None:
    for file in PARTS:
        change_tensors(unlisted, file, lambda tensors: tensors.update({"extra.thing": torch.zeros(3)}))
        assert "extra.thing" not in load_part(unlisted, file)


@pytest.mark.parametrize("file", [*PARTS, GPT_CONFIG_FILE])
def test_missing_file_is_named(file: str, root: Path) -> None:
    (root / file).unlink()
    with pytest.raises(CheckpointError, match=f"{file}: the file is missing"):
        load_part(root, file if file in PARTS else GPT_FILE)


@pytest.mark.parametrize("file", PARTS)
def test_flipped_bit_is_refused(file: str, root: Path) -> None:
    content = bytearray((root / file).read_bytes())
    content[-100] ^= 1
    (root / file).write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"{file}: expected SHA-256 \w{{64}}, found \w{{64}}"):
        load_part(root, file)
    with pytest.raises(CheckpointError, match=f"{file}: expected SHA-256"):
        verify_files(root)


def test_flipped_bit_in_the_config_is_refused(root: Path) -> None:
    change_config(root, rms_norm_eps=1e-5)
    with pytest.raises(CheckpointError, match=r"config\.json: expected SHA-256"):
        open_checkpoint(root)


@pytest.mark.parametrize("file", PARTS)
@pytest.mark.parametrize("size", [0, 4, 100, -1])
def test_truncated_file_is_refused_without_a_manifest_too(file: str, size: int, unlisted: Path) -> None:
    (unlisted / file).write_bytes((unlisted / file).read_bytes()[:size])
    with pytest.raises(
        CheckpointError, match=f"{file}: expected a whole safetensors file, found one that is cut short or damaged"
    ):
        load_part(unlisted, file)


@pytest.mark.parametrize("file", PARTS)
@pytest.mark.parametrize("other", PARTS)
def test_swapped_file_is_refused_with_and_without_a_manifest(file: str, other: str, root: Path) -> None:
    if file == other:
        return
    (root / file).write_bytes((root / other).read_bytes())
    with pytest.raises(CheckpointError, match=file):
        load_part(root, file)
    (root / MANIFEST_FILE).unlink()
    with pytest.raises(CheckpointError, match=file):
        load_part(root, file)


@pytest.mark.slow
@pytest.mark.parametrize("file", PARTS)
def test_every_tensor_is_missed(file: str, unlisted: Path) -> None:
    whole = load_file(unlisted / file)
    whole.pop("embed_tokens.weight", None)
    for name in whole:
        save_file({other: tensor for other, tensor in whole.items() if other != name}, unlisted / file)
        with pytest.raises(CheckpointError, match=f"{file}: "):
            load_part(unlisted, file)


@pytest.mark.slow
@pytest.mark.parametrize("file", PARTS)
def test_every_shape_is_checked(file: str, unlisted: Path) -> None:
    whole = load_file(unlisted / file)
    whole.pop("embed_tokens.weight", None)
    for name, tensor in whole.items():
        longer = torch.cat([tensor, tensor[:1]])
        save_file(whole | {name: longer}, unlisted / file)
        with pytest.raises(CheckpointError, match=rf"{file}: .*(has shape|expected)"):
            load_part(unlisted, file)


def test_message_names_tensor_expected_and_found(unlisted: Path) -> None:
    change_tensors(unlisted, GPT_FILE, lambda tensors: tensors.update({"norm.weight": torch.ones(7)}))
    with pytest.raises(CheckpointError, match=r"norm\.weight has shape \(7,\), expected \(128,\): generate or fetch"):
        open_checkpoint(unlisted)
    change_tensors(unlisted, GPT_FILE, lambda tensors: tensors.pop("norm.weight"))
    with pytest.raises(CheckpointError, match=r"model\.safetensors: tensor norm\.weight is missing, expected shape \(128,\)"):
        open_checkpoint(unlisted)


@pytest.mark.parametrize(("name", "most"), [("emb_code.0.weight", 1024), ("emb_text.weight", 65536)])
def test_more_tokens_than_the_cache_has_bits_for_are_refused(name: str, most: int, unlisted: Path) -> None:
    change_tensors(unlisted, EMBED_FILE, lambda tensors: tensors.update({name: torch.zeros(most + 1, 128)}))
    with pytest.raises(CheckpointError, match=rf"{name} has {most + 1} entries; this service takes at most {most}"):
        open_checkpoint(unlisted)


def test_part_is_checked_again_when_it_is_read(unlisted: Path) -> None:
    checkpoint = open_checkpoint(unlisted)
    change_tensors(unlisted, GPT_FILE, lambda tensors: tensors.update({"norm.weight": torch.ones(7)}))
    with pytest.raises(CheckpointError, match=r"norm\.weight has shape"):
        checkpoint.gpt()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_hidden_layers": 2}, r"holds 3 layers, but asset/gpt/config\.json says num_hidden_layers 2"),
        ({"num_hidden_layers": 4}, r"holds 3 layers, but asset/gpt/config\.json says num_hidden_layers 4"),
        ({"hidden_size": 256}, r"Embed\.safetensors: width 128, but asset/gpt/config\.json says hidden_size 256"),
        ({"intermediate_size": 512}, r"mlp\.gate_proj\.weight has shape \(384, 128\), expected \(512, 128\)"),
        ({"head_dim": 64}, r"q_proj\.weight has shape \(128, 128\), expected \(256, 128\)"),
        ({"num_key_value_heads": 2}, "num_key_value_heads is 2; this decoder supports only 4"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'; this decoder supports only 'silu'"),
        ({"attention_bias": True}, "attention_bias is True; this decoder supports only False"),
        ({"rope_scaling": {"factor": 2}}, "rope_scaling is"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope_type is 'yarn', expected 'default'"),
        ({"rope_parameters": [1]}, r"rope_parameters is \[1\], expected an object"),
        ({"rope_parameters": {"rope_theta": -1}}, "rope_theta is -1, expected a positive number"),
        ({"hidden_size": "128"}, "hidden_size is '128', expected a whole number"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0, expected a whole number of at least 1"),
        ({"max_position_embeddings": True}, "max_position_embeddings is True"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps is 'small', expected a positive number"),
        ({"num_hidden_layers": ...}, "num_hidden_layers is None, expected a whole number"),
    ],
)
def test_config_that_disagrees_is_refused(values: dict[str, object], message: str, unlisted: Path) -> None:
    change_config(unlisted, **values)
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(unlisted)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe\xfd", b"[1, 2]", b"null"])
def test_unreadable_config_is_refused(content: bytes, unlisted: Path) -> None:
    (unlisted / GPT_CONFIG_FILE).write_bytes(content)
    with pytest.raises(CheckpointError, match=r"config\.json: expected (a )?JSON"):
        open_checkpoint(unlisted)


@pytest.mark.parametrize(("values", "theta"), [
    ({"rope_parameters": {"rope_theta": 5e5}, "rope_theta": 1e4}, 5e5),
    ({"rope_parameters": ..., "rope_theta": 20000}, 20000.0), ({"rope_parameters": None}, 10000.0),
    ({"rope_parameters": ...}, 10000.0),
])  # fmt: skip
def test_rope_theta_is_found_where_each_release_wrote_it(values: dict[str, object], theta: float, unlisted: Path) -> None:
    change_config(unlisted, **values)
    assert open_checkpoint(unlisted).gpt_spec.rope_theta == theta


def test_head_dim_follows_from_width_and_heads_where_it_is_not_said(unlisted: Path) -> None:
    change_config(unlisted, head_dim=..., num_key_value_heads=...)
    assert open_checkpoint(unlisted).gpt_spec == DEMO_SPEC


def test_mel_decoder_of_another_width_is_refused(unlisted: Path) -> None:
    wider = {"decoder.conv_in.0.weight": torch.zeros(32, 66, 3)}
    change_tensors(unlisted, MEL_DECODER_FILE, lambda tensors: tensors.update(wider))
    with pytest.raises(CheckpointError, match="takes 66 channels, but the GPT's width 128 over 2 frames per step gives 64"):
        load_part(unlisted, MEL_DECODER_FILE)


def test_encoder_of_another_width_than_the_decoder_is_refused(unlisted: Path) -> None:
    wider = {"encoder.conv_out.weight": torch.zeros(98, 48, 1)}
    change_tensors(unlisted, DVAE_FILE, lambda tensors: tensors.update(wider))
    with pytest.raises(CheckpointError, match="the encoder's 48 -> 98 channels do not fit the decoder, expected 48 -> 96"):
        load_part(unlisted, DVAE_FILE)


def test_vocos_of_other_mel_bands_is_refused(unlisted: Path) -> None:
    change_tensors(unlisted, VOCOS_FILE, lambda tensors: tensors.update({"backbone.embed.weight": torch.zeros(64, 80, 7)}))
    with pytest.raises(CheckpointError, match=r"backbone\.embed\.weight has shape \(64, 80, 7\), expected \(64, 100, 7\)"):
        load_part(unlisted, VOCOS_FILE)


def test_parsed_bytes_are_the_hashed_bytes(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Path] = []
    read_bytes = Path.read_bytes

    def counting(path: Path) -> bytes:
        opened.append(path)
        return read_bytes(path)

    checkpoint = open_checkpoint(root)
    monkeypatch.setattr(Path, "read_bytes", counting)
    checkpoint.vocos()
    assert opened.count(root / VOCOS_FILE) == 1


def test_other_rooms_can_hold_their_own_tables_against_shapes() -> None:
    with pytest.raises(CheckpointError, match=r"x: tensor c and 1 more is missing, expected shape \(1,\)"):
        check_shapes({"a": (2, 3)}, {"c": (1,), "d": (1,)}, Path("x"))
