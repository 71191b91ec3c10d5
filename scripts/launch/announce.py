"""Announce: says about a service that was started where it is, which ports are open to whom, and what is missing.

In:    the processes of a service, their open ports
Out:   text for a terminal
Owns:  nothing
Never: what should be so: ports are those the kernel lists
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import requests

from scripts.launch.processes import Listener, Process, listeners, owners

DASHBOARD_PORTS = range(8265, 8316)  # Ray takes the first free one
RAY = "Ray's own processes"
REPLICA_CALLS = "calls between replicas"
WITH_TOKEN = frozenset({RAY, REPLICA_CALLS, "Ray's dashboard"})
FIRST_WORDS = '{"input": "Five one one, two five five.", "voice": "default", "seed": 1, "response_format": "wav"}'
ANSWER_S = 2.0


def own_listeners(processes: Sequence[Process]) -> list[tuple[Process, Listener]]:
    """The open ports of these processes."""
    by_pid = {found.pid: found for found in processes}
    holders = owners(list(by_pid))
    return [(by_pid[holders[found.inode]], found) for found in listeners() if found.inode in holders]


def gcs_address(processes: Sequence[Process]) -> str | None:
    """Where Ray's drivers connect to."""
    found = (re.search(r"--gcs-address=(\S+)", process.command()) for process in processes)
    return next((match[1] for match in found if match is not None), None)


def dashboard_url(opened: Sequence[tuple[Process, Listener]]) -> str | None:
    """Ray's dashboard; None where there is none."""
    ports = [listener.port for process, listener in opened if is_dashboard(process, listener)]
    return f"http://127.0.0.1:{ports[0]}" if ports else None


def is_dashboard(process: Process, listener: Listener) -> bool:
    """Whether it is what a browser and `serve status` talk to."""
    return "/dashboard/dashboard.py" in process.command() and listener.port in DASHBOARD_PORTS


def what_listens(process: Process, listener: Listener, door: int, haproxy: Mapping[int, str]) -> str:
    """What a port is for."""
    if listener.port == door:
        return "page and API"
    if is_dashboard(process, listener):
        return "Ray's dashboard"
    if process.name == "haproxy":
        return haproxy.get(listener.port, "HAProxy")
    title = process.command()
    if "ray::ServeReplica" in title and not listener.is_local:
        return REPLICA_CALLS
    return RAY


def open_ports(opened: Sequence[tuple[Process, Listener]], door: int, haproxy: Mapping[int, str], token: bool) -> Iterator[str]:
    """A line for each kind of port: where, what, who can reach it.

    Args:
        opened: see `own_listeners`.
        door: the port of http_options.
        haproxy: what HAProxy's other ports are for.
        token: whether Ray's processes ask for one.
    """
    groups: dict[tuple[str, bool], list[Listener]] = defaultdict(list)
    for process, listener in opened:
        groups[what_listens(process, listener, door, haproxy), listener.is_local].append(listener)
    order = sorted(groups, key=lambda group: (group[0] == RAY, min(listener.port for listener in groups[group])))
    for what, is_local in order:
        found = sorted({listener.port for listener in groups[what, is_local]})
        where = ", ".join(map(str, found)) if len(found) <= 4 else f"{len(found)} ports"
        who = "this machine" if is_local else "whoever reaches this machine"
        if what in WITH_TOKEN:
            who += ", with the token only" if token else ", WITHOUT A TOKEN: RAY_AUTH_MODE is disabled"
        yield f"{where:<22} {what:<24} {who}"


def announcement(url: str, checkpoint: str, ports: Iterator[str], access: Path) -> str:
    """What to do now."""
    note = ("  Note:  the demo voice knows some 260 English words; README.md says how to get the real weights",)
    indented = [f"{'  Open:' if index == 0 else '':<9}{line}" for index, line in enumerate(ports)]
    lines = (
        "",
        f"  Page:  {url}/",
        f"  Hear:  curl {url}/v1/audio/speech -H 'Content-Type: application/json' -d '{FIRST_WORDS}' -o hello.wav",
        *indented,
        f"  Ray:   . '{access}'; serve status",
        *(note if checkpoint == "demo" else ()),
        "  Stop:  Ctrl-C",
        "",
    )
    return "\n".join(lines)


def missing(url: str, dashboard: str | None, token: str | None) -> list[str]:
    """What a service that does not become ready still lacks."""
    with requests.Session() as session:
        session.trust_env = False  # the way to this machine leads through no proxy
        return [_of_ready(session, url), *(_of_deployments(session, dashboard, token) if dashboard is not None else ())]


def _of_ready(session: requests.Session, url: str) -> str:
    try:
        reply = session.get(f"{url}/ready", timeout=ANSWER_S)
    except requests.RequestException as error:
        return f"{url}/ready does not answer ({type(error).__name__})"
    return f"{url}/ready says {reply.status_code}: {reply.text[:300].strip()}"


def _of_deployments(session: requests.Session, dashboard: str, token: str | None) -> Iterator[str]:
    """Serve's own words on every deployment that is not well."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        reply = session.get(f"{dashboard}/api/serve/applications/", headers=headers, timeout=ANSWER_S)
        applications = reply.json()["applications"]
    except (requests.RequestException, ValueError, KeyError) as error:
        yield f"Ray's dashboard does not answer ({type(error).__name__})"
        return
    if not applications:
        yield "Serve has no application yet"
    for application in applications.values():
        if not application["deployments"]:
            yield f"{application['name']} is {application['status']}: {application['message'][:300].strip()}"
        for name, deployment in application["deployments"].items():
            if deployment["status"] != "HEALTHY":
                yield f"{name} is {deployment['status']}: {deployment['message'][:300].strip()}"
