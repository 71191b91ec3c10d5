"""Foreign clients, unmodified, against servers of this project: prints one line of JSON for each scenario.

It runs in a virtual environment of its own (tests/support/foreign.py), so it imports nothing of this project.

    python scenarios.py URL OF_KEYS KEY FULL        # addresses: open, one that asks for KEY, one without room
"""

import asyncio
import json
import sys
import traceback
from contextlib import suppress
from typing import Any

import aiohttp
from deepgram import AsyncDeepgramClient, DeepgramClient, DeepgramClientEnvironment
from deepgram.speak.v1.types import SpeakV1Text
from livekit.agents import APIConnectOptions
from livekit.plugins import elevenlabs as livekit_elevenlabs
from livekit.plugins import openai as livekit_openai
from pipecat.services.deepgram.tts import DeepgramTTSService
from pipecat.services.elevenlabs.tts import ElevenLabsHttpTTSService, ElevenLabsTTSService
from pipecat_turns import ENDLESS, TEXT, pipecat, pipecat_fails, pipecat_talk
from websockets.exceptions import ConnectionClosed

URL, GUARDED, KEY, FULL = sys.argv[1:5]
WRONG = "ck-wrong"
ONCE = APIConnectOptions(max_retry=0, timeout=20.0)

Result = dict[str, Any]


def ws(url: str) -> str:
    return url.replace("http", "ws")


def deepgram(url: str = URL, key: str = "none", kind: Any = DeepgramClient) -> Any:
    where = DeepgramClientEnvironment(base=url, production=ws(url), agent=ws(url), agent_rest=url)
    return kind(api_key=key, environment=where)


def deepgram_query(**more: str) -> dict[str, Any]:
    return {"model": "alloy", "encoding": "linear16", "sample_rate": "24000", **more}


async def deepgram_http() -> Result:
    spoken = deepgram().speak.v1.audio.generate(text=TEXT, model="alloy", encoding="linear16", container="none")
    return {"audio": len(b"".join(spoken))}


async def deepgram_http_refused() -> Result:
    found = {}
    for name, client, voice in (
        ("voice", deepgram(), "nobody"),
        ("key", deepgram(GUARDED, WRONG), "alloy"),
        ("full", deepgram(FULL), "alloy"),
    ):
        try:
            list(client.speak.v1.audio.generate(text=TEXT, model=voice, request_options={"max_retries": 0}))
        except Exception as error:
            found[name] = [getattr(error, "status_code", None), error.body["err_code"]]  # type: ignore[attr-defined]
    with_key = deepgram(GUARDED, KEY).speak.v1.audio.generate(text=TEXT, model="alloy")
    return {**found, "with_key": len(b"".join(with_key)) > 44}


async def deepgram_socket() -> Result:
    heard: list[Any] = []
    async with deepgram(kind=AsyncDeepgramClient).speak.v1.connect(**deepgram_query()) as socket:
        heard.append((await socket.recv()).model_name)
        for word in TEXT.split(" "):
            await socket.send_text(SpeakV1Text(text=word + " "))
        await socket.send_flush()
        audio, message = await deepgram_until_message(socket)
        heard += [audio, message.type, message.sequence_id]
        await socket.send_text(SpeakV1Text(text=ENDLESS))
        await socket.send_flush()
        heard.append(len(await socket.recv()) > 0)
        await socket.send_clear()
        _, message = await deepgram_until_message(socket)
        heard += [message.type, message.sequence_id]
        await socket.send_text(SpeakV1Text(text="Hello there."))
        await socket.send_flush()
        audio, message = await deepgram_until_message(socket)
        heard += [audio, message.type, message.sequence_id]
        await socket.send_close()
        with suppress(ConnectionClosed):
            await socket.recv()
        heard.append(socket._websocket.close_code)
    return {"heard": heard}


async def deepgram_socket_refused() -> Result:
    found = {}
    for name, url, key, query in (
        ("voice", URL, "none", {"model": "nobody"}),
        ("key", GUARDED, WRONG, {}),
        ("full", FULL, "none", {}),
    ):
        async with deepgram(url, key, AsyncDeepgramClient).speak.v1.connect(**deepgram_query(**query)) as socket:
            message = json.loads(await socket._websocket.recv())
            with suppress(ConnectionClosed):
                await socket.recv()
            found[name] = [message["type"], message["code"], socket._websocket.close_code]
    return found


async def deepgram_until_message(socket: Any) -> tuple[int, Any]:
    audio = 0
    while isinstance(heard := await socket.recv(), bytes):
        audio += len(heard)
    return audio, heard


async def livekit_audio(stream: Any) -> float:
    """Seconds of audio until the stream ends."""
    return round(sum([one.frame.duration async for one in stream]), 2)


def livekit(session: aiohttp.ClientSession, url: str = URL, key: str = "none", **more: Any) -> livekit_elevenlabs.TTS:
    options = {"voice_id": "alloy", "encoding": "pcm_24000"} | more
    return livekit_elevenlabs.TTS(base_url=f"{url}/v1", api_key=key, http_session=session, **options)


async def livekit_elevenlabs_http() -> Result:
    async with aiohttp.ClientSession() as session:
        return {"seconds": await livekit_audio(livekit(session).synthesize(TEXT, conn_options=ONCE))}


async def livekit_elevenlabs_socket() -> Result:
    async with aiohttp.ClientSession() as session:
        tts = livekit(session)

        async def say(text: str) -> float:
            async with tts.stream(conn_options=ONCE) as stream:
                for word in text.split(" "):
                    stream.push_text(word + " ")
                stream.flush()
                stream.end_input()
                return await livekit_audio(stream)

        first = await say(TEXT)
        five = await asyncio.gather(*(say(TEXT) for _ in range(5)))
        stream = tts.stream(conn_options=ONCE)
        stream.push_text(ENDLESS + " ")
        stream.flush()
        async for one in stream:
            interrupted = one.frame.duration > 0
            break
        await stream.aclose()
        after = await say(TEXT)
        await tts.aclose()
        return {"seconds": first, "five": five, "interrupted": interrupted, "after": after}


async def livekit_elevenlabs_refused() -> Result:
    found = {}
    async with aiohttp.ClientSession() as session:
        for name, tts in (
            ("voice", livekit(session, voice_id="nobody")),
            ("key", livekit(session, GUARDED, WRONG)),
            ("full", livekit(session, FULL)),
        ):
            found[name] = []
            stream = tts.stream(conn_options=ONCE)
            stream.push_text(TEXT)
            stream.flush()
            stream.end_input()
            for spoken in (tts.synthesize(TEXT, conn_options=ONCE), stream):
                try:
                    found[name].append(await livekit_audio(spoken))
                except Exception as error:
                    found[name].append(type(error).__name__)
                await spoken.aclose()
            await tts.aclose()
    return found


async def livekit_openai_http() -> Result:
    found: Result = {}
    for model in ("gpt-4o-mini-tts", "tts-1"):
        tts = livekit_openai.TTS(model=model, voice="alloy", base_url=f"{URL}/v1", api_key="none", response_format="wav")
        metrics: list[Any] = []
        tts.on("metrics_collected", metrics.append)
        found[model] = [await livekit_audio(tts.synthesize(TEXT, conn_options=ONCE))]
        await asyncio.sleep(0.1)  # they are collected behind the audio
        found[model] += [metrics[0].input_tokens, metrics[0].output_tokens > 0]
        await tts.aclose()
    for name, options in (("voice", {"voice": "nobody"}), ("full", {"base_url": f"{FULL}/v1"})):
        tts = livekit_openai.TTS(**{"voice": "alloy", "base_url": f"{URL}/v1", "api_key": "none", **options})
        try:
            await livekit_audio(tts.synthesize(TEXT, conn_options=ONCE))
        except Exception as error:
            found[name] = [type(error).__name__, getattr(error, "status_code", None)]
        await tts.aclose()
    return found


def pipecat_elevenlabs(url: str = URL, key: str = "none", voice: str = "alloy") -> ElevenLabsTTSService:
    return ElevenLabsTTSService(api_key=key, url=ws(url), settings=ElevenLabsTTSService.Settings(voice=voice))


def pipecat_deepgram(url: str = URL, key: str = "none", voice: str = "alloy") -> DeepgramTTSService:
    return DeepgramTTSService(api_key=key, base_url=ws(url), settings=DeepgramTTSService.Settings(voice=voice))


async def pipecat_elevenlabs_socket() -> Result:
    return await pipecat(pipecat_elevenlabs(), pipecat_talk)


async def pipecat_elevenlabs_http() -> Result:
    async with aiohttp.ClientSession() as session:
        options = {"api_key": "none", "aiohttp_session": session, "base_url": URL}
        voice = ElevenLabsHttpTTSService.Settings(voice="alloy")
        return await pipecat(ElevenLabsHttpTTSService(settings=voice, **options), pipecat_talk)


async def pipecat_deepgram_socket() -> Result:
    return await pipecat(pipecat_deepgram(), pipecat_talk)


async def pipecat_refused() -> Result:
    found = {}
    for name, service in (("elevenlabs", pipecat_elevenlabs), ("deepgram", pipecat_deepgram)):
        for what, options in (("voice", (URL, "none", "nobody")), ("key", (GUARDED, WRONG)), ("full", (FULL,))):
            found[f"{name} {what}"] = await pipecat(service(*options), pipecat_fails)
    return found


SCENARIOS = (
    deepgram_http,
    deepgram_http_refused,
    deepgram_socket,
    deepgram_socket_refused,
    livekit_elevenlabs_http,
    livekit_elevenlabs_socket,
    livekit_elevenlabs_refused,
    livekit_openai_http,
    pipecat_elevenlabs_socket,
    pipecat_elevenlabs_http,
    pipecat_deepgram_socket,
    pipecat_refused,
)


async def main() -> None:
    for scenario in SCENARIOS:
        if sys.argv[5:] and scenario.__name__ not in sys.argv[5:]:
            continue
        try:
            async with asyncio.timeout(90):
                found = await scenario()
        except Exception:
            found = {"failed": traceback.format_exc()[-1500:]}
        print(json.dumps({"scenario": scenario.__name__, **found}), flush=True)


asyncio.run(main())
