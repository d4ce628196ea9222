"""Models that ship with kvc, by their names for `kvc compile`."""

from collections.abc import Callable

from kvc.compiler.models.demo import demo
from kvc.compiler.request.spec import ModelSpec

BUILTIN: dict[str, Callable[[], ModelSpec]] = {"demo": demo}

__all__ = ["BUILTIN"]
