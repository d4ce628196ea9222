"""Write results as JSON, which has no NaN and no infinity: they are null."""

import json
import math
from collections.abc import Mapping
from typing import Final

DUMP_VERSION: Final = 1  # of what `kvc dump --json` says, see reports/JSON.md


def json_text(
    value: object, *, indent: int | None = None, ensure_ascii: bool = True
) -> str:
    """Return JSON of dicts, lists, texts and numbers.

    Python would write `NaN`, which other readers of JSON refuse.
    """
    return json.dumps(
        _with_nulls(value), indent=indent, ensure_ascii=ensure_ascii, allow_nan=False
    )


def dump_text(found: Mapping[str, object]) -> str:
    """Return what `kvc dump --json` prints of some tables."""
    return json_text({"version": DUMP_VERSION, **found}, indent=2)


def _with_nulls(value: object) -> object:
    match value:
        case dict():
            return {key: _with_nulls(one) for key, one in value.items()}
        case list() | tuple():
            return [_with_nulls(one) for one in value]
        case float() if not math.isfinite(value):
            return None
    return value
