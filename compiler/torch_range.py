"""Which releases of torch the compiler works with.

It patches undocumented functions of torch to see what tracing does not tell; with an
untested release it might silently make a wrong program.
"""

import re
from typing import Final

FIRST: Final = (2, 13)
BEFORE: Final = (2, 14)


def is_tested(version: str) -> bool:
    """Tell whether a release of torch, such as 2.13.0+cpu, is in the range."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return found is not None and FIRST <= tuple(map(int, found.groups())) < BEFORE


def range_text() -> str:
    """Return the range as pip takes it."""
    (a, b), (c, d) = FIRST, BEFORE
    return f"torch>={a}.{b},<{c}.{d}"
