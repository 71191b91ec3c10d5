"""The page in Chinese: every text of its code has a translation, and nothing that is shown is left in English."""

import re

import pytest

from serve.page import page_files
from tests.support.browser import Page
from tests.support.demo_voice import demo_library
from tests.support.fakes import Speaker
from tests.support.studio import open_in, people, unfold, visit

STRINGS = (page_files.FOLDER / "strings.js").read_text(encoding="utf-8")
CODE = "\n".join(path.read_text() for path in page_files.FOLDER.rglob("*.js") if path.name != "strings.js")
TEXT = r'"((?:[^"\\\n]|\\.)*)"'
TRANSLATED = set(re.findall(rf"(?:[,{{]\s*|^\s*){TEXT}: ", STRINGS, re.MULTILINE))
PLACES = ["speak", "dialogue", "book", "voices", "workshop/attempts", "workshop/plan", "workshop/lexicon"]
# Names of things that are names in Chinese too, and what a person typed.
NAMES = (
    r"ChatTTS|SSML|EPUB|Markdown|mp3|wav|opus|aac|flac|pcm|m4b|zip|SRT|VTT|WAV|FLAC|OGG|MP3|Hz|cURL|Python|OpenAI|"
    r"ElevenLabs|English|AGPL\S*|cities|alloy|en|zh|voice-\d+|default|blend:\S*"
)
SHOWN = """[...document.querySelectorAll('body *')]
  .filter(one => !one.closest('pre, code, script, textarea, noscript')).flatMap(one => [
  ...[...one.childNodes].filter(node => node.nodeType === 3).map(node => node.data),
  ...['aria-label', 'placeholder', 'title'].map(name => one.getAttribute(name) ?? '')])"""


def test_every_text_of_the_code_is_translated():
    calls = re.findall(rf"\b(?:t|button|field|fold|action|attempt)\(\s*{TEXT}", CODE)
    calls += re.findall(rf'(?:"aria-label"|title|placeholder): {TEXT}', CODE)
    assert not {text for text in calls if re.search("[A-Za-z]{2}", text)} - TRANSLATED - {"preview"}


@pytest.mark.slow
def test_nothing_that_is_shown_is_left_in_english(browser):
    async def see(page: Page) -> None:
        for place in PLACES:
            await open_in(page, live.url, "zh", place)
            await page.until("document.querySelector('.person, .column, #cast') !== null")
            await unfold(page)
            aliases = [alias for voice in demo_library().list() for alias in voice.aliases]
            shown = " ".join(await page.run(SHOWN))
            left = re.sub(rf"\b(?:{NAMES}|{'|'.join(aliases)})\b", "", shown)
            assert re.findall(r"[A-Za-z]{3,}", left) == [], place

    with people(Speaker()) as live:
        visit(browser, live.url, see)
