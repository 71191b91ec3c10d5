"""Forms: bodies of one file and a few fields.

In:    a request
Out:   FormData
Never: a file without a limit; a codec that the client names
"""

from contextlib import aclosing

from fastapi import Request
from python_multipart.multipart import parse_options_header
from starlette.datastructures import FormData
from starlette.formparsers import MultiPartException, MultiPartParser

from serve.errors import bad_request
from serve.http.body_reader import FORM, check_content
from serve.http.services import Services

FORM_ROOM = 64 << 10  # bytes of a form beside its file
FORM_FIELDS = 12
CHARSETS = (b"utf-8", b"utf8", b"us-ascii", b"ascii")


async def read_form(request: Request, services: Services, most_bytes: int) -> FormData:
    """Returns a form of one file and a few fields.

    Raises:
        ApiError: 400, 408, 413, 415
    """
    check_content(request, FORM)
    check_charset(request)
    async with aclosing(services.bodies.pieces(request, most_bytes)) as pieces:
        parser = MultiPartParser(request.headers, pieces, max_files=1, max_fields=FORM_FIELDS, max_part_size=FORM_ROOM)
        try:
            return await parser.parse()
        except (MultiPartException, UnicodeError, KeyError):
            raise bad_request("invalid_form", "the body is no form with one file and a few fields") from None


def check_charset(request: Request) -> None:
    """Checks that the fields of a form are UTF-8: others of Python's codecs are slow, or decode to what cannot be stored.

    Raises:
        ApiError: 400
    """
    _, parameters = parse_options_header(request.headers["content-type"])
    if parameters.get(b"charset", b"utf-8").strip().lower() not in CHARSETS:
        raise bad_request("invalid_form", "the fields of a form are UTF-8: leave charset out")
