"""Where in the user's model an instruction comes from: its line and its module."""

import re
from typing import Final

_SOURCE: Final = re.compile(r"(?P<line>[^ ]*)(?: \((?P<module>.*)\))?")


def line_of(source: str) -> str:
    """Return the user's line, "" where none is known."""
    return _part(source, "line")


def module_of(source: str) -> str:
    """Return the path of the module, "" where none is known."""
    return _part(source, "module")


def _part(source: str, part: str) -> str:
    found = _SOURCE.fullmatch(source)
    return (found and found[part]) or ""
