"""Takes the pictures of docs/ray.md: Ray's dashboard while the service scales, while a replica dies, and as it wakes from zero.

PYTHONPATH=. python docs/ray_pictures.py docs/pictures     # some four minutes, without another Ray; it needs chromium

It starts a Ray of its own with three applications: the service, another application, and the service once more, asleep.
"""

import asyncio
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray
import requests
from ray import serve

from scripts.launch.processes import processes
from tests.support.browser import Page, browsing, chromium
from tests.support.cluster import ENVIRONMENT, LONG, deploy, document_of
from tests.support.ports import free_port

GROWS = {"min_replicas": 1, "max_replicas": 3, "metrics_interval_s": 0.5, "look_back_period_s": 3, "upscale_delay_s": 0.5}
SLEEPS = {"min_replicas": 0, "initial_replicas": 0, "max_replicas": 1, "target_ongoing_requests": 4, "upscale_delay_s": 0}
SLEEPS |= {"metrics_interval_s": 0.5, "look_back_period_s": 2}
POLICY = "serve.resilience.autoscaling:StepBacklogPolicy"
CLIENTS = 6
DRAWN_S = 0.5
BODY = {"input": LONG[:400], "response_format": "pcm", "seed": 3, "deadline_ms": 120_000, "cache": "no-store"}


@serve.deployment
class Hello:
    """The other application."""

    async def __call__(self, request: Any) -> str:
        return "Hello from another application of this cluster."


neighbour = Hello.bind()


def documents(port: int) -> list[dict[str, Any]]:
    """Returns one Serve configuration per application."""
    service = document_of("dev.yaml", app="chattts", route="/", limits={"max_in_flight": 64})
    service["http_options"]["port"] = port
    for deployment in service["applications"][0]["deployments"]:
        deployment["graceful_shutdown_timeout_s"] = 20
        if deployment["name"] in ("AcousticModel", "Vocoder"):
            del deployment["num_replicas"]
            policy = {"policy_function": POLICY, "policy_kwargs": {"utilisation": 0.01, "wait_s": 0.05}}
            deployment["autoscaling_config"] = GROWS | {"policy": policy, "downscale_delay_s": 10}
    asleep = document_of("dev.yaml", app="asleep", route="/asleep")
    for deployment in asleep["applications"][0]["deployments"]:
        del deployment["num_replicas"]
        first = deployment["name"] == "Ingress"  # it goes before what it calls
        deployment["autoscaling_config"] = SLEEPS | {"downscale_delay_s": 6 if first else 30}
    other = {"applications": [{"name": "hello", "route_prefix": "/hello", "import_path": "docs.ray_pictures:neighbour"}]}
    return [service, other, asleep]


def replicas(app: str) -> dict[str, dict[str, int]]:
    """Returns deployment -> state -> number of replicas."""
    found = serve.status().applications[app].deployments
    return {name: {str(state): n for state, n in one.replica_states.items()} for name, one in found.items()}


def running(app: str, deployment: str) -> int:
    return replicas(app)[deployment].get("RUNNING", 0)


def wait(condition: Callable[[], bool], limit_s: float, what: str) -> float:
    """Waits until it holds; returns how long that took [s]."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > limit_s:
            print(f"never: {what}", flush=True)
            return float("inf")
        time.sleep(0.1)
    return round(time.monotonic() - began, 1)


def health(url: str) -> Any:
    return requests.get(f"{url}/health", timeout=10).json()


def kill_one() -> str:
    """Ends an acoustic replica as a crash would, and returns its title."""
    for process in processes():
        if "ServeReplica:chattts:AcousticModel" in (title := process.command()):
            os.kill(process.pid, signal.SIGKILL)
            return title
    return "none"


class Load:
    """Clients that speak one after the other."""

    def __init__(self, url: str) -> None:
        self._over, self.heard = threading.Event(), []
        self._threads = [threading.Thread(target=self._client, args=(url,)) for _ in range(CLIENTS)]
        for thread in self._threads:
            thread.start()

    def _client(self, url: str) -> None:
        while not self._over.is_set():
            try:
                self.heard.append(requests.post(url, json=BODY, timeout=200).status_code)
            except requests.RequestException as error:
                self.heard.append(type(error).__name__)

    def end(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()


async def shoot(page: Page, dashboard: str, path: str, file: Path, text: str, *, height: int = 1000) -> None:
    """Opens a page of the dashboard, waits until it shows a text, and takes a picture."""
    await page.look(width=1400, height=height)
    await page.open("about:blank")
    await page.open(f"{dashboard}/#{path}")
    await page.until(f"document.body.innerText.includes({text!r})")
    await asyncio.sleep(DRAWN_S)
    await asyncio.to_thread(file.write_bytes, await page.picture())
    print(f"{file.name}: {path}", flush=True)


async def pictures(folder: Path, dashboard: str, url: str) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile, chromium(Path(profile)) as port:
        async with browsing(port) as page:
            await shoot(page, dashboard, "/serve", folder / "ray-serve.png", "/asleep", height=1450)
            facts["status at rest"] = {app: replicas(app) for app in ("chattts", "hello", "asleep")}
            load = Load(f"{url}/v1/audio/speech")
            facts["a second replica starts after s"] = await asyncio.to_thread(
                wait, lambda: sum(replicas("chattts")["AcousticModel"].values()) > 1, 60, "growth"
            )
            await shoot(page, dashboard, "/serve/applications/chattts", folder / "ray-scaling.png", "UPSCALING")
            facts["while it scales"] = replicas("chattts")
            facts["two run after s more"] = await asyncio.to_thread(
                wait, lambda: running("chattts", "AcousticModel") > 1, 90, "two"
            )
            facts["health"] = await asyncio.to_thread(health, url)
            facts["killed"] = await asyncio.to_thread(kill_one)
            await shoot(page, dashboard, "/serve/applications/chattts", folder / "ray-death.png", "UNHEALTHY")
            facts["after a death"] = replicas("chattts")
            await asyncio.to_thread(load.end)
            facts["replies"] = {str(code): load.heard.count(code) for code in set(load.heard)}
            facts["wake"] = await asyncio.to_thread(wake, url)
            facts["sleep"] = await asyncio.to_thread(fall_asleep, url)
    return facts


def wake(url: str) -> list[dict[str, Any]]:
    """Returns what a client hears that asks again and again while the sleeping application wakes, and when it has woken."""
    said, began = [], time.monotonic()
    while time.monotonic() - began < 120:
        sent = time.monotonic()
        body = {"input": "Five one one.", "response_format": "pcm", "seed": 3}
        try:
            reply = requests.post(f"{url}/asleep/v1/audio/speech", json=body, timeout=100)
            fact = {"status": reply.status_code, "retry_after": reply.headers.get("Retry-After"), "text": reply.text[:200]}
            fact["text"] = "" if reply.status_code == 200 else fact["text"]
        except requests.RequestException as error:
            fact = {"status": type(error).__name__}
        said.append({"at_s": round(sent - began, 1), "took_s": round(time.monotonic() - sent, 1), **fact})
        if fact["status"] == 200 and len(said) > 1:
            break
        time.sleep(0.5)
    return said


def fall_asleep(url: str) -> dict[str, Any]:
    """Returns how long each deployment stays, and what /ready of the others says meanwhile."""
    began, gone = time.monotonic(), {}
    while time.monotonic() - began < 80 and len(gone) < 4:
        for name, states in replicas("asleep").items():
            if not sum(states.values()):
                gone.setdefault(name, round(time.monotonic() - began, 1))
            else:
                gone.pop(name, None)
        time.sleep(0.3)
    return gone


def main() -> int:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    os.environ.update(ENVIRONMENT)
    temp = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
    os.environ["RAY_TMPDIR"] = str(temp)
    port, dashboard, metrics = free_port(), free_port(), free_port()
    ray.init(
        address="local", num_cpus=16, include_dashboard=True, dashboard_port=dashboard, log_to_driver=False, namespace="serve",
        object_store_memory=200 << 20, _temp_dir=str(temp), _metrics_export_port=metrics,
    )  # fmt: skip
    facts: dict[str, Any] = {}
    try:
        began = time.monotonic()
        deploy(*documents(port))
        facts["deployed after s"] = round(time.monotonic() - began, 1)
        facts |= asyncio.run(pictures(folder, f"http://127.0.0.1:{dashboard}", f"http://127.0.0.1:{port}"))
        text = requests.get(f"http://127.0.0.1:{metrics}/metrics", timeout=20).text
        facts["metrics"] = [line for line in text.splitlines() if line.startswith(("ray_chattts_util", "ray_chattts_backlog"))]
        names = sorted({line.split("{")[0] for line in text.splitlines() if line.startswith("ray_serve_autoscaling")})
        facts["serve's own"] = names
    finally:
        print(json.dumps(facts, indent=1, default=str), flush=True)
        serve.shutdown()  # type: ignore[no-untyped-call]
        ray.shutdown()
        shutil.rmtree(temp, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
