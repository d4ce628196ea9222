"""Check a bundle's settings for generation when it is made, not only when used."""

from collections.abc import Mapping

from kvc.schema.errors import BadSetting, CompileError
from kvc.schema.generation_config import read_settings

_NAME = "generation_config"


def check_generation_config(found: object) -> None:
    """Check what a bundle is to say, None for nothing.

    Raises:
        CompileError: it is no mapping, or a setting in it is impossible.
    """
    if found is None:
        return
    if not isinstance(found, Mapping):
        kind = type(found).__name__
        message = f"metadata {_NAME}: expected a mapping, found a value of type {kind}"
        raise CompileError(message=message)
    try:
        read_settings(found)
    except BadSetting as error:
        raise CompileError(message=f"{_NAME}, {error}") from error
