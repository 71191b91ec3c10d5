"""Capabilities of a checkpoint: by default everything; unknown ones are refused."""

from pathlib import Path

import pytest

from pipeline.checkpoint.capabilities import ALL_CAPABILITIES, Capabilities, capabilities_file, read_capabilities
from pipeline.checkpoint.layout import CAPABILITIES_FILE
from pipeline.checkpoint.manifest import file_sha256, write_manifest
from pipeline.errors import CheckpointError
from pipeline.spec import CONTROL_TAGS, SPEED_TAGS


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
