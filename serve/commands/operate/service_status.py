"""Service status: what `chattts-serve start` runs on this machine.

In:    the runs recorded in $CHATTTS_HOME
Out:   a line per service; exit code 1 where none runs
Never: another user's services, or those of Kubernetes
"""

import argparse
import sys

import requests

from pipeline.paths import cache_home
from serve.commands.launch.readiness import session_here
from serve.commands.launch.runs import NONE, services

ANSWER_S = 5.0


def main(arguments: list[str] | None = None) -> int:
    """Prints the address, the state and the process of each service."""
    argparse.ArgumentParser(prog="chattts-serve status", description="Show the services of this machine.").parse_args(arguments)
    found = services(cache_home())
    for service in found:
        print(f"{service.url}  {state_of(service.url)}  process {service.pid}")
    if not found:
        print(NONE, file=sys.stderr)
    return int(not found)


def state_of(url: str) -> str:
    """Returns what a service says of itself: ready, or why not."""
    try:
        with session_here() as session:
            answer = session.get(f"{url}/ready", timeout=ANSWER_S)
            return "ready" if answer.ok else f"not ready: {answer.json()['error']['message']}"
    except (requests.RequestException, ValueError, KeyError):
        return "does not answer"
