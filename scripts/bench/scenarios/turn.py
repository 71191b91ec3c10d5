"""B14, a turn of a conversation: text arrives as a language model writes it, and the listener interrupts.

How long after the last character of the first sentence comes its audio, over a socket and over HTTP, and does playback stop?

In:    a Bench
Out:   a Report
Owns:  nothing
Never: audio from the cache
"""

import base64
import json
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import requests
from rich.table import Table
from websockets.sync.client import ClientConnection, connect

from scripts.bench.bench import Bench, Report
from scripts.bench.scenarios.serve_overhead import wait_until_idle
from scripts.bench.show import shown
from scripts.bench.timeline import spread
from serve.observability.reply_stats import PlayCursor

FIRST = "I would like to tell you something about the weather. "
SECOND = "It has been raining for three days and nobody knows when it stops."
TOKENS_PER_S = (20, 50, 100)
CHARACTERS_PER_TOKEN = 4
BYTES_PER_S = 2 * 24_000
HEARD_SHARE = 0.5
"""part of the first sentence after which the listener interrupts"""


@dataclass(slots=True)
class Turn:
    """Times of one turn [s of one clock]."""

    sentence_at: float = 0.0
    """the first sentence was written to its last character"""
    written_at: float = 0.0
    """all text was written"""
    first_audio_at: float = 0.0
    stalled_s: float = 0.0


def run(bench: Bench) -> Report:
    """Measures the first audio in pairs, turns at several rates of tokens, and interruptions."""
    served = bench.service(bench.options.demo_settings)
    url, pairs = served.endpoint.url, 5 if bench.options.quick else 30
    over_http, over_socket = [], []
    with opened(url) as socket:
        for number in range(pairs):
            bench.progress(f"first audio, pair {number + 1}")
            over_http.append(1e3 * http_first_audio(url, number))
            over_socket.append(1e3 * socket_first_audio(socket, number))
    turns: dict[int, list[Turn]] = {}
    for rate in TOKENS_PER_S:
        for number in range(bench.options.repeats):
            bench.progress(f"{rate} tokens per second, turn {number + 1}")
            turns.setdefault(rate, []).append(take_turn(url, rate, number))
    cuts = []
    for number in range(bench.options.repeats):
        bench.progress(f"interruption {number + 1}")
        cuts.append(interrupt(url, number))
        wait_until_idle(served)
    result = {
        "first_audio_http_ms": spread(over_http),
        "first_audio_socket_ms": spread(over_socket),
        "turns": {str(rate): figures(taken) for rate, taken in turns.items()},
        "cancelled_ms": spread([cut["cancelled_ms"] for cut in cuts]),
        "unheard_steps": spread([cut["unheard_steps"] for cut in cuts]),
    }
    return Report(result, [table_of(result)])


def figures(turns: list[Turn]) -> dict[str, Any]:
    """Returns the figures of the turns at one rate."""
    return {
        "first_audio_ms": spread([1e3 * (turn.first_audio_at - turn.sentence_at) for turn in turns]),
        "before_all_is_written_ms": spread([1e3 * (turn.written_at - turn.first_audio_at) for turn in turns]),
        "stalled_ms": spread([1e3 * turn.stalled_s for turn in turns]),
    }


def table_of(result: dict[str, Any]) -> Table:
    """Returns the table for people."""
    table = Table("ms", "", title="B14  a turn of a conversation")
    table.add_row("first audio of a sentence, HTTP", shown(result["first_audio_http_ms"]))
    table.add_row("first audio of a sentence, socket", shown(result["first_audio_socket_ms"]))
    for rate, found in result["turns"].items():
        table.add_row(f"{rate} tokens per s: first audio after the sentence", shown(found["first_audio_ms"]))
        table.add_row(f"{rate} tokens per s: playback stalled", shown(found["stalled_ms"]))
    table.add_row("an interruption is answered", shown(result["cancelled_ms"]))
    table.add_row("steps in vain", shown(result["unheard_steps"]))
    return table


def speech(seed: int) -> dict[str, Any]:
    """Returns the fields of every request here."""
    return {"response_format": "pcm", "cache": "no-store", "seed": seed}


def http_first_audio(url: str, seed: int) -> float:
    """Returns the seconds to the first audio of an HTTP request."""
    began = time.perf_counter()
    with requests.post(f"{url}/v1/audio/speech", json=speech(seed) | {"input": FIRST}, stream=True, timeout=120) as reply:
        pieces = reply.iter_content(None)
        next(pieces)
        first_s = time.perf_counter() - began
        for _ in pieces:
            pass
    return first_s


def socket_first_audio(socket: ClientConnection, seed: int) -> float:
    """Returns the seconds to the first audio of the same text over a socket."""
    say(socket, "open", speech=speech(seed))
    began = time.perf_counter()
    say(socket, "text", text=FIRST)
    say(socket, "close")
    first_s = 0.0
    for message in heard(socket, "closed"):
        if message["type"] == "audio":
            first_s = first_s or time.perf_counter() - began
    return first_s


def take_turn(url: str, tokens_per_s: int, seed: int) -> Turn:
    """Writes two sentences as a language model does, and listens."""
    turn, cursor = Turn(), PlayCursor()
    with opened(url) as socket:
        say(socket, "open", sentences=True, speech=speech(seed))
        writing = threading.Thread(target=write, args=(socket, turn, tokens_per_s))
        writing.start()
        for message in heard(socket, "closed"):
            if message["type"] == "audio":
                now = time.perf_counter()
                turn.first_audio_at = turn.first_audio_at or now
                cursor.arrived(now, len(base64.b64decode(message["audio"])) / BYTES_PER_S)
        writing.join()
    turn.stalled_s = cursor.stalled_s
    return turn


def write(socket: ClientConnection, turn: Turn, tokens_per_s: int) -> None:
    """Writes the text token by token, and closes the context."""
    text = FIRST + SECOND
    for place in range(0, len(text), CHARACTERS_PER_TOKEN):
        say(socket, "text", text=text[place : place + CHARACTERS_PER_TOKEN])
        if not turn.sentence_at and place + CHARACTERS_PER_TOKEN >= len(FIRST.rstrip()):
            turn.sentence_at = time.perf_counter()
        time.sleep(1 / tokens_per_s)
    turn.written_at = time.perf_counter()
    say(socket, "close")


def interrupt(url: str, seed: int) -> dict[str, float]:
    """Interrupts in the middle of the first sentence; returns the time of the answer and the steps in vain."""
    with opened(url) as socket:
        say(socket, "open", speech=speech(seed))
        for sentence in (FIRST, SECOND):
            say(socket, "text", text=sentence)
            say(socket, "flush")
        *_, message = heard(socket, "audio")
        time.sleep(HEARD_SHARE * len(base64.b64decode(message["audio"])) / BYTES_PER_S)
        began = time.perf_counter()
        say(socket, "cancel")
        *_, message = heard(socket, "cancelled")
        return {"cancelled_ms": 1e3 * (time.perf_counter() - began), "unheard_steps": message["heard"]["unheard_steps"]}


def opened(url: str) -> AbstractContextManager[ClientConnection]:
    """Opens a socket to the service."""
    return connect(url.replace("http", "ws", 1) + "/v1/audio/conversation")


def say(socket: ClientConnection, kind: str, **fields: Any) -> None:
    """Sends a message."""
    socket.send(json.dumps({"type": kind, **fields}))


def heard(socket: ClientConnection, last: str) -> Iterator[dict[str, Any]]:
    """Yields the messages up to one of a type.

    Raises:
        RuntimeError: the service refuses.
    """
    kind = ""
    while kind != last:
        message: dict[str, Any] = json.loads(socket.recv(timeout=120))
        kind = message["type"]
        if kind in ("error", "refused"):
            raise RuntimeError(message["error"]["message"])
        yield message
