"""The form in which support lists receive a node's arguments, and shared rules."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet

from kvc.schema.dtypes import DType
from kvc.schema.frozen import frozen
from kvc.schema.graph import Argument, Constant, Graph, Instruction, Ref
from kvc.schema.types import TensorType


@frozen
class Operand:
    """A tensor among the arguments of a node.

    Attributes:
        type: the tensor's dtype and dims.
        constant: whether the tensor is named data.
    """

    type: TensorType
    constant: bool


Arguments = Sequence[object]
Results = Sequence[TensorType]
# A rule returns why a backend cannot run a node, "" when it can. It is given the node's
# arguments, in the order of the signature, and the types of its results.
Rule = Callable[[Arguments, Results], str]
# The same for any operator. The arguments fit the operator's signature; tensors are
# `Operand`s, lists are tuples, other arguments are unchanged.
WhyNot = Callable[[str, Arguments, Results], str]


def operands_of(arguments: Arguments) -> Iterator[Operand]:
    """Yield a node's tensor arguments, and the tensors in arguments that are lists."""
    for argument in arguments:
        if isinstance(argument, Operand):
            yield argument
        elif isinstance(argument, tuple):
            yield from (item for item in argument if isinstance(item, Operand))


def arguments_of(graph: Graph, step: Instruction) -> list[object]:
    """Return an instruction's arguments in the form that support lists expect."""
    return [_as_listed(graph, argument) for argument in step.arguments]


def _as_listed(graph: Graph, argument: Argument) -> object:
    if isinstance(argument, tuple):
        return tuple(_as_listed(graph, item) for item in argument)
    if not isinstance(argument, Ref):
        return argument
    value = graph.values[argument.value]
    return Operand(value.type, isinstance(value.storage, Constant))


def operand(argument: object) -> Operand:
    """Return an argument that is a tensor by the operator's signature."""
    assert isinstance(argument, Operand)
    return argument


def unknown_dtypes(types: Iterable[TensorType], known: AbstractSet[DType]) -> str:
    """Return a reason that names the dtypes of `types` outside of `known`, or ""."""
    wrong = sorted({kind.dtype.label for kind in types if kind.dtype not in known})
    return f"it takes no tensors of {', '.join(wrong)}" if wrong else ""


def in_blocks(scale: object) -> str:
    """Return a reason if a table has several scales per row, "" if it has one.

    Args:
        scale: the scale argument of `kvc::embedding_q8`.
    """
    kind = operand(scale).type
    return f"a table with scales {kind}" if len(kind.dims) > 1 else ""
