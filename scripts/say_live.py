"""Say live: speaks what is typed or piped in while it comes, over a conversation with a running service.

In:    text on stdin, or one text; the address of a service
Out:   a sound file, or raw samples on stdout, while they arrive
Owns:  one WebSocket
Never: the model: `chattts-serve say` without --live needs no service
"""

import argparse
import base64
import codecs
import json
import os
import sys
import threading
import wave
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.exceptions import ConnectionClosed, WebSocketException
from websockets.sync.client import ClientConnection, connect

PATH = "/v1/audio/conversation"
SAMPLE_RATE = 24_000
READ_BYTES = 4096
INTERRUPTED = 130


Sink = Callable[[bytes], object]
"""takes samples of 16 bits"""


class Failed(Exception):
    """The service refused or ended the conversation."""


def main(arguments: list[str] | None = None) -> int:
    """Speaks a text or stdin. Exit code: 0 spoken, 1 refused or cut, 2 wrong usage, 130 interrupted."""
    args = parsed(arguments)
    headers = {"Authorization": f"Bearer {args.key}"} if args.key else {}
    address = args.url.rstrip("/").replace("http", "ws", 1) if args.url.startswith("http") else args.url.rstrip("/")
    try:
        with connect(address + PATH, additional_headers=headers) as socket, opened(args.output) as sink:
            return converse(socket, sink, args)
    except (OSError, WebSocketException, Failed) as error:
        print(f"{args.url}: {error}", file=sys.stderr)
        return 1


def converse(socket: ClientConnection, sink: Sink, args: argparse.Namespace) -> int:
    """Speaks everything there is to say, and writes its audio.

    Raises:
        Failed
    """
    speech = {"response_format": "pcm", "sample_rate": SAMPLE_RATE, "voice": args.voice, "speed": args.speed}
    if args.seed is not None:
        speech["seed"] = args.seed
    say(socket, "open", sentences=True, speech=speech)
    writing = threading.Thread(target=write_text, args=(socket, args.text), daemon=True)
    writing.start()
    try:
        for message in heard(socket):
            if message["type"] == "audio":
                sink(base64.b64decode(message["audio"]))
            elif message["type"] == "closed":
                print(f"{message['duration_ms'] / 1000:.2f} s of audio", file=sys.stderr)
                return 0
    except KeyboardInterrupt:
        say(socket, "cancel")
        cut = next(message for message in heard(socket) if message["type"] == "cancelled")["heard"]
        print(f"interrupted after {cut['words']} words", file=sys.stderr)
        return INTERRUPTED
    raise Failed("the connection ended before the speech did")


def heard(socket: ClientConnection) -> Iterator[dict[str, Any]]:
    """Yields the messages of the service.

    Raises:
        Failed: one of them is an error.
    """
    for frame in socket:
        message: dict[str, Any] = json.loads(frame)
        if message["type"] in ("error", "refused"):
            raise Failed(message["error"]["message"])
        yield message


def write_text(socket: ClientConnection, text: str | None) -> None:
    """Sends one text, or stdin while it comes; a line that is typed is spoken at its end."""
    try:
        for piece in [text] if text is not None else pieces(sys.stdin.fileno()):
            say(socket, "text", text=piece)
            if text is None and sys.stdin.isatty():
                say(socket, "flush")
        say(socket, "close")
    except ConnectionClosed:
        pass  # the reader of its messages says why


def pieces(descriptor: int) -> Iterator[str]:
    """Yields what can be read, as soon as it can."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    while data := os.read(descriptor, READ_BYTES):
        yield decoder.decode(data)
    yield decoder.decode(b"", final=True)


def say(socket: ClientConnection, kind: str, **fields: Any) -> None:
    """Sends a message."""
    socket.send(json.dumps({"type": kind, **fields}))


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
        "-o", "--output", type=Path, default=Path("out.wav"), help="a .wav file, or - for raw samples (default: %(default)s)"
    )
    parser.add_argument("--voice", default="default", help="a name of GET /v1/audio/voices, or seed:<n>")
    parser.add_argument("--seed", type=int, help="0 to 4294967295 (default: a random one per sentence)")
    parser.add_argument("--speed", type=float, default=1.0, help="0.25 to 4 (default: %(default)g)")
    args = parser.parse_args(arguments)
    if str(args.output) != "-" and args.output.suffix != ".wav":
        parser.error(f"{args.output} does not end in .wav; - writes raw samples")
    return args
