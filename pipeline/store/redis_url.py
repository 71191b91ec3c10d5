"""Redis URL: what of redis:// and rediss:// can be opened, checked when a configuration is read.

In:    a URL
Out:   the same URL; its place without user and password
Never: a part of a refused URL in a message: it may be half of a password
"""

from urllib.parse import parse_qsl, urlsplit, urlunsplit

from pipeline.errors import ConfigError

SCHEMES = ("redis", "rediss")
TLS_OPTIONS = ("ssl_ca_certs", "ssl_cert_reqs", "ssl_certfile", "ssl_check_hostname", "ssl_keyfile")
OPTIONS = ("db", "protocol", *TLS_OPTIONS)
SHAPE = "a Redis is redis://[user:password@]host[:port][/number], or rediss:// for TLS"
ENCODE = "a user or a password with one of / ? # [ ] % is written percent-encoded (%2F for /)"
ONE_SERVER = "Sentinel and Cluster are not supported: name the server that takes writes, or a proxy that finds it"


def check_redis_url(url: str) -> str:
    """Returns the URL unchanged if a client can open it; whether somebody answers there is another question.

    Raises:
        ConfigError: says what is wrong, without any part of the URL.
    """
    scheme = url.partition("://")[0]
    if scheme not in SCHEMES:
        raise ConfigError(f"{SHAPE}; {ONE_SERVER}" if "redis" in scheme or "sentinel" in scheme else SHAPE)
    if not url.isprintable() or " " in url:
        raise ConfigError(f"{SHAPE}, without blanks; {ENCODE}")
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError:
        raise ConfigError(f"{SHAPE}; {ENCODE}") from None
    if parts.fragment or "@" in parts.path + parts.query:
        raise ConfigError(f"{SHAPE}; {ENCODE}")
    if not host:
        raise ConfigError(f"{SHAPE}; the host is missing")
    if "," in parts.netloc.rpartition("@")[2]:
        raise ConfigError(f"{SHAPE}, one host; {ONE_SERVER}")
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0:
        raise ConfigError(f"{SHAPE}; the port is a number from 1 to 65535; {ENCODE}")
    _check_database(parts.path.removeprefix("/"))
    _check_options(parts.scheme, parts.query)
    return url


def url_without_password(url: str) -> str:
    """Returns scheme, host, port and database number of a checked URL, for logs."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def _check_database(number: str) -> None:
    if number and not (number.isascii() and number.isdigit() and len(number) <= 5):
        raise ConfigError(f"{SHAPE}; what follows the port is the number of a database; {ENCODE}")


def _check_options(scheme: str, query: str) -> None:
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in OPTIONS:
            raise ConfigError(f"{SHAPE}; behind ? it may have {', '.join(OPTIONS)}; {ENCODE}")
        if name in TLS_OPTIONS and scheme != "rediss":
            raise ConfigError(f"{SHAPE}; {name} needs rediss://")
        if name == "db":
            _check_database(value or "none")
