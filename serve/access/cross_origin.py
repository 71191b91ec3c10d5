"""Cross-origin: which web pages may reach the service through a browser.

In:    Host, Origin and Sec-Fetch-* of a request; the configured hosts and origins
Out:   403 for a foreign host or page; the origins that may read replies
Never: keys, bodies

A service that trusts its own machine trusts every browser on it, and a browser sends requests for any page that is open. Two
checks keep such pages out: the Host must be a name of this machine (or a foreign name was pointed at its address: DNS
rebinding), and the page must come from the service itself (or it is cross-site request forgery). Once a key is required,
neither check is needed: a foreign page has no key, and browsers attach none by themselves.
"""

import re
from collections.abc import Collection

from starlette.datastructures import Headers

from serve.config.hosts import is_local_host
from serve.errors import ApiError, ErrorSpec

AUTHORITY = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:@/\[\]]+)(:\d{1,5})?")  # host and port, nothing else


class CrossOriginPolicy:
    """Checks requests from browsers against the hosts and origins the operator trusts."""

    def __init__(self, hosts: Collection[str] = (), origins: Collection[str] = ()) -> None:
        """
        Args:
            hosts: names and addresses of this machine beside localhost and loopback, without ports.
            origins: scheme://host[:port] of pages that may call, or scheme://* of extensions and apps.
        """
        self._hosts = frozenset(hosts)
        self.origins = frozenset(origins)

    def check(self, headers: Headers, *, opens_page: bool) -> None:
        """Refuses a request that a browser of this machine must not send.

        Args:
            opens_page: True for a GET of a page that links may open.

        Raises:
            ApiError: 403
        """
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._is_own_host(hosts[0]):
            raise _forbidden(
                "host_not_allowed",
                "without keys this service answers to localhost, a loopback address and the names in http.allowed_hosts alone, "
                "and the request's Host is none of them",
            )
        origin = headers.get("origin")
        if origin is not None:
            is_own = origin.partition("://")[2].lower() == hosts[0].lower()
            if not is_own and not self.allows(origin):
                raise _foreign_page()
        elif headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            is_link = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
            if not (opens_page and is_link):
                raise _foreign_page()

    def allows(self, origin: str) -> bool:
        """True if pages of an origin may call; a browser gives an extension another origin on each machine."""
        return origin in self.origins or f"{origin.partition('://')[0]}://*" in self.origins

    def _is_own_host(self, authority: str) -> bool:
        parts = AUTHORITY.fullmatch(authority)
        if parts is None:
            return False
        host = parts[1].lower()
        return is_local_host(host.strip("[]")) or host in self._hosts


def _foreign_page() -> ApiError:
    return _forbidden(
        "origin_not_allowed",
        "without keys this service takes no requests from pages of other sites; http.allowed_origins names those that may, "
        "or make a key: `chattts-serve keys add NAME`",
    )


def _forbidden(code: str, message: str) -> ApiError:
    return ApiError(message, ErrorSpec(403, "permission_error", code, False))
