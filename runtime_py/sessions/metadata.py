"""Settings that a bundle's metadata has as JSON, which may be anybody's."""

import json
from collections.abc import Mapping

from kvc.schema.errors import BadSetting


def parsed(metadata: Mapping[str, str], name: str) -> object:
    """Return a setting of a bundle, None where it has none of this name.

    Raises:
        BadSetting: it is no JSON.
    """
    try:
        found: object = json.loads(metadata.get(name, "null"))
    except (ValueError, RecursionError) as error:
        raise impossible(metadata, name) from error
    return found


def impossible(metadata: Mapping[str, str], name: str) -> BadSetting:
    """Return the error for a setting that `kvc compile` does not write."""
    found = metadata.get(name, "nothing")[:80]
    expected = "what kvc compile writes"
    return BadSetting(
        name=f"the bundle's metadata {name}", expected=expected, found=found
    )
