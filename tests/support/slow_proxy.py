"""A proxy as slow to start as on a busy machine, for RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH."""

import time

from starlette.middleware import Middleware

from serve.http import proxy_middleware

SLOW_S = 7.0  # Serve waits 5 s by default


def middlewares() -> list[Middleware]:
    """The service's own, later."""
    time.sleep(SLOW_S)
    return proxy_middleware.middlewares()
