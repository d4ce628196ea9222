"""Calls that the rules of normalization return: an operator with named arguments."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from kvc.compiler.ir import Value
from kvc.schema.dtypes import DType
from kvc.schema.types import Dim, TensorType

NamedArguments = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class OpCall:
    """A call of an operator, with its arguments by parameter name.

    The operator returns the first `results` results of the traced call, or all results
    if `results` is None. `checks` are calls without results that must run before the
    operator.
    """

    op: str
    named: NamedArguments
    results: int | None = None
    checks: "tuple[OpCall, ...]" = ()


@dataclass(frozen=True, slots=True)
class MadeArgument:
    """An argument that must be computed by an additional call."""

    call: OpCall
    type: TensorType


Tensor = Value | MadeArgument


class Unsupported(Exception):
    """A call cannot be expressed in the IR; the message gives the reason."""

    @property
    def reason(self) -> str:
        """Return the reason why the call cannot be expressed."""
        return str(self)


OpRule = Callable[[NamedArguments, TensorType | None], OpCall]
Kind = TypeVar("Kind")


def given(named: NamedArguments, name: str, kind: type[Kind]) -> Kind:
    """Return the argument `name`, whose type the operator's signature ensures."""
    found = named[name]
    assert isinstance(found, kind), name
    return found


def places(start: Dim, end: Dim, step: Dim, count: Dim) -> MadeArgument:
    """Return the integers from `start` to below `end` in steps, int64 [count]."""
    values = {"start": start, "end": end, "step": step, "dtype": DType.INT64}
    call = OpCall("aten::arange.start_step", values)
    return MadeArgument(call, TensorType(DType.INT64, (count,)))


def plus(tensor: Tensor, other: Tensor | Dim) -> Tensor:
    """Return the sum of an integer tensor and `other`.

    `other` is a size, or a tensor without dims.
    """
    if other == 0:
        return tensor
    op = (
        "aten::add.Tensor"
        if isinstance(other, Value | MadeArgument)
        else "aten::add.Scalar"
    )
    return MadeArgument(
        OpCall(op, {"self": tensor, "other": other, "alpha": 1}), tensor.type
    )


def cast(tensor: Tensor, dtype: DType) -> Tensor:
    """Return a tensor in another dtype, unchanged if it has that dtype."""
    if tensor.type.dtype is dtype:
        return tensor
    call = OpCall("aten::_to_copy", {"self": tensor, "dtype": dtype})
    return MadeArgument(call, TensorType(dtype, tensor.type.dims))


def viewed(tensor: Tensor, *dims: Dim) -> Tensor:
    """Return a view of a tensor in another shape."""
    if tensor.type.dims == dims:
        return tensor
    kind = TensorType(tensor.type.dtype, dims)
    return MadeArgument(OpCall("aten::view", {"self": tensor, "size": dims}), kind)


def expanded(tensor: Tensor, dims: tuple[Dim, ...]) -> OpCall:
    """Return a call that broadcasts a tensor."""
    return OpCall("aten::expand", {"self": tensor, "size": dims})


def full(dims: tuple[Dim, ...], number: object, dtype: DType) -> MadeArgument:
    """Return a tensor filled with a number that is known at compile time."""
    values = {"size": dims, "fill_value": number, "dtype": dtype}
    return MadeArgument(OpCall("aten::full", values), TensorType(dtype, dims))
