"""What a service writes to is known before it starts, and a place that cannot be written is a sentence."""

import os
from pathlib import Path

import pytest

from pipeline.errors import ConfigError
from serve.app import build_app
from serve.config import folders
from serve.config.app_config import AppConfig


def config(**args: object) -> AppConfig:
    return AppConfig.model_validate(args)


def test_every_folder_is_known(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("CHATTTS_HOME", str(tmp_path))
    assert folders.written_folders(config()) == {
        "jobs.folder": tmp_path / "jobs",
        "voices.store": tmp_path,
        "keys.store": tmp_path,
    }
    everywhere = config(
        jobs={"folder": "/srv/jobs"},
        voices={"store": "redis://store:6379/0"},
        keys={"store": "/srv/keys/keys.sqlite"},
        tracing={"exporter": "file", "folder": "/srv/traces"},
    )
    assert folders.written_folders(everywhere) == {
        "jobs.folder": Path("/srv/jobs"),
        "keys.store": Path("/srv/keys"),
        "tracing.folder": Path("/srv/traces"),
    }
    assert folders.written_folders(config(jobs={"max_jobs": 0}, voices={"store": "redis://store:6379/0"})) == {}


def read_only(tmp_path: Path) -> Path:
    """A place where nobody can create a folder, root neither."""
    (tmp_path / "a file").touch()
    return tmp_path / "a file"


@pytest.mark.parametrize(
    ("args", "key"),
    [
        ({"jobs": {"folder": "PLACE/jobs"}}, "jobs.folder"),
        ({"voices": {"store": "PLACE/store.sqlite"}}, "voices.store"),
        ({"keys": {"store": "PLACE/keys.sqlite"}}, "keys.store"),
        ({"tracing": {"exporter": "file", "folder": "PLACE/traces"}}, "tracing.folder"),
    ],
)
def test_nothing_is_deployed_that_could_not_keep_what_it_accepts(args, key, tmp_path: Path):
    place = str(read_only(tmp_path))
    spoilt = {
        part: {name: str(value).replace("PLACE", place) for name, value in values.items()} for part, values in args.items()
    }
    with pytest.raises(ConfigError, match=rf"^{key}: .* cannot be written here: mount it writable, or name another folder"):
        build_app(spoilt)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_rights_count(tmp_path: Path):
    tmp_path.chmod(0o500)
    assert not folders.can_be_written(tmp_path / "jobs")
    tmp_path.chmod(0o700)
    assert folders.can_be_written(tmp_path / "jobs" / "deep")
