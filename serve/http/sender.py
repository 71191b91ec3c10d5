"""Sender: what a request says of its sender before anything else is read: its id, its address.

In:    headers, the ASGI scope
Out:   an id that can stand in a log and a header; an address
Never: keys; an import that Serve's proxy would have to hold
"""

import re
import uuid

from starlette.types import Scope

REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")


def safe_request_id(claimed: str | None) -> str:
    """Returns the claimed id if it can stand in a log and a header, else a new one."""
    return claimed if claimed is not None and REQUEST_ID.fullmatch(claimed) else uuid.uuid4().hex


def peer_of(scope: Scope) -> str:
    """Returns the address the connection comes from; empty if the server does not know it."""
    client = scope.get("client")
    return client[0] if client else ""
