"""Run: traffic of every kind while faults happen, and the judgement afterwards.

In:    nodes, a seed, a duration
Out:   a report: how every request ended, what was hit, what leaked, latency before and after
Owns:  the clients
Never: a mean in place of a count: one wrong byte is a failure
"""

import asyncio
import json
import random
import statistics
import sys
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from scripts.bench.client import SPEECH, Refused
from scripts.chaos import census
from scripts.chaos.deploying import wait_until
from scripts.chaos.faults import FAULTS, schedule
from scripts.chaos.nodes import Nodes
from scripts.chaos.traffic import BURST, KINDS, REQUEST_S, VARIANTS, Client, CutShort, End, speech

LEAST_PAUSE_S, MOST_PAUSE_S = 12.0, 30.0  # between two faults; some come before the one before is healed
CLIENTS = 7
BURST_EVERY_S = 60.0
SETTLE_S = 240.0
PROBES = 15
LATENCY_TRIES = 5  # other work on this machine passes
SLOWER, SLACK_S = 1.5, 0.05  # latency afterwards: at most so many times, and so much, above that of before
TROUBLE = (aiohttp.ClientError, OSError, asyncio.IncompleteReadError, UnicodeDecodeError)
EXAMPLES = 20  # of failures, in the report
Twins = dict[str, list[bytes]]
"""kind -> the bytes that each of its variants has alone"""


@dataclass
class Ledger:
    """How requests ended, by kind."""

    ends: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    notes: list[str] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)

    def write(self, kind: str, end: End, note: str = "") -> None:
        self.ends[kind][end] += 1
        if end in (End.WRONG, End.UNEXPECTED) and len(self.notes) < EXAMPLES:
            self.notes.append(f"{kind}: {end}: {note}")

    def count(self, end: End) -> int:
        return sum(ends[end] for ends in self.ends.values())


async def chaos(nodes: Nodes, seed: int, seconds: float, recording: bytes, transcript: str) -> dict[str, Any]:
    """Returns the report. Everything that is drawn follows from the seed.

    Args:
        recording: a wav file of somebody who says the transcript, of whom voices are made.
    """
    plan = schedule(nodes.front, seed, seconds, LEAST_PAUSE_S, MOST_PAUSE_S)
    timeout = aiohttp.ClientTimeout(total=REQUEST_S)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0, force_close=True)) as session:
        client, ledger = Client(session, nodes.url, recording, transcript), Ledger()
        twins = {kind: [await KINDS[kind](client, variant) for variant in range(VARIANTS)] for kind in KINDS}
        before_s = await latency(client)
        census_before = await asyncio.to_thread(census.take, nodes)
        _log(f"{sum(map(len, twins.values()))} twins alone, first audio {1e3 * before_s:.0f} ms, {len(plan)} faults to come")
        over, began = asyncio.Event(), time.monotonic()
        clients = [asyncio.create_task(_talk(client, twins, ledger, seed, number, over)) for number in range(CLIENTS)]
        clients.append(asyncio.create_task(_burst(client, twins, ledger, over)))
        hits = []
        draws = random.Random(seed + 1)
        for at, name in plan:
            await asyncio.sleep(max(0.0, began + at - time.monotonic()))
            hit = await asyncio.to_thread(_inject, name, nodes, draws, ledger)
            hits.append({"planned_s": at, "at_s": round(time.monotonic() - began, 1), "fault": name, "hit": hit})
            _log(f"{hits[-1]['at_s']:>6} s  {hit}")
        await asyncio.sleep(max(0.0, began + seconds - time.monotonic()))
        over.set()
        await asyncio.gather(*clients)
        _log("over; waiting until everything is well again")
        settled_s = await asyncio.to_thread(_settled, nodes, ledger)
        census_after = await asyncio.to_thread(census.take, nodes)
        after_s = await _latency_again(client, before_s)
        late = Ledger()
        again = [(kind, await _request(client, kind, variant, twins, late)) for kind in KINDS for variant in range(VARIANTS)]
    failures = [*ledger.notes, *late.notes, *census.leaks(census_before, census_after)]
    failures += [f"{kind} was {end} when all was well again" for kind, end in again if end in (End.CUT, End.REFUSED)]
    if after_s > SLOWER * before_s + SLACK_S:
        failures.append(f"first audio {1e3 * after_s:.0f} ms, {1e3 * before_s:.0f} ms before")
    return {
        "front": nodes.front,
        "seed": seed,
        "seconds": seconds,
        "ends": {end: ledger.count(end) for end in End},
        "by_kind": {kind: dict(ends) for kind, ends in sorted(ledger.ends.items())},
        "refusals_by_status": {str(status): count for status, count in sorted(ledger.statuses.items())},
        "faults": hits,
        "settled_s": round(settled_s, 1),
        "first_audio_before_ms": round(1e3 * before_s, 1),
        "first_audio_after_ms": round(1e3 * after_s, 1),
        "before": census_before.as_dict(),
        "after": census_after.as_dict(),
        "failures": failures,
    }


async def latency(client: Client) -> float:
    """Returns the median time to the first byte of audio of a client alone [s]; a refusal counts as REQUEST_S."""
    took = []
    for _ in range(PROBES):
        began = time.monotonic()
        async with client.session.post(client.url + SPEECH, json=speech(0)) as reply:
            await reply.content.readany()
            took.append(time.monotonic() - began if reply.ok else REQUEST_S)
            await reply.read()
    return statistics.median(took)


async def _latency_again(client: Client, before_s: float) -> float:
    """Returns the latency once it is back to what it was, or after a while what it is [s]."""
    for _ in range(LATENCY_TRIES):
        after_s = await latency(client)
        if after_s <= SLOWER * before_s + SLACK_S:
            break
    return after_s


def _settled(nodes: Nodes, ledger: Ledger) -> float:
    """Returns how long it took until every replica answered and nothing was under way [s]."""
    try:
        return wait_until(lambda: census.is_at_strength(nodes), SETTLE_S, "everything is well again")
    except TimeoutError as error:
        ledger.notes.append(str(error))
        return SETTLE_S


async def _talk(client: Client, twins: Twins, ledger: Ledger, seed: int, number: int, over: asyncio.Event) -> None:
    """One client: one request after the other, of kinds and variants that follow from the seed."""
    draws = random.Random(seed * 1000 + number)
    while not over.is_set():
        kind, variant = draws.choice(sorted(KINDS)), draws.randrange(VARIANTS)
        end = await _request(client, kind, variant, twins, ledger)
        if end in (End.REFUSED, End.CUT):
            await asyncio.sleep(0.5)


async def _burst(client: Client, twins: Twins, ledger: Ledger, over: asyncio.Event) -> None:
    while not over.is_set():
        await asyncio.gather(*(_request(client, "stream", number % VARIANTS, twins, ledger) for number in range(BURST)))
        for _ in range(int(BURST_EVERY_S)):
            if not over.is_set():
                await asyncio.sleep(1.0)


async def _request(client: Client, kind: str, variant: int, twins: Twins, ledger: Ledger) -> End:
    note = ""
    try:
        received, twin = await KINDS[kind](client, variant), twins[kind][variant]
        end = (End.LEFT if kind == "leaves" else End.WHOLE) if received == twin else End.WRONG
        note = f"variant {variant}, {_difference(received, twin)}"
    except Refused as refusal:
        ledger.statuses[refusal.status] += 1
        may_be = refusal.status >= 500 or refusal.status == 429 or "request_quarantined" in str(refusal)
        end, note = End.REFUSED if may_be else End.UNEXPECTED, str(refusal)
    except CutShort:
        end = End.CUT
    except TimeoutError:
        end, note = End.UNEXPECTED, f"no end within {REQUEST_S:g} s"
    except TROUBLE:
        end = End.CUT
    except Exception as error:
        end, note = End.UNEXPECTED, repr(error)
    ledger.write(kind, end, note)
    return end


def _difference(received: bytes, twin: bytes) -> str:
    if received == twin:
        return "as alone"
    same = next(
        (at for at, (byte, other) in enumerate(zip(received, twin, strict=False)) if byte != other), "the shorter's end"
    )
    return f"{len(received)} bytes and {len(twin)} alone, others from {same} on"


def _inject(name: str, nodes: Nodes, draws: random.Random, ledger: Ledger) -> str:
    """Injects a fault; if that fails, the run has failed and goes on."""
    try:
        return FAULTS[nodes.front][name](nodes, draws)
    except Exception as error:
        ledger.notes.append(f"{name} could not be injected: {error}")
        return ledger.notes[-1]


def _log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def summary(report: dict[str, Any]) -> str:
    """Returns the figures that a person reads first."""
    return json.dumps({name: report[name] for name in ("seed", "ends", "settled_s", "failures")}, indent=1)
