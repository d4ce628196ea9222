"""The page of the server: the files of the folder `page`, and no others.

In: the folder beside this file. Out: answers with the content of its files, which may
only load what comes from this server.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from kvc.schema.errors import UnknownPath
from kvc.schema.frozen import frozen

FOLDER: Final = Path(__file__).parent / "page"
INDEX: Final = "index.html"
_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".ico": "image/x-icon",
    ".js": "text/javascript; charset=utf-8",
    ".png": "image/png",
    ".svg": "image/svg+xml",
}
_POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data: blob:",
        "media-src 'self' blob:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
_HEADERS: Final = {
    "content-security-policy": _POLICY,
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


@frozen
class PageFile:
    """A file of the page.

    Attributes:
        content: the content.
        kind: the type.
    """

    content: bytes
    kind: str


def read_page(folder: Path = FOLDER) -> Mapping[str, PageFile]:
    """Return the files of a page by name; none if there is no folder.

    Args:
        folder: the folder of the page, whose own folders do not count.
    """
    paths = sorted(folder.iterdir()) if folder.is_dir() else []
    return {
        path.name: PageFile(path.read_bytes(), _TYPES[path.suffix])
        for path in paths
        if path.suffix in _TYPES and path.is_file()
    }


def page_answer(files: Mapping[str, PageFile], name: str) -> Response:
    """Return the answer that has a file of the page.

    Raises:
        UnknownPath: there is no such file.
    """
    found = files.get(name)
    if found is None:
        raise UnknownPath(known=())
    headers = {**_HEADERS, "content-type": found.kind}
    return Response(found.content, headers=headers)


def page_name(request: Request) -> str:
    """Return the name of the file that a request is for."""
    name = request.path_params.get("name", INDEX)
    return name if isinstance(name, str) else ""
