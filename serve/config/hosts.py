"""Hosts: tells which names and addresses mean this machine alone.

In:    a name or an address
Out:   whether it is loopback
Owns:  nothing
Never: anything that takes long to import: HAProxy's start waits for this
"""

import ipaddress
from typing import Any


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
