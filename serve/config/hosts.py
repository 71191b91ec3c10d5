"""Hosts: names and addresses, with ports: which mean this machine alone, and which a client may have asked.

In:    a name, an address, `host` or `host:port`
Out:   whether it is near; host and port
Owns:  nothing
Never: anything that takes long to import: HAProxy's start waits for this
"""

import ipaddress
from collections.abc import Iterable
from typing import Any

DEFAULT_PORTS = {"http": 80, "https": 443}


def is_loopback(address: str) -> bool:
    """True for 127.0.0.0/8 and ::1, also as IPv4-mapped IPv6 addresses."""
    try:
        found: Any = ipaddress.ip_address(address)
    except ValueError:
        return False
    return bool((getattr(found, "ipv4_mapped", None) or found).is_loopback)


def is_local_host(host: str) -> bool:
    """True if a name or address means this machine alone, for clients and for a service that listens there."""
    return host == "localhost" or is_loopback(host)


def is_near(host: str) -> bool:
    """True for names and addresses that lead to this machine or to what only its own link has, such as a cloud's metadata."""
    try:
        found: Any = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
    found = getattr(found, "ipv4_mapped", None) or found
    return bool(found.is_loopback or found.is_link_local or found.is_unspecified or found.is_multicast)


def host_and_port(text: str) -> tuple[str, int | None]:
    """Returns the two of `host` or `host:port`; None: the port that the scheme has by itself."""
    host, _, port = text.partition(":")
    return host, int(port) if port else None


def is_listed(host: str, port: int, scheme: str, hosts: Iterable[str]) -> bool:
    """True if one of `host` or `host:port` is this host with this port."""
    return any((host, port) == (name, own or DEFAULT_PORTS[scheme]) for name, own in map(host_and_port, hosts))
