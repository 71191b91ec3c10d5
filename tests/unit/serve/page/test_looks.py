"""How the page looks and is operated: rules of accessibility, two themes and languages, a phone, a path prefix, no other host.

With PICTURES=<folder> every picture is written there, to be looked at.
"""

import json
import os
from importlib.resources import files
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from tests.support.browser import Page
from tests.support.fakes import Speaker, make_services
from tests.support.live_server import serving
from tests.support.studio import FINISHED, go_to, open_in, people, unfold, visit

pytestmark = pytest.mark.slow

SECTIONS = "[...document.querySelectorAll('#nav a')].map(link => link.hash.slice(2))"
AXE = files("axe_playwright_python").joinpath("axe.min.js")
RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}
TOO_WIDE = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


async def broken_rules(page: Page) -> list[str]:
    """What axe finds in what is shown."""
    if not await page.run("'axe' in window"):
        await page.run(f"{AXE.read_text(encoding='utf-8')}; 0")
    found = await page.run(f"axe.run(document, {json.dumps(RULES)}).then(({{violations}}) => violations)")
    return [f"{rule['id']}: {node['html'][:150]} {node['failureSummary']}" for rule in found for node in rule["nodes"]]


async def picture(page: Page, name: str, folder: Path) -> None:
    await page.tab.screenshot(path=Path(os.environ.get("PICTURES", folder)) / f"{name}.png")


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_every_section_keeps_the_rules_of_accessibility(browser, tmp_path: Path, dark, width, language):
    async def see(page: Page) -> None:
        await page.look(width=width, height=844, dark=dark)
        await open_in(page, live.url, language)
        await page.until("document.querySelector('.person small')?.textContent.includes(' · ')")
        await page.click("#go")
        await page.until("!document.querySelector('#download').disabled")
        for section in await page.run(SECTIONS):
            await go_to(page, section)
            await picture(page, f"{section}-{width}-{'dark' if dark else 'light'}-{language}", tmp_path)
            await unfold(page)
            await page.look(width=width, height=3000, dark=dark)  # nothing lies below the player
            assert await broken_rules(page) == [], section
            await page.look(width=width, height=844, dark=dark)
            assert await page.run(TOO_WIDE) == 0, section
        assert [problem for problem in page.problems if "401" not in problem] == [], "the status needs a key"

    with people(Speaker()) as live:
        visit(browser, live.url, see)


def test_what_breaks_a_rule_is_found(browser):
    async def see(page: Page) -> None:
        await page.run("document.querySelector('main').append(document.createElement('input'))")
        assert any(rule.startswith("label:") for rule in await broken_rules(page))

    with serving(make_services(Speaker())) as live:
        visit(browser, live.url, see)


def test_the_theme_is_the_systems_or_ones_own(browser):
    paper = "getComputedStyle(document.body).backgroundColor"

    async def see(page: Page) -> None:
        light = await page.run(paper)
        await page.look(dark=True)
        dark = await page.run(paper)
        assert light != dark
        for theme, shown in (("light", light), ("dark", dark)):
            await page.run(f"theme.value = '{theme}'; theme.dispatchEvent(new Event('change'))")
            assert await page.run(paper) == shown
        await page.look()
        await page.open(f"{live.url}/?again")
        await page.until(f"{paper} === {dark!r}")
        await page.run("localStorage.clear()")

    with serving(make_services(Speaker())) as live:
        visit(browser, live.url, see)


def test_it_works_behind_a_path_prefix_and_asks_no_other_host(browser):
    async def see(page: Page) -> None:
        await page.click("#go")
        await page.until(FINISHED)
        asked = await page.run("performance.getEntriesByType('resource').map(entry => entry.name)")
        assert len(asked) > 20
        assert not [address for address in asked if not address.startswith(f"{live.url}/deep/tts/")]
        assert page.problems == []

    with serving(make_services(Speaker()), wrap=lambda app: Starlette(routes=[Mount("/deep/tts", app)])) as live:
        visit(browser, f"{live.url}/deep/tts", see)


def test_the_keyboard_reaches_everything(browser):
    async def see(page: Page) -> None:
        seen = set()
        await page.run("document.body.focus()")
        for _ in range(40):
            await page.press("Tab")
            seen.add(await page.run("document.activeElement.id"))
        assert {"gear", "input", "voice", "language", "speed", "go"} <= seen

    with serving(make_services(Speaker())) as live:
        visit(browser, live.url, see)


BOXES = Path(__file__).with_name("boxes.json")
PLACES = """names => names.map(name => document.querySelector(name).getBoundingClientRect())
  .map(box => [box.x, box.y, box.width, box.height])"""


@pytest.mark.parametrize("width", [1280, 390])
def test_twenty_elements_are_where_they_were(browser, width):
    """After a change on purpose: CHATTTS_WRITE_BOXES=1."""

    async def see(page: Page) -> None:
        await page.look(width=width, height=800)
        await page.click("#go")
        await page.until(FINISHED)
        known = json.loads(BOXES.read_text())
        names = list(known[str(width)])
        boxes = dict(zip(names, await page.run(f"({PLACES})({json.dumps(names)})"), strict=True))
        assert len(names) == 20
        if os.environ.get("CHATTTS_WRITE_BOXES"):
            BOXES.write_text(f"{json.dumps({**known, str(width): boxes}, indent=1)}\n")
            return
        moved = {
            name: (known[str(width)][name], box)
            for name, box in boxes.items()
            if any(abs(before - now) > 2 for before, now in zip(known[str(width)][name], box, strict=True))
        }
        assert moved == {}

    with serving(make_services(Speaker())) as live:
        visit(browser, live.url, see)
