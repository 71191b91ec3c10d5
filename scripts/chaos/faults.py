"""Faults: what may happen to a service on three nodes. Each one is verified: what was to be dead is gone.

In:    nodes; a fault's name
Out:   the fault, made; a sentence on what was hit
Never: traffic, judgement
"""

import random
from collections.abc import Callable
from contextlib import suppress

import psutil

from scripts.chaos.deploying import wait_until
from scripts.chaos.nodes import HAPROXY, Front, Nodes

GONE_S = 10.0
HANG_S = 60.0
Fault = Callable[[Nodes, random.Random], str]


def schedule(front: Front, seed: int, seconds: float, least_s: float, most_s: float) -> list[tuple[float, str]]:
    """Returns (second, fault), drawn from the seed: every kind comes once before one comes again."""
    draws, at, deck, plan = random.Random(seed), 0.0, list[str](), list[tuple[float, str]]()
    while True:
        at += draws.uniform(least_s, most_s)
        if at > seconds:
            return plan
        if not deck:
            deck = sorted(FAULTS[front])
            draws.shuffle(deck)
        plan.append((round(at, 1), deck.pop()))


def of_process(title: str, act: Callable[[psutil.Process], str]) -> Fault:
    """Returns the fault that something is done to a process with these words in its title."""

    def fault(nodes: Nodes, draws: random.Random) -> str:
        candidates = sorted(nodes.processes(title), key=lambda process: process.pid)
        if not candidates:
            return f"no {title} to be found: it was away already"
        victim = draws.choice(candidates)
        return f"{title} {victim.pid} {act(victim)}"

    return fault


def kill(victim: psutil.Process) -> str:
    """Ends a process, as the kernel ends one without memory."""
    victim.kill()
    wait_until(lambda: _has_ended(victim), GONE_S, f"{victim.pid} ends")
    return "killed"


def hang(victim: psutil.Process) -> str:
    """Stops a process without ending it, until somebody else ends it, or for a minute."""
    victim.suspend()
    try:
        took_s = wait_until(lambda: _has_ended(victim), HANG_S, "it is ended")
    except TimeoutError:
        return f"stopped for {HANG_S:g} s"
    finally:
        with suppress(psutil.NoSuchProcess):
            victim.resume()
    return f"stopped, and ended by Serve after {took_s:.1f} s"


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
    (victim,) = [process for process in nodes.processes("gcs_server") if process.name() == "gcs_server"]
    head.kill_gcs_server()
    wait_until(lambda: _has_ended(victim), GONE_S, "the GCS ends")
    head.start_gcs_server()
    return f"GCS {victim.pid} killed and started again"


IN_EITHER: dict[str, Fault] = {
    "acoustic replica killed": of_process("ray::ServeReplica:chattts:AcousticModel", kill),
    "vocoder replica killed": of_process("ray::ServeReplica:chattts:Vocoder", kill),
    "text replica killed": of_process("ray::ServeReplica:chattts:TextNormalizer", kill),
    "text worker killed": of_process("pipeline.text.isolation.worker", kill),
    "ingress replica killed": of_process("ray::ServeReplica:chattts:Ingress", kill),
    "controller killed": of_process("ray::ServeController", kill),
    "acoustic replica hangs": of_process("ray::ServeReplica:chattts:AcousticModel", hang),
    "vocoder replica hangs": of_process("ray::ServeReplica:chattts:Vocoder", hang),
    "machine lost": lose_machine,
    "GCS lost": lose_gcs,
}
FAULTS: dict[Front, dict[str, Fault]] = {
    Front.PROXY: IN_EITHER | {"proxy killed": of_process("ray::ProxyActor", kill)},
    Front.HAPROXY: IN_EITHER
    | {
        "HAProxy killed": of_process(HAPROXY, kill),
        "HAProxy's manager killed": of_process("ray::HAProxyManager", kill),
        "fallback proxy killed": of_process("ray::ProxyActor", kill),
    },
}


def _has_ended(victim: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return victim.status() == psutil.STATUS_ZOMBIE
    return True
