"""Proxies: which headers say who a client is, and whom they are believed."""

import pytest
from starlette.datastructures import Headers

from serve.access.proxies import Proxies

CLIENT, NODE, OTHER_NODE, BALANCER = "192.0.2.7", "10.0.0.1", "10.0.0.2", "10.9.0.1"
PLAIN, BEHIND = Proxies(["10.9.0.0/16"]), Proxies(["10.9.0.0/16", OTHER_NODE], haproxies=[NODE])


@pytest.mark.parametrize(
    ("proxies", "peer", "haproxy", "forwarded", "client"),
    [
        (Proxies(), CLIENT, "192.0.2.1", "192.0.2.1", CLIENT),
        (PLAIN, "127.0.0.1", "192.0.2.1", "192.0.2.1", "127.0.0.1"),
        (PLAIN, BALANCER, "192.0.2.1", f"192.0.2.1, {CLIENT}", CLIENT),
        (PLAIN, BALANCER, None, f"{CLIENT}:5123, 10.9.0.2", CLIENT),
        (PLAIN, BALANCER, None, "[2001:db8::7]:5123", "2001:db8::/64"),
        (PLAIN, f"::ffff:{BALANCER}", None, f"::ffff:{CLIENT}", CLIENT),
        (PLAIN, BALANCER, None, None, ""),
        (PLAIN, BALANCER, None, "unknown", ""),
        (PLAIN, BALANCER, None, f"{CLIENT}, , 10.9.0.2", ""),
        (BEHIND, CLIENT, "192.0.2.1", "192.0.2.1", CLIENT),
        (BEHIND, NODE, CLIENT, "192.0.2.1", CLIENT),
        (BEHIND, OTHER_NODE, CLIENT, "192.0.2.1", CLIENT),
        (BEHIND, "127.0.0.1", CLIENT, None, CLIENT),
        (BEHIND, "127.0.0.1", "127.0.0.1", None, "127.0.0.1"),
        (BEHIND, "127.0.0.1", None, "192.0.2.1", "127.0.0.1"),
        (BEHIND, NODE, BALANCER, f"192.0.2.1, {CLIENT}", CLIENT),
        (BEHIND, NODE, BALANCER, None, ""),
        (BEHIND, "", None, None, ""),
    ],
)
def test_the_client_is_the_last_address_that_is_no_trusted_proxys(
    proxies: Proxies, peer: str, haproxy: str | None, forwarded: str | None, client: str
):
    named = {"x-chattts-client": haproxy, "x-forwarded-for": forwarded}
    assert proxies.client_of(Headers({name: value for name, value in named.items() if value is not None}), peer) == client
