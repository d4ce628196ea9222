"""Backends that take operators on caches, for tests of states.

Sessions must behave the same, whichever backend runs these operators. `Greedy` takes
every node of every method. `Partitions` takes about half of the nodes, so that some
readers and writers of a state are in partitions and others are not. kvc's reference
runs the partitions. `Opaque` in `opaque_backend.py` also owns the memory of states.
"""

from collections.abc import Mapping
from typing import ClassVar
from zlib import crc32

import pytest

from kvc.compiler import register_backend
from kvc.compiler.backends import BACKENDS, Backend
from kvc.compiler.ir import Method
from kvc.recipes import Option
from kvc.runtime import register_delegate
from kvc.runtime.delegates.reference import ReferenceHandle
from kvc.runtime.delegates.table import DELEGATES
from kvc.runtime.execution.delegate import Delegate, Handle, Options


class Greedy(Backend):
    name: ClassVar[str] = "greedy"
    in_place = True

    def __init__(self, options: Mapping[str, Option]) -> None:
        assert not options

    def supports(self, method: Method) -> frozenset[int]:
        return frozenset(range(len(method.nodes)))


class Partitions(Greedy):
    """Backend that takes about half of the nodes, by a hash of their indices."""

    name: ClassVar[str] = "partitions"

    def supports(self, method: Method) -> frozenset[int]:
        return frozenset(i for i in super().supports(method) if crc32(b"%d" % i) % 2)


class ByReference(Delegate):
    def __init__(self, options: Options) -> None:
        self._program, self._path = options.program, options.path

    def init(self, partition, data) -> Handle:
        return ReferenceHandle(self._program, partition, data)

    def packed(self) -> Mapping[str, int]:
        return {}

    def close(self) -> None:
        pass


def register(
    monkeypatch: pytest.MonkeyPatch, backend: type[Backend], delegate: type[Delegate]
) -> None:
    """Register both halves of a backend for the duration of one test."""
    for table in (BACKENDS, DELEGATES):
        monkeypatch.setitem(table, backend.name, None)
        del table[backend.name]
    register_backend(backend)
    register_delegate(backend.name, delegate)
