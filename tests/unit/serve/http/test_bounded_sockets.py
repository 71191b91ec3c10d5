"""No socket keeps the server from answering others, or has it hold more than a few messages: the server is another process."""

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.raw_socket import RawSocket, bomb, frame
from tests.support.stalls import CPU_MS, StallServer, stall_server

NATIVE = "/v1/audio/conversation"
TEXTS = "/v1/text-to-speech/alloy/multi-stream-input?output_format=pcm_24000"
DIALOGUE = "/v1/text-to-dialogue/multi-stream-input?output_format=pcm_24000"
DEEPGRAM = "/v1/speak?encoding=linear16"
MOST_BYTES = 4 << 20
MOST_PARSED_BYTES = 16 << 20
"""of a message of a MiB that has as many fields or strings as it can have, for a moment"""
LARGEST = (1 << 20) - 200


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StallServer]:
    with stall_server(tmp_path_factory.mktemp("jobs")) as running:
        with RawSocket(running.port, NATIVE).socket as first:  # what is imported and made once
            first.sendall(json_frame(type="open", speech={"response_format": "pcm"}) + json_frame(type="close"))
            first.recv(4096)
        yield running


def json_frame(**fields: Any) -> bytes:
    return frame(json.dumps(fields).encode())


def unknown(count: int, first: int = 0) -> dict[str, int]:
    return {f"f{number:06d}": 1 for number in range(first, first + count)}


def opened(*frames: bytes) -> list[bytes]:
    """In a context that waits for a long text."""
    return [json_frame(type="open", speech={"response_format": "pcm"}, sentences=True), *frames]


def text(words: str) -> bytes:
    return json_frame(type="text", text=words)


OPEN = {"response_format": "pcm"}
MESSAGES: dict[str, tuple[str, list[bytes]]] = {
    "compressed": (NATIVE, [bomb((16 << 20) - 64)] * 200),
    "15 MiB": (NATIVE, [frame(b"x" * (15 << 20))] * 4),
    "15 MiB in fragments": (NATIVE, [frame(b"x", fin=False), *[frame(b"x" * 65_000, op=0, fin=False)] * 240]),
    "empty fragments": (NATIVE, [frame(b"x", fin=False), frame(b"", op=0, fin=False) * 200_000]),
    "pings": (NATIVE, [frame(b"x" * 125, op=9) * 50_000]),
    "messages without sense": (NATIVE, [frame(b"{}") * 200_000]),
    "texts of one letter": (NATIVE, opened(text("a") * 100_000)),
    "flushes": (DEEPGRAM, [json_frame(type="Speak", text="Hello. "), json_frame(type="Flush") * 100_000]),
    "a MiB of unknown fields": (NATIVE, [json_frame(type="open", speech={**OPEN, **unknown(70_000)}), *[text("Hi. ")] * 20]),
    "a MiB of lists": (NATIVE, [frame(b"[" + b"[]," * 349_000 + b"1]")]),
    "a MiB of depth": (NATIVE, [frame(b"[" * LARGEST)]),
    "a MiB of strings": (NATIVE, [frame(b'{"speech": [' + b'"ab",' * 200_000 + b'1], "type": "open"}')]),
    "a MiB of sounds": (
        NATIVE,
        [json_frame(type="open", speech={**OPEN, "lexicon": {f"w{n:06d}": "a" for n in range(60_000)}})],
    ),
    "a MiB of a name": (NATIVE, [json_frame(type="open", speech={**OPEN, "f" * LARGEST: 1})]),
    "a MiB of fields again": (
        TEXTS,
        [json_frame(text="a", context_id="c", **unknown(40_000, n)) for n in (0, 40_000, 80_000)],
    ),
    "lines with unknown fields": (
        DIALOGUE,
        [
            json_frame(context_id="c", voices=["alloy"]),
            json_frame(context_id="c", inputs=[{"text": " ", "voice_id": "alloy", **unknown(800, 800 * n)} for n in range(40)]),
        ],
    ),
    "blanks": (NATIVE, opened(text("Hello" + " " * 8000 + "w"), *[text("o")] * 300)),
    "dots": (NATIVE, opened(text("a" * 800 + "1. B" * 3500))),
    "signs and a cancel": (
        NATIVE,
        [*opened(text("a" + "!" * 16_000)), json_frame(type="flush"), json_frame(type="cancel", played_ms=10)],
    ),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_a_hostile_socket_stalls_nobody_and_costs_little_memory(server: StallServer, name: str) -> None:
    path, frames = MESSAGES[name]

    def attack() -> None:
        raw = RawSocket(server.port, path, "Sec-WebSocket-Extensions: permessage-deflate", receive_bytes=4096)
        assert (raw.status, b"extensions" in raw.head.lower()) == (101, False)
        raw.socket.settimeout(0.5)
        raw.send(*frames)
        raw.close_code()  # or half a second without a byte
        raw.socket.close()

    attack()
    before = held_bytes(server, peak=False)
    stall = server.least_stall_of(attack)
    assert stall.cpu_ms <= CPU_MS
    assert held_bytes(server, peak=True) - before <= (MOST_PARSED_BYTES if name.startswith("a MiB of") else MOST_BYTES)


def held_bytes(server: StallServer, *, peak: bool) -> int:
    """The memory of the server; its peak since the last question that was not about the peak."""
    folder = Path(f"/proc/{server.pid}")
    if not peak:
        (folder / "clear_refs").write_text("5")
    status = (folder / "status").read_text()
    return int(status.partition("VmHWM:" if peak else "VmRSS:")[2].split()[0]) << 10


CODES: dict[str, tuple[Callable[[], list[bytes]], int]] = {
    "compressed": (lambda: [bomb(1000)], 1002),
    "too large": (lambda: [frame(b"x" * ((1 << 20) + 1))], 1009),
    "too many pings": (lambda: [frame(b"", op=9) * 3000], 1008),
    "too many messages": (lambda: [frame(b"{}") * 60_000], 1008),
    "a close": (lambda: [frame((1000).to_bytes(2), op=8)], 1000),
}


@pytest.mark.parametrize("name", CODES)
def test_a_socket_that_breaks_a_rule_is_closed_with_its_code(server: StallServer, name: str) -> None:
    frames, code = CODES[name]
    raw = RawSocket(server.port, NATIVE)
    with raw.socket:
        raw.send(*frames())
        said_last = b""
        for kind, payload in raw.frames():
            if kind == 8:
                assert int.from_bytes(payload[:2]) == code
                break
            said_last = payload
        else:
            pytest.fail("it ended without a close frame")
    if name == "too many messages":
        assert json.loads(said_last)["error"]["code"] == "rate_limited"


def test_a_path_without_a_socket_is_a_404_in_the_envelope(server: StallServer) -> None:
    raw = RawSocket(server.port, "/v1/audio/nothing")
    with raw.socket:
        assert raw.status == 404
        assert b"content-type: application/json" in raw.head.lower()


@pytest.mark.parametrize(
    ("method", "path", "lines", "status"),
    [
        ("POST", NATIVE, ["X: 1"], 405),
        ("GET", NATIVE, [f"X: {'x' * 9000}"], 431),
        ("GET", NATIVE, [f"X{number}: 1" for number in range(200)], 431),
        ("GET", f"{NATIVE}?{'x' * 9000}", ["X: 1"], 414),
    ],
    ids=["another method", "a long header", "many headers", "a long address"],
)
def test_what_is_no_handshake_is_answered(server: StallServer, method: str, path: str, lines: list[str], status: int) -> None:
    upgrade = ["Host: localhost", "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", *lines]
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as client:
        client.sendall("".join(f"{line}\r\n" for line in (f"{method} {path} HTTP/1.1", *upgrade, "")).encode())
        reply = b"".join(iter(lambda: client.recv(4096), b""))
    assert reply.startswith(f"HTTP/1.1 {status} ".encode())
