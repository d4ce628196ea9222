"""Backends, ahead of time: an explicit table by name."""

from kvc.compiler.backends.base import Backend
from kvc.compiler.backends.xnnpack import Xnnpack

BACKENDS: dict[str, type[Backend]] = {Xnnpack.name: Xnnpack}

__all__ = ["BACKENDS", "Backend"]
