"""Faults: what may happen to a service on three nodes. Each one is verified: what was to be dead is gone.

In:    nodes; a fault's name
Out:   the fault, made; a sentence on what was hit
Owns:  nothing
Never: traffic, judgement
"""

import os
import random
import signal
from collections.abc import Callable
from contextlib import suppress

from scripts.chaos.nodes import Nodes, wait_until
from scripts.launch.processes import Process, process

GONE_S = 10.0
HANG_S = 60.0
BACK_S = 120.0
Fault = Callable[[Nodes, random.Random], str]


def schedule(seed: int, seconds: float, least_s: float, most_s: float) -> list[tuple[float, str]]:
    """Returns (second, fault), drawn from the seed: every kind comes once before one comes again."""
    draws, at, deck, plan = random.Random(seed), 0.0, list[str](), list[tuple[float, str]]()
    while True:
        at += draws.uniform(least_s, most_s)
        if at > seconds:
            return plan
        if not deck:
            deck = sorted(FAULTS)
            draws.shuffle(deck)
        plan.append((round(at, 1), deck.pop()))


def kill(title: str) -> Fault:
    """Returns the fault that ends one process with these words in its title, as the kernel ends one without memory."""

    def fault(nodes: Nodes, draws: random.Random) -> str:
        victim = _one(nodes.processes(title), draws)
        if victim is None:
            return f"no {title} to be found: it was away already"
        os.kill(victim.pid, signal.SIGKILL)
        wait_until(lambda: _has_ended(victim), GONE_S, f"{victim.pid} ends")
        return f"{title} {victim.pid} killed"

    return fault


def hang(title: str) -> Fault:
    """Returns the fault that stops a process without ending it, until somebody else ends it, or for a minute."""

    def fault(nodes: Nodes, draws: random.Random) -> str:
        victim = _one(nodes.processes(title), draws)
        if victim is None:
            return f"no {title} to be found: it was away already"
        os.kill(victim.pid, signal.SIGSTOP)
        try:
            took_s = wait_until(lambda: _has_ended(victim), HANG_S, "it is ended")
        except TimeoutError:
            return f"{title} {victim.pid} stopped for {HANG_S:g} s"
        finally:
            with suppress(ProcessLookupError):
                os.kill(victim.pid, signal.SIGCONT)
        return f"{title} {victim.pid} stopped, and ended by Serve after {took_s:.1f} s"

    return fault


def lose_machine(nodes: Nodes, draws: random.Random) -> str:
    """A node that speaks is gone with all that ran there; another one comes."""
    lost = nodes.voices.pop(draws.randrange(len(nodes.voices)))
    nodes.cluster.remove_node(lost, allow_graceful=False)
    nodes.voices.append(nodes.add_voice())
    return f"node {lost.node_id[:8]} lost"


def lose_gcs(nodes: Nodes, draws: random.Random) -> str:
    """Ray's memory of the cluster is away for some seconds."""
    if not nodes.has_redis:
        return "no Redis on this machine: the GCS was left alone"
    head = nodes.cluster.head_node
    (victim,) = [found for found in nodes.processes("gcs_server") if found.name == "gcs_server"]
    head.kill_gcs_server()
    wait_until(lambda: _has_ended(victim), GONE_S, "the GCS ends")
    head.start_gcs_server()
    return f"GCS {victim.pid} killed and started again"


FAULTS: dict[str, Fault] = {
    "acoustic replica killed": kill("ray::ServeReplica:chattts:AcousticModel"),
    "vocoder replica killed": kill("ray::ServeReplica:chattts:Vocoder"),
    "text replica killed": kill("ray::ServeReplica:chattts:TextNormalizer"),
    "text worker killed": kill("pipeline.text.isolation.worker"),
    "ingress replica killed": kill("ray::ServeReplica:chattts:Ingress"),
    "controller killed": kill("ray::ServeController"),
    "proxy killed": kill("ray::ProxyActor"),
    "acoustic replica hangs": hang("ray::ServeReplica:chattts:AcousticModel"),
    "vocoder replica hangs": hang("ray::ServeReplica:chattts:Vocoder"),
    "machine lost": lose_machine,
    "GCS lost": lose_gcs,
}


def _one(found: list[Process], draws: random.Random) -> Process | None:
    return draws.choice(sorted(found, key=lambda each: each.pid)) if found else None


def _has_ended(victim: Process) -> bool:
    return process(victim.pid) is None
