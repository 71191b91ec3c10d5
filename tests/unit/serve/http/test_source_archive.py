"""Source archive: which files are in it."""

import gzip
import io
import tarfile
from importlib.metadata import PathDistribution
from pathlib import Path

from serve.http.routes.source import archive, installed_files


def test_no_file_of_an_operator_is_in_the_archive(tmp_path: Path):
    for path in ("serve/app.py", "configs/secret.yaml", "k8s/secret.yaml", "serve/.env", "pipeline/key.pem", ".git/config"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("word")
    (tmp_path / "pyproject.toml").write_text("")  # a checkout
    (tmp_path / "serve/link.py").symlink_to("/etc/hostname")
    with tarfile.open(fileobj=io.BytesIO(archive(tmp_path))) as files:
        assert files.getnames() == ["chattts-serve/pyproject.toml", "chattts-serve/serve/app.py"]
    assert gzip.decompress(archive(tmp_path)) == gzip.decompress(archive.__wrapped__(tmp_path)), "the same bytes each time"


def test_an_installed_program_offers_its_own_files_alone(tmp_path: Path):
    listed = (
        "serve/app.py",
        "serve/__pycache__/app.cpython-311.pyc",
        "configs/dev.yaml",
        "chattts_serve-1.dist-info/licenses/LICENSE",
        "chattts_serve-1.dist-info/RECORD",
        "../../../share/chattts-serve/pyproject.toml",
        "../../../bin/chattts-serve",
    )
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_other.py").write_text("another project's")
    (tmp_path / "chattts_serve-1.dist-info").mkdir()
    (tmp_path / "chattts_serve-1.dist-info/METADATA").write_text("Name: chattts-serve")
    (tmp_path / "chattts_serve-1.dist-info/RECORD").write_text("".join(f"{name},,\n" for name in listed))
    files = installed_files(PathDistribution(tmp_path / "chattts_serve-1.dist-info").files or ())
    assert set(files) == {"serve/app.py", "LICENSE", "pyproject.toml"}
    assert files["serve/app.py"] == tmp_path / "serve/app.py"
