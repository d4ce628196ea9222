"""Backends that take cache work: what states are must not depend on who runs it.

`Greedy` takes every node of every method, `Partitions` one of two, so that readers and
writers of a state are inside and outside; what is taken is run by the reference.
`Opaque` of `opaque_backend.py` owns the states too.
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
    """Takes one node of two, as a hash of its number says."""

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
    """Make a backend known for one test."""
    for table in (BACKENDS, DELEGATES):
        monkeypatch.setitem(table, backend.name, None)
        del table[backend.name]
    register_backend(backend)
    register_delegate(backend.name, delegate)
