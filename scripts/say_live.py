"""Say live: speaks what is typed or piped in while it comes, over a conversation with a running service.

In:    text on stdin, or one text; the address of a service
Out:   a sound file, or raw samples on stdout, while they arrive
Owns:  one WebSocket at a time: where one is lost, the next goes on at the exact sample
Never: the model: `chattts-serve say` without --live needs no service
"""

import argparse
import codecs
import json
import os
import sys
import threading
import time
import wave
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from websockets.exceptions import WebSocketException
from websockets.sync.client import ClientConnection, connect

from scripts.output_path import output_path
from scripts.say_resume import Said

STDOUT = "-"
PATH = "/v1/audio/conversation"
SAMPLE_RATE = 24_000
SAMPLE_BYTES = 2
RETRY_S = 0.5
AWAY_S = 180.0
"""how long a service may be away that was connected: a whole start on a busy machine"""
PASSING = ("draining", "engine_dead", "circuit_open", "waking", "overloaded", "deadline_unmeetable", "store_unavailable")
"""codes of errors that another try may not have"""
READ_BYTES = 4096
INTERRUPTED = 130


Sink = Callable[[bytes], object]
"""takes samples of 16 bits"""


class Failed(Exception):
    """The service refused or ended the conversation."""


class Away(Failed):
    """The service ended the conversation, and another connection may go on with it."""


def main(arguments: list[str] | None = None) -> int:
    """Speaks a text or stdin. Exit code: 0 spoken, 1 refused or cut, 2 wrong usage, 130 interrupted."""
    args = parsed(arguments)
    headers = {"Authorization": f"Bearer {args.key}"} if args.key else {}
    address = args.url.rstrip("/").replace("http", "ws", 1) if args.url.startswith("http") else args.url.rstrip("/")
    speech = {"response_format": "pcm", "sample_rate": SAMPLE_RATE, "voice": args.voice, "speed": args.speed}
    if args.seed is not None:
        speech["seed"] = args.seed
    said = Said({"sentences": True, "speech": speech})
    try:
        with connect(address + PATH, additional_headers=headers) as socket, opened(args.output) as sink:
            return converse(said, socket, lambda: connect(address + PATH, additional_headers=headers), sink, args.text)
    except (OSError, WebSocketException, Failed) as error:
        print(f"{args.url}: {error}", file=sys.stderr)
        return 1


def converse(
    said: Said, socket: ClientConnection, reconnect: Callable[[], ClientConnection], sink: Sink, text: str | None
) -> int:
    """Speaks everything there is to say, and writes its audio; where the connection is lost, in another one.

    Raises:
        Failed, OSError, WebSocketException
    """
    written = 0
    said.go_on(socket)
    threading.Thread(target=write_text, args=(said, text), daemon=True).start()
    try:
        for message in heard(said, socket, reconnect):
            if message["type"] == "closed":
                print(f"{written / SAMPLE_BYTES / SAMPLE_RATE:.2f} s of audio", file=sys.stderr)
                return 0
            audio = said.heard(message)
            sink(audio)
            written += len(audio)
    except KeyboardInterrupt:
        said.cancel()
        cut = next(message for message in messages(said.socket) if message["type"] == "cancelled")["heard"]
        print(f"interrupted after {cut['words']} words", file=sys.stderr)
        return INTERRUPTED
    raise Failed("the connection ended before the speech did")


def heard(said: Said, socket: ClientConnection, reconnect: Callable[[], ClientConnection]) -> Iterator[dict[str, Any]]:
    """Yields the messages of the service, from as many connections as it takes.

    Raises:
        Failed: one of them is an error.
        OSError, WebSocketException: the service has been away for AWAY_S.
    """
    lost_at: float | None = None
    while True:
        try:
            for message in messages(socket):
                if lost_at is not None and message["type"] != "opened":
                    print(f"the connection was lost; going on after {time.monotonic() - lost_at:.1f} s", file=sys.stderr)
                    lost_at = None
                yield message
                if message["type"] == "closed":
                    return
            raise Away("the connection ended before the speech did")
        except (OSError, WebSocketException, Away):
            lost_at = lost_at or time.monotonic()
            if not said.can_go_on or time.monotonic() - lost_at > AWAY_S:
                raise
        socket.close()
        with suppress(OSError, WebSocketException):
            time.sleep(RETRY_S)
            socket = reconnect()
            said.go_on(socket)


def messages(socket: ClientConnection) -> Iterator[dict[str, Any]]:
    """Yields the messages of one connection.

    Raises:
        Away: the service is about to stop, or cannot speak now.
        Failed: one of them is another error.
    """
    for frame in socket:
        message: dict[str, Any] = json.loads(frame)
        if message["type"] in ("error", "refused"):
            error = message["error"]
            raise (Away if error["code"] in PASSING else Failed)(error["message"])
        yield message


def write_text(said: Said, text: str | None) -> None:
    """Sends one text, or stdin while it comes; a line that is typed is spoken at its end."""
    for piece in [text] if text is not None else pieces(sys.stdin.fileno()):
        said.add(piece)
        if text is None and sys.stdin.isatty():
            said.flush()
    said.close()


def pieces(descriptor: int) -> Iterator[str]:
    """Yields what can be read, as soon as it can."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    while data := os.read(descriptor, READ_BYTES):
        yield decoder.decode(data)
    yield decoder.decode(b"", final=True)


@contextmanager
def opened(path: Path) -> Iterator[Sink]:
    """Opens the output: a wav file, or `-` for raw samples on stdout."""
    if str(path) == "-":
        yield pass_on
        return
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(SAMPLE_RATE)
        yield file.writeframes


def pass_on(samples: bytes) -> None:
    """Writes samples to stdout at once."""
    sys.stdout.buffer.write(samples)
    sys.stdout.buffer.flush()


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(
        prog="chattts-serve say --live",
        description="Speak what is typed or piped in while it comes, with a running service. "
        "To listen at once: chattts-serve say --live -o - | aplay -f S16_LE -r 24000",
    )
    parser.add_argument("text", nargs="?", help="the text (default: stdin, to its end)")
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="address of the service (default: %(default)s)")
    parser.add_argument("--key", help="API key, where the service needs one")
    parser.add_argument(
        "-o", "--output", type=_place, default="out.wav", help="a .wav file, or - for raw samples (default: %(default)s)"
    )
    parser.add_argument("--voice", default="default", help="a name of GET /v1/audio/voices, or seed:<n>")
    parser.add_argument("--seed", type=int, help="0 to 4294967295 (default: a random one per sentence)")
    parser.add_argument("--speed", type=float, default=1.0, help="0.25 to 4 (default: %(default)g)")
    args = parser.parse_args(arguments)
    if str(args.output) != STDOUT and args.output.suffix != ".wav":
        parser.error(f"{args.output} does not end in .wav; - writes raw samples")
    return args


def _place(name: str) -> Path:
    return Path(name) if name == STDOUT else output_path(name)
