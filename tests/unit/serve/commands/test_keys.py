"""The command for keys: a service that stays open says so, and `--close` closes its file and changes nothing else."""

from pathlib import Path

import pytest

from serve.commands.operate import keys
from serve.config.app_config import PROJECT
from serve.config.config_file import check_file

FILES = ("k8s-dev.yaml", "gpu.yaml", "dev.yaml")


def configuration(folder: Path, name: str) -> Path:
    path = folder / name
    path.write_text((PROJECT / "configs" / name).read_text().replace(f"source: configs/{name}", f"source: {path}"))
    return path


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHATTTS_HOME", str(tmp_path / "home"))


@pytest.mark.parametrize("name", FILES)
def test_a_key_on_an_open_service_protects_nothing_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str):
    path = configuration(tmp_path, name)
    before = path.read_text()
    assert keys.main(["add", "anna", "--config", str(path)]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("ck-")
    assert ("WARNING" in said.err) == ("keys.open: false ends that" in said.err) == (name == "k8s-dev.yaml")
    assert path.read_text() == before


@pytest.mark.parametrize("name", FILES)
def test_closing_changes_one_word(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str):
    path = configuration(tmp_path, name)
    before = path.read_text()
    assert keys.main(["add", "anna", "--close", "--config", str(path)]) == 0
    assert path.read_text() == before.replace("{open: true}", "{open: false}")
    assert check_file(path).app.keys.open is {"dev.yaml": None}.get(name, False)
    assert "WARNING" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("applications:\n- args:\n    keys: {open: true, open_lists: true}\n", "{open: false, open_lists: true}"),
        ("applications:\n- args:\n    keys:\n      open_lists: true\n      open: yes  # why\n", "open: false  # why"),
        ('{"applications": [{"args": {"x": "é", "keys": {"open": true}}}]}', '{"x": "é", "keys": {"open": false}}'),
    ],
)
def test_whatever_the_file_looks_like(text: str, after: str):
    assert after in keys.closed(text)


def test_closing_needs_a_file(capsys: pytest.CaptureFixture[str]):
    assert keys.main(["add", "anna", "--close"]) == 2
    assert "--config" in capsys.readouterr().err
