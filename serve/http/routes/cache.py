"""Cache: the routes that empty the cache of sampled steps.

In:    HTTP
Out:   HTTP
Never: the content of an entry
"""

from fastapi import APIRouter, Request
from fastapi.responses import Response

from serve.access.api_keys import Scope
from serve.http.dependencies import RequestServices
from serve.http.middleware import caller_of
from serve.http.openapi import answers
from serve.http.route_access import requires

router = APIRouter()


@router.delete("/v1/audio/speech/cache", status_code=204, response_class=Response, responses=answers(401, 403, 503))
@requires(Scope.SPEECH)
async def forget(request: Request, services: RequestServices) -> Response:
    """Deletes the cache entries of the caller."""
    await services.purge(caller_of(request).id)
    return Response(status_code=204)


@router.post("/admin/cache/purge", status_code=204, response_class=Response, responses=answers(401, 403, 503))
@requires(Scope.ADMIN)
async def purge(services: RequestServices) -> Response:
    """Deletes the cache entries of all tenants."""
    await services.purge(None)
    return Response(status_code=204)
