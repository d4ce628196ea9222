"""Check that an instruction fits its op: argument kinds, then shapes at a few sizes.

The verdict depends on the op, the types of operands and results, and the other
arguments, so equal layers are checked once: see `SignatureChecker.check`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import cast

from kvc.schema.dtypes import DType
from kvc.schema.model import Argument, Instruction, Item, Ref
from kvc.schema.ops import CONTROL_OPS, OpSpec, Param, ParamKind
from kvc.schema.ops.spec import Concrete, ConcreteItem, Inferred
from kvc.schema.types import Affine, TensorType, symbols_of
from kvc.schema.verify.dims import Sizes
from kvc.schema.verify.limits import MAX_LIST

Shapes = list[tuple[DType, tuple[int, ...]]]


class Misfit(ValueError):
    """An instruction does not fit its op; the text says how."""


def check_signature(
    instruction: Instruction, spec: OpSpec, types: Sequence[TensorType], sizes: Sizes
) -> None:
    """Check an instruction's arguments and results against its op.

    Args:
        instruction: every id in it is in range.
        spec: of its op.
        types: of the graph's values.
        sizes: of the program's symbols; the types have been checked with it.

    Raises:
        Misfit: it does not fit.
    """
    if len(instruction.arguments) != len(spec.params):
        raise Misfit(f"{len(instruction.arguments)} arguments for {len(spec.params)}")
    for param, argument in zip(spec.params, instruction.arguments, strict=True):
        _check_argument(param, argument, sizes)
    if instruction.op in CONTROL_OPS:
        return
    results = [types[i] for i in instruction.results]
    operands = [types[i] for i in _refs(instruction.arguments)]
    static = all(kind.is_static for kind in operands + results)
    free = static and not _has_affine(instruction)
    points: Sequence[Mapping[str, int]] = ({},) if free else sizes.points
    for point in points:
        arguments = [_concrete(a, types, point) for a in instruction.arguments]
        _compare(_infer(spec, arguments), results, point)
    names = () if free else _symbols(instruction, operands + results)
    for point in sizes.mixed_points(names, f"an instruction {instruction.op}"):
        arguments = [_concrete(a, types, point) for a in instruction.arguments]
        try:
            inferred = _infer(spec, arguments)
        except Misfit:
            continue  # some sizes only fit together, and such a call fails
        _compare(inferred, results, point)


def _refs(arguments: tuple[Argument, ...]) -> list[int]:
    flat = [x for a in arguments for x in (a if isinstance(a, tuple) else (a,))]
    return [item.value for item in flat if isinstance(item, Ref)]


def _has_affine(instruction: Instruction) -> bool:
    return any(True for _ in _affines(instruction))


def _affines(instruction: Instruction) -> Iterator[Affine]:
    """Yield the arguments that are sizes with symbols."""
    for argument in instruction.arguments:
        for item in argument if isinstance(argument, tuple) else (argument,):
            if isinstance(item, Affine):
                yield item


def _symbols(instruction: Instruction, types: Sequence[TensorType]) -> Iterable[str]:
    """Return the symbols of an instruction, each once."""
    return symbols_of([*_affines(instruction), *(d for k in types for d in k.dims)])


def _check_argument(param: Param, argument: Argument, sizes: Sizes) -> None:
    if argument is None and param.optional:
        return
    if param.is_list != isinstance(argument, tuple):
        wanted = "be" if param.is_list else "not be"
        raise Misfit(f"{param.name} must {wanted} a list")
    if not isinstance(argument, tuple):
        _check_item(param, argument, sizes)
        return
    if len(argument) > MAX_LIST:
        raise Misfit(f"{param.name} has {len(argument)} items, the limit is {MAX_LIST}")
    for item in argument:
        if item is not None or not param.optional_items:
            _check_item(param, item, sizes)


def _check_item(param: Param, item: Item, sizes: Sizes) -> None:
    if not accepts(param.kind, item, Ref):
        raise Misfit(f"{param.name} must be {param.kind.value}, not {item!r}")
    if isinstance(item, Affine):
        sizes.check_affine(item, f"argument {param.name}")


def accepts(kind: ParamKind, item: object, tensor: type) -> bool:
    """Tell whether an item is of a kind; `tensor` is the type of those of tensors."""
    number = isinstance(item, (int, Affine)) and not isinstance(item, (bool, DType))
    match kind:
        case ParamKind.TENSOR:
            return isinstance(item, tensor)
        case ParamKind.INT:
            return number
        case ParamKind.FLOAT:
            return isinstance(item, float) or (number and isinstance(item, int))
        case ParamKind.BOOL:
            return isinstance(item, bool)
        case ParamKind.STR:
            return isinstance(item, str)
        case ParamKind.DTYPE:
            return isinstance(item, DType)
        case ParamKind.SCALAR:
            return number or isinstance(item, (float, bool))


def _concrete(
    argument: Argument, types: Sequence[TensorType], point: Mapping[str, int]
) -> Concrete:
    if isinstance(argument, tuple):
        return tuple(cast(ConcreteItem, _concrete(x, types, point)) for x in argument)
    if isinstance(argument, Ref):
        kind = types[argument.value]
        return TensorType(kind.dtype, kind.shape(point))
    return argument.evaluate(point) if isinstance(argument, Affine) else argument


def _infer(spec: OpSpec, arguments: Sequence[Concrete]) -> tuple[Inferred, ...]:
    try:
        return spec.rule(*arguments)
    except (ValueError, ArithmeticError, LookupError) as error:
        raise Misfit(str(error)) from error


def _compare(
    inferred: tuple[Inferred, ...],
    results: Sequence[TensorType],
    point: Mapping[str, int],
) -> None:
    if len(inferred) != len(results):
        raise Misfit(f"it gives {len(inferred)} results, not {len(results)}")
    for (dtype, shape), kind in zip(inferred, results, strict=True):
        if kind.shape(point) != tuple(shape) or (
            dtype is not None and dtype != kind.dtype
        ):
            label = dtype.label if dtype is not None else kind.dtype.label
            sizes = ", ".join(f"{name} = {size}" for name, size in point.items())
            at = f" at {sizes}" if sizes else ""
            raise Misfit(f"it gives {label}{list(shape)}, declared is {kind}{at}")
