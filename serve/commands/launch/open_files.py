"""Open files: how many a service needs, and how many connections HAProxy can hold with those that the system allows.

In:    the limit of this process, which every process of the service inherits; RAY_SERVE_HAPROXY_MAXCONN
Out:   the number of connections; sentences about a limit that is too low
Owns:  the limit of this process
Never: more than the system allows
"""

import resource
from collections.abc import Iterator, Mapping

MAXCONN = "RAY_SERVE_HAPROXY_MAXCONN"
CONNECTIONS = 12_000  # held by HAProxy at a time: 10,000 conversations that say nothing, and requests beside them
A_CONNECTION = 2  # files: the client's side, and the replica's
HAPROXYS_OWN = 100  # it asks for 37 besides
OPEN_FILES = {"haproxy": 10_500, "plain": 1024}  # at least
MANY_FILES = 65536  # what Ray requests


def allowed() -> int:
    """Returns how many files a process may open, once its limit is raised to what the system allows."""
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MANY_FILES if resource.RLIM_INFINITY in (now, most) else max(now, min(MANY_FILES, most))


def connections() -> int:
    """Returns how many connections HAProxy is to hold: 12,000, or as many as the limit of open files allows."""
    return min(CONNECTIONS, (max(allowed(), OPEN_FILES["haproxy"]) - HAPROXYS_OWN) // A_CONNECTION)


def environment() -> dict[str, str]:
    """Returns the variable that tells Serve so."""
    return {MAXCONN: str(connections())}


def files_for(connections: int) -> int:
    """Returns how many files HAProxy opens for so many connections."""
    return A_CONNECTION * connections + HAPROXYS_OWN


def raise_limit(environment: Mapping[str, str], *, with_haproxy: bool) -> Iterator[str]:
    """Raises the limit of open files; yields a sentence if the system does not allow enough of them."""
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if now == resource.RLIM_INFINITY:
        return
    limit = allowed()
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, most))
    needed = OPEN_FILES["haproxy" if with_haproxy else "plain"]
    if with_haproxy:
        needed = max(needed, files_for(int(environment.get(MAXCONN, 0))))
    if limit < needed:
        lower = f", lower {MAXCONN}" if needed > OPEN_FILES["haproxy"] else ""
        do = f"raise the limit (`ulimit -Hn {needed}`, LimitNOFILE of systemd){lower}, or start with --plain"
        yield f"at most {most} files may be open here, and {needed} are needed: {do}, for which 1024 will do"


def few_connections(environment: Mapping[str, str]) -> Iterator[str]:
    """Yields a sentence if HAProxy holds fewer connections than it would with a higher limit."""
    capacity = connections()
    if environment.get(MAXCONN) == str(capacity) and capacity < CONNECTIONS:
        yield (
            f"HAProxy holds {capacity} connections at a time, {CONNECTIONS} where {files_for(CONNECTIONS)} files may be open: "
            f"`ulimit -Hn {files_for(CONNECTIONS)}`, LimitNOFILE of systemd"
        )
