"""Readiness: asks a service that was started what keeps it from becoming ready.

In:    its URL, that of Ray's dashboard
Out:   sentences for a terminal
Never: a wait longer than ANSWER_S for each answer
"""

from collections.abc import Iterator

import requests

ANSWER_S = 2.0


def session_here() -> requests.Session:
    """Returns a session that takes no proxy on the way to this machine."""
    session = requests.Session()
    session.trust_env = False
    return session


def missing(url: str, dashboard: str | None, token: str | None) -> list[str]:
    """Returns sentences on what keeps a service from becoming ready."""
    with session_here() as session:
        return [_of_ready(session, url), *(_of_deployments(session, dashboard, token) if dashboard is not None else ())]


def _of_ready(session: requests.Session, url: str) -> str:
    try:
        reply = session.get(f"{url}/ready", timeout=ANSWER_S)
    except requests.RequestException as error:
        return f"{url}/ready does not answer ({type(error).__name__})"
    return f"{url}/ready answers {reply.status_code}: {reply.text[:300].strip()}"


def _of_deployments(session: requests.Session, dashboard: str, token: str | None) -> Iterator[str]:
    """Yields Serve's message on every deployment that is not healthy."""
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
