"""Dependencies: what FastAPI passes to a handler beside the request.

In:    requests; the provider of the services, which create_api puts on the application
Out:   Services
"""

from typing import Annotated

from fastapi import Depends, Request

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
