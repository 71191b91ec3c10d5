"""The offer of the source, and what the weights may be used for."""

import hashlib
import io
import tarfile
from dataclasses import replace

import pytest
import requests

from pipeline.errors import ConfigError
from serve.config.app_config import PROJECT, SourceOfferConfig, read_app_config
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
