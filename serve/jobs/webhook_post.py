"""Webhook post: one message to one server, within one time in all.

In:    an address, headers, a body
Out:   the status of the reply
Owns:  one connection
Never: an address of this machine or a link-local one, unless the operator says so; a redirect; a proxy of the environment; the
       body of a reply
"""

import http.client
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from functools import cache
from urllib.parse import quote, urlsplit

import certifi

from serve.config.hosts import DEFAULT_PORTS, is_near

KEPT = "/?&=%:@!$'()*+,;~"  # of a path and a query


def post(url: str, body: bytes, headers: Mapping[str, str], *, timeout_s: float, may_be_near: bool) -> int:
    """Sends a message and returns the status of the reply.

    Args:
        timeout_s: for all of it, whatever the other side does in between; only the resolver of names has limits of its own.
        may_be_near: addresses of this machine and link-local ones are allowed.

    Raises:
        OSError, http.client.HTTPException: there is no reply.
    """
    parts, stop = urlsplit(url), time.monotonic() + timeout_s
    host, port = parts.hostname or "", parts.port or DEFAULT_PORTS[parts.scheme]
    connected = _connected(host, port, stop, may_be_near=may_be_near)
    if parts.scheme == "https":
        connected = _tls().wrap_socket(connected, server_hostname=host, do_handshake_on_connect=False)
    # A limit for each read would never end a reply that drips: at the end of the time, whatever is being read fails.
    timer = threading.Timer(stop - time.monotonic(), _cut, (connected,))
    timer.daemon = True
    timer.start()
    try:
        with closing(http.client.HTTPConnection(host, port)) as connection:
            connection.sock = connected
            if isinstance(connected, ssl.SSLSocket):
                connected.do_handshake()
            target = quote(f"{parts.path or '/'}{'?' if parts.query else ''}{parts.query}", safe=KEPT)
            connection.request("POST", target, body, {**headers, "Host": parts.netloc, "Connection": "close"})
            with connection.getresponse() as reply:
                if time.monotonic() >= stop:  # cut headers look like whole ones
                    raise TimeoutError(f"no whole reply within {timeout_s:g} s")
                return reply.status
    finally:
        timer.cancel()
        connected.close()


def _connected(host: str, port: int, stop: float, *, may_be_near: bool) -> socket.socket:
    """Returns a connection to the first address of a host that answers: the one that is checked is the one that is asked."""
    error = OSError(f"{host} is this machine or a link-local address, which jobs.webhook_near_hosts does not list")
    for *_, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        if is_near(str(address[0])) and not may_be_near:
            continue
        try:
            return socket.create_connection((str(address[0]), port), timeout=max(0.001, stop - time.monotonic()))
        except OSError as failed:
            error = failed
    raise error


@cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context(cafile=certifi.where())


def _cut(connected: socket.socket) -> None:
    with suppress(OSError):
        socket.socket.shutdown(connected, socket.SHUT_RDWR)  # not TLS's own, which waits for the other side
