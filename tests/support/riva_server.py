"""Riva's methods on a gRPC server of this process, as Serve calls them, and a caller of them."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, contextmanager
from typing import Any

import grpc

from serve.http.services import Services
from serve.protocols.riva import protocol
from serve.protocols.riva.calls import RivaRefusal, RivaService
from serve.protocols.riva.protocol import add_RivaSpeechSynthesisServicer_to_server


class Servicer:
    """What Serve does around the methods of the ingress."""

    def __init__(self, service: RivaService) -> None:
        self._service = service

    async def Synthesize(self, requests: AsyncIterator[Any], context: Any) -> Any:
        try:
            return await self._service.synthesize(requests, context)
        except RivaRefusal:
            await context.abort(context.code(), context.details())

    async def SynthesizeOnline(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        try:
            async with aclosing(self._service.synthesize_online(requests, context)) as replies:
                async for reply in replies:
                    yield reply
        except RivaRefusal:
            await context.abort(context.code(), context.details())

    async def GetRivaSynthesisConfig(self, requests: AsyncIterator[Any], context: Any) -> Any:
        try:
            return await self._service.config(requests, context)
        except RivaRefusal:
            await context.abort(context.code(), context.details())

    async def Check(self, requests: AsyncIterator[Any], context: Any) -> Any:
        return await self._service.health()


@contextmanager
def riva_serving(services: Services) -> Iterator[str]:
    """Serves until the block ends; yields the address."""
    started: list[int] = []
    is_ready, is_over = threading.Event(), threading.Event()

    async def serve() -> None:
        server = grpc.aio.server()
        add_RivaSpeechSynthesisServicer_to_server(Servicer(RivaService(services)), server)
        started.append(server.add_insecure_port("127.0.0.1:0"))
        await server.start()
        is_ready.set()
        while not is_over.is_set():  # noqa: ASYNC110  # awake to what tests set from their own threads
            await asyncio.sleep(0.02)
        await server.stop(0)

    thread = threading.Thread(target=asyncio.run, args=(serve(),), daemon=True)
    thread.start()
    is_ready.wait(60)
    try:
        yield f"127.0.0.1:{started[0]}"
    finally:
        is_over.set()
        thread.join(60)


class Caller:
    """A client of the protocol, on its descriptors alone."""

    def __init__(self, address: str, **metadata: str) -> None:
        self.channel = grpc.insecure_channel(address)
        self.metadata = tuple(metadata.items())
        path, reply = f"/{protocol.SERVICE}", protocol.SynthesizeSpeechResponse.FromString
        ask = protocol.SynthesizeSpeechRequest.SerializeToString
        self._whole = self.channel.unary_unary(f"{path}/Synthesize", ask, reply)
        self._stream = self.channel.stream_stream(f"{path}/SynthesizeOnline", ask, reply)
        self._older = self.channel.unary_stream(f"{path}/SynthesizeOnline", ask, reply)
        self._config = self.channel.unary_unary(
            f"{path}/GetRivaSynthesisConfig",
            protocol.RivaSynthesisConfigRequest.SerializeToString,
            protocol.RivaSynthesisConfigResponse.FromString,
        )

    def whole(self, timeout: float = 60, **fields: Any) -> tuple[Any, dict[str, str]]:
        """The reply, and its trailing metadata."""
        reply, call = self._whole.with_call(protocol.SynthesizeSpeechRequest(**fields), metadata=self.metadata, timeout=timeout)
        return reply, dict(call.trailing_metadata())

    def stream(self, *requests: dict[str, Any], timeout: float = 60) -> Any:
        """The replies to a stream of requests."""
        messages = iter([protocol.SynthesizeSpeechRequest(**fields) for fields in requests])
        return self._stream(messages, metadata=self.metadata, timeout=timeout)

    def growing(self, *requests: dict[str, Any], until: threading.Event, timeout: float = 60) -> Any:
        """The replies to a stream of requests that stays open until an event is set."""

        def messages() -> Iterator[Any]:
            yield from (protocol.SynthesizeSpeechRequest(**fields) for fields in requests)
            until.wait(timeout)

        return self._stream(messages(), metadata=self.metadata, timeout=timeout)

    def raw(self, method: str, *messages: bytes, until: threading.Event | None = None) -> Any:
        """The replies to messages as they are, on a stream that stays open until an event is set."""

        def stream() -> Iterator[bytes]:
            yield from messages
            if until is not None:
                until.wait(60)

        return self.channel.stream_stream(f"/{protocol.SERVICE}/{method}")(stream(), metadata=self.metadata, timeout=60)

    def older(self, timeout: float = 60, **fields: Any) -> Any:
        """The replies to one request without a stream, as clients did it before 2026."""
        return self._older(protocol.SynthesizeSpeechRequest(**fields), metadata=self.metadata, timeout=timeout)

    def config(self, model_name: str = "") -> Any:
        """The configuration."""
        return self._config(protocol.RivaSynthesisConfigRequest(model_name=model_name), metadata=self.metadata, timeout=60)


def refusal(call: Any) -> tuple[str, str]:
    """Name of the status code, and the service's own code, of a call that is refused."""
    try:
        result = call()
        list(result)
    except grpc.RpcError as error:
        failure: Any = error
        return failure.code().name, failure.details().partition(":")[0]
    raise AssertionError("it is not refused")
