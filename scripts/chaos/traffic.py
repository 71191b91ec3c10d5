"""Traffic: the requests of clients of every kind, and how each of their requests ended.

In:    the service's address, a kind of request and a variant of it
Out:   the bytes that were received, or how it ended without them
Never: Ray, the faults
"""

import asyncio
import base64
import json
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import aiohttp

from scripts.bench.client import SPEECH, Refused
from scripts.bench.timeline import REFUSALS

TEXTS = (
    "Hello there.",
    "Many words follow one another here, and none of them is the last one yet.",
    "This is one sentence. This is another one, a little longer. And here is the third.",
    "Five one one, two five five. " * 4,
)
PAGES = "\n\n".join(f"# Page {page}\n\n{TEXTS[page % len(TEXTS)]}" for page in range(12))  # enough for several replicas
VOICES = ("default", "alloy", "nova", "seed:7")
VARIANTS = 4
UNANSWERED_S = 10.0  # in which a voice may still be made, whose client was cut off
LATEST = {"deadline_ms": 120_000, "cache": "no-store"}
REQUEST_S = 240.0  # a reply that takes longer has been forgotten by the service
SLOW_PAUSE_S = 0.3
BURST = 40
TRIES = 100  # of what must come about, a second apart
BUSY = (*REFUSALS, 500, 502, 504)
BAD = (  # body, expected status
    ({"input": ""}, 400),
    ({"input": "Hello.", "speed": 99}, 400),
    ({"input": "Hello.", "voice": "nobody-has-this-name"}, 400),
    ({"input": "Hello.", "unknown_field": {"x": 1}, "response_format": "midi"}, 400),
)


class End(StrEnum):
    """How a request ended."""

    WHOLE = "whole"
    """complete, with the bytes it has alone"""
    WRONG = "wrong"
    """complete, with other bytes: never right"""
    CUT = "cut"
    """ended without its end, or without an answer: the client could tell"""
    REFUSED = "refused"
    """429 or 5xx, in our words or in those of what stands in front"""
    LEFT = "left"
    """the client went away, as it had meant to"""
    UNEXPECTED = "unexpected"
    """another status than is right, or no end at all"""


class CutShort(Exception):
    """A stream that says itself that it has failed, or ends without its end."""


@dataclass(frozen=True, slots=True)
class Client:
    """A client of the service."""

    session: aiohttp.ClientSession
    url: str
    recording: bytes
    """a wav file of somebody who says the transcript"""
    transcript: str

    async def post(self, path: str, body: dict[str, Any], *, slow: bool = False) -> bytes:
        """Returns the reply's whole body."""
        async with self.session.post(self.url + path, json=body) as reply:
            await expect_ok(reply)
            received = bytearray()
            async for piece in reply.content.iter_chunked(8192 if slow else 1 << 16):
                received += piece
                if slow:
                    await asyncio.sleep(SLOW_PAUSE_S)
            return bytes(received)


async def expect_ok(reply: aiohttp.ClientResponse) -> None:
    """Raises Refused unless the status is a good one."""
    if reply.status >= 300:
        raise Refused(reply.status, None, await reply.text())


def speech(variant: int, **fields: Any) -> dict[str, Any]:
    """Returns the body of a request for speech."""
    text, voice = TEXTS[variant % len(TEXTS)], VOICES[variant // 2 % len(VOICES)]
    return {"input": text, "voice": voice, "seed": 100 + variant, "response_format": "pcm", **LATEST, **fields}


async def stream(client: Client, variant: int) -> bytes:
    return await client.post(SPEECH, speech(variant))


async def buffered(client: Client, variant: int) -> bytes:
    return await client.post(SPEECH, speech(variant, response_format="wav", stream=False))


async def slow_reader(client: Client, variant: int) -> bytes:
    return await client.post(SPEECH, speech(variant), slow=True)


async def events(client: Client, variant: int) -> bytes:
    body = await client.post(SPEECH, speech(variant, stream_format="sse"))
    messages = [json.loads(line[6:]) for line in body.decode().splitlines() if line.startswith("data: ")]
    if not messages or messages[-1].get("type") != "speech.audio.done":
        raise CutShort(str(messages[-1:])[:200])
    return b"".join(base64.b64decode(message["audio"]) for message in messages if message["type"] == "speech.audio.delta")


async def conversation(client: Client, variant: int) -> bytes:
    body = speech(variant)
    fields = {name: body[name] for name in ("voice", "seed", "response_format", "cache")}
    audio = bytearray()
    async with client.session.ws_connect(f"{client.url}/v1/audio/conversation") as socket:
        for message in ({"type": "open", "speech": fields}, {"type": "text", "text": body["input"]}, {"type": "close"}):
            await socket.send_json(message)
        async for frame in socket:
            if frame.type is not aiohttp.WSMsgType.TEXT:
                break
            message = json.loads(frame.data)
            if message["type"] == "audio":
                audio += base64.b64decode(message["audio"])
            elif message["type"] == "closed":
                return bytes(audio)
            elif message["type"] in ("error", "refused", "going_away"):
                raise CutShort(frame.data[:200])
    raise CutShort(f"the socket closed with {socket.close_code}")


async def dialogue(client: Client, variant: int) -> bytes:
    """By ElevenLabs' route."""
    turns = [{"text": TEXTS[(variant + turn) % 3], "voice_id": VOICES[turn % 3]} for turn in range(3)]
    body = {"inputs": turns, "seed": variant}
    return await client.post("/v1/text-to-dialogue/stream?output_format=pcm_24000", body)


async def job(client: Client, variant: int) -> bytes:
    """Created, waited for, downloaded, deleted."""
    address = await create_job(client, {"input": PAGES, "input_type": "markdown", "seed": variant, "response_format": "flac"})
    try:
        while True:
            async with client.session.get(address) as reply:
                await expect_ok(reply)
                state = (await reply.json())["status"]
            if state in ("succeeded", "failed", "cancelled"):
                break
            await asyncio.sleep(0.5)
        if state != "succeeded":
            raise CutShort(f"the job is {state}")
        async with client.session.get(f"{address}/audio?format=pcm") as reply:
            await expect_ok(reply)
            return await reply.read()
    finally:
        await delete(client, address)


async def create_job(client: Client, body: dict[str, Any]) -> str:
    """Returns a new job's address. Without an answer it is requested again with the same key: it may have been created."""
    jobs, headers = f"{client.url}/v1/audio/jobs", {"Idempotency-Key": uuid.uuid4().hex}
    for _ in range(TRIES):
        try:
            async with client.session.post(jobs, json=body, headers=headers) as reply:
                if reply.status < 300:
                    return f"{jobs}/{(await reply.json())['id']}"
                refusal = Refused(reply.status, None, await reply.text())
        except (aiohttp.ClientError, OSError) as error:
            refusal = Refused(503, None, f"no answer: {error}")
        if refusal.status not in BUSY:
            break
        await asyncio.sleep(1.0)
    raise refusal


async def clone(client: Client, variant: int) -> bytes:
    """A voice is cloned from a recording, used, and deleted."""
    voices = f"{client.url}/v1/audio/voices"
    name = f"chaos-{variant}-{id(asyncio.current_task())}"
    form = aiohttp.FormData({"name": name, "ref_text": client.transcript, "consent": "true"})
    form.add_field("audio_sample", client.recording, filename="voice.wav")
    voice = None
    try:
        async with client.session.post(voices, data=form) as reply:
            await expect_ok(reply)
            voice = (await reply.json())["id"]
        return await client.post(SPEECH, speech(variant, voice=voice))
    finally:
        if voice is None:
            await asyncio.sleep(UNANSWERED_S)
        await delete(client, f"{voices}/{name}")


async def delete(client: Client, resource: str) -> None:
    """Deletes something, however often that is refused; it may never have been created."""
    for _ in range(TRIES):
        try:
            async with client.session.delete(resource) as reply:
                if reply.status in (204, 404):
                    return
        except (aiohttp.ClientError, OSError):
            pass
        await asyncio.sleep(1.0)


async def leaves(client: Client, variant: int) -> bytes:
    """Goes away after the first audio."""
    async with client.session.post(client.url + SPEECH, json=speech(variant, input=TEXTS[1] * 10)) as reply:
        await expect_ok(reply)
        await reply.content.readany()
        return b""


async def bad_input(client: Client, variant: int) -> bytes:
    body, expected = BAD[variant % len(BAD)]
    async with client.session.post(client.url + SPEECH, json=body) as reply:
        if reply.status not in (expected, *BUSY):
            raise ValueError(f"{body} is {reply.status}, not {expected}: {(await reply.text())[:200]}")
        return b""


KINDS: dict[str, Callable[[Client, int], Awaitable[bytes]]] = {
    "stream": stream,
    "buffered": buffered,
    "events": events,
    "conversation": conversation,
    "dialogue": dialogue,
    "job": job,
    "clone": clone,
    "slow reader": slow_reader,
    "leaves": leaves,
    "bad input": bad_input,
}
