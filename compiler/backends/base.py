"""The interface of a backend's ahead-of-time half: take nodes, say what they need.

A backend sees every partition of every method before it says what the first needs, so
it can know what is shared. The code of a partition is in the file in any case, as a
block of its method; weights stay in the blob store under their names.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from kvc.compiler.ir import Constant, Method
from kvc.recipes import Option
from kvc.schema.calibration import Range
from kvc.schema.errors import BadOption
from kvc.schema.model import MemoryKind
from kvc.schema.types import Symbol


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition of a method that a backend runs.

    Attributes:
        graph: the partition as a block: its inputs and outputs are what crosses the
            border, its constants are bound by name. States are inputs as anything else
            is; what is left in the memory of an input says `input_out`, once it is
            proven.
        sizes: all sizes of symbols that its values can have together, where each has
            buckets; None where one may be any within its bounds.
        ranges: for a backend that is `calibrated`, the least and the greatest number of
            each floating-point value, by its id; inputs and constants among them. One
            of no elements has none. What lies in the memory of one state has one range
            in all methods. Empty for other backends.
        scores: likewise, of the products of queries and keys of each attention, scaled,
            by the id of its result.
    """

    graph: Method
    sizes: tuple[Mapping[str, int], ...] | None = None
    ranges: Mapping[int, Range] = field(default_factory=dict)
    scores: Mapping[int, Range] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Lowered:
    """What the runtime must know about a partition beside its code.

    Attributes:
        payload: what the backend adds to the code, in a form of its own.
        memory: who lays out its workspace.
        workspace_nbytes: bound of what it needs there beside what the reference
            implementation of the code does.
        tail_nbytes: bytes that must be readable after each input and output that
            lies in the method's scratch memory. Who lays it out sees to that; where
            states, constants and callers' arrays end is not known ahead of time.
    """

    payload: bytes = b""
    memory: MemoryKind = MemoryKind.PLANNED
    workspace_nbytes: int = 0
    tail_nbytes: int = 0


class Backend(ABC):
    """The ahead-of-time half of a backend.

    Attributes:
        name: of the backend, as recipes and bundles have it.
        in_place: whether its partitions may write what they are lent, states above all,
            piece by piece and while they read it, and take memory of any strides. What
            writes a state over an old content that its partition reads is left outside
            of the partitions of other backends.
        fixed_shapes: whether it needs to know all sizes that a partition is called
            with. Recipes must then give each size of its partitions buckets.
        calibrated: whether it stores values as integers, and needs to know how large
            they become: whoever compiles must then give samples.
    """

    name: ClassVar[str]
    in_place: ClassVar[bool] = False
    fixed_shapes: ClassVar[bool] = False
    calibrated: bool = False

    def __init__(self, options: Mapping[str, Option]) -> None:
        """Take what a recipe says in `[backend.options]`; here, that it says nothing.

        Raises:
            RecipeError: an option that this backend does not have, or a wrong value.
        """
        for option, found in options.items():
            raise BadOption(
                backend=self.name,
                option=option,
                expected="no options",
                found=repr(found),
            )

    @abstractmethod
    def supports(self, method: Method) -> frozenset[int]:
        """Return the indices of the nodes that it can run."""

    def foreign_views(self, method: Method) -> frozenset[int]:
        """Return the views that it cannot make: partitions read clones of them.

        All others that its partitions read are made once more in these, where they are
        `in_place`.
        """
        return frozenset()

    def lower(
        self,
        partitions: Mapping[str, Sequence[Partition]],
        constants: Mapping[str, Constant],
        symbols: tuple[Symbol, ...],
    ) -> Mapping[str, Sequence[Lowered]]:
        """Return what each partition needs beside its code: here, nothing.

        Args:
            partitions: those of all methods, proven, by the name of what calls them: a
                method, or a block that is a branch or a turn of a loop.
            constants: the program's constants, by name.
            symbols: the program's symbols.

        Returns:
            for each of the names one for each of its partitions, in order.
        """
        return {name: (Lowered(),) * len(some) for name, some in partitions.items()}
