"""ElevenLabs' sockets with the key in the first message of each context, as its package's own types write it and browsers
have to send it.
"""

import base64
import json
from contextlib import suppress
from typing import Any

from elevenlabs.types import (
    CloseConnection,
    CloseSocket,
    InitialiseContext,
    InitializeConnection,
    InitializeConnectionMulti,
    SendText,
    SendTextMulti,
)
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed


def one_text(key: str, text: str) -> list[Any]:
    return [InitializeConnection(text=" ", xi_api_key=key), SendText(text=f"{text} "), CloseConnection(text="")]


def two_contexts(key: str, text: str) -> list[Any]:
    first = InitializeConnectionMulti(text=" ", xi_api_key=key, context_id="a")
    second = InitialiseContext(text=text, xi_api_key=key, context_id="b")
    return [first, SendTextMulti(text=text, context_id="a"), second, CloseSocket(close_socket=True)]


async def answers(url: str, messages: list[Any]) -> list[Any]:
    """Bytes of audio, errors and the close code of a socket without a key in its handshake."""
    audio, errors = 0, []
    async with connect(url) as socket:
        with suppress(ConnectionClosed):
            for message in messages:
                await socket.send(message.json(by_alias=True, exclude_none=True))
        with suppress(ConnectionClosed):
            while True:
                reply = json.loads(await socket.recv())
                audio += len(base64.b64decode(reply.get("audio") or ""))
                errors += [reply["error"]] if "error" in reply else []
    return [audio, errors, socket.close_code]
