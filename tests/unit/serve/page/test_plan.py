"""What will be said: readings and drops in the text, the refined text, the lexicon."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import requests

from pipeline.checkpoint.capabilities import Capabilities
from pipeline.config import PipelineConfig
from pipeline.store.sqlite import SqliteStore
from pipeline.text.lexicon.lexicon_library import LexiconLibrary
from serve.config.model_versions import ONLY, versions_of
from serve.resilience.rollout import Rollout
from serve.speech.model_selection import ModelSelector
from tests.support.browser import Page
from tests.support.fakes import Speaker, make_services
from tests.support.live_server import serving
from tests.support.relay import relay
from tests.support.studio import ERROR, choose, visit, work, write

pytestmark = pytest.mark.slow

TEXT = "😀 Room 12 costs $5.20, see Dr. Smith 🎉 & me."


async def in_thread(ask: Callable[..., requests.Response], url: str, **more: Any) -> requests.Response:
    return await asyncio.to_thread(ask, url, timeout=60, **more)


def all_text(selector: str) -> str:
    return f"[...document.querySelectorAll({selector!r})].map(each => each.textContent)"


def test_the_text_shows_what_is_read_otherwise_and_what_is_not_said(browser):
    async def see(page: Page) -> None:
        await write(page, "#input", TEXT)
        await work(page, "plan")
        await page.press("Control+Enter")
        await page.until("document.querySelector('#planned-text') !== null")
        assert await page.run(all_text("#planned-text del")) == ["😀", "🎉"]
        assert await page.run(all_text("#planned-text u")) == ["12", "$5.20", "Dr.", "&"]
        assert await page.run(all_text("#planned-text ins")) == ["twelve", "five dollars and twenty cents", "Doctor", "and"]
        assert "emoji: 2" in await page.run("document.querySelector('#planned-facts').textContent")
        plan = await in_thread(requests.post, f"{live.url}/v1/audio/speech/plan", json={"input": TEXT})
        assert await page.run(all_text(".table td:nth-child(2)")) == [segment["text"] for segment in plan.json()["segments"]]

    with serving(make_services(Speaker())) as live:
        visit(browser, live.url, see)


def test_markup_is_shown_as_its_text(browser):
    async def see(page: Page) -> None:
        await page.run("more.open = true")
        await choose(page, "#input_type", "ssml")
        await write(page, "#input", '<speak>Take <break time="1s"/>5 &amp; go.</speak>')
        await work(page, "plan")
        await page.click("#show-plan")
        await page.until("document.querySelector('#planned-text') !== null")
        shown = await page.run("document.querySelector('#planned-text').textContent")
        assert "<" not in shown
        assert await page.run(all_text("#planned-text u")) == ["5", "&"]

    with serving(make_services(Speaker())) as live:
        visit(browser, live.url, see)


def test_the_refined_text_is_compared_and_used(browser):
    async def see(page: Page) -> None:
        await write(page, "#input", "Well done.")
        await work(page, "plan")
        await page.click("#refine-text")
        await page.until("document.querySelector('#refined-text') !== null")
        assert await page.run(all_text("#refined-text ins")) == ["[laugh]"]
        await page.click("#use-refined")
        assert await page.run(
            "(({input, allow_control_tags: tags}) => [input, tags])(JSON.parse(sessionStorage.getItem('draft')))"
        ) == ["Well done. [laugh]", True]

    with serving(make_services(Speaker())) as live:
        visit(browser, live.url, see)


def test_a_checkpoint_that_refines_nothing_says_so(browser):
    async def see(page: Page) -> None:
        await work(page, "plan")
        await page.click("#refine-text")
        await page.until("document.querySelector('#refined').textContent.includes('has no refine pass')")

    models = ModelSelector(Rollout(versions_of(PipelineConfig(), {})), {ONLY: Capabilities(refine=False)})
    with serving(make_services(Speaker(), models=models)) as live:
        visit(browser, live.url, see)


def test_a_lexicon_is_written_used_changed_and_deleted(browser, tmp_path: Path):
    async def see(page: Page) -> None:
        await work(page, "lexicon")
        await write(page, "#lexicon-id", "tools")
        await write(page, "#lexicon-rows tr:nth-child(1) td:nth-child(1) input", "nginx")
        await write(page, "#lexicon-rows tr:nth-child(1) td:nth-child(3) input", "engine X")
        await page.click("#lexicon-save")
        await page.until("document.querySelector('#lexicon-status').textContent.startsWith('Saved 1')")
        stored = await in_thread(requests.get, f"{live.url}/v1/lexicons/tools")
        assert stored.json()["entries"]["nginx"]["alias"] == "engine X"
        assert await page.run("JSON.parse(sessionStorage.getItem('draft')).lexicon") == "tools"
        await work(page, "plan")
        await write(page, "#work-text", "Start nginx now.")
        await page.click("#show-plan")
        await page.until(f"{all_text('#planned-text ins')}.join() === 'engine X'")
        await work(page, "lexicon")
        await page.click("#lexicon-load")
        await page.until("document.querySelector('#lexicon-status').textContent === '1 entries.'")
        await write(page, "#lexicon-rows tr:nth-child(1) td:nth-child(1) input", "重庆")
        await choose(page, "#lexicon-rows select", "pinyin")
        await write(page, "#lexicon-rows tr:nth-child(1) td:nth-child(3) input", "chong2 qing4")
        await page.click("#lexicon-save")
        await page.until("document.querySelector('#lexicon-status').textContent.startsWith('Saved 1')")
        await work(page, "plan")
        await write(page, "#work-text", "我在重庆。")
        await page.click("#show-plan")
        await page.until(f"{all_text('#planned-text small')}.join().trim() === 'chong2 qing4'")
        await work(page, "lexicon")
        await page.click("#lexicon-delete")
        await page.until("document.querySelector('#lexicon-status').textContent === 'Deleted.'")
        assert (await in_thread(requests.get, f"{live.url}/v1/lexicons/tools")).status_code == 404
        await write(page, "#lexicon-id", "bad id")
        await page.click("#lexicon-load")
        await page.until(f"{all_text('#lexicon-editor .error')}.join().includes('1 to 64 of the characters')")

    lexicons = LexiconLibrary(SqliteStore(tmp_path / "store"))
    with serving(make_services(Speaker(), lexicons=lexicons)) as live:
        visit(browser, live.url, see)


def test_a_plan_that_a_dead_service_cannot_make_is_made_later(browser):
    async def see(page: Page) -> None:
        await write(page, "#input", TEXT)
        await work(page, "plan")
        link.cut()
        await page.click("#show-plan")
        await page.until(f"{ERROR}.includes('does not answer')")
        link.restore()
        await page.click(".error button")
        await page.until(f"document.querySelector('#planned-text') !== null && {ERROR} === ''")
        assert await page.run("document.querySelector('#work-text').value") == TEXT

    with serving(make_services(Speaker())) as live, relay(live.port) as link:
        visit(browser, link.url, see)
