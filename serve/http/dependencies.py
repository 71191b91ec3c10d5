"""Dependencies: what FastAPI passes to a handler beside the request.

In:    requests; the provider of the services, which create_api puts on the application
Out:   Services
"""

from typing import Annotated

from fastapi import Depends, Request
from fastapi.routing import APIRoute
from starlette.datastructures import Headers
from starlette.routing import Match
from starlette.types import Scope

from serve.http.protocol import Protocol, path_in
from serve.http.request_context import context_of
from serve.http.services import Services
from serve.jobs.service import JobsOf


async def get_services(request: Request) -> Services:
    """Returns the services of this replica. A coroutine: FastAPI would run a function in a thread."""
    services: Services = request.app.state.get_services()
    return services


RequestServices = Annotated[Services, Depends(get_services)]


async def get_own_jobs(request: Request, services: RequestServices) -> JobsOf:
    """Returns the jobs of the caller."""
    return services.jobs.of(context_of(request))


OwnJobs = Annotated[JobsOf, Depends(get_own_jobs)]


def shared_route(protocol: Protocol) -> type[APIRoute]:
    """Returns the class of routes at a path that other protocols have too, which take the requests of this one alone."""

    class SharedRoute(APIRoute):
        def matches(self, scope: Scope) -> tuple[Match, Scope]:
            return super().matches(scope) if protocol.owns(path_in(scope), Headers(scope=scope)) else (Match.NONE, {})

    return SharedRoute
