"""A proxy as slow to start as on a busy machine; a configuration names `middlewares` of it."""

import time

from starlette.middleware import Middleware

from serve.protocols import proxy_middleware

SLOW_S = 20.0  # by default Serve waits three times 5 s


def middlewares() -> list[Middleware]:
    """The service's own, later."""
    time.sleep(SLOW_S)
    return proxy_middleware.middlewares()
