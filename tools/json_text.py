"""Write results as JSON, which has no NaN and no infinity: they are null.

What a command prints has a version, see reports/JSON.md.
"""

import json
import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

# Command -> version of what it prints. A field that goes, or comes to mean something
# else, raises it; a new one does not.
VERSIONS: Final[Mapping[str, int]] = MappingProxyType(
    {
        "dump": 3,
        "diff": 1,
        "eval": 1,
        "bench": 1,
        "profile": 1,
        "verify": 2,
        "check": 2,
        "gc": 1,
        "recipes": 1,
        "devices": 1,
    }
)


def json_text(
    value: object, *, indent: int | None = None, ensure_ascii: bool = True
) -> str:
    """Return JSON of dicts, lists, texts and numbers.

    Python would write `NaN`, which other readers of JSON refuse.
    """
    return json.dumps(
        _with_nulls(value), indent=indent, ensure_ascii=ensure_ascii, allow_nan=False
    )


def report_text(command: str, fields: Mapping[str, object]) -> str:
    """Return what a command prints with `--json`: its version and these fields."""
    return json_text({"version": VERSIONS[command], **fields}, indent=2)


def _with_nulls(value: object) -> object:
    match value:
        case dict():
            return {key: _with_nulls(one) for key, one in value.items()}
        case list() | tuple():
            return [_with_nulls(one) for one in value]
        case float() if not math.isfinite(value):
            return None
    return value
