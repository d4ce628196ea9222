"""What an operator's schema says: what it writes, and its form that writes nothing."""

import enum
import functools
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch._ops import OpOverload

Schema = torch.FunctionSchema
Taken = Sequence[tuple[str, str]]  # name and type of each argument
# Arguments that only the form has, of an operator that makes a tensor.
_MADE = ("dtype", "layout", "device", "pin_memory", "memory_format")
_INSTEAD = {"__ilshift__": "__lshift__", "__irshift__": "__rshift__"}


class Kind(enum.Enum):
    """What a call of an operator does."""

    VIEW = enum.auto()  # its results lie in the memory of its first argument
    WRITE = enum.auto()  # it writes arguments
    COMPOSITE = enum.auto()  # torch can compute it by other operators
    NEW = enum.auto()  # its results have memory of their own


@functools.cache
def kind_of(op: OpOverload) -> Kind:
    """Return what a call of an operator does."""
    if op._can_decompose():
        return Kind.COMPOSITE
    if op._schema.is_mutable:
        return Kind.WRITE
    returns = op._schema.returns
    alias = returns[0].alias_info if returns else None
    return Kind.NEW if alias is None else Kind.VIEW


@functools.cache
def has_kernel(op: OpOverload) -> bool:
    """Tell whether an operator that is no view has a kernel: it makes new tensors."""
    if kind_of(op) is Kind.NEW:
        return True
    name: str = op.name()  # type: ignore[no-untyped-call]
    return torch._C._dispatch_has_kernel_for_dispatch_key(name, "CPU")


def with_defaults(
    op: OpOverload, args: Sequence[object], kwargs: Mapping[str, object]
) -> tuple[object, ...]:
    """Return all arguments of a call that may be given by their position."""
    rest = [each for each in op._schema.arguments[len(args) :] if not each.kwarg_only]
    return (*args, *(kwargs.get(each.name, each.default_value) for each in rest))


def written_arguments(
    op: OpOverload, args: Sequence[object], kwargs: Mapping[str, object]
) -> list[object]:
    """Return the arguments of a call that the operator writes."""
    return [
        args[place] if place < len(args) else kwargs.get(name)
        for place, name in _written(op)
    ]


@functools.cache
def _written(op: OpOverload) -> tuple[tuple[int, str], ...]:
    return tuple(
        (place, argument.name)
        for place, argument in enumerate(op._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )


@functools.cache
def functional_form(op: OpOverload) -> OpOverload | None:
    """Return the operator that computes what `op` writes, None if there is none.

    The form of `add_` is `add`, that of `exp.out` is `exp`. It takes the arguments of
    `op` but those of `out=`, and returns the new contents, in the order in which `op`
    takes what it writes.
    """
    return next(_forms(op), None)


def _forms(op: OpOverload) -> Iterator[OpOverload]:
    name = op._schema.name.removeprefix("aten::")
    wanted = _taken(op._schema)
    bases = (name.removesuffix("_"), name, f"{name}_functional", _INSTEAD.get(name, ""))
    for base in dict.fromkeys(bases):
        packet = getattr(torch.ops.aten, base, None)
        overloads = packet.overloads() if packet is not None else []
        for overload in overloads:
            form: OpOverload = getattr(packet, overload)
            if not form._schema.is_mutable and _taken(form._schema) == wanted:
                yield form


def _taken(schema: Schema) -> Taken:
    return [
        (argument.name, str(argument.type))
        for argument in schema.arguments
        if not argument.is_out and argument.name not in _MADE
    ]


def form_arguments(
    op: OpOverload, form: OpOverload, kwargs: Mapping[str, object], like: torch.Tensor
) -> dict[str, object]:
    """Return the named arguments of a call of `op`, for a call of its functional form.

    With `out=`, a tensor is made, and a sum computed, in the dtype of the written
    tensor `like`.
    """
    out = {argument.name for argument in op._schema.arguments if argument.is_out}
    by_name = {each.name for each in op._schema.arguments if each.kwarg_only} - out
    named = {name: value for name, value in kwargs.items() if name in by_name}
    takes = {argument.name for argument in form._schema.arguments}
    if out and "dtype" in takes and named.get("dtype") is None:
        named["dtype"] = like.dtype
    return named
