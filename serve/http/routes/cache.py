"""Cache API: the routes that empty the cache.

In:    HTTP
Out:   HTTP
Owns:  nothing
Never: Ray, torch; what is in an entry
"""

from collections.abc import Callable

from fastapi import APIRouter, Request
from fastapi.responses import Response

from serve.access.authentication import caller_of
from serve.http.openapi import answers
from serve.http.services import Services


def cache_routes(get_services: Callable[[], Services]) -> APIRouter:
    """The routes."""
    routes = APIRouter()

    @routes.delete("/v1/audio/speech/cache", status_code=204, response_class=Response, responses=answers(401, 403, 503))
    async def forget(request: Request) -> Response:
        """Forget what was sampled for whoever asks."""
        await get_services().purge(caller_of(request).id)
        return Response(status_code=204)

    @routes.post("/admin/cache/purge", status_code=204, response_class=Response, responses=answers(401, 403, 503))
    async def purge() -> Response:
        """Forget what was sampled for anybody."""
        await get_services().purge(None)
        return Response(status_code=204)

    return routes
