"""The offer of the source, and what the weights may be used for."""

import gzip
import hashlib
import io
import tarfile
from dataclasses import replace
from importlib.metadata import PathDistribution
from pathlib import Path

import pytest
import requests

from pipeline.config import PipelineConfig
from pipeline.errors import ConfigError
from serve.config.app_config import PROJECT, SourceOfferConfig, read_app_config
from serve.config.model_versions import versions_of
from serve.http.source_archive import archive, installed_files
from serve.speech.model_selection import ModelSelector
from serve.versions.rollout import Rollout
from tests.support.fakes import Speaker, make_services
from tests.support.live_server import serving


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
            "pipeline/model/cpu/decode.cpp",
            "scripts/launch/start.py",
            "LICENSE",
            "pyproject.toml",
        ):
            found = files.extractfile(f"chattts-serve/{path}")
            assert found is not None
            assert found.read() == (PROJECT / path).read_bytes()
    sources = [path for room in ("pipeline", "serve") for path in (PROJECT / room).rglob("*.py")]
    assert {f"chattts-serve/{path.relative_to(PROJECT)}" for path in sources} <= names, "every module of the program is in it"


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
    found = installed_files(PathDistribution(tmp_path / "chattts_serve-1.dist-info").files or ())
    assert set(found) == {"serve/app.py", "LICENSE", "pyproject.toml"}
    assert found["serve/app.py"] == tmp_path / "serve/app.py"


def test_an_operator_names_the_place_instead():
    offer = SourceOfferConfig(url="https://example.org/our/chattts", commit="0123abc")
    with serving(replace(make_services(Speaker()), source_offer=offer)) as live:
        answer = requests.get(f"{live.url}/source", timeout=60).json()
    assert (answer["url"], answer["commit"]) == (offer.url, offer.commit)
    for wrong in ({"url": "ftp://x"}, {"commit": "main"}):
        with pytest.raises(ConfigError, match="offer"):
            read_app_config({"source_offer": wrong})


@pytest.mark.parametrize(
    ("checkpoint", "name", "commercial"),
    [
        ("demo", "AGPL-3.0-or-later", True),
        ("small-random", "random numbers", True),
        ("hub:2Noise/ChatTTS", "CC-BY-NC-4.0", False),
        ("/some/folder", "unknown", None),
    ],
)
def test_models_say_what_their_weights_may_be_used_for(checkpoint, name, commercial):
    desk = ModelSelector(Rollout(versions_of(PipelineConfig(checkpoint=checkpoint), {})))
    with serving(make_services(Speaker(), models=desk)) as live:
        cards = requests.get(f"{live.url}/v1/models", timeout=9).json()["data"]
        one = requests.get(f"{live.url}/v1/models/tts-1", timeout=9).json()
    assert all(name in card["license"] and card["commercial_use"] is commercial for card in [*cards, one])
    assert (one["license_url"] is not None) == (commercial is False)


def test_the_front_page_leads_to_the_source():
    assert 'href="/source"' in (PROJECT / "serve/http/page.html").read_text()
