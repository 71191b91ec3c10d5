"""Proxy middleware: the outer middleware around Serve's own HTTP server, the proxy's or an ingress replica's.

In:    the environment of Ray's processes: RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH names `middlewares`
Out:   ASGI middleware
"""

from ray import serve
from ray.serve.exceptions import RayServeException
from starlette.middleware import Middleware

from serve.http import uvicorn_protocols
from serve.protocols.outer_middleware import Check, EarlyRefusal, ErrorEnvelope, StripRoutingHeaders


def middlewares() -> list[Middleware]:
    """Returns the middleware that Serve puts around its own, the last one outermost; its server has not been started yet."""
    uvicorn_protocols.install()
    return [Middleware(ErrorEnvelope), Middleware(EarlyRefusal, check=check_here), Middleware(StripRoutingHeaders)]


def check_here() -> Check | None:
    """Returns the admission check of the ingress replica in this process; None in a proxy, or while the replica starts."""
    try:
        replica = serve.get_replica_context().servable_object
    except RayServeException:
        return None
    check: Check | None = getattr(replica, "admission_check", None)
    return check
