"""The pages: what they name exists, what they show parses."""

import re

import pytest

from scripts.bench.summary import summarise
from tests.support.pages import PAGES, ROOT

TEXT = "\n".join(PAGES.values())
PROSE = {page: re.sub(r"`[^`\n]+`", "", text) for page, text in PAGES.items()}  # a link in code is an example
LINKS = sorted(
    (page, link) for page, text in PROSE.items() for link in set(re.findall(r"\]\(([^)\s]+)\)", text)) if "://" not in link
)

PATHS = sorted(set(re.findall(r"`((?:pipeline|serve|configs|scripts|tests|k8s|docs)/[\w./-]+?)`", TEXT)))


def test_named_files_exist():
    assert PATHS
    assert [path for path in PATHS if not (ROOT / path).exists()] == []


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub writes them."""
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title).strip().lower().replace(" ", "-") for title in titles}


def test_links_lead_somewhere():
    assert LINKS
    for page, link in LINKS:
        path, _, anchor = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        assert target.exists(), (page, link)
        assert not anchor or anchor in anchors(target.read_text()), (page, link)


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`(test_\w+)`", TEXT))))
def test_named_tests_exist(name):
    assert any(f"def {name}(" in source.read_text() for source in (ROOT / "tests").rglob("*.py"))


@pytest.mark.parametrize("target", sorted(set(re.findall(r"(?:`|^    )make ([a-z-]+)", TEXT, re.MULTILINE))))
def test_make_targets_exist(target):
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_the_readme_is_one_page():
    assert len(PAGES["README.md"].splitlines()) <= 160


def test_the_pages_stay_short():
    assert sum(len(text.split()) for page, text in PAGES.items() if page.startswith("docs/")) <= 45_000


def test_the_readme_names_the_command_that_runs_the_tests():
    assert "`make test`" in PAGES["README.md"]
    assert (ROOT / ".ci/run").read_text().rstrip().endswith("make test")


def test_the_readme_repeats_the_measured_factors():
    figures = {row["figure"]: row["measured"]["median"] for row in summarise()["figures"] if row["measured"]}
    for name in ("rtf_one_request", "audio_rate_to_upstream"):
        assert f"{figures[name]:.1f} times" in PAGES["README.md"]


def test_every_shipped_configuration_is_described():
    for path in sorted((ROOT / "configs").glob("*.yaml")):
        assert f"configs/{path.name}" in PAGES["docs/configuration.md"], f"{path.name} is not described"
