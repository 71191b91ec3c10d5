"""Tongues: the three protocols over a WebSocket as their clients speak them, so that one test tries every protocol."""

import base64
import gc
import json
import os
from asyncio import Task
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from tests.support.live_server import CANARY

Frame = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Heard:
    """What one frame of the service says."""

    kind: str
    """audio, over (a context's last word), cancelled, refused, or other"""
    audio: bytes = b""
    context: str = ""
    code: str = ""


@dataclass(frozen=True, slots=True)
class Tongue:
    """One protocol."""

    name: str
    path: str
    begins: Callable[[str, int], Sequence[Frame]]
    says: Callable[[str, str], Frame]
    flushes: Callable[[str], Frame]
    ends: Callable[[str], Sequence[Frame]]
    cancels: Callable[[str], Frame] | None
    understands: Callable[[bytes | str], Heard]
    has_contexts: bool = True
    keeps_socket: bool = True
    """a refused message leaves the socket open"""

    def url(self, port: int, seed: int = 7) -> str:
        return f"ws://127.0.0.1:{port}{self.path.format(seed=seed)}"


def _own(frame: bytes | str) -> Heard:
    message = json.loads(frame)
    assert CANARY not in json.dumps(message)
    kinds = {"audio": "audio", "closed": "over", "cancelled": "cancelled", "refused": "refused", "error": "refused"}
    code = message.get("error", {}).get("code", "")
    audio = base64.b64decode(message.get("audio", ""))
    return Heard(kinds.get(message["type"], "other"), audio, message.get("context", ""), code)


def _elevenlabs(frame: bytes | str) -> Heard:
    message = json.loads(frame)
    assert CANARY not in json.dumps(message)
    is_over = message.get("isFinal") or message.get("is_final")
    kind = "refused" if "error" in message else "over" if is_over else "audio"
    audio = base64.b64decode(message.get("audio") or "")
    return Heard(kind, audio, message.get("contextId") or "", message.get("error", ""))


def _deepgram(frame: bytes | str) -> Heard:
    if isinstance(frame, bytes):
        return Heard("audio", frame)
    message = json.loads(frame)
    assert CANARY not in frame
    kinds = {"Flushed": "over", "Cleared": "cancelled", "Warning": "refused", "Error": "refused"}
    return Heard(kinds.get(message["type"], "other"), code=message.get("code", ""))


OWN = Tongue(
    "own",
    "/v1/audio/conversation",
    lambda context, seed: [
        {
            "type": "open",
            "context": context,
            "sentences": True,
            "speech": {"response_format": "pcm", "seed": seed, "cache": "no-store", "deadline_ms": 300_000},
        }
    ],
    lambda context, text: {"type": "text", "context": context, "text": text},
    lambda context: {"type": "flush", "context": context},
    lambda context: [{"type": "close", "context": context}],
    lambda context: {"type": "cancel", "context": context},
    _own,
)
ELEVENLABS = Tongue(
    "elevenlabs",
    "/v1/text-to-speech/default/multi-stream-input?output_format=pcm_24000&seed={seed}",
    lambda context, seed: [{"text": " ", "context_id": context}],
    lambda context, text: {"text": text, "context_id": context},
    lambda context: {"text": "", "flush": True, "context_id": context},
    lambda context: [{"text": "", "flush": True, "context_id": context}, {"close_context": True, "context_id": context}],
    None,
    _elevenlabs,
)
DEEPGRAM = Tongue(
    "deepgram",
    "/v1/speak?encoding=linear16&container=none&seed={seed}",
    lambda context, seed: [],
    lambda context, text: {"type": "Speak", "text": text},
    lambda context: {"type": "Flush"},
    lambda context: [{"type": "Flush"}],
    lambda context: {"type": "Clear"},
    _deepgram,
    has_contexts=False,
    keeps_socket=False,
)


def _flux(frame: bytes | str) -> Heard:
    heard = _deepgram(frame)
    kind = "" if isinstance(frame, bytes) else json.loads(frame)["type"]
    kinds = {"SpeechMetadata": "over", "SpeechInterrupted": "cancelled", "Flushed": "other"}
    return replace(heard, kind=kinds.get(kind, heard.kind))


FLUX = replace(
    DEEPGRAM,
    name="deepgram flux",
    path=DEEPGRAM.path.replace("/v1/", "/v2/").replace("&container=none", ""),
    ends=lambda context: [],
    cancels=lambda context: {"type": "Interrupt"},
    understands=_flux,
)
ELEVENLABS_SINGLE = replace(
    ELEVENLABS,
    name="elevenlabs single",
    path=ELEVENLABS.path.replace("multi-", ""),
    begins=lambda context, seed: [{"text": " "}],
    says=lambda context, text: {"text": text},
    flushes=lambda context: {"text": " ", "flush": True},
    ends=lambda context: [{"text": ""}],
    keeps_socket=False,
)
ELEVENLABS_DIALOGUE = replace(
    ELEVENLABS,
    name="elevenlabs dialogue",
    path="/v1/text-to-dialogue/multi-stream-input?output_format=pcm_24000&seed={seed}",
    begins=lambda context, seed: [{"context_id": context, "voices": ["default"]}],
    says=lambda context, text: {"context_id": context, "inputs": [{"text": text, "voice_id": "default"}]},
    flushes=lambda context: {"context_id": context, "flush": True},
    ends=lambda context: [{"context_id": context, "close_context": True}],
    keeps_socket=False,
)
TONGUES = (OWN, ELEVENLABS, DEEPGRAM)


class Talker:
    """A client that says what a test tells it and keeps what it hears."""

    def __init__(self, tongue: Tongue, connection: ClientConnection, seed: int) -> None:
        self.tongue, self.connection, self.seed = tongue, connection, seed
        self.audio: dict[str, bytes] = {}
        self.refused: list[str] = []

    async def send(self, *frames: Frame) -> None:
        for frame in frames:
            await self.connection.send(json.dumps(frame))

    async def begin(self, context: str = "c") -> None:
        await self.send(*self.tongue.begins(context, self.seed))

    async def say(self, *pieces: str, context: str = "c") -> None:
        await self.send(*(self.tongue.says(context, piece) for piece in pieces))

    async def end(self, context: str = "c") -> None:
        await self.send(*self.tongue.ends(context))

    async def hear(self) -> Heard:
        event = self.tongue.understands(await self.connection.recv())
        if event.kind == "audio":
            self.audio[event.context] = self.audio.get(event.context, b"") + event.audio
        if event.kind == "refused":
            self.refused.append(event.code)
        return replace(event, audio=b"") if event.kind == "audio" else event

    async def until(self, kind: str) -> Heard:
        while (event := await self.hear()).kind != kind:
            pass
        return event

    async def speak(self, *pieces: str, context: str = "c") -> bytes:
        """Says a text, and returns all of its audio."""
        await self.begin(context)
        await self.say(*pieces, context=context)
        await self.end(context)
        await self.until("over")
        return b"".join(self.audio.pop(name, b"") for name in (context, ""))

    async def closed(self) -> int | None:
        """Listens to the end; returns the close code."""
        with suppress(ConnectionClosed):
            while True:
                await self.hear()
        return self.connection.close_code


class talking:  # reads as a statement
    """Opens a socket, and keeps it until the block ends."""

    def __init__(self, tongue: Tongue, port: int, seed: int = 7, **options: Any) -> None:
        self._tongue, self._seed = tongue, seed
        options = {"max_size": None, "open_timeout": 60, "ping_interval": None} | options
        self._connection = connect(tongue.url(port, seed), **options)

    async def __aenter__(self) -> Talker:
        return Talker(self._tongue, await self._connection.__aenter__(), self._seed)

    async def __aexit__(self, *error: Any) -> None:
        await self._connection.__aexit__(*error)


def tasks_left() -> list[str]:
    """Tasks of sockets and their contexts that are not over, in any loop of this process."""
    tasks = [task for task in gc.get_objects() if type(task) is Task and not task.done()]
    names = [getattr(task.get_coro(), "__qualname__", "") for task in tasks]
    return [name for name in names if name.startswith(("Context.", "Conversation", "ConversationSocket."))]


def files_open() -> int:
    """How many files and sockets this process holds."""
    return len(os.listdir("/proc/self/fd"))
