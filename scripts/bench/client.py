"""Client: requests speech from any OpenAI-compatible server.

In:    Utterances
Out:   pieces of pcm, as they arrive from the network
Owns:  one HTTP session per load
Never: a field beyond OpenAI's endpoint, unless it comes from `extra`
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import SimpleNamespace

import aiohttp

from scripts.bench.load import Refused, Sent, Speak
from scripts.bench.timeline import REFUSALS
from scripts.bench.workload import Utterance

SPEECH = "/v1/audio/speech"


class SpeechError(Exception):
    """An answer that is neither audio nor a refusal."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A speech server."""

    url: str
    """without /v1"""
    model: str = "chattts"
    voice: str = "default"
    key: str = "none"
    extra: Callable[[Utterance, bool], dict[str, object]] = lambda utterance, streamed: {}
    """(utterance, streamed) -> fields beyond OpenAI's"""


@asynccontextmanager
async def http_speaker(endpoint: Endpoint) -> AsyncIterator[Speak]:
    """Opens a session and yields its `Speak` function."""
    trace = aiohttp.TraceConfig()

    async def chunk_sent(session: object, context: SimpleNamespace, params: object) -> None:
        context.trace_request_ctx()  # the clock starts with the body: connecting is not the server's time

    trace.on_request_chunk_sent.append(chunk_sent)
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    # Every round requests the same utterances again, and none may come from a cache.
    headers = {"Authorization": f"Bearer {endpoint.key}", "Cache-Control": "no-store"}
    async with aiohttp.ClientSession(
        connector=connector, timeout=timeout, headers=headers, trace_configs=[trace], read_bufsize=1 << 20
    ) as session:

        async def speak(utterance: Utterance, streamed: bool, sent: Sent) -> AsyncGenerator[bytes, None]:
            known = {"model": endpoint.model, "voice": endpoint.voice, "input": utterance.text, "response_format": "pcm"}
            body = known | endpoint.extra(utterance, streamed)
            async with session.post(endpoint.url + SPEECH, json=body, trace_request_ctx=sent) as reply:
                if reply.status in REFUSALS:
                    await reply.read()
                    retry_after = reply.headers.get("Retry-After", "")
                    raise Refused(reply.status, float(retry_after) if retry_after.isdigit() else None)
                if reply.status != 200:
                    raise SpeechError(f"status {reply.status}: {(await reply.text())[:200]}")
                async for piece in reply.content.iter_any():
                    yield piece

        yield speak
