"""What a backend does ahead of time: take nodes, and turn them into payloads.

A backend sees every partition of every method before it makes the first payload, so
what is shared is known by then. Weights stay in the blob store under their names; a
payload refers to them by name.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from kvc.compiler.ir import Constant, Method
from kvc.recipes import Option
from kvc.schema.model import MemoryKind
from kvc.schema.types import Symbol


@dataclass(frozen=True, slots=True)
class Partition:
    """A part of a method that a backend runs.

    Attributes:
        graph: the part as a method: its inputs and outputs are what crosses the
            border, its constants are bound by name, it touches no state.
    """

    graph: Method


@dataclass(frozen=True, slots=True)
class Lowered:
    """A payload and what the runtime must know about it.

    Attributes:
        payload: the backend's own bytes.
        names: names of the constants that it reads.
        memory: who lays out its workspace.
        workspace_nbytes: bound of that workspace.
        tail_nbytes: bytes that must be readable behind each input and output that
            lies in the method's scratch memory. Who lays it out sees to that; where
            states, constants and callers' arrays end is not known ahead of time.
    """

    payload: bytes
    names: tuple[str, ...]
    memory: MemoryKind
    workspace_nbytes: int
    tail_nbytes: int


class Backend(Protocol):
    """The ahead-of-time half of a backend."""

    name: ClassVar[str]

    def __init__(self, options: Mapping[str, Option]) -> None:
        """Take what a recipe says in `[backend.options]`.

        Raises:
            RecipeError: an option that this backend does not have, or a wrong value.
        """
        ...

    def supports(self, method: Method) -> frozenset[int]:
        """Return the indices of the nodes that it can run."""
        ...

    def lower(
        self,
        partitions: Mapping[str, Sequence[Partition]],
        constants: Mapping[str, Constant],
        symbols: tuple[Symbol, ...],
    ) -> Mapping[str, Sequence[Lowered]]:
        """Return a payload for each partition, by method.

        Args:
            partitions: those of all methods, by the method's name.
            constants: the program's constants, by name.
            symbols: the program's symbols.
        """
        ...
