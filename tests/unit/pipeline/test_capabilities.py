"""Capabilities of a checkpoint: by default everything; unknown ones are refused."""

from pathlib import Path

import pytest

from pipeline.checkpoint.capabilities import EVERYTHING, Taught, read_taught, taught_file
from pipeline.checkpoint.layout import TAUGHT_FILE
from pipeline.checkpoint.manifest import file_sha256, write_manifest
from pipeline.errors import CheckpointError
from pipeline.spec import CONTROL_TAGS


def checkpoint(root: Path, content: bytes) -> Path:
    (root / TAUGHT_FILE).parent.mkdir(parents=True)
    (root / TAUGHT_FILE).write_bytes(content)
    return root


def test_a_checkpoint_that_says_nothing_was_taught_everything(tmp_path, demo_root):
    assert read_taught(tmp_path) == read_taught(demo_root) == EVERYTHING
    assert EVERYTHING.languages == ("zh", "en")
    assert set(EVERYTHING.control_tags) == CONTROL_TAGS
    assert EVERYTHING.speed_tokens
    assert EVERYTHING.refine


def test_what_is_written_is_read(tmp_path):
    little = Taught(languages=("en",), control_tags=("[laugh]",), speed_tokens=False, refine=False)
    assert read_taught(checkpoint(tmp_path, taught_file(little))) == little


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{", "taught.json: the file"),
        (b"[]", "taught.json: the file"),
        (b'{"language": ["en"]}', "language: .*; allowed are languages, control_tags, speed_tokens, refine"),
        (b'{"languages": ["fr"]}', "languages"),
        (b'{"languages": []}', "languages"),
        (b'{"control_tags": ["[giggle]"]}', "giggle"),
    ],
)
def test_mistakes_are_named(tmp_path, content, said):
    with pytest.raises(CheckpointError, match=said):
        read_taught(checkpoint(tmp_path, content))


def test_a_manifest_vouches_for_it(tmp_path):
    root = checkpoint(tmp_path, taught_file(EVERYTHING))
    write_manifest(root, {TAUGHT_FILE: file_sha256(root / TAUGHT_FILE)})
    assert read_taught(root) == EVERYTHING
    (root / TAUGHT_FILE).write_bytes(taught_file(Taught(refine=False)))
    with pytest.raises(CheckpointError, match="expected SHA-256"):
        read_taught(root)
    (root / TAUGHT_FILE).unlink()
    with pytest.raises(CheckpointError, match="missing"):
        read_taught(root)
    write_manifest(root, {})
    (root / TAUGHT_FILE).write_bytes(taught_file(EVERYTHING))
    with pytest.raises(CheckpointError, match="not listed"):
        read_taught(root)
