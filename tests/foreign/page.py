"""What docs/clients.md tells to write for LiveKit, Pipecat and Home Assistant's protocol, written so: prints one line of JSON.

It runs in a virtual environment of its own (tests/support/foreign.py), so it imports nothing of this project.

    python page.py < lines    # {"what the page calls it": "the expression of the page", ...} in one line of JSON
"""

import asyncio
import json
import sys
import traceback
from typing import Any

import aiohttp
from livekit.agents.tts import TTS
from livekit.agents.utils import http_context
from livekit.plugins import deepgram, elevenlabs, openai
from pipecat.frames.frames import TTSSpeakFrame
from pipecat.services.deepgram.flux.tts import DeepgramFluxTTSService
from pipecat.services.deepgram.tts import DeepgramTTSService
from pipecat.services.elevenlabs.tts import ElevenLabsTTSService
from pipecat.services.openai.tts import OpenAITTSService
from pipecat.services.piper.tts import PiperHttpTTSService
from pipecat_turns import Errors, Sink, pipecat, until
from wyoming.audio import AudioChunk, AudioStop
from wyoming.client import AsyncTcpClient
from wyoming.info import Describe, Info
from wyoming.tts import Synthesize

TEXT = "Hello there."
FIRST_AUDIO_S = 120
NAMES: dict[str, Any] = {
    "openai": openai,
    "deepgram": deepgram,
    "elevenlabs": elevenlabs,
    "ElevenLabsTTSService": ElevenLabsTTSService,
    "OpenAITTSService": OpenAITTSService,
    "DeepgramTTSService": DeepgramTTSService,
    "DeepgramFluxTTSService": DeepgramFluxTTSService,
    "PiperHttpTTSService": PiperHttpTTSService,
    "AsyncTcpClient": AsyncTcpClient,
}


async def audio_bytes(session: Any) -> int:
    """Bytes of audio of a sentence."""
    if isinstance(session, AsyncTcpClient):
        return await wyoming(session)
    if isinstance(session, TTS):
        return sum([len(chunk.frame.data) async for chunk in session.synthesize(TEXT)])
    audio: int = (await pipecat(session, says))["audio"]
    return audio


async def says(worker: Any, sink: Sink, errors: Errors) -> dict[str, Any]:
    await worker.queue_frame(TTSSpeakFrame(TEXT))
    await until(sink, lambda: bool(sink.stopped or errors.errors), FIRST_AUDIO_S)
    assert not errors.errors, errors.errors
    return {"audio": sink.audio}


async def wyoming(client: AsyncTcpClient) -> int:
    audio = 0
    async with client:
        await client.write_event(Describe().event())
        reply = await client.read_event()
        assert reply is not None
        assert Info.from_event(reply).tts
        await client.write_event(Synthesize(TEXT).event())
        while (event := await client.read_event()) is not None and not AudioStop.is_type(event.type):
            audio += len(AudioChunk.from_event(event).audio) if AudioChunk.is_type(event.type) else 0
    return audio


async def main() -> None:
    results: dict[str, Any] = {}
    async with aiohttp.ClientSession() as session, http_context.open():
        for name, expression in json.loads(sys.stdin.readline()).items():
            try:
                results[name] = await audio_bytes(eval(expression, {**NAMES, "session": session}))
            except Exception:
                results[name] = traceback.format_exc()[-1500:]
    print(json.dumps(results))


asyncio.run(main())
