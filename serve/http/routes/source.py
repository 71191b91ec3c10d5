"""Source API: offers the source of the running program.

In:    SourceOfferConfig; the archive of the source
Out:   JSON, an archive
Owns:  nothing
"""

import hashlib
from typing import Any

from fastapi import APIRouter
from fastapi.responses import Response

from serve.config.app_config import PROJECT
from serve.http.about import NAME, version
from serve.http.dependencies import RequestServices
from serve.http.route_access import open_to_all
from serve.http.source_archive import archive

LICENCE = "AGPL-3.0-or-later"
ARCHIVE = "/source.tar.gz"


router = APIRouter()


@router.get("/source")
@open_to_all
def offer(services: RequestServices) -> dict[str, Any]:
    """Returns the name of this program, its licence and the address of its source."""
    offered = services.source_offer
    return {
        "name": NAME,
        "version": version(),
        "license": LICENCE,
        "url": offered.url or ARCHIVE,
        "commit": offered.commit,
        "sha256": hashlib.sha256(archive(PROJECT)).hexdigest(),
    }


@router.get(ARCHIVE, response_class=Response)
@open_to_all
def source() -> Response:
    """Returns the source of the running program: the same bytes on every replica of one release."""
    return Response(archive(PROJECT), media_type="application/gzip")
