"""Twilio Media Streams: callers hear this service, and interrupt it by speaking. An example, to be put behind TLS.

python docs/twilio_bridge.py ws://localhost:8000 8080
"""

import asyncio
import base64
import json
import sys
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import ServerConnection, serve

SPEECH = {"voice": "alloy", "response_format": "ulaw"}  # 8000 Hz without a header: what Twilio plays
LOUD, FRAMES = 60, 5  # a caller interrupts with so many frames (20 ms) of such a mean level, 0 to 127


class Call:
    """One call: what the service says goes to Twilio, with a mark behind each part."""

    def __init__(self, twilio: ServerConnection, service: ClientConnection) -> None:
        self.twilio, self.service, self.is_playing = twilio, service, False
        self.stream, self.context, self.mark, self.loud = "", 0, "", 0
        self.forwarding = asyncio.create_task(self.forward())  # until the socket to the service closes

    async def say(self, text: str) -> None:
        """Begins a text; a language model would send it in pieces, and `close` behind the last one."""
        said = {"open": {"speech": SPEECH, "sentences": True}, "text": {"text": text}, "close": {}}
        for kind, fields in said.items():
            await self.service.send(json.dumps({"type": kind, "context": str(self.context), **fields}))

    async def tell(self, event: str, **fields: Any) -> None:
        await self.twilio.send(json.dumps({"event": event, "streamSid": self.stream, **fields}))

    async def forward(self) -> None:
        """Sends what the service says of the present text; what still comes of an interrupted one is dropped."""
        async for frame in self.service:
            message = json.loads(frame)
            is_present = message.get("context") == str(self.context)
            if message["type"] == "audio" and is_present:
                self.is_playing, self.mark = True, ""
                await self.tell("media", media={"payload": message["audio"]})
            elif message["type"] == "finished" and is_present:
                self.mark = f"{message['context']}.{message['part']}"
                await self.tell("mark", mark={"name": self.mark})
            elif message["type"] in ("cancelled", "skipped", "error", "refused"):
                print(message, flush=True)

    async def hear(self, audio: bytes) -> None:
        """Listens to the caller; who speaks while audio is played interrupts it."""
        self.loud = self.loud + 1 if sum(~byte & 0x7F for byte in audio) > LOUD * len(audio) else 0
        if self.is_playing and self.loud >= FRAMES:
            await self.tell("clear")  # Twilio forgets what it has not played, and answers its marks
            await self.service.send(json.dumps({"type": "cancel", "context": str(self.context)}))
            self.is_playing, self.context = False, self.context + 1
            await self.say("Yes?")  # here a recogniser and a language model would answer


async def answer(twilio: ServerConnection) -> None:
    async with connect(f"{sys.argv[1]}/v1/audio/conversation", max_size=None) as service:
        call = Call(twilio, service)
        async for event in twilio:
            said = json.loads(event)
            if said["event"] == "start":
                call.stream = said["streamSid"]
                await call.say(said["start"]["customParameters"].get("text", "Hello. How can I help you?"))
            elif said["event"] == "media":
                await call.hear(base64.b64decode(said["media"]["payload"]))
            elif said["event"] == "mark" and said["mark"]["name"] == call.mark:
                call.is_playing = False  # all that was sent has been played


async def main() -> None:
    async with serve(answer, "127.0.0.1", int(sys.argv[2])) as server:
        await server.serve_forever()


asyncio.run(main())
