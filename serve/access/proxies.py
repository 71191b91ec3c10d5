"""Proxies: which client a request comes from, behind the balancers and the HAProxy that carried it.

In:    headers and the peer's address
Out:   the client's address
Never: a header of a peer that the operator does not trust; access, which no header grants
"""

import ipaddress
from collections.abc import Iterable

from starlette.datastructures import Headers

from serve.config.hosts import is_loopback

FROM_HAPROXY = "x-chattts-client"
"""header in which this service's HAProxy says who its client is; it replaces what the client says there"""
IPV6_BITS = 64
"""of an address, which all belong to one client"""

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Proxies:
    """Whose word about their clients is believed."""

    def __init__(self, trusted: Iterable[str] = (), *, haproxies: Iterable[str] = ()) -> None:
        """
        Args:
            trusted: networks of the balancers in front, and of this service's other machines (http.trusted_proxies).
            haproxies: addresses from which this machine's HAProxy connects, beside loopback; empty: it has none.
        """
        self._trusted = tuple(map(ipaddress.ip_network, trusted))
        self._haproxies = frozenset(haproxies)

    def client_of(self, headers: Headers, peer: str) -> str:
        """Returns who a request comes from: the last address on its way that is no trusted proxy's.

        Returns:
            an address, or the network of an IPv6 address; empty: unknown, because a trusted proxy does not say it.
        """
        address = _address(peer)
        if self._haproxies and (peer in self._haproxies or is_loopback(peer) or self._trusts(address)):
            address = _address(headers.get(FROM_HAPROXY, peer))
        hops = ",".join(headers.getlist("x-forwarded-for")).split(",")
        while hops and self._trusts(address):
            address = _address(hops.pop())
        if address is None or self._trusts(address):
            return ""
        return str(address if address.version == 4 else ipaddress.ip_network((address, IPV6_BITS), strict=False))

    def _trusts(self, address: Address | None) -> bool:
        return address is not None and any(address in network for network in self._trusted)


def _address(text: str) -> Address | None:
    """Returns an address, which may have a port; None: it is none."""
    host = text.strip()
    if host.startswith("["):
        host = host[1:].partition("]")[0]
    elif host.count(":") == 1:
        host = host.partition(":")[0]
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
