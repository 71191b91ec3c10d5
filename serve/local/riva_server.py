"""Riva server: the gRPC server of a service in one process.

In:    calls of serve/protocols/riva
Out:   messages; a call that is refused ends with the status that its context was given
Owns:  the server
Never: what a method does: serve/protocols/riva/calls.py
"""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

import grpc

from serve.http.services import Services
from serve.protocols.riva.calls import RivaRefusal, RivaService
from serve.protocols.riva.protocol import add_RivaSpeechSynthesisServicer_to_server

MOST_MESSAGE_BYTES = 32 << 20
MOST_CALLS = 512


class RivaServicer:
    """The methods, under the names of the protocol."""

    def __init__(self, service: RivaService) -> None:
        self._service = service

    async def Synthesize(self, requests: AsyncIterator[bytes], context: Any) -> Any:
        """As RivaService.synthesize."""
        try:
            return await self._service.synthesize(requests, context)
        except RivaRefusal:
            await _refuse(context)

    async def SynthesizeOnline(self, requests: AsyncIterator[bytes], context: Any) -> AsyncGenerator[Any, None]:
        """As RivaService.synthesize_online."""
        async with aclosing(self._service.synthesize_online(requests, context)) as replies:
            try:
                async for reply in replies:
                    yield reply
            except RivaRefusal:
                await _refuse(context)

    async def GetRivaSynthesisConfig(self, requests: AsyncIterator[bytes], context: Any) -> Any:
        """As RivaService.config."""
        try:
            return await self._service.config(requests, context)
        except RivaRefusal:
            await _refuse(context)

    async def Check(self, requests: AsyncIterator[bytes], context: Any) -> Any:
        """As RivaService.health."""
        return await self._service.health()


async def riva_server(services: Services, host: str, port: int) -> Any:
    """Returns a server that listens.

    Raises:
        OSError: the port is taken.
    """
    options = (("grpc.max_receive_message_length", MOST_MESSAGE_BYTES), ("grpc.so_reuseport", 0))
    server = grpc.aio.server(options=options, maximum_concurrent_rpcs=MOST_CALLS)
    add_RivaSpeechSynthesisServicer_to_server(RivaServicer(RivaService(services)), server)
    try:
        server.add_insecure_port(f"{host}:{port}")
    except RuntimeError as error:
        raise OSError(f"{host}:{port} cannot be listened on: {error}") from None
    await server.start()
    return server


async def _refuse(context: Any) -> None:
    await context.abort(context.code(), context.details(), context.trailing_metadata() or ())
