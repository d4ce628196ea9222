"""Put the page of a bundle into one file that needs no network."""

import html
import json
import re
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path

from kvc.schema.container import AtomicFile
from kvc.schema.text import escape
from kvc.tools.page.content import PageContent

_LIBRARIES = ("vendor/echarts.min.js", "vendor/tabulator.min.js")
_STYLES = ("vendor/tabulator.min.css", "page.css")


def page_text(content: PageContent) -> str:
    """Return the page as HTML.

    The text is the same for the same bundle. Names of a file that may be a stranger's
    stand in it as JSON in which nothing can end the element.
    """
    parts = {
        "title": html.escape(escape(Path(content.report.file.path).name)),
        "style": "\n".join(map(_own, _STYLES)),
        "libraries": "\n".join(map(_own, _LIBRARIES)),
        "content": _json(content),
        "script": _own("page.js"),
    }
    # Pieces between the places are joined: no part is searched for places itself.
    pieces = re.split(r"<!--(\w+)-->", _own("page.html"))
    pieces[1::2] = [parts[name] for name in pieces[1::2]]
    return "".join(pieces)


def page_start() -> bytes:
    """Return what every page begins with, by which one is known."""
    mark = '<meta name="generator" content="kvc dump">'
    before, _, _ = _own("page.html").partition(mark)
    return (before + mark).encode()


def write_page(path: Path, content: PageContent) -> None:
    """Write the page, whole or not at all.

    Raises:
        CannotWrite: the file cannot be written; what was there is untouched.
    """
    with AtomicFile(path) as file:
        file.write(page_text(content).encode())
        file.commit()


def _own(name: str) -> str:
    return files(__package__).joinpath(name).read_text("utf-8")


def _json(content: PageContent) -> str:
    text = json.dumps(asdict(content), separators=(",", ":"))  # of ASCII alone
    return text.replace("<", "\\u003c")
