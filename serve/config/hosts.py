"""Hosts: names and addresses, with ports: which mean this machine alone, and which a client may have asked.

In:    a name, an address, `host` or `host:port`
Out:   whether it is near; host and port
Never: anything that takes long to import: HAProxy's start waits for this
"""

import ipaddress
import socket
from collections.abc import Iterable
from typing import Any

DEFAULT_PORTS = {"http": 80, "https": 443}
MAX_PORT = 65_535
NEAR_NAMES = ("localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback")
METADATA = ("metadata.google.internal", "metadata.goog", "100.100.100.200", "192.0.0.192", "168.63.129.16")
METADATA_NETWORKS = tuple(map(ipaddress.ip_network, ("fd00:ec2::/32", "fd20:ce::/32", "fd00:c1::/32")))
"""where clouds tell a machine its secrets, beside link-local addresses"""


def is_loopback(address: str) -> bool:
    """True for 127.0.0.0/8 and ::1, also as IPv4-mapped IPv6 addresses."""
    try:
        ip: Any = ipaddress.ip_address(address)
    except ValueError:
        return False
    return bool((getattr(ip, "ipv4_mapped", None) or ip).is_loopback)


def is_local_host(host: str) -> bool:
    """True if a name or address means this machine alone, for clients and for a service that listens there."""
    return host == "localhost" or is_loopback(host)


def network(text: str) -> str:
    """Returns an address or a network, for pydantic.

    Raises:
        ValueError: it is neither.
    """
    ipaddress.ip_network(text)
    return text


def is_near(host: str) -> bool:
    """True for names and addresses that lead to this machine or to what only its own link has, such as a cloud's metadata."""
    name = host.lower().rstrip(".").partition("%")[0]
    ip = _address_of(name)
    if ip is None:
        return name in NEAR_NAMES or name in METADATA or name.endswith(".localhost")
    ip = getattr(ip, "ipv4_mapped", None) or getattr(ip, "sixtofour", None) or ip
    is_this_network = ip.version == 4 and ip.packed[0] == 0
    is_of_link = ip.is_link_local or ip.is_multicast or ip.is_reserved
    is_metadata = str(ip) in METADATA or any(ip in network for network in METADATA_NETWORKS)
    return bool(ip.is_loopback or ip.is_unspecified or is_this_network or is_of_link or is_metadata)


def _address_of(name: str) -> Any:
    """Returns an address in any form that a resolver takes, 127.1 and 0x7f000001 too; None: it is a name."""
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        pass
    try:
        return ipaddress.ip_address(socket.inet_aton(name))
    except (OSError, ValueError):
        return None


def host_and_port(text: str) -> tuple[str, int | None]:
    """Returns the two of `host` or `host:port`; None: the port that the scheme has by itself.

    Raises:
        ValueError: there is no such port.
    """
    host, _, port = text.partition(":")
    if port and not 1 <= int(port) <= MAX_PORT:
        raise ValueError(f"a port is a number from 1 to {MAX_PORT}, not {port}")
    return host, int(port) if port else None


def is_listed(host: str, port: int, scheme: str, hosts: Iterable[str]) -> bool:
    """True if one of `host` or `host:port` is this host with this port."""
    return any((host, port) == (name, own or DEFAULT_PORTS[scheme]) for name, own in map(host_and_port, hosts))
