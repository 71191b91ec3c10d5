"""Forms: bodies of one file and a few fields.

In:    a request
Out:   FormData
Owns:  nothing
Never: a file without a limit
"""

from contextlib import aclosing

from fastapi import Request
from starlette.datastructures import FormData
from starlette.formparsers import MultiPartException, MultiPartParser

from serve.errors import bad_request
from serve.http.body_reader import FORM, check_content
from serve.http.services import Services

FORM_ROOM = 64 << 10  # bytes of a form beside its file
FORM_FIELDS = 12


async def read_form(request: Request, services: Services, most_bytes: int) -> FormData:
    """Returns a form of one file and a few fields.

    Raises:
        ApiError: 400, 408, 413, 415
    """
    check_content(request, FORM)
    async with aclosing(services.bodies.pieces(request, most_bytes)) as pieces:
        parser = MultiPartParser(request.headers, pieces, max_files=1, max_fields=FORM_FIELDS, max_part_size=FORM_ROOM)
        try:
            return await parser.parse()
        except (MultiPartException, UnicodeError, KeyError):
            raise bad_request("invalid_form", "the body is no form with one file and a few fields") from None
