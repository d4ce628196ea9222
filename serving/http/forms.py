"""Forms with a file, as multipart/form-data; they stay in memory.

In: a request. Out: its fields of text, and the content of its field `file`.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Final

from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from kvc.schema.errors import BadRequest
from kvc.schema.frozen import frozen
from kvc.serving.http.bodies import check_type, read_body
from kvc.serving.http.limits import HttpLimits
from kvc.serving.http.workers import Workers

_FILE: Final = "file"
_FIELDS: Final = 32


@frozen
class Form:
    """A form.

    Attributes:
        texts: the names and values of the fields that are texts.
        file: the content of the file.
    """

    texts: Sequence[tuple[str, str]]
    file: bytes


class _Parser(MultiPartParser):
    """A parser that writes nothing to the disk."""

    spool_max_size = 1 << 62


async def read_form(request: Request, limits: HttpLimits, workers: Workers) -> Form:
    """Return the form in a request; a thread parses it.

    Raises:
        BadRequest: the body is no such form, or has no file.
        KvcError, ClientDisconnect: as `read_body` and `Workers.run`.
    """
    check_type(request, "multipart/form-data")
    body, headers = await read_body(request, limits), request.headers
    return await workers.run(lambda: parse_form(body, headers))


def parse_form(body: bytes, headers: Headers) -> Form:
    """Return the form in a body.

    Raises:
        BadRequest: it is no form, or has no file.
    """

    async def whole() -> AsyncGenerator[bytes, None]:
        yield body

    parser = _Parser(headers, whole(), max_files=1, max_fields=_FIELDS)
    try:
        found = asyncio.run(parser.parse())
    except (MultiPartException, UnicodeError, KeyError) as error:
        raise BadRequest(reason="its body is not multipart/form-data") from error
    items = found.multi_items()
    files = [v for name, v in items if name == _FILE and isinstance(v, UploadFile)]
    if not files:
        raise BadRequest(reason=f"its form has no file in the field {_FILE!r}")
    content = files[0].file.read()
    files[0].file.close()
    return Form([(n, v) for n, v in items if isinstance(v, str)], content)
