"""Foreign clients, unmodified, against servers of this project: prints one line of JSON for each scenario, and waits for a
line before the next one.

It runs in a virtual environment of its own (tests/support/foreign.py), so it imports nothing of this project.

    python scenarios.py URL OF_KEYS KEY FULL BRIEF    # addresses: open, asks for KEY, has no room, soon closes silent sockets
"""

import asyncio
import json
import sys
import traceback
from contextlib import suppress
from functools import partial
from typing import Any

import aiohttp
from deepgram import AsyncDeepgramClient, DeepgramClient, DeepgramClientEnvironment
from deepgram.core.api_error import ApiError
from deepgram.speak.v1.types import SpeakV1Text
from defaults import defaults_at
from elevenlabs_first import answers, one_text, two_contexts
from livekit.agents import APIConnectOptions
from livekit.plugins import elevenlabs as livekit_elevenlabs
from livekit.plugins import openai as livekit_openai
from pipecat.services.deepgram.tts import DeepgramHttpTTSService, DeepgramTTSService
from pipecat.services.elevenlabs.dialogue.tts import ElevenLabsDialogueTTSService
from pipecat.services.elevenlabs.tts import ElevenLabsHttpTTSService, ElevenLabsTTSService
from pipecat_turns import ENDLESS, IDLE_S, TEXT, pipecat, pipecat_fails, pipecat_pauses, pipecat_talk
from websockets.exceptions import ConnectionClosed

URL, GUARDED, KEY, FULL, BRIEF = sys.argv[1:6]
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
    errors = {}
    for name, client, voice in (
        ("voice", deepgram(), "nobody"),
        ("key", deepgram(GUARDED, WRONG), "alloy"),
        ("full", deepgram(FULL), "alloy"),
    ):
        try:
            list(client.speak.v1.audio.generate(text=TEXT, model=voice, request_options={"max_retries": 0}))
        except Exception as error:
            errors[name] = [getattr(error, "status_code", None), error.body["err_code"]]  # type: ignore[attr-defined]
    with_key = deepgram(GUARDED, KEY).speak.v1.audio.generate(text=TEXT, model="alloy")
    return {**errors, "with_key": len(b"".join(with_key)) > 44}


async def deepgram_granted() -> Result:
    granted = deepgram(GUARDED, KEY).auth.v1.tokens.grant(ttl_seconds=60)
    client = deepgram(GUARDED, kind=partial(DeepgramClient, access_token=granted.access_token))
    spoken = client.speak.v1.audio.generate(text=TEXT, model="alloy", encoding="linear16", container="none")
    return {"audio": len(b"".join(spoken)), "expires_in": granted.expires_in}


async def deepgram_socket() -> Result:
    events: list[Any] = []
    async with deepgram(kind=AsyncDeepgramClient).speak.v1.connect(**deepgram_query()) as socket:
        events.append((await socket.recv()).model_name)
        for word in TEXT.split(" "):
            await socket.send_text(SpeakV1Text(text=word + " "))
        await socket.send_flush()
        audio, message = await deepgram_until_message(socket)
        events += [audio, message.type, message.sequence_id]
        await socket.send_text(SpeakV1Text(text=ENDLESS))
        await socket.send_flush()
        events.append(len(await socket.recv()) > 0)
        await socket.send_clear()
        _, message = await deepgram_until_message(socket)
        events += [message.type, message.sequence_id]
        await socket.send_text(SpeakV1Text(text="Hello there."))
        await socket.send_flush()
        audio, message = await deepgram_until_message(socket)
        events += [audio, message.type, message.sequence_id]
        await socket.send_close()
        with suppress(ConnectionClosed):
            await socket.recv()
        events.append(socket._websocket.close_code)
    return {"heard": events}


async def deepgram_socket_refused() -> Result:
    errors = {}
    for name, url, key, query in (
        ("voice", URL, "none", {"model": "nobody"}),
        ("key", GUARDED, WRONG, {}),
        ("full", FULL, "none", {}),
    ):
        try:
            async with deepgram(url, key, AsyncDeepgramClient).speak.v1.connect(**deepgram_query(**query)) as socket:
                message = json.loads(await socket._websocket.recv())
                with suppress(ConnectionClosed):
                    await socket.recv()
                errors[name] = [message["type"], message["code"], socket._websocket.close_code]
        except ApiError as refusal:
            errors[name] = [refusal.status_code]
    return errors


async def deepgram_idle() -> Result:
    async with deepgram(BRIEF, kind=AsyncDeepgramClient).speak.v1.connect(**deepgram_query()) as socket:
        first = (await socket.recv()).type
        with suppress(ConnectionClosed):
            await socket.recv()
        return {"first": first, "code": socket._websocket.close_code}


async def deepgram_until_message(socket: Any) -> tuple[int, Any]:
    audio = 0
    while isinstance(message := await socket.recv(), bytes):
        audio += len(message)
    return audio, message


async def livekit_audio(stream: Any) -> float:
    """Seconds of audio until the stream ends."""
    return round(sum([chunk.frame.duration async for chunk in stream]), 2)


def livekit(session: aiohttp.ClientSession, url: str = URL, key: str = "none", **more: Any) -> livekit_elevenlabs.TTS:
    options = {"voice_id": "alloy", "encoding": "pcm_24000"} | more
    return livekit_elevenlabs.TTS(base_url=f"{url}/v1", api_key=key, http_session=session, **options)


async def livekit_says(tts: livekit_elevenlabs.TTS, text: str) -> float:
    async with tts.stream(conn_options=ONCE) as stream:
        for word in text.split(" "):
            stream.push_text(word + " ")
        stream.flush()
        stream.end_input()
        return await livekit_audio(stream)


async def livekit_http(**options: Any) -> Result:
    async with aiohttp.ClientSession() as session:
        return {"seconds": await livekit_audio(livekit(session, **options).synthesize(TEXT, conn_options=ONCE))}


async def livekit_socket(**options: Any) -> Result:
    async with aiohttp.ClientSession() as session:
        tts = livekit(session, **options)
        first = await livekit_says(tts, TEXT)
        five = await asyncio.gather(*(livekit_says(tts, TEXT) for _ in range(5)))
        stream = tts.stream(conn_options=ONCE)
        stream.push_text(ENDLESS + " ")
        stream.flush()
        async for chunk in stream:
            interrupted = chunk.frame.duration > 0
            break
        await stream.aclose()
        after = await livekit_says(tts, TEXT)
        await tts.aclose()
        return {"seconds": first, "five": five, "interrupted": interrupted, "after": after}


async def livekit_refused(**options: Any) -> Result:
    errors = {}
    async with aiohttp.ClientSession() as session:
        for name, tts in (
            ("voice", livekit(session, **{**options, "voice_id": "nobody"})),
            ("key", livekit(session, GUARDED, WRONG, **options)),
            ("full", livekit(session, FULL, **options)),
        ):
            errors[name] = []
            stream = tts.stream(conn_options=ONCE)
            stream.push_text(TEXT)
            stream.flush()
            stream.end_input()
            for spoken in (tts.synthesize(TEXT, conn_options=ONCE), stream):
                try:
                    errors[name].append(await livekit_audio(spoken))
                except Exception as error:
                    errors[name].append([type(error).__name__, getattr(error, "status_code", None)])
                await spoken.aclose()
            await tts.aclose()
    return errors


async def livekit_pauses(**options: Any) -> Result:
    async with aiohttp.ClientSession() as session:
        tts = livekit(session, BRIEF, **options)
        lengths = []
        for pause_s in (IDLE_S + 2, 0):
            lengths.append(await livekit_says(tts, TEXT))
            await asyncio.sleep(pause_s)
        await tts.aclose()
        return {"heard": lengths}


async def elevenlabs_first_message() -> Result:
    results: Result = {}
    for name, key in (("right", KEY), ("wrong", WRONG)):
        for kind, messages in (("", one_text(key, TEXT)), ("multi-", two_contexts(key, TEXT))):
            path = f"/v1/text-to-speech/alloy/{kind}stream-input?output_format=pcm_24000"
            results[f"{name} {kind}stream-input"] = await answers(ws(GUARDED) + path, messages)
    return results


async def livekit_elevenlabs_http() -> Result:
    return await livekit_http()


async def livekit_elevenlabs_socket() -> Result:
    return await livekit_socket()


async def livekit_elevenlabs_refused() -> Result:
    return await livekit_refused()


async def livekit_elevenlabs_idle() -> Result:
    return await livekit_pauses()


async def livekit_dialogue_http() -> Result:
    return await livekit_http(model="eleven_v3")


async def livekit_dialogue_socket() -> Result:
    return await livekit_socket(model="eleven_v3")


async def livekit_dialogue_refused() -> Result:
    return await livekit_refused(model="eleven_v3")


async def livekit_dialogue_idle() -> Result:
    return await livekit_pauses(model="eleven_v3")


async def livekit_openai_http() -> Result:
    results: Result = {}
    for name, options in (
        ("events", {"response_format": "wav"}),
        ("events of mp3", {}),
        ("audio", {"response_format": "wav", "model": "tts-1"}),
    ):
        tts = livekit_openai.TTS(**{"voice": "alloy", "base_url": f"{URL}/v1", "api_key": "none", **options})
        metrics: list[Any] = []
        tts.on("metrics_collected", metrics.append)
        results[name] = [await livekit_audio(tts.synthesize(TEXT, conn_options=ONCE))]
        await asyncio.sleep(0.1)  # they are collected behind the audio
        results[name] += [metrics[0].input_tokens, metrics[0].output_tokens > 0]
        await tts.aclose()
    for name, options in (
        ("voice", {"voice": "nobody"}),
        ("key", {"base_url": f"{GUARDED}/v1", "api_key": WRONG}),
        ("full", {"base_url": f"{FULL}/v1"}),
    ):
        tts = livekit_openai.TTS(**{"voice": "alloy", "base_url": f"{URL}/v1", "api_key": "none", **options})
        try:
            await livekit_audio(tts.synthesize(TEXT, conn_options=ONCE))
        except Exception as error:
            results[name] = [type(error).__name__, getattr(error, "status_code", None)]
        await tts.aclose()
    return results


def pipecat_elevenlabs(url: str = URL, key: str = "none", voice: str = "alloy") -> ElevenLabsTTSService:
    return ElevenLabsTTSService(api_key=key, url=ws(url), settings=ElevenLabsTTSService.Settings(voice=voice))


def pipecat_dialogue(url: str = URL, key: str = "none", voice: str = "alloy") -> ElevenLabsDialogueTTSService:
    return ElevenLabsDialogueTTSService(api_key=key, url=ws(url), settings=ElevenLabsDialogueTTSService.Settings(voice=voice))


def pipecat_deepgram(url: str = URL, key: str = "none", voice: str = "alloy") -> DeepgramTTSService:
    return DeepgramTTSService(api_key=key, base_url=ws(url), settings=DeepgramTTSService.Settings(voice=voice))


async def pipecat_over_http(kind: Any, script: Any, url: str = URL, key: str = "none", voice: str = "alloy") -> Result:
    async with aiohttp.ClientSession() as session:
        service = kind(api_key=key, aiohttp_session=session, base_url=url, settings=kind.Settings(voice=voice))
        return await pipecat(service, script)


async def pipecat_elevenlabs_socket() -> Result:
    return await pipecat(pipecat_elevenlabs(), pipecat_talk)


async def pipecat_elevenlabs_idle() -> Result:
    return await pipecat(pipecat_elevenlabs(BRIEF), pipecat_pauses)


async def pipecat_elevenlabs_http() -> Result:
    return await pipecat_over_http(ElevenLabsHttpTTSService, pipecat_talk)


async def pipecat_dialogue_socket() -> Result:
    return await pipecat(pipecat_dialogue(), pipecat_talk)


async def pipecat_dialogue_idle() -> Result:
    return await pipecat(pipecat_dialogue(BRIEF), pipecat_pauses)


async def pipecat_deepgram_socket() -> Result:
    return await pipecat(pipecat_deepgram(), pipecat_talk)


async def pipecat_deepgram_idle() -> Result:
    return await pipecat(pipecat_deepgram(BRIEF), pipecat_pauses)


async def pipecat_deepgram_http() -> Result:
    return await pipecat_over_http(DeepgramHttpTTSService, pipecat_talk)


async def pipecat_refused() -> Result:
    errors = {}
    for reason, options in (("voice", (URL, "none", "nobody")), ("key", (GUARDED, WRONG)), ("full", (FULL,))):
        for name, service in (
            ("elevenlabs", pipecat_elevenlabs),
            ("dialogue", pipecat_dialogue),
            ("deepgram", pipecat_deepgram),
        ):
            errors[f"{name} {reason}"] = await pipecat(service(*options), pipecat_fails)
        for name, kind in (("elevenlabs http", ElevenLabsHttpTTSService), ("deepgram http", DeepgramHttpTTSService)):
            errors[f"{name} {reason}"] = await pipecat_over_http(kind, pipecat_fails, *options)
    return errors


SCENARIOS = (
    deepgram_http,
    deepgram_http_refused,
    deepgram_granted,
    deepgram_socket,
    deepgram_socket_refused,
    deepgram_idle,
    elevenlabs_first_message,
    livekit_elevenlabs_http,
    livekit_elevenlabs_socket,
    livekit_elevenlabs_refused,
    livekit_elevenlabs_idle,
    livekit_dialogue_http,
    livekit_dialogue_socket,
    livekit_dialogue_refused,
    livekit_dialogue_idle,
    livekit_openai_http,
    pipecat_elevenlabs_socket,
    pipecat_elevenlabs_http,
    pipecat_elevenlabs_idle,
    pipecat_dialogue_socket,
    pipecat_dialogue_idle,
    pipecat_deepgram_socket,
    pipecat_deepgram_http,
    pipecat_deepgram_idle,
    pipecat_refused,
)


async def main() -> None:
    scenarios = {**{scenario.__name__: scenario for scenario in SCENARIOS}, **defaults_at(URL)}
    for name, scenario in scenarios.items():
        if sys.argv[6:] and name not in sys.argv[6:]:
            continue
        try:
            async with asyncio.timeout(90):
                result = await scenario()
        except Exception:
            result = {"failed": traceback.format_exc()[-1500:]}
        print(json.dumps({"scenario": name, **result}), flush=True)
        sys.stdin.readline()  # what was said so far has been written down


asyncio.run(main())
