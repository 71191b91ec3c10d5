"""B17, deaths: what a listener notices when the acoustic replica that speaks is killed, and another one is up.

In:    a Bench
Out:   a Report
Owns:  the death of one replica per turn
Never: a figure of a reply whose bytes differ from those of the undisturbed one
"""

import os
import signal
import time
from dataclasses import dataclass, replace
from pathlib import Path

import requests
from rich.table import Table

from pipeline.spec import SAMPLE_RATE
from scripts.bench.bench import Bench, Report, ScenarioFailed
from scripts.bench.processes import cpu_s
from scripts.bench.scenarios.serve_overhead import wait_until_idle
from scripts.bench.show import shown
from scripts.bench.systems import Served
from scripts.bench.timeline import spread
from serve.observability.reply_stats import PlayCursor

ACOUSTIC = "AcousticModel"
HEARD_S = (0.0, 4.0)
"""audio that has arrived when the replica dies"""
SPEECH_S, QUICK_SPEECH_S = 20.0, 12.0
BACK_S = 300.0
PIECE_BYTES = 4096
BYTES_PER_S = 2 * SAMPLE_RATE


@dataclass(frozen=True, slots=True)
class Heard:
    """One reply, as somebody hears it who plays it from its first audio on."""

    audio: bytes
    silent_s: float
    """the longest time between two pieces, after the death"""
    stalled_s: float
    """for which playback had to wait"""


def run(bench: Bench) -> Report:
    """Kills the replica that speaks, at the first audio and later."""
    settings = replace(bench.options.settings, replicas={ACOUSTIC: 2})
    served = bench.service(settings)
    table = Table("audio received", "no new audio for (s)", "playback waits (s)", title="B17  the one that speaks is killed")
    result = {}
    for heard_s in HEARD_S:
        silent, stalled = [], []
        for turn in range(bench.options.repeats):
            bench.progress(f"killed after {heard_s:g} s of audio, turn {turn + 1}")
            heard = measure(bench, served, heard_s, turn)
            silent.append(heard.silent_s)
            stalled.append(heard.stalled_s)
        result[f"after_{heard_s:g}_s"] = {"silent_s": spread(silent), "stalled_s": spread(stalled)}
        table.add_row(f"{heard_s:g} s", shown(spread(silent)), shown(spread(stalled)))
    return Report({"replicas": 2, **result}, [table])


def measure(bench: Bench, served: Served, heard_s: float, turn: int) -> Heard:
    """Returns what is heard of a reply whose replica is killed once so much of it has arrived.

    Raises:
        ScenarioFailed: it was cut, or is not the undisturbed one.
    """
    wait_until_both(served)
    wait_until_idle(served)
    spoken = bench.utterance(QUICK_SPEECH_S if bench.options.quick else SPEECH_S, "killed", heard_s, turn)
    body = {"input": spoken.text, "response_format": "pcm", **served.endpoint.extra(spoken, True)}
    twin = listen(served, body).audio
    heard = listen(served, body, kill_after=round(heard_s * BYTES_PER_S))
    if heard.audio != twin:
        raise ScenarioFailed(f"{len(heard.audio)} bytes of {len(twin)} were heard, or others")
    return heard


def listen(served: Served, body: dict[str, object], *, kill_after: int | None = None) -> Heard:
    """Hears a reply to its end, or to where it is cut.

    Args:
        kill_after: bytes after which the replica that speaks is killed; None: none is.
    """
    audio, cursor, silent_s = bytearray(), PlayCursor(), 0.0
    before = {pid: cpu_s(pid) for pid in replicas(served)}
    arrived = died = 0.0
    url, headers = f"{served.endpoint.url}/v1/audio/speech", {"Cache-Control": "no-store"}
    with requests.post(url, json=body, headers=headers, stream=True, timeout=600) as reply:
        reply.raise_for_status()
        try:
            for piece in reply.iter_content(PIECE_BYTES):
                now = time.perf_counter()
                silent_s = max(silent_s, now - max(arrived, died)) if died else 0.0
                cursor.arrived(arrived := now, len(piece) / BYTES_PER_S)
                audio += piece
                if kill_after is not None and not died and len(audio) > kill_after:
                    os.kill(max(before, key=lambda pid: cpu_s(pid) - before[pid]), signal.SIGKILL)
                    died = time.perf_counter()
        except requests.RequestException as error:
            raise ScenarioFailed(f"the reply was cut: {error}") from None
    return Heard(bytes(audio), silent_s, cursor.stalled_s)


def replicas(served: Served) -> list[int]:
    """Returns the processes of the acoustic replicas."""
    return [pid for pid in served.pids() if ACOUSTIC.encode() in command_of(pid)]


def command_of(pid: int) -> bytes:
    """Returns the command line of a process; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def wait_until_both(served: Served) -> None:
    """Waits until two acoustic replicas answer.

    Raises:
        TimeoutError
    """
    began = time.perf_counter()
    while len(served.health()["acoustic"]) < 2:
        time.sleep(0.1)
        if time.perf_counter() - began > BACK_S:
            raise TimeoutError(f"no second replica for {BACK_S:g} s")
