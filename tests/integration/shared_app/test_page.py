"""The page on the running service: it speaks through Serve's proxy, and says which key its status needs."""

import numpy as np

from tests.support.browser import Page, chromium
from tests.support.cluster import Cluster
from tests.support.studio import ERROR, FINISHED, FIRST_TEXT, PLAYED, go_to, heard, sounding, visit, write


def test_the_page_speaks_and_says_which_key_shows_the_state_of_the_service(cluster: Cluster):
    async def see(page: Page) -> None:
        await write(page, "#seed", "4")
        await page.click("#go")
        await page.until(f"{FINISHED} && {PLAYED}")
        samples.append(await heard(page))
        await go_to(page, "status")
        await page.until(f"{ERROR}.includes('chattts-serve keys add')")
        assert await page.run("document.querySelector('.tiles') === null")

    samples: list[np.ndarray] = []
    with chromium() as browser:
        visit(browser, cluster.url(""), see, hears=True)
    assert np.array_equal(samples[0], sounding(cluster.speak(input=FIRST_TEXT, seed=4, response_format="pcm").content))
