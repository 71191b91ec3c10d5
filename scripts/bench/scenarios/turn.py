"""A turn of a conversation: text arrives as a language model writes it, and the listener interrupts.

How long after the last character of the first sentence comes its audio, over a socket and over HTTP, and does playback stop?
How many steps were in vain if the listener interrupts in the middle of that sentence?

In:    a Bench
Out:   the Report of B14
Never: audio from the cache
"""

import base64
import json
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import requests
from rich.table import Table
from websockets.sync.client import ClientConnection, connect

from pipeline.spec import STEPS_PER_SECOND
from scripts.bench.bench import Bench, Report
from scripts.bench.client import BYTES_PER_SAMPLE, SPEECH, wait_until_idle
from scripts.bench.systems import Served
from scripts.bench.timeline import Timeline, shown, spread
from scripts.bench.workload import Utterance

FIRST = "I would like to tell you something about the weather. "
SECOND = "It has been raining for three days and nobody knows when it stops."
EXAMPLES = (
    "The boat was red, and the sea was calm that morning.",
    "今天天气很好，我们去公园走走吧。",
    "On 12 May 2026 it cost $5.20, and room 12 had a good view.",
)
"""what the page offers to begin with"""
TOKENS_PER_S = (20, 50, 100)
CHARACTERS_PER_TOKEN = 4
PLAYED_SHARE = 0.5
"""part of the first sentence after which the listener interrupts"""
LEADS_S = (0.0, 5.0)
"""lead_s of the interrupted contexts: the least, and the default of the service [s]"""


@dataclass(slots=True)
class Turn:
    """Times of one turn [s of one clock]."""

    sentence_at: float = 0.0
    """the first sentence was written to its last character"""
    written_at: float = 0.0
    """all text was written"""
    reply: Timeline = field(default_factory=lambda: Timeline(0))


@dataclass(frozen=True, slots=True)
class Cut:
    """One interruption."""

    answered_s: float
    generated_steps: int
    """steps that the engine generated for the context"""
    played_steps: int


def run(bench: Bench) -> Report:
    """B14, a turn of a conversation: measures the first audio in pairs, turns at several rates of tokens, and interruptions."""
    served = bench.service(bench.options.demo_settings)
    url, pairs = served.endpoint.url, 5 if bench.options.quick else 30
    over_http, over_socket, of_page = [], [], []
    with opened(url) as socket:
        for number in range(pairs):
            bench.progress(f"first audio, pair {number + 1}")
            over_http.append(1e3 * bench.alone(served, Utterance(FIRST, 0, number)).ttfb_s)
            over_socket.append(1e3 * socket_first_audio(socket, number)[0])
            of_page.append(1e3 * page_first_audio(url, number))
    turns: dict[int, list[Turn]] = {}
    for number, rate in product(range(bench.options.repeats), TOKENS_PER_S):
        bench.progress(f"{rate} tokens per second, turn {number + 1}")
        turns.setdefault(rate, []).append(take_turn(url, rate, number))
    cuts: dict[float, list[Cut]] = {}
    for number, lead_s in product(range(bench.options.repeats), LEADS_S):
        bench.progress(f"lead_s {lead_s:g}, interruption {number + 1}")
        cuts.setdefault(lead_s, []).append(interrupt(served, number, lead_s))
    result = {
        "first_audio_http_ms": spread(over_http),
        "first_audio_socket_ms": spread(over_socket),
        "first_audio_page_ms": spread(of_page),
        "turns": {str(rate): figures(rows) for rate, rows in turns.items()},
        "interruptions": {f"{lead_s:g}": cut_figures(rows) for lead_s, rows in cuts.items()},
    }
    added = statistics.median(over_socket) - statistics.median(over_http)
    judged = {
        "added_by_socket_ms": spread([added]),
        "page_first_audio_ms": spread([statistics.median(of_page)]),
        "stalled_in_a_turn_ms": spread([max(1e3 * sum(turn.reply.stalls_s()) for rows in turns.values() for turn in rows)]),
    }
    return Report(result, [table_of(result)], judged)


def figures(turns: list[Turn]) -> dict[str, Any]:
    """Returns the figures of the turns at one rate."""
    return {
        "first_audio_ms": spread([1e3 * (turn.reply.arrivals[0][0] - turn.sentence_at) for turn in turns]),
        "before_all_is_written_ms": spread([1e3 * (turn.written_at - turn.reply.arrivals[0][0]) for turn in turns]),
        "stalled_ms": spread([1e3 * sum(turn.reply.stalls_s()) for turn in turns]),
    }


def cut_figures(cuts: list[Cut]) -> dict[str, Any]:
    """Returns the figures of the interruptions with one lead."""
    return {
        "answered_ms": spread([1e3 * cut.answered_s for cut in cuts]),
        "steps_heard": spread([cut.played_steps for cut in cuts]),
        "steps_in_vain": spread([cut.generated_steps - cut.played_steps for cut in cuts]),
    }


def table_of(result: dict[str, Any]) -> Table:
    """Returns the table for people."""
    table = Table("ms", "", title="B14  a turn of a conversation")
    table.add_row("first audio of a sentence, HTTP", shown(result["first_audio_http_ms"]))
    table.add_row("first audio of a sentence, socket", shown(result["first_audio_socket_ms"]))
    table.add_row("first audio of an example of the page", shown(result["first_audio_page_ms"]))
    for rate, row in result["turns"].items():
        table.add_row(f"{rate} tokens per s: first audio after the sentence", shown(row["first_audio_ms"]))
        table.add_row(f"{rate} tokens per s: playback stalled", shown(row["stalled_ms"]))
    for lead_s, row in result["interruptions"].items():
        table.add_row(f"lead_s {lead_s}: an interruption is answered", shown(row["answered_ms"]))
        table.add_row(f"lead_s {lead_s}: steps in vain", shown(row["steps_in_vain"]))
    return table


def speech(seed: int) -> dict[str, Any]:
    """Returns the fields of every request here."""
    return {"response_format": "pcm", "cache": "no-store", "seed": seed}


def socket_first_audio(socket: ClientConnection, seed: int) -> tuple[float, float]:
    """Returns the seconds to the first audio of the same text over a socket, and how long its audio is."""
    send(socket, "open", speech=speech(seed))
    began = time.perf_counter()
    send(socket, "text", text=FIRST)
    send(socket, "close")
    first_s, audio_s = 0.0, 0.0
    for message in messages(socket, "closed"):
        if message["type"] == "audio":
            first_s = first_s or time.perf_counter() - began
        audio_s = message.get("duration_ms", 0) / 1e3
    return first_s, audio_s


def page_first_audio(url: str, number: int) -> float:
    """Returns the seconds to the first audio of an example, asked for as the page does: events, with the times of words."""
    body = speech(number) | {"input": EXAMPLES[number % len(EXAMPLES)], "stream_format": "sse", "timestamps": "live"}
    began = time.perf_counter()
    with requests.post(f"{url}{SPEECH}", json=body, stream=True, timeout=60) as reply:
        next(line for line in reply.iter_lines(chunk_size=1) if b"speech.audio.delta" in line)
        return time.perf_counter() - began


def take_turn(url: str, tokens_per_s: int, seed: int) -> Turn:
    """Writes two sentences as a language model does, and listens."""
    turn = Turn()
    with opened(url) as socket:
        send(socket, "open", sentences=True, speech=speech(seed))
        writing = threading.Thread(target=write, args=(socket, turn, tokens_per_s))
        writing.start()
        for message in messages(socket, "closed"):
            if message["type"] == "audio":
                samples = len(base64.b64decode(message["audio"])) // BYTES_PER_SAMPLE
                turn.reply.arrivals.append((time.perf_counter(), samples))
        writing.join()
    return turn


def write(socket: ClientConnection, turn: Turn, tokens_per_s: int) -> None:
    """Writes the text token by token, and closes the context."""
    text = FIRST + SECOND
    for place in range(0, len(text), CHARACTERS_PER_TOKEN):
        send(socket, "text", text=text[place : place + CHARACTERS_PER_TOKEN])
        if not turn.sentence_at and place + CHARACTERS_PER_TOKEN >= len(FIRST.rstrip()):
            turn.sentence_at = time.perf_counter()
        time.sleep(1 / tokens_per_s)
    turn.written_at = time.perf_counter()
    send(socket, "close")


def interrupt(served: Served, seed: int, lead_s: float) -> Cut:
    """Interrupts in the middle of the first of two sentences."""
    with opened(served.endpoint.url) as socket:
        _, audio_s = socket_first_audio(socket, seed)
        wait_until_idle(served.endpoint.url)
        before = steps(served)
        send(socket, "open", speech=speech(seed), lead_s=lead_s)
        for sentence in (FIRST, SECOND):
            send(socket, "text", text=sentence)
            send(socket, "flush")
        for _ in messages(socket, "audio"):
            pass
        listen(socket, PLAYED_SHARE * audio_s)
        began = time.perf_counter()
        send(socket, "cancel", played_ms=1e3 * PLAYED_SHARE * audio_s)
        *_, message = messages(socket, "cancelled")
        answered_s = time.perf_counter() - began
        wait_until_idle(served.endpoint.url)
        return Cut(answered_s, steps(served) - before, round(message["heard"]["ms"] / 1e3 * STEPS_PER_SECOND))


def listen(socket: ClientConnection, seconds: float) -> None:
    """Receives for so long, as a player does that has room for everything."""
    until = time.perf_counter() + seconds
    while (remaining_s := until - time.perf_counter()) > 0:
        with suppress(TimeoutError):
            socket.recv(timeout=remaining_s)


def steps(served: Served) -> int:
    """Returns how many steps the engines have generated since they started."""
    return sum(engine["steps"] for engine in served.health()["acoustic"])


def opened(url: str) -> AbstractContextManager[ClientConnection]:
    """Opens a socket to the service."""
    return connect(url.replace("http", "ws", 1) + "/v1/audio/conversation")


def send(socket: ClientConnection, kind: str, **fields: Any) -> None:
    """Sends a message."""
    socket.send(json.dumps({"type": kind, **fields}))


def messages(socket: ClientConnection, last: str) -> Iterator[dict[str, Any]]:
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
