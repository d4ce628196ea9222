"""The arguments of a node as a backend's list sees them, and rules about them."""

from collections.abc import Callable, Iterator, Sequence

from kvc.schema.frozen import frozen
from kvc.schema.types import TensorType


@frozen
class Operand:
    """A tensor argument.

    Attributes:
        type: its dtype and dims.
        constant: whether it is named data.
    """

    type: TensorType
    constant: bool


Arguments = Sequence[object]
Results = Sequence[TensorType]
# From a node's arguments, in the order of its signature, and the types of its results
# to the reason why it cannot be run, "" when it can.
Rule = Callable[[Arguments, Results], str]
# The same for any node, from its op, whose signature it is known to fit. Among the
# arguments, tensors are `Operand`s, lists are tuples, all else is as it is.
WhyNot = Callable[[str, Arguments, Results], str]


def operands_of(arguments: Arguments) -> Iterator[Operand]:
    """Yield the tensors among arguments, those in lists too."""
    for argument in arguments:
        if isinstance(argument, Operand):
            yield argument
        elif isinstance(argument, tuple):
            yield from (item for item in argument if isinstance(item, Operand))


def operand(argument: object) -> Operand:
    """Return an argument that the op's signature says is a tensor."""
    assert isinstance(argument, Operand)
    return argument
