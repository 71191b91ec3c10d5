"""Web pages of other sites make a service that needs no key do nothing; and who a client is behind proxies."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from starlette.datastructures import Headers

from pipeline.errors import ConfigError
from pipeline.store.open import open_store
from serve.access.authentication import Authenticator
from serve.access.cross_origin import CrossOriginPolicy
from serve.access.proxies import Proxies
from serve.config.app_config import read_app_config
from serve.protocols.api import create_api
from tests.support.browser import Page, chromium
from tests.support.fakes import Speaker, make_services
from tests.support.guarded import add, guarded, ring_of
from tests.support.live_server import Live, serving

APP = "http://app.example:3000"
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Live, Speaker]]:
    speaker = Speaker()
    with guarded(Authenticator(origins=CrossOriginPolicy(["tts.home"], [APP])), speaker) as live:
        yield live, speaker


def code_of(reply: requests.Response) -> str:
    error = reply.json()["error"]
    assert error["request_id"] == reply.headers["X-Request-ID"]
    return str(error["code"])


def test_a_foreign_host_is_refused_whatever_it_asks(served: tuple[Live, Speaker]):
    """DNS rebinding: a page's own name is pointed at 127.0.0.1, and its browser sees one site."""
    live, speaker = served
    foreign = ["evil.example", f"evil.example:{live.port}", "localhost.evil.example", "127.0.0.1.evil.example",
               "192.168.1.5", "0.0.0.0", "", "localhost:80@evil.example", "evil.example#localhost", "[::2]", "127.0.0.1:",
               "2130706433"]  # fmt: skip
    calls = [("POST", "/v1/audio/speech"), ("DELETE", "/v1/audio/voices/calm"), ("GET", "/v1/models"), ("GET", "/health"),
             ("POST", "/admin/cache/purge"), ("GET", "/"), ("GET", "/nothing")]  # fmt: skip
    for host in foreign:
        for method, path in calls:
            reply = requests.request(method, live.url + path, headers={**JSON, "Host": host}, data=b"{}", timeout=60)
            assert (reply.status_code, code_of(reply)) == (403, "host_not_allowed"), (host, path)
            assert host == "" or host not in reply.text
    assert (speaker.opened, speaker.purged) == (0, [])


def test_hosts_of_this_machine_and_configured_ones_are_answered_and_never_redirected(served: tuple[Live, Speaker]):
    live, _ = served
    hosts = ["localhost", "127.0.0.1", "127.9.9.9:1", f"[::1]:{live.port}", "LOCALHOST", "tts.home", f"tts.home:{live.port}"]
    for host in [*hosts, f"localhost:{live.port}", f"127.0.0.1:{live.port}"]:
        assert requests.get(f"{live.url}/v1/models", headers={"Host": host}, timeout=60).status_code == 200, host
    for path in ("/live", "/ready"):
        assert requests.get(live.url + path, headers={"Host": "10.1.2.3:8000"}, timeout=60).status_code == 200, "a probe"
    for path in ("/v1/audio/speech/", "/v1/models/", "/docs/", "/health/"):
        reply = requests.get(live.url + path, allow_redirects=False, timeout=60)
        assert (reply.status_code, code_of(reply)) == (404, "not_found"), path


FOREIGN = [
    {"Origin": "http://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://localhost:3000"},
    {"Origin": "http://127.0.0.1"},
    {"Origin": ""},
    {"Origin": f"{APP}.evil.example"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "audio"},
    {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"},
]


@pytest.mark.parametrize("headers", FOREIGN)
def test_a_foreign_page_makes_nothing_happen(served: tuple[Live, Speaker], headers: dict[str, str]):
    live, speaker = served
    before = speaker.opened
    for method, path in [
        ("POST", "/v1/audio/speech"),
        ("POST", "/v1/audio/voices"),
        ("GET", "/v1/audio/voices/default/preview"),
        ("POST", "/admin/cache/purge"),
        ("DELETE", "/v1/audio/speech/cache"),
    ]:
        for content in ("text/plain", "application/json"):
            body = b'{"input": "Hi.", "name": "x", "seed": 1}'
            reply = requests.request(
                method, live.url + path, headers={**headers, "Content-Type": content}, data=body, timeout=5
            )
            assert (reply.status_code, code_of(reply)) == (403, "origin_not_allowed"), path
            assert "Access-Control-Allow-Origin" not in reply.headers
    assert (speaker.opened, speaker.purged) == (before, [])


def test_the_own_page_and_configured_ones_may_call(served: tuple[Live, Speaker]):
    live, _ = served
    for headers in (
        {"Origin": live.url, "Sec-Fetch-Site": "same-origin"},
        {"Origin": f"http://localhost:{live.port}", "Host": f"localhost:{live.port}"},
        {"Sec-Fetch-Site": "same-origin"},
        {"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate"},
        {"Origin": APP, "Sec-Fetch-Site": "cross-site"},
        {},
    ):
        reply = requests.post(f"{live.url}/v1/audio/speech", json={"input": "Hi."}, headers=headers, timeout=60)
        assert reply.status_code == 200, headers


def test_a_link_opens_the_page_and_the_documents_and_a_frame_does_not(served: tuple[Live, Speaker]):
    live, _ = served
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    for path in ("/", "/docs", "/source", "/health"):
        assert requests.get(live.url + path, headers=link, timeout=60).status_code == 200, path
        assert requests.post(live.url + path, headers=link, timeout=60).status_code == 403, path
        framed = requests.get(live.url + path, headers={**link, "Sec-Fetch-Dest": "iframe"}, timeout=60)
        assert framed.status_code == 403, path


def test_websockets_are_checked_too():
    services, codes = make_services(Speaker()), []

    async def ask(**headers: str) -> None:
        async def send(message):
            if message["type"].endswith("http.response.body"):
                codes.append(json.loads(message["body"])["error"]["code"])

        async def receive():
            return {"type": "websocket.connect"}

        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        scope = {"type": "websocket", "path": "/v1/audio/speech/stream", "headers": raw, "client": ("127.0.0.1", 1)}
        await create_api(lambda: services)(scope | {"query_string": b""}, receive, send)

    asyncio.run(ask(host="evil.example"))
    asyncio.run(ask(host="localhost:8000", origin="http://evil.example"))
    assert codes == ["host_not_allowed", "origin_not_allowed"]


# With keys, or another server in front.


@pytest.mark.parametrize("with_keys", [True, False])
def test_where_a_key_is_required_or_a_gateway_is_in_front_hosts_and_pages_are_not_checked(tmp_path: Path, with_keys: bool):
    store = open_store(str(tmp_path / "store.sqlite"))
    key, _ = add(store) if with_keys else ("", "")
    headers = {"Host": "tts.example", "Origin": "https://app.example", "Sec-Fetch-Site": "cross-site"}
    with guarded(Authenticator(ring_of(store), is_open=not with_keys)) as live:
        for path in ("/v1/models", "/health"):
            reply = requests.get(live.url + path, headers={**headers, **({"X-API-Key": key} if key else {})}, timeout=60)
            assert reply.status_code == 200
            assert "Access-Control-Allow-Origin" not in reply.headers, "unless it is configured"
        fields = {**headers, "Access-Control-Request-Method": "POST"}
        reply = requests.options(f"{live.url}/v1/audio/speech", headers=fields, timeout=60)
        assert reply.status_code == (401 if with_keys else 405)
        assert "Access-Control-Allow-Origin" not in reply.headers
    store.close()


def test_a_configured_page_is_answered_with_cors_headers_and_no_other_is(tmp_path: Path):
    store = open_store(str(tmp_path / "store.sqlite"))
    key, _ = add(store)
    with guarded(Authenticator(ring_of(store), origins=CrossOriginPolicy(origins=[APP]))) as live:
        url = f"{live.url}/v1/audio/speech"
        fields = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}
        allowed = requests.options(url, headers={**fields, "Origin": APP}, timeout=60)
        assert allowed.status_code == 204
        assert allowed.headers["Access-Control-Allow-Origin"] == APP
        assert "POST" in allowed.headers["Access-Control-Allow-Methods"]
        assert allowed.headers["Access-Control-Allow-Headers"] == "Authorization, *"
        other = requests.options(url, headers={**fields, "Origin": "https://evil.example"}, timeout=60)
        assert "Access-Control-Allow-Origin" not in other.headers
        assert other.status_code == 401
        for headers, status in (({"Authorization": f"Bearer {key}"}, 200), ({}, 401)):
            reply = requests.post(url, json={"input": "Hi."}, headers={**headers, "Origin": APP}, timeout=60)
            assert reply.status_code == status
            assert reply.headers["Access-Control-Allow-Origin"] == APP, "a page must be able to read a refusal too"
            assert reply.headers["Access-Control-Expose-Headers"] == "*"
            assert "Access-Control-Allow-Credentials" not in reply.headers
        plain = requests.get(f"{live.url}/health", timeout=60)
        assert plain.headers["Vary"] == "Origin", "a cache must not give one page's answer to another"
    store.close()


@pytest.mark.parametrize(
    "section",
    [{"allowed_origins": [wrong]} for wrong in ("*", "null", "app.example", "https://app.example/", "https://App.example")]
    + [{"allowed_hosts": [wrong]} for wrong in ("*", "tts.home:8000", "http://tts.home", "Tts.home", "")],
)
def test_hosts_and_origins_are_written_as_browsers_write_them(section: dict):
    with pytest.raises(ConfigError, match=r"args\.http"):
        read_app_config({"http": section})
    read_app_config({"http": {"allowed_hosts": ["tts.home", "[fd00::1]"], "allowed_origins": [APP, "tauri://localhost"]}})


# A real browser.


def attack(live: Live) -> str:
    """What a page can send without asking."""
    body = "JSON.stringify({input: 'Hi.', name: 'x', seed: 1})"
    sends = "".join(
        f"fetch('{live.url}{path}', {{method: 'POST', mode: 'no-cors', body: {body}}}).catch(() => 0),"
        for path in ("/v1/audio/speech", "/v1/audio/voices", "/admin/cache/purge")
    )
    shows = "".join(
        f"new Promise(done => {{const e = new {tag}(); e.onerror = e.onload = e.oncanplay = done; "
        f"e.src = '{live.url}/v1/audio/voices/default/preview';}}),"
        for tag in ("Image", "Audio")
    )
    return f"Promise.all([{sends}{shows}]).then(() => 'sent')"


@pytest.mark.slow
def test_a_real_browser_carries_nothing_over_from_another_site():
    hostile = make_services(Speaker())
    with guarded(Authenticator(), speaker := Speaker()) as live, serving(hostile) as elsewhere:

        async def see(page: Page) -> None:
            await page.open(f"{elsewhere.url}/live")  # the studio's own policy would stop it first
            assert await page.run(attack(live)) == "sent"
            assert (speaker.opened, speaker.purged) == (0, [])
            # Chromium resolves every name below localhost to this machine, as a rebound name is.
            await page.open(f"http://evil.localhost:{live.port}/")
            assert "host_not_allowed" in await page.run("document.body.innerText")
            await page.open(f"http://localhost:{live.port}/")
            await page.until("document.getElementById('go') !== null")
            await page.run(
                "fetch('/v1/audio/speech', {method: 'POST', body: '{\"input\": \"Hi.\"}', "
                "headers: {'Content-Type': 'application/json'}}).then(reply => reply.arrayBuffer())"
            )
            assert speaker.opened == 1, "its own page speaks, by either name"

        with chromium() as browser:
            browser.visit(see)


# Proxies: which headers say who a client is, and whom they are believed.


CLIENT, NODE, OTHER_NODE, BALANCER = "192.0.2.7", "10.0.0.1", "10.0.0.2", "10.9.0.1"
PLAIN, BEHIND = Proxies(["10.9.0.0/16"]), Proxies(["10.9.0.0/16", OTHER_NODE], haproxies=[NODE])


@pytest.mark.parametrize(
    ("proxies", "peer", "haproxy", "forwarded", "client"),
    [
        (Proxies(), CLIENT, "192.0.2.1", "192.0.2.1", CLIENT),
        (PLAIN, "127.0.0.1", "192.0.2.1", "192.0.2.1", "127.0.0.1"),
        (PLAIN, BALANCER, "192.0.2.1", f"192.0.2.1, {CLIENT}", CLIENT),
        (PLAIN, BALANCER, None, f"{CLIENT}:5123, 10.9.0.2", CLIENT),
        (PLAIN, BALANCER, None, "[2001:db8::7]:5123", "2001:db8::/64"),
        (PLAIN, f"::ffff:{BALANCER}", None, f"::ffff:{CLIENT}", CLIENT),
        (PLAIN, BALANCER, None, None, ""),
        (PLAIN, BALANCER, None, "unknown", ""),
        (PLAIN, BALANCER, None, f"{CLIENT}, , 10.9.0.2", ""),
        (BEHIND, CLIENT, "192.0.2.1", "192.0.2.1", CLIENT),
        (BEHIND, NODE, CLIENT, "192.0.2.1", CLIENT),
        (BEHIND, OTHER_NODE, CLIENT, "192.0.2.1", CLIENT),
        (BEHIND, "127.0.0.1", CLIENT, None, CLIENT),
        (BEHIND, "127.0.0.1", "127.0.0.1", None, "127.0.0.1"),
        (BEHIND, "127.0.0.1", None, "192.0.2.1", "127.0.0.1"),
        (BEHIND, NODE, BALANCER, f"192.0.2.1, {CLIENT}", CLIENT),
        (BEHIND, NODE, BALANCER, None, ""),
        (BEHIND, "", None, None, ""),
    ],
)
def test_the_client_is_the_last_address_that_is_no_trusted_proxys(
    proxies: Proxies, peer: str, haproxy: str | None, forwarded: str | None, client: str
):
    named = {"x-chattts-client": haproxy, "x-forwarded-for": forwarded}
    assert proxies.client_of(Headers({name: value for name, value in named.items() if value is not None}), peer) == client
