"""The page's files: what is sent of them and how, and the rules that they keep."""

import re
import tomllib

import pytest
import requests

from serve.page import page_files
from tests.support.pages import ROOT

FORBIDDEN = (r"innerHTML *=", r"\beval\(", "new Function", r"\sstyle=", r"\son[a-z]+=\"", r'<script(?! type="module" src)')
LONGEST = 350  # lines of a file, as of every source here
PATHS = sorted(path for path in page_files.FOLDER.rglob("*") if path.is_file())
MODULES = [path for path in PATHS if path.suffix == ".js"]


def test_a_browser_gets_the_page_and_a_program_json(live):
    page = requests.get(f"{live.url}/", headers={"Accept": "text/html"}, timeout=60)
    assert page.headers["Content-Type"] == "text/html; charset=utf-8"
    assert (page.headers["Cache-Control"], page.headers["Vary"]) == ("no-cache", "Accept")
    assert requests.get(f"{live.url}/", timeout=60).json()["name"] == "chattts-serve"


def test_the_policy_forbids_what_the_page_does_not_do(live):
    policy = requests.get(f"{live.url}/", headers={"Accept": "text/html"}, timeout=60).headers["Content-Security-Policy"]
    assert "unsafe" not in policy
    assert "http" not in policy
    assert {"default-src 'none'", "script-src 'self'", "style-src 'self'", "connect-src 'self'"} <= set(policy.split("; "))


def test_every_file_of_the_document_is_kept_for_ever_under_its_version(live):
    text = requests.get(f"{live.url}/", headers={"Accept": "text/html"}, timeout=60).text
    addresses = re.findall(r'(?:src|href)="(page/[^"]+)"', text)
    assert len(addresses) == 3
    for address in addresses:
        reply = requests.get(f"{live.url}/{address}", timeout=60)
        assert reply.status_code == 200
        assert reply.headers["Cache-Control"] == page_files.FOR_EVER
        assert reply.headers["X-Content-Type-Options"] == "nosniff"


def test_the_page_of_the_api_names_every_route_and_loads_nothing_from_elsewhere(live):
    page = requests.get(f"{live.url}/docs", timeout=60)
    studio = requests.get(f"{live.url}/", headers={"Accept": "text/html"}, timeout=60)
    policy = "Content-Security-Policy"
    assert (page.headers["Content-Type"], page.headers[policy]) == ("text/html; charset=utf-8", studio.headers[policy])
    document = requests.get(f"{live.url}/openapi.json", timeout=60).json()
    for path, methods in document["paths"].items():
        for method in methods:
            assert f"<code>{method.upper()} {path}</code>" in page.text
    assert all(f'<details id="{name}">' in page.text for name in document["components"]["schemas"])
    addresses = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert "<script" not in page.text
    assert all(requests.get(f"{live.url}/{address}", timeout=60).status_code == 200 for address in addresses if address != ".")
    assert not any(re.match(r"//|\w+:", address) for address in addresses)


def test_a_file_of_another_release_is_not_kept(live):
    reply = requests.get(f"{live.url}/page/000000000000/main.js", timeout=60)
    assert (reply.status_code, reply.headers["Cache-Control"]) == (200, "no-store")


@pytest.mark.parametrize("path", ["index.html", "nothing.js", "..%2fpage_files.py", "sections", ""])
def test_nothing_else_is_sent(live, path):
    assert requests.get(f"{live.url}/page/{page_files.version()}/{path}", timeout=60).status_code == 404


def test_every_module_has_its_card_and_is_short():
    wrong = [path.name for path in MODULES if not re.match(r"/\* .+\n \* In: .*\n( \* .*\n)* \* Out: ", path.read_text())]
    assert not wrong
    assert not {path.name for path in PATHS if len(path.read_text().splitlines()) > LONGEST}


def test_no_file_does_what_the_policy_forbids_or_names_another_host():
    for path in PATHS:
        text = path.read_text()
        assert not re.search("|".join(FORBIDDEN), text), path.name
        assert set(re.findall(r"https?://[\w.]+", text)) <= {"http://www.w3.org"}, path.name


def test_addresses_are_relative_so_that_a_path_prefix_does_no_harm():
    for path in PATHS:
        assert not re.search(r"""(?:fetch|call|json|file)\(["'`]/|(?:src|href)="/""", path.read_text()), path.name


def test_the_wheel_has_every_file():
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["serve"]
    packed = {path for pattern in patterns for path in (ROOT / "serve").glob(pattern)}
    assert set(PATHS) <= packed


def test_all_of_it_is_small_and_nothing_of_it_delays_the_first_paint():
    assert sum(len(path.read_bytes()) for path in PATHS) <= 200_000
    document = (page_files.FOLDER / page_files.DOCUMENT).read_text()
    assert len(re.findall("<link rel=.stylesheet", document)) == 1
    assert re.findall("<script ([a-z]+=.[a-z]+.)", document) == ['type="module"']
