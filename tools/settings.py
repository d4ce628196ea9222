"""What a bundle's metadata says about generating: stop tokens, how to choose.

`"stop_tokens": [0]`, `"generation": {"temperature": 0.7, "top_k": 40}`; all optional.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from kvc.schema.errors import BadSetting


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen unless the user says otherwise."""

    temperature: float = 0.0
    top_k: int | None = None


def setting(metadata: Mapping[str, str], key: str) -> object:
    """Return a value of the metadata, None when it is not there.

    Raises:
        BadSetting: it is not JSON.
    """
    text = metadata.get(key, "null")
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _bad(key, "JSON", text) from error
    return value


def stop_tokens_of(metadata: Mapping[str, str]) -> tuple[int, ...]:
    """Return the tokens that end a text.

    Raises:
        BadSetting: the metadata holds something else.
    """
    found = setting(metadata, "stop_tokens")
    if found is None:
        return ()
    if not isinstance(found, list) or not all(type(token) is int for token in found):
        raise _bad("stop_tokens", "a list of token ids", found)
    return tuple(found)


def sampling_of(metadata: Mapping[str, str]) -> Sampling:
    """Return how tokens are chosen.

    Raises:
        BadSetting: the metadata holds something else.
    """
    found = setting(metadata, "generation")
    if found is None:
        return Sampling()
    if not isinstance(found, dict) or not found.keys() <= {"temperature", "top_k"}:
        raise _bad("generation", "an object of temperature and top_k", found)
    temperature, top_k = found.get("temperature", 0.0), found.get("top_k")
    if type(temperature) not in (int, float) or not 0 <= temperature < float("inf"):
        raise _bad("generation.temperature", "0 or more", temperature)
    if top_k is not None and (type(top_k) is not int or top_k < 1):
        raise _bad("generation.top_k", "1 or more, or null", top_k)
    return Sampling(float(temperature), top_k)


def _bad(key: str, expected: str, found: object) -> BadSetting:
    name = f"the bundle's metadata {key}"
    return BadSetting(name=name, expected=expected, found=repr(found))
