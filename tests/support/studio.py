"""Studio: what tests of the page do in it, as a person would, and what they hear."""

import asyncio
import base64
import shutil
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from playwright.async_api import Download

from tests.support.browser import Browser, Page
from tests.support.demo_voice import demo_library
from tests.support.fakes import Speaker, make_services, make_voices
from tests.support.live_server import Live, serving
from tests.support.waiting import until

# Hears what the page gives to the audio device, block by block: a listener between the player and the device.
EAR = """
window.heard = [];
const ear = URL.createObjectURL(new Blob([`registerProcessor("ear", class extends AudioWorkletProcessor {
  process([[block]]) { if (block) this.port.postMessage(block.slice()); return true; } })`], {type: "text/javascript"}));
const add = AudioWorklet.prototype.addModule;
AudioWorklet.prototype.addModule = async function (address) { await add.call(this, ear); return add.call(this, address); };
const connect = AudioNode.prototype.connect;
AudioNode.prototype.connect = function (to, ...rest) {
  if (this instanceof AudioWorkletNode && to === this.context.destination) {
    const node = new AudioWorkletNode(this.context, "ear");
    node.port.onmessage = message => window.heard.push(message.data);
    connect.call(this, node);
  }
  return connect.call(this, to, ...rest);
};
"""
HEARD = """(() => {
  const all = new Int16Array(window.heard.reduce((sum, block) => sum + block.length, 0));
  let at = 0;
  for (const block of window.heard) for (const sample of block) all[at++] = Math.round(sample * 32768);
  let text = "";
  for (const byte of new Uint8Array(all.buffer)) text += String.fromCharCode(byte);
  return btoa(text);
})()"""

FINISHED = "document.querySelector('#status').textContent === 'Finished.'"
PLAYED = "document.querySelector('#play').getAttribute('aria-label') === 'Play'"
AWAY = "['away', 'starting'].includes(document.querySelector('#notice').className)"
BACK = "['back', ''].includes(document.querySelector('#notice').className)"
ERROR = "[...document.querySelectorAll('main .errors')].map(each => each.textContent).join('')"
WORDS = "[...document.querySelectorAll('.word')].map(word => word.textContent)"
FIRST_TEXT = "Hello there. This sentence is spoken while it is still being written."


def visit(browser: Browser, url: str, see: Callable[[Page], Awaitable[None]], *, hears: bool = False) -> None:
    """Opens the page in a browser's tab and does what `see` does."""

    async def go(page: Page) -> None:
        await page.look()
        await open_studio(page, url)
        await see(page)

    browser.visit(go, script=EAR if hears else None)


async def open_studio(page: Page, url: str) -> None:
    """Returns once the page can be used."""
    await page.open(f"{url}/")
    await page.until("document.querySelector('main button') !== null")


async def open_in(page: Page, url: str, language: str, place: str = "speak") -> None:
    """The page of a newcomer, in a language."""
    await page.run(f"localStorage.setItem('looks', JSON.stringify({{language: '{language}'}})); sessionStorage.clear()")
    await page.open(f"{url}/?{language}-{place}#/{place}")
    await page.until(
        f"document.querySelector('main button') !== null && document.documentElement.lang.startsWith('{language}')"
    )


@contextmanager
def people(speaker: Speaker, **changes: Any) -> Iterator[Live]:
    """A service whose voices have names."""
    library = demo_library()
    services = make_services(speaker, voice_id=library.canonical)
    with serving(replace(services, voices=make_voices(speaker.stream, library)), **changes) as live:
        yield live


async def go_to(page: Page, section: str) -> None:
    """By its link, as a person does."""
    await page.click(f"nav a[href='#/{section}']")
    await page.until(f"document.querySelector('nav a[aria-current]').hash === '#/{section}'")
    await page.until("document.querySelector('main > :last-child') !== null")


async def work(page: Page, part: str) -> None:
    """Opens a part of the workshop."""
    await go_to(page, "workshop")
    await page.click(f".tabs a[href='#/workshop/{part}']")
    await page.until(f"document.querySelector('.tabs a[aria-current]').hash === '#/workshop/{part}'")


async def code_of(page: Page, kind: str) -> str:
    """The shown request, as a command or a program."""
    await page.run("document.querySelectorAll('details').forEach(each => { each.open = true; })")
    await choose(page, "#code-kind", kind)
    code: str = await page.run("document.querySelector('#code').textContent")
    return code


async def unfold(page: Page) -> None:
    """Opens everything that is folded."""
    await page.run("document.querySelectorAll('details').forEach(each => { each.open = true; })")


async def write(page: Page, selector: str, text: str) -> None:
    """In place of what stands in a field."""
    await page.tab.fill(selector, text)
    await page.tab.dispatch_event(selector, "change")


async def choose(page: Page, selector: str, value: str) -> None:
    """An option of a select."""
    await page.tab.select_option(selector, value)


async def heard(page: Page) -> NDArray[np.int16]:
    """What the audio device was given so far, but for silence: waiting adds some."""
    samples = np.frombuffer(base64.b64decode(await page.run(HEARD)), "<i2")
    sounding: NDArray[np.int16] = samples[samples != 0]
    return sounding


async def has_heard(page: Page, pcm: bytes) -> None:
    """Fails unless the audio device is given these samples; the listener's last blocks come after the player's last report."""
    expected = sounding(pcm)
    for _ in range(100):
        samples = await heard(page)
        if len(samples) >= len(expected):
            break
        await asyncio.sleep(0.1)
    assert np.array_equal(samples, expected), (len(samples), len(expected))


def sounding(pcm: bytes) -> NDArray[np.int16]:
    """16-bit PCM but for silence, to compare with what was heard."""
    samples = np.frombuffer(pcm, "<i2")
    sounding: NDArray[np.int16] = samples[samples != 0]
    return sounding


async def downloads(page: Page, folder: Path) -> None:
    """Lets the page save files there."""

    async def save(download: Download) -> None:
        await asyncio.to_thread(shutil.copy, await download.path(), folder / f"{download.suggested_filename}.part")
        (folder / f"{download.suggested_filename}.part").rename(folder / download.suggested_filename)

    page.tab.on("download", save)


async def file_in(folder: Path, name: str) -> bytes:
    """A file, once it was saved whole."""
    await until((folder / name).exists)
    return await asyncio.to_thread((folder / name).read_bytes)


async def minutes_later(page: Page) -> None:
    """For the page's own clock: longer than it waits for a service that may come back."""
    await page.run("(now => { performance.now = () => now() + 240_000; })(performance.now.bind(performance)); 0")


async def attach(page: Page, selector: str, file: Path) -> None:
    """A file to an input of files, as its dialogue would."""
    await page.tab.set_input_files(selector, file)
