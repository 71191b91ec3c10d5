"""Broker link: a connection to an MQTT broker that is there again after every fault.

In:    EdgeConfig, a last will, what to do while there is a connection
Out:   an aiomqtt Client per connection
Owns:  the topics; the pauses between two connections
Never: an end because of a fault: of the broker, of the network, or of what a message brings
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar
from urllib.parse import unquote, urlsplit

import aiomqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from serve.config.edge import PORTS, EdgeConfig, Option
from serve.edge.signed_manifest import MOST_MESSAGE_BYTES

T = TypeVar("T")

LOG = logging.getLogger("ray.serve.chattts")
QUIET = logging.getLogger(
    "ray.serve.chattts.mqtt"
)  # a line for every message that a broker writes wrongly: no disk is for that
QUIET.setLevel(logging.CRITICAL)

TARGET, STATE = "chattts/boxes/{}/target", "chattts/boxes/{}/state"
TLS_FILES: tuple[Option, ...] = ("ca_certs", "certfile", "keyfile")
MOST_PACKET_BYTES = MOST_MESSAGE_BYTES + 1024
MOST_QUEUED = 1000  # messages; a broker that sends more than can be read loses them
ANSWER_S = 10.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 60.0
LASTED_S = 30.0  # a connection that was there for so long was a good one


def client_of(config: EdgeConfig, will: aiomqtt.Will | None = None) -> aiomqtt.Client:
    """Returns a client, not yet connected."""
    parts = urlsplit(config.broker or "")
    properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
    properties.MaximumPacketSize = MOST_PACKET_BYTES
    ca_certs, certfile, keyfile = (str(config.options[name]) if name in config.options else None for name in TLS_FILES)
    client = aiomqtt.Client(
        parts.hostname or "",
        parts.port or PORTS[parts.scheme],
        username=unquote(parts.username) if parts.username else None,
        password=unquote(parts.password) if parts.password else None,
        logger=QUIET,
        identifier=config.name,
        protocol=aiomqtt.ProtocolVersion.V5,
        will=will,
        timeout=ANSWER_S,
        keepalive=int(config.options.get("keepalive", 60)),
        max_queued_incoming_messages=MOST_QUEUED,
        properties=properties,
        tls_params=aiomqtt.TLSParameters(ca_certs, certfile, keyfile) if parts.scheme == "mqtts" else None,
    )
    receive = client._client._sock_recv

    def bounded(size: int) -> bytes:
        if size > MOST_PACKET_BYTES:  # paho keeps whatever length a broker announces, up to 256 MiB
            raise ConnectionError(f"a packet of {size} bytes, where {MOST_PACKET_BYTES} were allowed")
        return receive(size)

    client._client._sock_recv = bounded  # type: ignore[assignment, method-assign]
    client._wait_for = answered  # type: ignore[assignment, method-assign]
    return client


async def answered(answer: Awaitable[T], timeout: float | None) -> T:
    """Returns an answer of the broker. As aiomqtt's own, which in Python 3.11 loses a cancellation that comes with the answer.

    Raises:
        aiomqtt.MqttError: it did not come within the time, ANSWER_S if that is None [s].
    """
    try:
        async with asyncio.timeout(ANSWER_S if timeout is None else timeout):
            return await answer
    except TimeoutError:
        raise aiomqtt.MqttError("Operation timed out") from None


async def stay_connected(
    config: EdgeConfig, serve: Callable[[aiomqtt.Client], Awaitable[None]], will: aiomqtt.Will | None = None
) -> None:
    """Connects, and calls `serve`, which returns when the connection is lost; again and again, until cancelled."""
    failures, loop = 0, asyncio.get_running_loop()
    while True:
        began, client = loop.time(), client_of(config, will)
        first = client._disconnected
        try:
            async with client:
                await serve(client)
        except Exception as error:  # whatever a broker can bring about
            failures = 1 if loop.time() - began > LASTED_S else failures + 1
            if failures == 1 or not isinstance(error, aiomqtt.MqttError | OSError):
                LOG.warning("edge: no broker (%s: %s)", type(error).__name__, error)
        finally:
            client._client._sock_close()  # which aiomqtt leaves open where the broker has not answered in time
            for end in (first, client._disconnected):  # asyncio logs each one that nobody looks at, with a traceback
                if end.done() and not end.cancelled():
                    end.exception()
        pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(failures, 16))
        await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))  # not all boxes at once
