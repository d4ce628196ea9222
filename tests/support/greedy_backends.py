"""Backends that take cache work: what states are must not depend on who runs it.

All of them run what they take by the reference. `Greedy` takes every node of every
method. `Parts` takes two nodes of three, so that readers of old contents lie outside
and writers inside, and the other way round.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import ClassVar

import pytest

from kvc.compiler import pipeline
from kvc.compiler.backends import Backend, Lowered, Partition
from kvc.compiler.ir import Constant, Method
from kvc.recipes import Option, Recipe
from kvc.runtime.data import FreeableBuffer
from kvc.runtime.delegates.base import Delegate, Handle, Options
from kvc.runtime.delegates.reference import ReferenceHandle
from kvc.runtime.delegates.table import DELEGATES
from kvc.schema.model import Delegate as Part
from kvc.schema.types import Symbol


class Greedy(Backend):
    """Takes everything."""

    name: ClassVar[str] = "greedy"
    in_place = True

    def __init__(self, options: Mapping[str, Option]) -> None:
        assert not options

    def supports(self, method: Method) -> frozenset[int]:
        return frozenset(range(len(method.nodes)))

    def lower(
        self,
        partitions: Mapping[str, Sequence[Partition]],
        constants: Mapping[str, Constant],
        symbols: tuple[Symbol, ...],
    ) -> Mapping[str, Sequence[Lowered]]:
        return {name: [Lowered()] * len(parts) for name, parts in partitions.items()}


class Parts(Greedy):
    """Takes two nodes of three."""

    name: ClassVar[str] = "parts"

    def supports(self, method: Method) -> frozenset[int]:
        return frozenset(i for i in super().supports(method) if i % 3 != 1)


class ByReference(Delegate):
    """The run-time half of all of them."""

    def __init__(self, options: Options) -> None:
        self._program = options.program

    def init(self, part: Part, data: Mapping[str, FreeableBuffer]) -> Handle:
        return ReferenceHandle(self._program, part, data)

    def packed(self) -> Mapping[str, int]:
        return {}

    def close(self) -> None:
        pass


BACKENDS = {one.name: one for one in (Greedy, Parts)}


@contextmanager
def compiling_with(name: str) -> Iterator[None]:
    """Let recipes without a backend have one of these; "" for none."""
    with pytest.MonkeyPatch.context() as patch:
        if name:
            found = pipeline._backend_of

            def chosen(recipe: Recipe) -> Backend | None:
                return found(recipe) if recipe.backend else BACKENDS[name]({})

            patch.setattr(pipeline, "_backend_of", chosen)
            patch.setitem(DELEGATES, name, ByReference)
        yield
