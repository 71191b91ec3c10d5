"""Wyoming on the wire: Home Assistant's own ways of reading and writing, the package's client, and what harms nobody."""

import asyncio
import io
import json
import socket
import wave
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wyoming.audio import AudioChunk
from wyoming.client import AsyncTcpClient
from wyoming.error import Error
from wyoming.event import Event, async_read_event, async_write_event
from wyoming.info import Describe, Info, SelectProgram
from wyoming.ping import Ping, Pong
from wyoming.tts import Synthesize, SynthesizeChunk, SynthesizeStart, SynthesizeStop, SynthesizeVoice

from serve.config.app_config import ConversationsConfig, LimitsConfig
from serve.config.protocols import WyomingConfig
from serve.http.services import Services
from serve.protocols.wyoming import reader as wyoming_reader
from serve.protocols.wyoming.listener import WyomingListener
from tests.support.effort import examples
from tests.support.fakes import Speaker, make_services
from tests.support.home_assistant import home_assistant_reads, home_assistant_streams
from tests.support.live_server import CANARY
from tests.support.ports import free_port
from tests.support.waiting import until

SECOND = 48_000  # bytes of a Speaker's audio of one text, and of each part of one that grows
TEXT = "Hello there."


@asynccontextmanager
async def listening(services: Services | None = None, **config: Any) -> AsyncIterator[tuple[int, WyomingListener]]:
    port = free_port()
    listener = WyomingListener(WyomingConfig(port=port, **config), services or make_services(Speaker()))
    await listener.start()
    try:
        yield port, listener
    finally:
        async with asyncio.timeout(20):
            await listener.stop()


def talk(
    script: Callable[[AsyncTcpClient, WyomingListener], Awaitable[Any]], services: Services | None = None, **config: Any
) -> Any:
    """What a script of one client returns."""

    async def run() -> Any:
        async with (
            listening(services, **config) as (port, listener),
            asyncio.timeout(60),
            AsyncTcpClient("127.0.0.1", port) as client,
        ):
            return await script(client, listener)

    return asyncio.run(run())


async def heard(client: AsyncTcpClient, until: str = "audio-stop") -> tuple[list[str], bytes]:
    """Kinds of events, each run of them once, until one comes or the stream ends; and the audio."""
    kinds, audio = [], b""
    while (event := await client.read_event()) is not None:
        if event.type == "audio-chunk":
            chunk = AudioChunk.from_event(event)
            assert (chunk.rate, chunk.width, chunk.channels) == (24_000, 2, 1)
            assert chunk.timestamp == len(audio) * 1000 // SECOND
            audio += chunk.audio
        kind = event.type if event.type != "error" else f"error {Error.from_event(event).code}"
        assert CANARY not in json.dumps(event.data)
        kinds += [kind] if kinds[-1:] != [kind] else []
        if event.type == until:
            return kinds, audio
    return [*kinds, "end"], audio


def test_home_assistant_finds_the_voices_and_their_languages():
    async def script(client: AsyncTcpClient, listener: WyomingListener) -> None:
        await client.write_event(Describe().event())
        event = await client.read_event()
        assert event is not None
        program = next(one for one in Info.from_event(event).tts if one.installed)
        assert program.supports_synthesize_streaming
        assert {voice.name: voice.languages for voice in program.voices if voice.installed} == {
            "default": ["en", "zh"],
            "calm": ["zh", "en"],
        }
        await client.write_event(SelectProgram(program.name).event())
        await client.write_event(Ping("still there?").event())
        event = await client.read_event()
        assert event is not None
        assert Pong.from_event(event).text == "still there?"

    talk(script)


def test_home_assistant_speaks_a_message_with_the_bytes_of_http():
    speaker = Speaker()

    async def run() -> None:
        async with listening(make_services(speaker)) as (port, _):
            spoken = await home_assistant_reads(port, TEXT, SynthesizeVoice(name="alloy"))
            assert spoken is not None
            with wave.open(io.BytesIO(spoken)) as file:
                assert (file.getframerate(), file.getnframes()) == (24_000, 24_000)
            assert await home_assistant_reads(port, TEXT, SynthesizeVoice(name="nobody")) is None

    asyncio.run(run())
    assert (speaker.requests[0].text, speaker.requests[0].voice) == (TEXT, "default")


@pytest.mark.parametrize("pieces", [["Hel", "lo there. ", "How are", " you?"], ["Hello there. How are you?"]])
def test_home_assistant_speaks_a_message_that_grows_once(pieces: list[str]):
    speaker = Speaker()

    async def run() -> tuple[int, bytes]:
        async with listening(make_services(speaker)) as (port, _):
            return await home_assistant_streams(port, pieces, None)

    headers, audio = asyncio.run(run())
    texts = [request.text for request in speaker.requests]
    assert "".join(texts).split() == "".join(pieces).split(), "once, although it is sent twice"
    assert (headers, len(audio)) == (1, len(texts) * SECOND)


def test_a_client_that_sends_no_pieces_is_spoken_to_all_the_same():
    async def script(client: AsyncTcpClient, listener: WyomingListener) -> Any:
        for event in (SynthesizeStart().event(), Synthesize(TEXT).event(), SynthesizeStop().event()):
            await client.write_event(event)
        return await heard(client, "synthesize-stopped")

    kinds, audio = talk(script)
    assert kinds == ["audio-start", "audio-chunk", "audio-stop", "synthesize-stopped"]
    assert len(audio) == SECOND


def test_texts_of_one_connection_are_spoken_one_after_the_other():
    async def script(client: AsyncTcpClient, listener: WyomingListener) -> None:
        for _ in range(3):
            await client.write_event(Synthesize(TEXT).event())
        await client.write_event(Ping().event())
        for _ in range(3):
            kinds, audio = await heard(client)
            assert kinds == ["audio-start", "audio-chunk", "audio-stop"]
            assert len(audio) == SECOND
        assert (await client.read_event()).type == "pong"  # type: ignore[union-attr]

    talk(script)


def test_many_connections_at_once_and_one_too_many():
    async def run() -> None:
        async with listening(make_services(Speaker(pause_s=0.01)), max_connections=8) as (port, _):
            spoken = await asyncio.gather(*(home_assistant_reads(port, TEXT, None) for _ in range(8)))
            assert {len(one or b"") for one in spoken} == {SECOND + 44}
            async with AsyncTcpClient("127.0.0.1", port) as client:
                await client.write_event(Ping().event())
                await client.read_event()
                idle = [AsyncTcpClient("127.0.0.1", port) for _ in range(7)]
                for one in idle:
                    await one.connect()
                    await one.write_event(Ping().event())
                    await one.read_event()
                async with AsyncTcpClient("127.0.0.1", port) as late:
                    assert await heard(late) == (["error overloaded", "end"], b"")
                for one in idle:
                    await one.disconnect()

    asyncio.run(run())


def test_what_has_no_effect_is_named():
    async def script(client: AsyncTcpClient, listener: WyomingListener) -> Any:
        data = {"text": TEXT, "voice": {"name": "alloy", "speaker": "x"}, "pitch": 2, "context": {"id": "c"}}
        await client.write_event(Event("synthesize", data))
        return (await client.read_event()).data["ignored_fields"]  # type: ignore[union-attr]

    assert talk(script) == ["pitch", "voice.speaker"]


@pytest.mark.parametrize(
    ("events", "code"),
    [
        ([Event("synthesize", {})], "missing_field"),
        ([Event("synthesize", {"text": 5})], "invalid_type"),
        ([Synthesize("").event()], "out_of_range"),
        ([Synthesize("x" * 5000).event()], "input_too_long"),
        ([Synthesize("<speak", text_format="ssml").event()], "invalid_ssml"),
        ([Synthesize(TEXT, text_format=CANARY).event()], "out_of_range"),
        ([Synthesize(TEXT, SynthesizeVoice(name=CANARY)).event()], "voice_not_found"),
        ([Synthesize(TEXT, SynthesizeVoice(language=CANARY * 4)).event()], "out_of_range"),
        ([SynthesizeStart().event(), SynthesizeStop().event()], "no_speakable_text"),
        ([SynthesizeStart(SynthesizeVoice(name=CANARY)).event()], "voice_not_found"),
        ([SynthesizeStart().event(), SynthesizeStart().event()], "conflict"),
        ([SynthesizeStart().event(), SynthesizeChunk("x" * 20_000).event()], "overloaded"),
        ([SynthesizeChunk(TEXT).event()], "conflict"),
        ([SelectProgram(CANARY).event()], "program_not_found"),
        ([Event("ping", {"text": 5})], "invalid_type"),
    ],
)
def test_what_is_wrong_is_said_and_ends_the_stream(events: list[Event], code: str):
    async def script(client: AsyncTcpClient, listener: WyomingListener) -> Any:
        for event in events:
            await client.write_event(event)
        return await heard(client)

    assert talk(script) == ([f"error {code}", "end"], b"")


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "invalid_event"),
        (b"[]\n", "invalid_event"),
        (b"{}\n", "invalid_event"),
        (b'{"type": 5}\n', "invalid_event"),
        (b'{"type": "ping", "data": []}\n', "invalid_event"),
        (b'{"type": "ping", "data_length": "5"}\n', "invalid_event"),
        (b'{"type": "ping", "data_length": 99999999999}\n', "body_too_large"),
        (b'{"type": "ping", "payload_length": 1e12}\n', "invalid_event"),
        (b'{"type": "ping", "data_length": 3}\n[1]', "invalid_event"),
        (b"[" * 100_000 + b"\n", "invalid_event"),
        (b"[" * 60_000 + b"\n", "invalid_event"),
    ],
)
def test_what_is_no_event_is_refused_before_it_is_read(raw: bytes, code: str):
    async def script(client: AsyncTcpClient, listener: WyomingListener) -> Any:
        assert client._writer is not None
        client._writer.write(raw)
        return await heard(client)

    assert talk(script) == ([f"error {code}", "end"], b"")


async def refusal_of(port: int, first: bytes, pieces: int) -> bytes:
    """What a client reads that learns of its refusal after it has sent everything."""
    loop = asyncio.get_running_loop()
    with socket.socket() as client:
        client.setblocking(False)
        await loop.sock_connect(client, ("127.0.0.1", port))
        await loop.sock_sendall(client, first)
        answer = await loop.sock_recv(client, 1)
        await asyncio.sleep(0.05)
        for _ in range(pieces):
            await loop.sock_sendall(client, bytes(1 << 16))
        client.shutdown(socket.SHUT_WR)
        while piece := await loop.sock_recv(client, 1 << 16):
            answer += piece
    return answer


@pytest.mark.parametrize(("max_connections", "code"), [(2, "invalid_event"), (1, "overloaded")])
def test_a_client_that_goes_on_sending_reads_why_it_is_refused(max_connections: int, code: str):
    async def script(client: AsyncTcpClient, listener: WyomingListener) -> None:
        assert client._writer is not None
        await until(lambda: len(listener._connections) == 1)
        port = client._writer.get_extra_info("peername")[1]
        answer = await refusal_of(port, b"[]\n", 16)
        assert json.loads(answer.splitlines()[0])["type"] == "error"
        assert code.encode() in answer

    talk(script, max_connections=max_connections)


@pytest.mark.parametrize("max_connections", [2, 1])
def test_a_refused_client_is_read_for_so_many_bytes_and_so_long(max_connections: int, monkeypatch: pytest.MonkeyPatch):
    async def script(client: AsyncTcpClient, listener: WyomingListener) -> None:
        assert client._writer is not None
        await until(lambda: len(listener._connections) == 1)
        port = client._writer.get_extra_info("peername")[1]
        monkeypatch.setattr(wyoming_reader, "LINGER_S", 60.0)
        monkeypatch.setattr(wyoming_reader, "MOST_BEHIND_REPLY", 1 << 17)
        with pytest.raises(ConnectionError):
            await refusal_of(port, b"[]\n", 1 << 12)
        monkeypatch.setattr(wyoming_reader, "LINGER_S", 0.05)
        async with AsyncTcpClient("127.0.0.1", port) as silent:
            assert silent._writer is not None
            silent._writer.write(b"[]\n")
            assert (await heard(silent))[0][1:] == ["end"]
            await until(lambda: len(listener._connections) == 1 and listener._refused == 0)

    talk(script, max_connections=max_connections)


def test_half_a_character_in_a_ping_harms_nothing():
    async def script(client: AsyncTcpClient, listener: WyomingListener) -> Any:
        assert client._writer is not None
        client._writer.write(b'{"type": "ping", "data": {"text": "a\\ud800"}}\n')
        return await client.read_event()

    assert Pong.from_event(talk(script)).text == "a?"


def test_an_event_that_does_not_arrive_is_not_waited_for():
    async def script(client: AsyncTcpClient, listener: WyomingListener) -> Any:
        assert client._writer is not None
        client._writer.write(b'{"type": "synthesize", "data_length": 30}\n{"te')
        return await heard(client)

    services = make_services(Speaker(), LimitsConfig(body_timeout_s=0.05))
    assert talk(script, services) == (["error body_timeout", "end"], b"")


def test_a_silent_connection_is_closed():
    async def script(client: AsyncTcpClient, listener: WyomingListener) -> Any:
        await client.write_event(SynthesizeStart().event())
        return await heard(client)

    services = make_services(Speaker(), conversations=ConversationsConfig(idle_timeout_s=0.05))
    assert talk(script, services) == (["end"], b"")


@pytest.mark.parametrize("said", ["", "This sentence is whole. And this one is"])
def test_a_replica_that_stops_does_not_wait_for_the_end_of_a_text(said: str):
    services = make_services(Speaker(chunks=3, pause_s=0.01))

    async def script(client: AsyncTcpClient, listener: WyomingListener) -> Any:
        await client.write_event(SynthesizeStart().event())
        if said:
            await client.write_event(SynthesizeChunk(said).event())
        await until(lambda: services.conversations.open_now == 1 and services.conversations.busy == bool(said))
        services.conversations.leave()
        listener.leave()
        return await heard(client)

    kinds, audio = talk(script, services)
    assert kinds[-2:] == ["error draining", "end"]
    assert bool(audio) == bool(said), "what was complete is spoken"


def test_replicas_share_a_port_and_the_one_that_stops_speaks_on():
    async def run() -> None:
        port = free_port()
        old, new = (
            WyomingListener(WyomingConfig(port=port), make_services(Speaker(chunks=chunks, pause_s=0.01))) for chunks in (50, 5)
        )
        await old.start()
        async with AsyncTcpClient("127.0.0.1", port) as client, AsyncTcpClient("127.0.0.1", port) as idle:
            for one in (client, idle):
                await one.write_event(Ping().event())
                await one.read_event()
            await client.write_event(Synthesize(TEXT).event())
            assert (await client.read_event()).type == "audio-start"  # type: ignore[union-attr]
            await new.start()
            stopping = asyncio.create_task(old.stop())
            assert await idle.read_event() is None
            for _ in range(8):
                assert len(await home_assistant_reads(port, TEXT, None) or b"") == SECOND + 44
            assert not stopping.done()
            kinds, audio = await heard(client)
            assert kinds[-1] == "audio-stop"
            assert len(audio) == 10 * SECOND
            async with asyncio.timeout(20):
                await stopping
        await new.stop()

    asyncio.run(run())


EVENTS = st.sampled_from(
    [
        "describe",
        "ping",
        "synthesize",
        "synthesize-start",
        "synthesize-chunk",
        "synthesize-stop",
        "select-program",
        "audio-chunk",
    ]
)
VALUES = (
    st.none()
    | st.integers()
    | st.text(max_size=5)
    | st.dictionaries(st.sampled_from(["name", "language"]), st.text(max_size=3))
)
DATA = st.dictionaries(st.sampled_from(["text", "voice", "text_format", "name", "context"]), VALUES, max_size=4)


@settings(max_examples=examples(15), deadline=None)
@given(events=st.lists(st.tuples(EVENTS, DATA), max_size=5), tail=st.binary(max_size=20))
def test_whatever_a_client_says_harms_nobody(events: list[tuple[str, dict[str, Any]]], tail: bytes):
    async def run() -> None:
        services = make_services(Speaker(chunks=1))
        async with listening(services) as (port, _):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for kind, data in events:
                with suppress(ConnectionError):
                    await async_write_event(Event(kind, data), writer)
            writer.write(tail)
            with suppress(OSError):
                writer.write_eof()
            while (event := await async_read_event(reader)) is not None:
                assert event.type != "error" or event.data["code"] != "internal_error"
            writer.close()
            spoken = await home_assistant_reads(port, TEXT, None)
            assert spoken
            assert services.speech.admission.in_flight == 0

    asyncio.run(run())
