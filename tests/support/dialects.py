"""Dialects: every protocol of the service as one kind of call, so that one test tries them all."""

import asyncio
import base64
import io
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import grpc
import requests
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect
from wyoming.audio import AudioChunk
from wyoming.event import Event, read_event, write_event
from wyoming.tts import Synthesize, SynthesizeChunk, SynthesizeStart, SynthesizeStop, SynthesizeVoice

from serve.config.protocols import WyomingConfig
from serve.http.services import Services
from serve.protocols.wyoming.listener import WyomingListener
from tests.support.live_server import CANARY, Live
from tests.support.ports import free_port
from tests.support.riva_server import Caller, riva_serving
from tests.support.tongues import DEEPGRAM, ELEVENLABS, ELEVENLABS_DIALOGUE, ELEVENLABS_SINGLE, FLUX, OWN, Tongue

TEXT = "Hello there."


class Refused(Exception):  # the protocol's answer, no fault of a test
    """A request ended without all of its audio: the protocol's own word, and its status or close code."""

    def __init__(self, code: str, status: int | str | None = None) -> None:
        super().__init__(code, status)
        self.code, self.status = code, status


@dataclass
class Call:
    """What a client asks for, in no protocol's words."""

    at: str
    """address of the server"""
    text: str = TEXT
    key: str = ""
    voice: str = "alloy"
    unknown: bool = False
    """with a field `novel`, which no protocol has"""
    strict: bool = False
    is_open: bool = False
    """the client does not end its text, where the protocol lets it"""
    closes: bool = False
    """the refusal is one that closes every socket"""
    ignored: set[str] = field(default_factory=set)
    """names of fields without effect, as the service reported them"""


@dataclass(frozen=True)
class Dialect:
    """One way to ask for speech."""

    name: str
    audio: Callable[[Call], Iterator[bytes]]
    """PCM at 24 kHz as it comes; closing it leaves without a word. Raises Refused."""
    words: dict[str, tuple[str, int | str | None]]
    """kind of refusal -> the protocol's word and status"""
    serves: Callable[[Live, str], AbstractContextManager[str]] = lambda live, key_id: nullcontext(live.url)
    is_socket: bool = False
    streams: bool = True
    """audio comes before the last of it exists"""
    idle_code: int = 1000
    """with which a socket closes that was silent for too long"""
    is_strict: bool = True
    """the client can ask that unknown fields are refused"""
    markup: tuple[tuple[str, str], ...] = ()
    """what the protocol marks in a text -> the words of it that are spoken"""

    def speak(self, live: Live, key_id: str = "", **fields: Any) -> tuple[bytes, set[str]]:
        """Returns all audio of a text, and the names of the fields without effect."""
        with self.serves(live, key_id) as address:
            call = Call(address, **fields)
            return b"".join(self.audio(call)), call.ignored

    def refusal(self, live: Live, key_id: str = "", **fields: Any) -> tuple[str, int | str | None]:
        """Returns the word and the status of a call that is refused."""
        try:
            self.speak(live, key_id, **{"is_open": self.is_socket, **fields})
        except Refused as refused:
            return refused.code, refused.status
        raise AssertionError(f"{self.name} refused nothing")


# HTTP


def _post(
    call: Call,
    path: str,
    body: dict[str, Any],
    key_header: str = "Authorization",
    scheme: str = "Bearer ",
    pieces: Callable[[requests.Response], Iterator[bytes]] = lambda reply: reply.iter_content(4096),
) -> Iterator[bytes]:
    headers = {key_header: f"{scheme}{call.key}"} if call.key else {}
    query = f"{'&' if '?' in path else '?'}strict=1" if call.strict else ""
    body = body | ({"novel": 1} if call.unknown else {})
    with requests.post(f"{call.at}{path}{query}", json=body, headers=headers, stream=True, timeout=60) as reply:
        if reply.status_code != 200:
            assert CANARY not in reply.text
            assert reply.status_code not in (429, 503) or "Retry-After" in reply.headers
            raise Refused(_word(reply.json()), reply.status_code)
        call.ignored.update(filter(None, reply.headers.get("X-Ignored-Fields", "").split(", ")))
        try:
            yield from pieces(reply)
        except requests.exceptions.ChunkedEncodingError:
            raise Refused("cut", 200) from None


def _word(body: dict[str, Any]) -> str:
    """The code of an error, wherever its protocol has it."""
    detail = body.get("detail") or body.get("error") or body
    return str(next(detail[name] for name in ("status", "error", "code", "err_code") if name in detail))


def _openai(call: Call) -> Iterator[bytes]:
    return _post(call, "/v1/audio/speech", {"input": call.text, "response_format": "pcm", "voice": call.voice})


def _elevenlabs(call: Call) -> Iterator[bytes]:
    path = f"/v1/text-to-speech/{call.voice}/stream?output_format=pcm_24000"
    return _post(call, path, {"text": call.text}, "xi-api-key", "")


def _elevenlabs_dialogue(call: Call) -> Iterator[bytes]:
    body = {"inputs": [{"text": call.text, "voice_id": call.voice}]}
    return _post(call, "/v1/text-to-dialogue/stream?output_format=pcm_24000", body, "xi-api-key", "")


def _deepgram(call: Call) -> Iterator[bytes]:
    path = f"/v1/speak?encoding=linear16&container=none&sample_rate=24000&model={call.voice}"
    return _post(call, path + ("&novel=1" if call.unknown else ""), {"text": call.text}, scheme="Token ")


def _flux(call: Call) -> Iterator[bytes]:
    path = f"/v2/speak?encoding=linear16&container=none&sample_rate=24000&model={call.voice}"
    return _post(call, path + ("&novel=1" if call.unknown else ""), {"text": call.text}, scheme="Token ")


def _kokoro(call: Call) -> Iterator[bytes]:
    def pieces(reply: requests.Response) -> Iterator[bytes]:
        return (base64.b64decode(json.loads(line)["audio"]) for line in reply.iter_lines(chunk_size=None) if line)

    body = {"input": call.text, "response_format": "pcm", "voice": call.voice, "return_timestamps": False}
    return _post(call, "/dev/captioned_speech", body, pieces=pieces)


def _piper(call: Call) -> Iterator[bytes]:
    def pieces(reply: requests.Response) -> Iterator[bytes]:
        content = reply.iter_content(4096)
        yield next(content).partition(b"data\xff\xff\xff\xff")[2]  # behind the header of the WAV file
        yield from content

    return _post(call, "/piper", {"text": call.text, "voice": call.voice}, pieces=pieces)


def _vapi(call: Call) -> Iterator[bytes]:
    message = {"type": "voice-request", "text": call.text, "sampleRate": 24_000} | ({"novel": 1} if call.unknown else {})
    call = replace(call, unknown=False)
    return _post(call, f"/vapi?voice={call.voice}", {"message": message}, "x-vapi-secret", "")


# sockets


def _socket(tongue: Tongue, key_header: str, call: Call) -> Iterator[bytes]:
    url = call.at.replace("http", "ws") + tongue.path.format(seed=7).replace("/default/", f"/{call.voice}/")
    query = {"novel": call.unknown and tongue is not OWN, "strict": call.strict}
    url += ("&" if "?" in url else "?") + "&".join(f"{name}=1" for name, is_set in query.items() if is_set)
    is_deepgram = tongue in (DEEPGRAM, FLUX)
    url += f"&model={call.voice}" if is_deepgram else ""
    headers = {key_header: f"{'Token ' if is_deepgram else ''}{call.key}"} if call.key else {}
    try:
        connection = connect(url, additional_headers=headers, close_timeout=1)
    except InvalidStatus as refusal:
        raise Refused(_word(json.loads(refusal.response.body)), refusal.response.status_code) from None
    with connection:
        frames = [*tongue.begins("c", 7), tongue.says("c", call.text), tongue.flushes("c")]
        if tongue is OWN:
            frames[0]["speech"] |= {"voice": call.voice} | ({"novel": 1} if call.unknown else {})
        frames = json.loads(json.dumps(frames).replace('"default"', json.dumps(call.voice)))
        with suppress(ConnectionClosed):
            for frame in [*frames, *(() if call.is_open else tongue.ends("c"))]:
                connection.send(json.dumps(frame))
        code = ""
        try:
            while True:
                event = tongue.understands(frame := connection.recv(timeout=8))
                if isinstance(frame, str):
                    call.ignored.update(json.loads(frame).get("ignored_fields", ()))
                if event.kind == "refused":
                    code = code or event.code
                    if tongue.keeps_socket and not call.closes:
                        raise Refused(code)
                elif code and is_deepgram:  # a warning, and the flush behind it
                    raise Refused(code)
                elif event.kind == "audio":
                    yield event.audio
                elif event.kind == "over" and not (call.is_open and is_deepgram):
                    return
        except ConnectionClosed:
            raise Refused(code or "closed", connection.close_code) from None


# Riva and Wyoming


@contextmanager
def _riva_serving(live: Live, key_id: str) -> Iterator[str]:
    with riva_serving(live.services) as address:
        yield address


def _riva(call: Call, *, online: bool) -> Iterator[bytes]:
    configuration = {"novel": "1"} if call.unknown else {}
    fields: dict[str, Any] = {"text": call.text, "voice_name": call.voice, "custom_configuration": configuration}
    fields |= {"encoding": 1, "sample_rate_hz": 24_000}
    metadata = ({"authorization": f"Bearer {call.key}"} if call.key else {}) | ({"strict": "1"} if call.strict else {})
    caller = Caller(call.at, **metadata)
    is_over = threading.Event()
    try:
        if not online:
            reply, trailing = caller.whole(**fields)
            call.ignored.update(filter(None, trailing.get("x-ignored-fields", "").split(", ")))
            yield reply.audio
            return
        replies = caller.growing(fields, until=is_over) if call.is_open else caller.stream(fields)
        try:
            for reply in replies:
                yield reply.audio
            trailing = dict(replies.trailing_metadata())
            call.ignored.update(filter(None, trailing.get("x-ignored-fields", "").split(", ")))
        finally:
            replies.cancel()
    except grpc.RpcError as error:
        refusal: Any = error
        assert CANARY not in refusal.details()
        raise Refused(refusal.details().partition(":")[0], refusal.code().name) from None
    finally:
        is_over.set()
        caller.channel.close()


@contextmanager
def wyoming_serving(services: Services, key_id: str = "") -> Iterator[str]:
    """Listens in a thread until the block ends; yields the port."""
    port, is_ready = free_port(), threading.Event()
    loops: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def listen() -> None:
        listener = WyomingListener(WyomingConfig(port=port, **({"key": key_id} if key_id else {})), services)
        await listener.start()
        is_over = asyncio.Event()
        loops.append((asyncio.get_running_loop(), is_over))
        is_ready.set()
        await is_over.wait()
        await listener.stop()

    thread = threading.Thread(target=asyncio.run, args=(listen(),), daemon=True)
    thread.start()
    is_ready.wait(60)
    try:
        yield str(port)
    finally:
        loop, is_over = loops[0]
        loop.call_soon_threadsafe(is_over.set)
        thread.join(60)


def _wyoming(call: Call, *, grows: bool) -> Iterator[bytes]:
    voice = SynthesizeVoice(name=call.voice)
    events: list[Any] = [Synthesize(call.text, voice)]
    if grows:
        events = [SynthesizeStart(voice), SynthesizeChunk(call.text), SynthesizeStop()]
    if grows and call.is_open:
        events[1:] = [SynthesizeChunk(f"{call.text} And this one is")]
    with socket.create_connection(("127.0.0.1", int(call.at)), timeout=60) as connection, connection.makefile("rwb") as stream:
        written = io.BytesIO()  # sent at once: a reset, because more came behind a refusal, may lose the refusal
        for event in (event.event() for event in events):
            write_event(Event(event.type, event.data | ({"novel": 1} if call.unknown else {})), written)
        connection.sendall(written.getvalue())
        while (event := read_event(stream)) is not None:  # type: ignore[arg-type]
            call.ignored.update(event.data.get("ignored_fields", ()))
            assert CANARY not in json.dumps(event.data)
            if event.type == "error":
                assert read_event(stream) is None  # type: ignore[arg-type]
                raise Refused(event.data["code"])
            if event.type == "audio-chunk":
                yield AudioChunk.from_event(event).audio
            if event.type == ("synthesize-stopped" if grows else "audio-stop"):
                return
        raise Refused("closed")


def _wyoming_serving(live: Live, key_id: str) -> AbstractContextManager[str]:
    return wyoming_serving(live.services, key_id)


_CODES = {
    "missing": "missing_api_key",
    "wrong": "invalid_api_key",
    "scope": "scope_missing",
    "quota": "quota_exceeded",
    "busy": "overloaded",
    "voice": "voice_not_found",
    "silent": "no_speakable_text",
    "fault": "engine_error",
    "dead": "engine_dead",
    "bug": "internal_error",
    "strict": "unknown_field",
}
_HTTP = {"missing": 401, "wrong": 401, "scope": 403, "quota": 429, "busy": 429, "voice": 400, "silent": 400}
_HTTP |= {"fault": 500, "dead": 503, "bug": 500, "strict": 400}
_OPEN = _HTTP | dict.fromkeys(("quota", "busy", "voice", "fault", "dead", "bug", "strict"))
_SHUT = _OPEN | {"quota": 1008, "busy": 1013, "voice": 1008, "fault": 1011, "dead": 1013, "bug": 1011, "strict": 1008}
_GRPC = dict.fromkeys(_CODES, "INVALID_ARGUMENT") | dict.fromkeys(("missing", "wrong"), "UNAUTHENTICATED")
_GRPC |= {"scope": "PERMISSION_DENIED", "quota": "RESOURCE_EXHAUSTED", "busy": "RESOURCE_EXHAUSTED"}
_GRPC |= {"fault": "INTERNAL", "dead": "UNAVAILABLE", "bug": "INTERNAL"}


def _words(statuses: dict[str, Any], codes: dict[str, str] = _CODES, *without: str) -> dict[str, tuple[str, int | str | None]]:
    return {kind: (code, statuses[kind]) for kind, code in codes.items() if kind not in without}


_OWN = _words(_HTTP)
_ELEVENLABS_CODES = _CODES | {"busy": "system_busy"}
_ELEVENLABS = _words(_HTTP | {"quota": 401, "voice": 404}, _ELEVENLABS_CODES)
_ELEVENLABS_SHUT = _words(_SHUT | {"missing": 1008}, _ELEVENLABS_CODES, "silent")
_ELEVENLABS_OPEN = _words(_OPEN | {"missing": 1008, "voice": 1008}, _ELEVENLABS_CODES, "silent")
_DEEPGRAM_CODES = {kind: code.upper() for kind, code in _CODES.items()}
_DEEPGRAM_CODES |= {
    "scope": "INSUFFICIENT_PERMISSIONS",
    "missing": "INVALID_AUTH",
    "wrong": "INVALID_AUTH",
    "busy": "TOO_MANY_REQUESTS",
}
_DEEPGRAM = _words(_HTTP | {"quota": 402}, _DEEPGRAM_CODES)
_DEEPGRAM_SHUT = _words(_SHUT | {"silent": None}, _DEEPGRAM_CODES)
_FLUX_SHUT = _DEEPGRAM_SHUT | {"silent": ("NO_SYNTHESIZABLE_TEXT", None)}
_RIVA = _words(_GRPC)
_WYOMING = _words(dict.fromkeys(_CODES))

_TAGS = (
    ('<break time="2.0s" />', ""),
    ('<break time="0.5s"/>', ""),
    ("<BREAK/>", ""),
    ("<break strength='x-strong'>", ""),
    ('<phoneme alphabet="ipa" ph="\u02c8kt\u0283u">Actually</phoneme>', "Actually"),
    ('<break time="99h"/>', ""),
)
_SPEAK = ("<speak>", ""), ('<speak version="1.1">Yes</speak>', "Yes")
_AUDIO_TAGS = ("[laughs]", ""), ("[whispers]", ""), ("[long pause]", ""), ("[excited, fast]", "")
_CONTROLS = (
    ('\\{"word": "dupilumab", "pronounce": "du\u02d0\u02c8p\u026al"\\}', "dupilumab"),
    ("\\{pause:500ms\\}", ""),
    ("\\{novel:1\\}", ""),
)
_KOKORO = ("[Kokoro](/k\u02c8Ok\u0259\u0279O/)", "Kokoro"), ("[pause:1.5s]", ""), ("[pause:0.5]", ""), ("[very](+2)", "very")
_PIPER = (("[[ b\u02c8\u00e6tm\u00e6n ]]", ""),)

_RIVAS: dict[str, Any] = {"serves": _riva_serving}
_WYOMINGS: dict[str, Any] = {"serves": _wyoming_serving, "is_strict": False}
_XI = "xi-api-key"
DIALECTS = (
    Dialect("openai", _openai, _OWN),
    Dialect("elevenlabs", _elevenlabs, _ELEVENLABS, markup=(*_TAGS, *_SPEAK)),
    Dialect("elevenlabs dialogue", _elevenlabs_dialogue, _ELEVENLABS, markup=(*_TAGS, *_SPEAK, *_AUDIO_TAGS)),
    Dialect("deepgram", _deepgram, _DEEPGRAM, markup=(*_TAGS, *_CONTROLS)),
    Dialect("deepgram flux", _flux, _DEEPGRAM, markup=(*_TAGS, *_CONTROLS)),
    Dialect("kokoro", _kokoro, _OWN, markup=_KOKORO),
    Dialect("piper", _piper, _OWN, markup=_PIPER),
    Dialect("vapi", _vapi, _OWN, markup=_TAGS),
    Dialect("conversation", partial(_socket, OWN, "x-api-key"), _words(_OPEN, _CODES, "silent"), is_socket=True),
    Dialect("elevenlabs socket", partial(_socket, ELEVENLABS, _XI), _ELEVENLABS_OPEN, is_socket=True, markup=(*_TAGS, *_SPEAK)),
    Dialect(
        "elevenlabs single",
        partial(_socket, ELEVENLABS_SINGLE, _XI),
        _ELEVENLABS_SHUT,
        is_socket=True,
        idle_code=1008,
        markup=(*_TAGS, *_SPEAK),
    ),
    Dialect(
        "elevenlabs dialogue socket",
        partial(_socket, ELEVENLABS_DIALOGUE, _XI),
        _ELEVENLABS_SHUT,
        is_socket=True,
        markup=(*_TAGS, *_SPEAK, *_AUDIO_TAGS),
    ),
    Dialect(
        "deepgram socket",
        partial(_socket, DEEPGRAM, "Authorization"),
        _DEEPGRAM_SHUT,
        is_socket=True,
        markup=(*_TAGS, *_CONTROLS),
    ),
    Dialect(
        "deepgram flux socket",
        partial(_socket, FLUX, "Authorization"),
        _FLUX_SHUT,
        is_socket=True,
        markup=(*_TAGS, *_CONTROLS),
    ),
    Dialect("riva", partial(_riva, online=False), _RIVA, **_RIVAS, streams=False),
    Dialect("riva online", partial(_riva, online=True), _RIVA, **_RIVAS),
    Dialect("wyoming", partial(_wyoming, grows=False), _WYOMING, **_WYOMINGS),
    Dialect("wyoming pieces", partial(_wyoming, grows=True), _WYOMING, **_WYOMINGS),
)
