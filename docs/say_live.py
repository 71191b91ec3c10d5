"""Speaks what is piped in while it comes; where a connection is lost, the next one goes on at the same byte."""

import asyncio
import base64
import json
import sys
import threading
import time

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

SPEECH = {"response_format": "pcm", "sample_rate": 24_000, "voice": "default", "seed": 5}


class Speech:
    text, is_whole, start, end, token, received = "", False, 0, 0, "", 0  # last: the present part, its resume token and bytes

    def read(self) -> None:
        while piece := sys.stdin.read(1):
            self.text += piece
        self.is_whole = True

    async def write(self, socket: ClientConnection, sent: int) -> None:
        while sent < len(self.text) or not self.is_whole:
            await asyncio.sleep(0.05)
            if piece := self.text[sent:]:
                await socket.send(json.dumps({"type": "text", "text": piece}))
                sent += len(piece)
        await socket.send(json.dumps({"type": "close"}))

    async def receive(self, url: str) -> None:
        async with connect(url + "/v1/audio/conversation") as socket:
            base = self.start  # what follows the last part that was finished is a context of its own
            resume = {"resume": {"token": self.token, "bytes": self.received}} if self.token else {}
            await socket.send(json.dumps({"type": "open", "sentences": True, "speech": SPEECH, **resume}))
            writing = asyncio.create_task(self.write(socket, base))
            while (message := json.loads(await socket.recv()))["type"] != "closed":
                if message["type"] in ("error", "refused"):
                    raise (ConnectionError if "retry_after_s" in message else SystemExit)(message["error"]["message"])
                if "characters" in message:
                    (self.start, self.end), self.token = (base + n for n in message["characters"]), message.get("resume", "")
                elif message["type"] == "audio":
                    self.received += sys.stdout.buffer.write(base64.b64decode(message["audio"]))
                    sys.stdout.buffer.flush()
                if message["type"] in ("finished", "skipped"):
                    self.start, self.token, self.received = self.end, "", 0
            await writing


speech = Speech()
threading.Thread(target=speech.read, daemon=True).start()
for left in reversed(range(360)):  # tries, half a second apart: the service may be started again meanwhile
    try:
        sys.exit(asyncio.run(speech.receive(sys.argv[1])))
    except (OSError, WebSocketException) as error:
        print(error, file=sys.stderr)
        if not left or (speech.received and not speech.token):  # without a token, a part cannot go on
            sys.exit(1)
        time.sleep(0.5)
