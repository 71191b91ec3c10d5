"""Wyoming listener: accepts the connections of one ingress replica, on a port that the replicas of a node share.

In:    TCP connections
Out:   a WyomingConnection each
Owns:  the listening socket, the connections that are open
Never: more connections than it may have; a connection that is cut because a replica stops

The kernel gives a new connection to any of the replicas that listen. A replica that stops closes its socket first, so a new one
takes over while the old one still speaks.
"""

import asyncio
import logging
from contextlib import suppress

from wyoming.event import async_write_event

from pipeline.errors import AtCapacity
from serve.config.protocols import WyomingConfig
from serve.http.services import Services
from serve.protocols.wyoming.connection import WyomingConnection
from serve.protocols.wyoming.messages import error_event
from serve.protocols.wyoming.reader import LINE_BYTES, linger

LOG = logging.getLogger("ray.serve.chattts")

MOST_REFUSED = 64
"""connections beyond wyoming.max_connections that learn why they are refused; further ones are closed at once"""


class WyomingListener:
    """The TCP listener of one ingress replica."""

    def __init__(self, config: WyomingConfig, services: Services) -> None:
        self._config = config
        self._services = services
        self._server: asyncio.Server | None = None
        self._connections: set[WyomingConnection] = set()
        self._refused = 0  # of those beyond, open now
        self._are_gone = asyncio.Event()
        self._are_gone.set()

    async def start(self) -> None:
        """Listens, if the configuration names a port.

        Raises:
            OSError: the port is taken by another program.
        """
        config = self._config
        if config.port is not None:
            self._server = await asyncio.start_server(self._accept, config.host, config.port, reuse_port=True, limit=LINE_BYTES)
            LOG.info("wyoming: listening on %s:%d", config.host, config.port)

    def leave(self) -> None:
        """Accepts no more connections, and ends those that there are once they have spoken."""
        if self._server is not None:
            self._server.close()
        for connection in self._connections:
            connection.leave()

    async def stop(self) -> None:
        """Leaves; returns when everything has been spoken."""
        self.leave()
        await self._are_gone.wait()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) >= self._config.max_connections:
            self._refused += 1
            try:
                if self._refused <= MOST_REFUSED:
                    await self._refuse(reader, writer)
            finally:
                self._refused -= 1
                writer.close()
            return
        connection = WyomingConnection(reader, writer, self._services, self._config)
        self._connections.add(connection)
        self._are_gone.clear()
        try:
            await connection.run()
        finally:
            self._connections.discard(connection)
            if not self._connections:
                self._are_gone.set()

    async def _refuse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        most = self._config.max_connections
        full = AtCapacity(f"{most} connections are open (wyoming.max_connections)", retry_after_s=1.0)
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(1.0):
                await async_write_event(error_event(full), writer)
            await linger(reader, writer)
