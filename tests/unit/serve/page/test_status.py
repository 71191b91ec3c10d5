"""The operator's status: figures that live, and only for a key that may see them."""

import asyncio
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import requests

from pipeline.store.open import open_store
from pipeline.store.store import Store
from serve.access.api_keys import Scope
from serve.access.authentication import Authenticator
from tests.support.browser import Page
from tests.support.fakes import FakeStatus, Speaker, make_services
from tests.support.guarded import add, guarded, ring_of, speak
from tests.support.live_server import serving
from tests.support.relay import relay
from tests.support.studio import ERROR, visit, work

pytestmark = pytest.mark.slow

TEXT = "document.querySelector('#status-shown').innerText"


def tile(name: str) -> str:
    return f"[...document.querySelectorAll('.tiles dt')].find(each => each.textContent === {name!r})?.nextSibling.textContent"


@dataclass
class BusyStatus(FakeStatus):
    """The state of a service with two acoustic replicas, as serve/ingress/ingress_status.py tells it."""

    changes: dict[str, Any] = field(default_factory=dict)

    async def health(self) -> dict[str, object]:
        engine = {
            "slots": 8,
            "slots_usable": 6,
            "waiting": 2,
            "round_s": 0.0123,
            "gpus": [],
            "trouble": "",
            "gpu_mem_percent": 41.0,
        }
        acoustic = [{"replica": f"a{index}", "slots_used": index, **engine} for index in (1, 2)]
        version = {"share": 1.0, "state": "in_service", "requests": 3, "failed": 0, "first_audio_s": 0.31}
        cache = {"memory_hits": 6, "shared_hits": 1, "joined": 1, "misses": 2}
        return {
            "cache": cache,
            "stores": {},
            "text": [{"replica": "t1", "trouble": "", "waiting": 0}],
            "acoustic": acoustic,
            "vocoder": [{"replica": "v1", "trouble": "", "waiting": 0, "call_s": 0.004}],
            "breakers": {"acoustic": {"state": "closed"}},
            "quarantine": {"quarantined": 0, "refused": 0},
            "degrade": {"level": 1, "active_steps": ["no_refine"]},
            "versions": {"chattts@v1": version},
            **self.changes,
        }


def test_an_operator_sees_the_service_live(browser, store: Store):
    admin, _ = add(store, scopes=tuple(Scope))
    speaker = Speaker()
    status = BusyStatus(speaker)
    dashboards = {"ray_dashboard": "http://127.0.0.1:8265/", "grafana": "https://grafana.example/d/chattts"}
    services = replace(
        make_services(speaker), status=status, dashboards=dashboards, authenticator=Authenticator(ring_of(store))
    )

    async def see(page: Page) -> None:
        await work(page, "status")
        await page.until(f"{ERROR}.includes('asks for a key')")
        await page.type("key", admin)
        await page.until(f"{tile('slots in use')} === '3 of 12 (16)'")
        assert await page.run(tile("waiting for a slot")) == "4"
        assert await page.run(tile("found in the cache")) == "80 % of 10"
        assert await page.run(tile("degradation")) == "level 1: no_refine"
        assert await page.run(tile("first audio")) == "–"
        assert "No trouble." in await page.run(TEXT)
        links = await page.run("[...document.querySelectorAll('#dashboards a')].map(link => link.href)")
        assert links == list(dashboards.values())
        # It lives: what happens is seen without a click.
        await asyncio.to_thread(speak, live, **{"X-API-Key": admin})
        nobody = {"input": "Hello.", "voice": "nobody"}
        await asyncio.to_thread(requests.post, f"{live.url}/v1/audio/speech", json=nobody, headers={"X-API-Key": admin})
        status.changes = {"stores": {"keys": "the store is away"}}
        await page.until(f"{tile('first audio')}.endsWith(' s') && {TEXT}.includes('voice_not_found')")
        await page.until(f"{TEXT}.includes('keys: the store is away')")
        assert all("401" in problem for problem in page.problems), page.problems

    with serving(services) as live:
        visit(browser, live.url, see)


def test_a_key_without_the_scope_sees_nothing(browser, tmp_path: Path):
    store = open_store(str(tmp_path / "store.sqlite"))
    small, _ = add(store, scopes=(Scope.SPEECH,))
    admin, _ = add(store, scopes=(Scope.ADMIN,))
    services = make_services(Speaker())
    object.__setattr__(services, "authenticator", Authenticator(ring_of(store)))

    async def see(page: Page) -> None:
        await work(page, "status")
        await page.until(f"{ERROR}.includes('asks for a key')")
        await page.type("key", small)
        await page.until(f"{ERROR}.includes('may not do this')")
        assert await page.run(TEXT) == ""
        await page.click("#gear")
        await page.click("#change-key")
        await page.run("document.getElementById('key').value = ''")
        await page.type("key", admin)
        await page.click("#read-status")
        await page.until(f"{ERROR} === '' && {TEXT}.includes('chattts-serve')")

    try:
        with serving(services) as live:
            visit(browser, live.url, see)
    finally:
        store.close()


def test_a_service_that_went_away_is_watched_again(browser, store: Store):
    admin, _ = add(store, scopes=tuple(Scope))

    async def see(page: Page) -> None:
        await page.until("!document.querySelector('#ask').hidden")
        await page.type("key", admin)
        await work(page, "status")
        await page.until(f"{TEXT}.includes('chattts-serve')")
        link.cut()
        await page.until(f"{ERROR}.includes('does not answer')")
        link.restore()
        await page.until(f"{ERROR} === ''")

    with guarded(Authenticator(ring_of(store))) as live, relay(live.port) as link:
        visit(browser, link.url, see)
