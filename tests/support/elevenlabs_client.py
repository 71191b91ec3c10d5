"""A client of ElevenLabs' sockets that shows every message."""

import base64
import json
from contextlib import suppress
from typing import Any

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection

from tests.support.live_server import CANARY


class Client:
    """A client of any of the sockets."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection

    def say(self, **fields: Any) -> None:
        self.connection.send(json.dumps(fields))

    def hear(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(self.connection.recv(timeout=30))
        assert CANARY not in json.dumps(message)
        return message

    def until_final(self) -> list[dict[str, Any]]:
        messages = [self.hear()]
        while not (messages[-1].get("isFinal") or messages[-1].get("is_final")):
            messages.append(self.hear())
        return messages

    def closed(self) -> tuple[list[dict[str, Any]], int | None, str | None]:
        """All messages to the end, the close code and why."""
        messages = []
        with suppress(ConnectionClosed):
            while True:
                messages.append(self.hear())
        return messages, self.connection.close_code, self.connection.close_reason


def audio_of(messages: list[dict[str, Any]]) -> bytes:
    return b"".join(base64.b64decode(message["audio"]) for message in messages if message.get("audio"))
