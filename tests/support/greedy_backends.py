"""A backend that takes cache work: what states are must not depend on who runs it.

`Greedy` takes every node of every method, and runs what it takes by the reference.
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


class ByReference(Delegate):
    """The run-time half."""

    def __init__(self, options: Options) -> None:
        self._program = options.program

    def init(self, part: Part, data: Mapping[str, FreeableBuffer]) -> Handle:
        return ReferenceHandle(self._program, part, data)

    def packed(self) -> Mapping[str, int]:
        return {}

    def close(self) -> None:
        pass


_found = pipeline._backend_of


@contextmanager
def compiling_with(name: str) -> Iterator[None]:
    """Let recipes without a backend have this one, `Greedy.name`; "" for none."""
    with pytest.MonkeyPatch.context() as patch:

        def chosen(recipe: Recipe) -> Backend | None:
            return _found(recipe) if recipe.backend or not name else Greedy({})

        patch.setattr(pipeline, "_backend_of", chosen)
        patch.setitem(DELEGATES, name, ByReference)
        yield
