"""Source archive: which files are in it."""

import hashlib
import io
import tarfile
from base64 import urlsafe_b64encode
from importlib.metadata import PathDistribution
from pathlib import Path

from serve.http.routes.source import archive, installed_files, pieces


def test_no_file_of_an_operator_is_in_the_archive(tmp_path: Path):
    for path in ("serve/app.py", "configs/secret.yaml", "k8s/secret.yaml", "serve/.env", "pipeline/key.pem", ".git/config"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("word")
    (tmp_path / "pyproject.toml").write_text("")  # a checkout
    (tmp_path / "serve/link.py").symlink_to("/etc/hostname")
    first, second = (b"".join(pieces(pack(tmp_path))) for pack in (archive, archive.__wrapped__))
    with tarfile.open(fileobj=io.BytesIO(first)) as files:
        assert files.getnames() == ["chattts-serve/pyproject.toml", "chattts-serve/serve/app.py"]
    assert first == second, "the same bytes each time"


def test_an_installed_program_offers_its_own_files_alone(tmp_path: Path):
    listed = (
        "serve/app.py",
        "serve/__pycache__/app.cpython-311.pyc",
        "serve/built.so",
        "pipeline/assets/voice.safetensors",
        "chattts_serve-1.dist-info/licenses/LICENSE",
        "chattts_serve-1.dist-info/RECORD",
        "../../../share/chattts-serve/pyproject.toml",
        "../../../bin/chattts-serve",
    )
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_other.py").write_text("another project's")
    (tmp_path / "chattts_serve-1.dist-info").mkdir()
    (tmp_path / "chattts_serve-1.dist-info/METADATA").write_text("Name: chattts-serve")
    record = "".join(f"{name},,\n" for name in listed)
    sha = urlsafe_b64encode(hashlib.sha256(b"as it was").digest()).decode().rstrip("=")
    (tmp_path / "configs").mkdir()
    for name, text in {"dev": "as it was", "gpu": "with a password"}.items():
        (tmp_path / f"configs/{name}.yaml").write_text(text)
        record += f"configs/{name}.yaml,sha256={sha},9\n"
    (tmp_path / "chattts_serve-1.dist-info/RECORD").write_text(record)
    files = installed_files(PathDistribution(tmp_path / "chattts_serve-1.dist-info").files or ())
    sources = {"serve/app.py", "pipeline/assets/voice.safetensors", "configs/dev.yaml", "LICENSE", "pyproject.toml"}
    assert set(files) == sources
    assert files["serve/app.py"] == tmp_path / "serve/app.py"
