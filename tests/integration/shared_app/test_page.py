"""The page on the running service: it speaks through Serve's proxy, and its status has every figure that it shows."""

from pathlib import Path

import numpy as np

from tests.support.browser import Page, chromium
from tests.support.cluster import Cluster
from tests.support.studio import FINISHED, FIRST_TEXT, PLAYED, go_to, heard, sounding, visit, write

TILES = "[...document.querySelectorAll('.tiles .card')].map(card => [...card.children].map(each => each.textContent))"


def test_the_page_speaks_and_shows_the_state_of_the_service(cluster: Cluster, tmp_path: Path):
    async def see(page: Page) -> None:
        await write(page, "#seed", "4")
        await page.click("#go")
        await page.until(f"{FINISHED} && {PLAYED}")
        samples.append(await heard(page))
        await go_to(page, "status")
        await page.until("document.querySelector('.tiles') !== null")
        tiles = dict(await page.run(TILES))
        assert tiles["slots in use"].startswith("0 of ")
        assert tiles["waiting for a slot"] == "0"
        assert tiles["first audio"].endswith(" s")
        assert tiles["degradation"].startswith("level 0")
        shown = await page.run("document.querySelector('#status-shown').innerText")
        assert all(stage in shown for stage in ("text", "acoustic", "vocoder", "in service"))
        assert page.problems == []

    samples: list[np.ndarray] = []
    with chromium(tmp_path / "profile") as port:
        visit(port, cluster.url(""), see, hears=True)
    assert np.array_equal(samples[0], sounding(cluster.speak(input=FIRST_TEXT, seed=4, response_format="pcm").content))
