"""Book, in a real browser: planned, spoken, heard, mended and downloaded; whatever dies, the page goes on where it was."""

import asyncio
import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import requests

from pipeline.checkpoint.capabilities import Capabilities
from pipeline.config import PipelineConfig
from pipeline.errors import TextTooHard
from pipeline.store.sqlite import SqliteStore
from pipeline.text.lexicon.lexicon_library import LexiconLibrary
from serve.config.model_versions import ONLY, versions_of
from serve.resilience.rollout import Rollout
from serve.speech.model_selection import ModelSelector
from tests.support.books import epub
from tests.support.browser import Page
from tests.support.fakes import Speaker, make_services
from tests.support.jobs import living
from tests.support.live_server import Live, serving
from tests.support.relay import relay
from tests.support.studio import (
    AWAY,
    ERROR,
    PLAYED,
    attach,
    choose,
    downloads,
    file_in,
    go_to,
    has_heard,
    unfold,
    visit,
    work,
    write,
)
from tests.support.waiting import until

pytestmark = pytest.mark.slow

BOOK = "# One\n\nThe first words.\n\nMore words follow here.\n\n# Two\n\nThe last words."
LONG = "\n\n".join(f"This is part {number}." for number in range(40))
STATUS = "document.querySelector('#job-status').textContent"
PARTS = "document.querySelector('#fact-parts').textContent"
SENTENCES = "[...document.querySelectorAll('.word')].map(each => each.textContent).join('|')"
PLANNED = "!document.querySelector('#book-plan').hidden"


def written(folder: Path, text: str | bytes, name: str = "book.md") -> Path:
    file = folder / name
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return file


def jobs(live: Live) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = requests.get(f"{live.url}/v1/audio/jobs", timeout=60).json()["data"]
    return found


def delete(live: Live) -> None:
    requests.delete(f"{live.url}/v1/audio/jobs/{jobs(live)[0]['id']}", timeout=60)


def audio(live: Live, query: str = "?format=pcm", below: str = "audio") -> bytes:
    """Of the newest job."""
    return requests.get(f"{live.url}/v1/audio/jobs/{jobs(live)[0]['id']}/{below}{query}", timeout=60).content


async def planned(page: Page, file: Path, container: str = "mp3") -> None:
    await go_to(page, "book")
    await unfold(page)
    await choose(page, "#book-format", container)
    await attach(page, "#book-file", file)
    await page.until(PLANNED)


async def started(page: Page, file: Path, container: str = "mp3") -> None:
    await planned(page, file, container)
    await page.click("#start")
    await page.until("!document.querySelector('#job').hidden")


def test_a_book_is_planned_spoken_heard_and_saved(browser, tmp_path: Path):
    async def see(page: Page) -> None:
        await planned(page, written(tmp_path, epub(), "my.epub"), "m4b")
        assert await page.run("document.querySelector('#plan-title').textContent") == "A Book, Ann Author"
        rows = "[...document.querySelectorAll('#plan-chapters tr td:nth-child(2)')].map(each => each.textContent)"
        assert await page.run(rows) == ["One", "Chapter Two"]
        assert jobs(live) == []
        await unfold(page)
        await write(page, "#book-seed", "7")
        await page.click("#start")
        await page.until(f"{STATUS} === 'succeeded'")
        assert (jobs(live)[0]["seed"], jobs(live)[0]["response_format"]) == (7, "m4b")
        await page.click("#listen")
        await page.until("document.querySelector('#play').getAttribute('aria-label') === 'Pause'")
        await page.until(PLAYED)
        await has_heard(page, audio(live))
        # A chapter, a sentence.
        await page.click("#chapters li:nth-child(2) button")
        await page.until("document.querySelector('.word.now')?.textContent === 'Chapter Two'")
        await page.press("Escape")
        # Its files.
        await downloads(page, tmp_path)
        for container in ("m4b", "mp3", "zip"):
            await choose(page, "#job-format", container)
            await page.click("#job-download")
            saved = await file_in(tmp_path, f"A Book.{container}")
            if container == "zip":
                assert "summary.json" in zipfile.ZipFile(io.BytesIO(saved)).namelist()
            else:
                assert saved == audio(live, f"?format={container}")
        for kind in ("srt", "vtt"):
            await page.click(f"#job-{kind}")
            assert await file_in(tmp_path, f"A Book.{kind}") == audio(live, f"?format={kind}", "subtitles")
        # It is mine, until it is deleted.
        await page.until("document.querySelector('#jobs tr td:nth-child(2)').textContent === 'succeeded'")
        await page.click("#remove")
        await page.click("#job .sure")
        await page.until("document.querySelector('#job').hidden && document.querySelectorAll('#jobs tr').length === 0")
        assert jobs(live) == []
        assert await page.run("document.querySelector('#play').hidden")

    with living(tmp_path / "jobs") as live:
        visit(browser, live.url, see, hears=True)


def test_a_sentence_is_spoken_again_with_another_seed_and_text(browser, tmp_path: Path):
    async def see(page: Page) -> None:
        await started(page, written(tmp_path, BOOK))
        await page.until(f"{STATUS} === 'succeeded'")
        await page.until(f"{SENTENCES} === 'One|The first words.|More words follow here.|Two|The last words.'")
        before = audio(live)
        for text, seed in ((None, "99"), ("Other words.", "5")):
            await page.run("document.querySelector('#wave').focus()")
            await page.press("Home")
            await page.run("document.querySelector('#job .read').focus()")
            await page.press("ArrowRight")
            await page.click("#again")
            await page.until("!document.querySelector('#sentence').hidden")
            assert await page.run("document.querySelector('#sentence h3').textContent.startsWith('Sentence 2,')")
            if text:
                await write(page, "#sentence-text", text)
            await write(page, "#sentence-seed", seed)
            await page.click("#sentence-go")
            await page.until("document.querySelector('#sentence').hidden")
            await until(lambda: jobs(live)[0]["status"] == "succeeded")
            await page.until(f"document.querySelectorAll('.word').length === 5 && {STATUS} === 'succeeded'")
            after = audio(live)
            assert after != before
            before = after
        await page.until(
            f"{SENTENCES} === 'One|Other words.|More words follow here.|Two|The last words.' && {STATUS} === 'succeeded'"
        )
        await page.run("window.heard = []; 0")
        await page.click("#wave")
        await page.press("Home")
        await page.click("#listen")
        await page.until("document.querySelector('#play').getAttribute('aria-label') === 'Pause'")
        await page.until(PLAYED)
        await has_heard(page, audio(live))

    with living(tmp_path / "jobs") as live:
        visit(browser, live.url, see, hears=True)


def test_what_is_finished_is_heard_while_the_rest_is_made(browser, tmp_path: Path):
    speaker = Speaker(chunks=2, first_pause_s=0.1)

    async def see(page: Page) -> None:
        await started(page, written(tmp_path, LONG, "long.txt"))
        await page.until(f"Number({PARTS}.split(' ')[0]) > 4")
        await page.click("#pause")
        await page.until(f"{STATUS} === 'paused'")
        await page.click("#listen")
        await page.until("document.querySelectorAll('.word.now').length === 1")
        assert int((await page.run(PARTS)).split(" ")[0]) < 40
        speaker.first_pause_s = 0
        await page.click("#resume")
        await page.until(f"{STATUS} === 'succeeded' && {PARTS} === '40 of 40' && {PLAYED}")
        await has_heard(page, audio(live))
        assert await page.run("document.querySelectorAll('.word').length") == 40

    with living(tmp_path / "jobs", speaker, parallel=1) as live:
        visit(browser, live.url, see, hears=True)


def test_a_cancelled_job_is_resumed_and_a_failed_one_is_mended(browser, tmp_path: Path):
    speaker = Speaker(chunks=2, first_pause_s=20.0)

    async def see(page: Page) -> None:
        await started(page, written(tmp_path, BOOK))
        await page.click("#cancel")
        await page.until(f"{STATUS} === 'cancelled'")
        speaker.first_pause_s, speaker.fails_at = 0, 0
        await page.click("#resume")
        await page.until(f"{STATUS} === 'failed: too hard'")
        speaker.fails_at = None
        await page.click("#again")
        await page.until("!document.querySelector('#sentence').hidden")
        failed = await page.run("document.querySelector('#sentence-text').value")
        await write(page, "#sentence-text", "Easy.")
        await page.click("#sentence-go")
        await page.until(f"{STATUS}.startsWith('succeeded')")
        assert "Easy." in await page.run(SENTENCES)
        assert failed not in await page.run(SENTENCES)

    with living(tmp_path / "jobs", speaker, parallel=1) as live:
        speaker.error = TextTooHard("too hard")
        visit(browser, live.url, see)


def test_a_service_that_dies_and_a_reload_lose_nothing(browser, tmp_path: Path):
    speaker = Speaker(chunks=2, first_pause_s=0.1)

    async def see(page: Page) -> None:
        await go_to(page, "book")
        # It dies before the plan ...
        await asyncio.to_thread(link.cut)
        await attach(page, "#book-file", written(tmp_path, LONG, "long.txt"))
        await page.until(f"{ERROR}.includes('does not answer')")
        link.restore()
        await page.click("[aria-label='New book'] .error button")
        await page.until(PLANNED)
        # ... before the job is accepted: asked twice, it is one job ...
        await asyncio.to_thread(link.cut)
        await page.click("#start")
        await page.until("document.querySelector(\"[aria-label='New book'] .error\")?.textContent.includes('does not answer')")
        link.restore()
        await page.click("[aria-label='New book'] .error button")
        await page.until(f"Number({PARTS}.split(' ')[0]) > 2")
        assert len(jobs(live)) == 1
        # ... and while it is followed and heard.
        await page.click("#listen")
        await page.until("document.querySelectorAll('.word.now').length === 1")
        await asyncio.to_thread(link.cut)
        await page.until(AWAY)
        told = int((await page.run(PARTS)).split(" ")[0])
        link.restore()
        await page.until(f"Number({PARTS}.split(' ')[0]) > {told}")
        # The tab is loaded anew: the job is open again.
        await page.open(f"{link.url}/?again#/book")
        await page.until("document.querySelector('#job')?.hidden === false")
        speaker.first_pause_s = 0
        await page.until(f"{STATUS} === 'succeeded' && document.querySelectorAll('.word').length === 40")
        await page.click("#listen")
        await page.until("document.querySelector('#play').getAttribute('aria-label') === 'Pause'")
        await page.until(PLAYED)
        await has_heard(page, audio(live))
        # A download that nobody answers is offered again.
        await downloads(page, tmp_path)
        await asyncio.to_thread(link.cut)
        await page.click("#job-download")
        await page.until("document.querySelector('#job .error')?.textContent.includes('does not answer')")
        link.restore()
        await page.click("#job .error button")
        assert await file_in(tmp_path, "long.m4b") == audio(live, "")

    with living(tmp_path / "jobs", speaker, parallel=1) as live, relay(live.port) as link:
        visit(browser, link.url, see, hears=True)


def test_a_job_that_was_deleted_elsewhere_and_a_file_that_is_none_are_told(browser, tmp_path: Path):
    async def see(page: Page) -> None:
        await go_to(page, "book")
        await attach(page, "#book-file", written(tmp_path, b"no archive", "bad.epub"))
        await page.until(f"{ERROR}.includes('not an EPUB')")
        drop = (
            "(zone => { const data = new DataTransfer(); data.items.add(new File(['# T\\n\\nSome words.'], 'dropped.md'));"
            "zone.dispatchEvent(new DragEvent('drop', {dataTransfer: data, bubbles: true, cancelable: true})); })"
            "(document.querySelector('.drop'))"
        )
        await page.run(drop)
        await page.until(f"{PLANNED} && document.querySelector('#book-name').textContent === 'dropped.md'")
        await page.click("#start")
        await page.until(f"{STATUS} === 'succeeded'")
        delete(live)
        await page.click("#jobs button")
        await page.until("document.querySelector('#job .error')?.textContent.includes('no longer there')")

    with living(tmp_path / "jobs") as live:
        visit(browser, live.url, see)


# What will be said: readings and drops in the text, the refined text, the lexicon.


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
