"""docs/security.md against the running service: which ports listen and whom they answer, what each route asks for."""

import contextlib
import re
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
import requests
from starlette.routing import WebSocketRoute
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from serve.access.api_keys import Scope
from serve.commands.launch.announce import own_listeners, port_use
from serve.commands.launch.start import HAPROXY_PORTS
from serve.config.app_config import PROJECT
from serve.http.close_codes import POLICY_VIOLATION
from serve.protocols.api import ROUTERS
from tests.support.pages import table
from tests.support.started import Started, started
from tests.support.waiting import wait_until

pytestmark = pytest.mark.nightly

PAGE = "docs/security.md"
NOTHING, ANY = "nothing", "any key"
REFUSED = {401, 403}


@pytest.fixture(scope="module")
def service(home: Path, folder: Path) -> Iterator[Started]:
    changes = {"limits: {": "voices: {clone: true}\n      limits: {"}  # off, it is a 403 for every key
    with started(home=home, folder=folder, changes=changes) as begun:
        begun.wait_until_ready()
        yield begun


def needs(method: str, path: str) -> str:
    """What the page says that a route needs."""
    (rows,) = [
        needed.strip("`")
        for needed, routes in table(PAGE, "Routes")
        for pattern in re.findall(r"`([^`]+)`", routes)
        if fnmatchcase(method, pattern.split()[0]) and fnmatchcase(path, pattern.split()[1])
    ]
    return rows


def answers_the_api(port: int) -> bool:
    with contextlib.suppress(requests.RequestException):
        return "X-Request-ID" in requests.get(f"http://127.0.0.1:{port}/v1/models", timeout=5).headers
    return False


def test_the_page_lists_every_port_and_whom_it_answers(service: Started):
    uses = {int(service.environment[name]): use for name, (_, use) in HAPROXY_PORTS.items()}
    opened = [(port_use(process, at, service.port, uses), at) for process, at in own_listeners(service.processes())]
    rows = {use: (reached, needed) for use, reached, needed in table(PAGE, "Ports of `make serve`")}
    reach = {use: "this machine" if at.is_local else "everyone who reaches this machine" for use, at in opened}
    assert reach == {use: reached for use, (reached, _) in rows.items() if use in reach}
    assert {use for use, _ in opened} >= rows.keys() - {"Serve's fallback proxy"}
    for use, at in opened:
        assert answers_the_api(at.port) == ("routes" in rows[use][1]), (use, at)


def routes_of(url: str) -> Iterator[tuple[str, str]]:
    for path, methods in requests.get(f"{url}/openapi.json", timeout=10).json()["paths"].items():
        for method in methods:
            yield method.upper(), path
    yield "GET", "/openapi.json"
    for router in ROUTERS:
        yield from (("WS", route.path) for route in router.routes if isinstance(route, WebSocketRoute))


def status_of(url: str, method: str, path: str, key: str | None) -> int:
    """The status of a request with an empty body, of names that nobody has."""
    path = re.sub(r"\{\w+\}", "default" if method == "WS" else "nobody", path)
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    if method == "WS":
        return status_of_socket(f"{url.replace('http', 'ws')}{path}", headers)
    with requests.request(method, f"{url}{path}", headers=headers, timeout=60, stream=True) as reply:
        return reply.status_code


def status_of_socket(url: str, headers: dict[str, str]) -> int:
    """A refused socket is accepted, told why, and closed for a violation of policy; one that is let in waits for words."""
    with connect(url, additional_headers=headers) as client:
        try:
            while True:
                client.recv(timeout=2.5)
        except TimeoutError:
            return 101
        except ConnectionClosed as end:
            return 401 if end.rcvd is not None and end.rcvd.code == POLICY_VIOLATION else 101


def make_key(service: Started, scope: str) -> str:
    command = [sys.executable, "-m", "serve.commands.operate.keys", "add", scope, "--scopes", scope, "--requests-per-s", "none"]
    done = subprocess.run(
        [*command, "--config", str(service.config)],
        env=service.environment,
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout.split()[-1]


def test_every_route_asks_for_what_the_page_says(service: Started):
    """The last: with a key in its store the service is closed."""
    assert status_of(service.url, "GET", "/v1/models", None) == 200, "no key yet, and this machine asks"
    keys = {scope.value: make_key(service, scope.value) for scope in Scope}
    wait_until(lambda: status_of(service.url, "GET", "/v1/models", None) == 401, 10.0)
    routes = list(routes_of(service.url))
    assert len(routes) > 60
    wrong = []
    for method, path in routes:
        needed = needs(method, path)
        lets_in = {scope: status_of(service.url, method, path, key) not in REFUSED for scope, key in keys.items()}
        without = status_of(service.url, method, path, None)
        expected = {scope: needed in (NOTHING, ANY, scope) for scope in keys}
        if lets_in != expected or (without not in REFUSED) != (needed == NOTHING):
            wrong.append((method, path, needed, without, lets_in))
    assert not wrong
    for method, path in (("GET", "/no/such/route"), ("POST", "/admin/no/such")):
        assert status_of(service.url, method, path, None) == 401
