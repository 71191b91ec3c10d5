"""Source archive: which files are in it."""

import hashlib
import io
import tarfile
from base64 import urlsafe_b64encode
from dataclasses import replace
from importlib.metadata import PathDistribution
from pathlib import Path

import pytest
import requests

from pipeline.errors import ConfigError
from serve.config.app_config import PROJECT, SourceOfferConfig, read_app_config
from serve.http.routes.source import archive, installed_files, pieces
from tests.support.fakes import Speaker, make_services
from tests.support.live_server import serving


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


# The offer of the source, and what the weights may be used for.


def test_the_service_hands_out_what_it_runs():
    with serving(make_services(Speaker())) as live:
        offer = requests.get(f"{live.url}/source", timeout=60).json()
        packed = requests.get(live.url + offer["url"], timeout=60)
    assert (offer["name"], offer["license"], offer["commit"]) == ("chattts-serve", "AGPL-3.0-or-later", None)
    assert packed.headers["Content-Type"] == "application/gzip"
    assert hashlib.sha256(packed.content).hexdigest() == offer["sha256"]
    with tarfile.open(fileobj=io.BytesIO(packed.content)) as files:
        names = set(files.getnames())
        assert not [name for name in names if name.endswith(".safetensors")], "weights are no source"
        for path in (
            "serve/http/routes/source.py",
            "serve/page/studio/main.js",
            "serve/page/studio/style.css",
            "pipeline/model/cpu/decode.cpp",
            "serve/commands/launch/start.py",
            "LICENSE",
            "pyproject.toml",
        ):
            file = files.extractfile(f"chattts-serve/{path}")
            assert file is not None
            assert file.read() == (PROJECT / path).read_bytes()
    sources = [path for room in ("pipeline", "serve") for path in (PROJECT / room).rglob("*.py")]
    assert {f"chattts-serve/{path.relative_to(PROJECT)}" for path in sources} <= names, "every module of the program is in it"


def test_an_operator_names_the_place_instead():
    offer = SourceOfferConfig(url="https://example.org/our/chattts", commit="0123abc")
    with serving(replace(make_services(Speaker()), source_offer=offer)) as live:
        answer = requests.get(f"{live.url}/source", timeout=60).json()
    assert (answer["url"], answer["commit"]) == (offer.url, offer.commit)
    for wrong in ({"url": "ftp://x"}, {"commit": "main"}):
        with pytest.raises(ConfigError, match="offer"):
            read_app_config({"source_offer": wrong})


def test_the_front_page_leads_to_the_source():
    """With JavaScript, in what the gear opens, and without."""
    assert 'href="source"' in (PROJECT / "serve/page/studio/index.html").read_text()
    assert 'href: "source"' in (PROJECT / "serve/page/studio/tools.js").read_text()
