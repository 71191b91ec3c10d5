"""Forms: bodies of one file and a few fields.

In:    a request
Out:   FormData
Never: a file without a limit; a codec that the client names
"""

from contextlib import aclosing

from fastapi import Request
from python_multipart.multipart import parse_options_header
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from serve.errors import bad_request
from serve.http.body_reader import FORM, JSON, check_content
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
        parser = MultiPartParser(request.headers, pieces, max_files=2, max_fields=FORM_FIELDS, max_part_size=FORM_ROOM)
        form = FormData()
        try:
            form = await _with_text(await parser.parse())
        except (MultiPartException, UnicodeError, KeyError):
            raise bad_request("invalid_form", "the body is no form with one file and a few fields") from None
        finally:
            for file in parser._files_to_close_on_error:  # without an end, of JSON, or of a form that is refused
                if not any(isinstance(value, UploadFile) and id(value.file) == id(file) for value in form.values()):
                    file.close()
    return form


async def _with_text(form: FormData) -> FormData:
    """Returns a form whose parts of JSON are text: browsers send a Blob as a file.

    Raises:
        MultiPartException: there are two other files.
    """
    items = form.multi_items()
    for place, (name, value) in enumerate(items):
        if isinstance(value, UploadFile) and (value.content_type or "").partition(";")[0].strip() == JSON:
            items[place] = name, (await value.read(FORM_ROOM)).decode()
    if sum(isinstance(value, UploadFile) for _, value in items) > 1:
        raise MultiPartException("two files")
    return FormData(items)


def check_charset(request: Request) -> None:
    """Checks that the fields of a form are UTF-8: others of Python's codecs are slow, or decode to what cannot be stored.

    Raises:
        ApiError: 400
    """
    _, parameters = parse_options_header(request.headers["content-type"])
    if parameters.get(b"charset", b"utf-8").strip().lower() not in CHARSETS:
        raise bad_request("invalid_form", "the fields of a form are UTF-8: leave charset out")
