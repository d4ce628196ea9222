"""The arguments of a node as a backend's list sees them, and rules about them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet

from kvc.schema.dtypes import DType
from kvc.schema.frozen import frozen
from kvc.schema.graph import Argument, Constant, Graph, Instruction, Ref
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


def arguments_of(graph: Graph, step: Instruction) -> list[object]:
    """Return an instruction's arguments as a list sees them."""
    return [_as_listed(graph, argument) for argument in step.arguments]


def _as_listed(graph: Graph, argument: Argument) -> object:
    if isinstance(argument, tuple):
        return tuple(_as_listed(graph, item) for item in argument)
    if not isinstance(argument, Ref):
        return argument
    value = graph.values[argument.value]
    return Operand(value.type, isinstance(value.storage, Constant))


def operand(argument: object) -> Operand:
    """Return an argument that the op's signature says is a tensor."""
    assert isinstance(argument, Operand)
    return argument


def unknown_dtypes(types: Iterable[TensorType], known: AbstractSet[DType]) -> str:
    """Return which dtypes a backend does not take, "" where it knows all."""
    wrong = sorted({kind.dtype.label for kind in types if kind.dtype not in known})
    return f"it takes no tensors of {', '.join(wrong)}" if wrong else ""


def in_blocks(scale: object) -> str:
    """Return that a table's scales are those of blocks, "" where they are of rows.

    Args:
        scale: the argument of `kvc::embedding_q8`.
    """
    kind = operand(scale).type
    return f"a table with scales {kind}" if len(kind.dims) > 1 else ""


def beyond_plain_attention(arguments: Arguments) -> str:
    """Return what of a `kvc::attention` needs more than keys, values and a mask.

    "" for nothing: no sinks, no scales of an int8 cache, no ring that keeps its first
    positions, and no mask of anything but all slots.
    """
    mask, _, sinks, layout, scale, *_ = arguments[9:]
    if sinks is not None or scale is not None:
        return "attention with sinks" if scale is None else "attention over int8 caches"
    if arguments[16]:
        return "a ring that keeps its first positions"
    if isinstance(mask, Operand):
        slots = operand(arguments[1]).type.dims[2]
        if layout == "circular" or mask.type.dims[-1] != slots:
            return f"a mask {mask.type} of {slots} slots"
    return ""
