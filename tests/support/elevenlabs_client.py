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
        heard = [self.hear()]
        while not (heard[-1].get("isFinal") or heard[-1].get("is_final")):
            heard.append(self.hear())
        return heard

    def closed(self) -> tuple[list[dict[str, Any]], int | None, str | None]:
        """All messages to the end, the close code and why."""
        heard = []
        with suppress(ConnectionClosed):
            while True:
                heard.append(self.hear())
        return heard, self.connection.close_code, self.connection.close_reason


def audio_of(heard: list[dict[str, Any]]) -> bytes:
    return b"".join(base64.b64decode(one["audio"]) for one in heard if one.get("audio"))
