"""Hosts: which names and addresses mean this machine alone.

In:    a name or an address
Out:   whether it is loopback
Owns:  nothing
Never: anything that takes long to import: HAProxy's start waits for this
"""

import ipaddress
from typing import Any


def is_loopback(address: str) -> bool:
    """127.0.0.0/8 and ::1, also inside IPv6."""
    try:
        found: Any = ipaddress.ip_address(address)
    except ValueError:
        return False
    return bool((getattr(found, "ipv4_mapped", None) or found).is_loopback)


def is_local_host(host: str) -> bool:
    """Whether a name or address means this machine alone, for clients and for a service that listens there."""
    return host == "localhost" or is_loopback(host)
