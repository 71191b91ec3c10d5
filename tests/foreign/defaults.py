"""The first lines of each client's own documentation, with nothing changed but the address.

No scenario here names a voice, a format or a model that the client or its documentation would not have chosen: a test compares
the names with FIRST_LINES.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
from deepgram import DeepgramClient, DeepgramClientEnvironment
from deepgram.speak.v1.types import SpeakV1Text
from deepgram.speak.v2.types import SpeakV2Speak
from livekit.agents import APIConnectOptions
from livekit.plugins import deepgram as livekit_deepgram
from livekit.plugins import elevenlabs as livekit_elevenlabs
from livekit.plugins import openai as livekit_openai
from pipecat.services.deepgram.flux.tts import DeepgramFluxTTSService
from pipecat.services.deepgram.tts import DeepgramHttpTTSService, DeepgramTTSService
from pipecat.services.elevenlabs.dialogue.tts import ElevenLabsDialogueTTSService
from pipecat.services.elevenlabs.tts import ElevenLabsHttpTTSService, ElevenLabsTTSService
from pipecat.services.openai.tts import OpenAITTSService
from pipecat_turns import TEXT, pipecat, pipecat_talk

FIRST_LINES = {
    "aura-2-thalia-en": "deepgram-sdk, README: text to speech",
    "aura-2-asteria-en": "deepgram-sdk, README: streaming text to speech",
    "flux-alexis-en": "deepgram-sdk, reference of speak.v2",
    "21m00Tcm4TlvDq8ikWAM": "pipecat-ai, examples of ElevenLabs; it has no voice of its own",
    "linear16": "deepgram-sdk, README: streaming text to speech",
}
"""what a scenario may name -> where its documentation does"""
ONCE = APIConnectOptions(max_retry=0, timeout=20.0)

Result = dict[str, Any]
Scenario = Callable[[], Awaitable[Result]]


async def livekit_says(tts: Any) -> float:
    """Seconds of audio of two sentences, word by word, as an agent says them."""
    async with tts.stream(conn_options=ONCE) as stream:
        for word in TEXT.split(" "):
            stream.push_text(word + " ")
        stream.flush()
        stream.end_input()
        return round(sum([event.frame.duration async for event in stream]), 2)


async def livekit_both(tts: Any) -> Result:
    """Seconds over the socket, and over HTTP."""
    whole = [event.frame.duration async for event in tts.synthesize(TEXT, conn_options=ONCE)]
    return {"socket": await livekit_says(tts), "http": round(sum(whole), 2)}


def defaults_at(url: str) -> dict[str, Scenario]:
    """Name -> scenario against a server."""
    ws = url.replace("http", "ws")
    key = {"api_key": "none"}

    async def elevenlabs_of_livekit() -> Result:
        async with aiohttp.ClientSession() as session:
            return await livekit_both(livekit_elevenlabs.TTS(base_url=f"{url}/v1", http_session=session, **key))

    async def deepgram_of_livekit() -> Result:
        async with aiohttp.ClientSession() as session:
            return await livekit_both(livekit_deepgram.TTS(base_url=f"{url}/v1/speak", http_session=session, **key))

    async def flux_of_livekit() -> Result:
        async with aiohttp.ClientSession() as session:
            return await livekit_both(livekit_deepgram.TTSv2(base_url=f"{url}/v2/speak", http_session=session, **key))

    async def openai_of_livekit() -> Result:
        tts = livekit_openai.TTS(base_url=f"{url}/v1", **key)
        return {"http": round(sum([event.frame.duration async for event in tts.synthesize(TEXT, conn_options=ONCE)]), 2)}

    async def elevenlabs_of_pipecat() -> Result:
        settings = ElevenLabsTTSService.Settings(voice="21m00Tcm4TlvDq8ikWAM")
        return await pipecat(ElevenLabsTTSService(url=ws, settings=settings, **key), pipecat_talk)

    async def elevenlabs_http_of_pipecat() -> Result:
        settings = ElevenLabsHttpTTSService.Settings(voice="21m00Tcm4TlvDq8ikWAM")
        async with aiohttp.ClientSession() as session:
            service = ElevenLabsHttpTTSService(base_url=url, aiohttp_session=session, settings=settings, **key)
            return await pipecat(service, pipecat_talk)

    async def dialogue_of_pipecat() -> Result:
        settings = ElevenLabsDialogueTTSService.Settings(voice="21m00Tcm4TlvDq8ikWAM")
        return await pipecat(ElevenLabsDialogueTTSService(url=ws, settings=settings, **key), pipecat_talk)

    async def deepgram_of_pipecat() -> Result:
        return await pipecat(DeepgramTTSService(base_url=ws, **key), pipecat_talk)

    async def deepgram_http_of_pipecat() -> Result:
        async with aiohttp.ClientSession() as session:
            return await pipecat(DeepgramHttpTTSService(base_url=url, aiohttp_session=session, **key), pipecat_talk)

    async def flux_of_pipecat() -> Result:
        return await pipecat(DeepgramFluxTTSService(url=f"{ws}/v2/speak", **key), pipecat_talk)

    async def openai_of_pipecat() -> Result:
        return await pipecat(OpenAITTSService(base_url=f"{url}/v1", **key), pipecat_talk)

    async def deepgram_package() -> Result:
        here = DeepgramClientEnvironment(base=url, production=ws, agent=ws, agent_rest=url)
        client = DeepgramClient(environment=here, **key)
        whole = b"".join(client.speak.v1.audio.generate(text=TEXT, model="aura-2-thalia-en"))
        flux = b"".join(client.speak.v2.audio.generate(text=TEXT, model="flux-alexis-en"))
        with client.speak.v1.connect(model="aura-2-asteria-en", encoding="linear16", sample_rate=24000) as socket:
            socket.send_text(SpeakV1Text(text=TEXT))
            socket.send_flush()
            pieces = [len(message) if isinstance(message, bytes) else message.type for message in until(socket, "Flushed")]
        with client.speak.v2.connect(model="flux-alexis-en") as socket:
            socket.send_speak(SpeakV2Speak(text=TEXT))
            socket.send_flush()
            turn = [message.type for message in until(socket, "Flushed") if not isinstance(message, bytes)]
            socket.send_close()
            end = [message.type for message in until(socket, "SessionMetadata")]
        voices = client.manage.v1.models.list().tts
        return {
            "http": [whole[:4].decode(), flux[:4].decode(), len(whole) == len(flux) > 48_000],
            "socket": [pieces[0], sum(piece for piece in pieces if isinstance(piece, int)), pieces[-1]],
            "flux": [*turn, *end],
            "voices": bool(voices) and all(voice.canonical_name for voice in voices),
        }

    return {f"default_{name}": scenario for name, scenario in locals().items() if callable(scenario)}


def until(socket: Any, kind: str) -> list[Any]:
    """All messages to the first of a kind."""
    messages = [socket.recv()]
    while isinstance(messages[-1], bytes) or messages[-1].type != kind:
        messages.append(socket.recv())
    return messages
