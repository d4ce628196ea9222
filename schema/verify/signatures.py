"""Check that an instruction fits its op: argument kinds, then shapes at a few sizes.

The verdict depends on the op, the types of operands and results, and the other
arguments, so equal layers are checked once: see `SignatureChecker.check`.
"""

from collections.abc import Callable, Collection, Iterable, KeysView, Mapping, Sequence
from typing import Final, cast

from kvc.schema.dtypes import DType
from kvc.schema.model import Argument, Graph, Instruction, Item, Ref
from kvc.schema.ops import CONTROL_OPS, OPS, OpSpec, Param, ParamKind
from kvc.schema.ops.spec import Concrete, ConcreteItem, Inferred
from kvc.schema.types import Affine, TensorType, symbols_of
from kvc.schema.verify.dims import Point, Sizes
from kvc.schema.verify.limits import MAX_LIST

_ITEMS: Final[Mapping[ParamKind, frozenset[type]]] = {
    ParamKind.INT: frozenset({int, Affine}),
    ParamKind.FLOAT: frozenset({float, int}),
    ParamKind.BOOL: frozenset({bool}),
    ParamKind.STR: frozenset({str}),
    ParamKind.DTYPE: frozenset({DType}),
    ParamKind.SCALAR: frozenset({int, float, bool, Affine}),
}


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
    arguments = instruction.arguments
    results = [types[i] for i in instruction.results]
    if spec.halves:
        _check_halves(results)
    names = _symbols_in(instruction, lambda value: symbols_of(types[value].dims))
    for point in sizes.points if names else sizes.points[:1]:
        concrete = [_concrete(a, types, point) for a in arguments]
        _compare(_infer(spec, concrete), results, point, names)
    for point in sizes.mixed_points(names, f"an instruction {instruction.op}"):
        concrete = [_concrete(a, types, point) for a in arguments]
        try:
            inferred = _infer(spec, concrete)
        except Misfit:
            continue  # some sizes only fit together, and such a call fails
        _compare(inferred, results, point, names)


def _check_halves(results: Sequence[TensorType]) -> None:
    """Check that last axes have the same size in all calls; the rule sees some."""
    for kind in results:
        width = kind.dims[-1] if kind.dims else 0
        if not isinstance(width, int):
            raise Misfit(f"halves of {width} elements, which must be a number")


def sized_together(graph: Graph) -> Collection[int]:
    """Return the instructions that have several symbols, for `check_at`."""
    types = {id(value.type): value.type for value in graph.values}
    known = {kind: symbols_of(types[kind].dims) for kind in types}
    of = [known[id(value.type)] for value in graph.values].__getitem__
    steps = enumerate(graph.instructions)
    return {index for index, step in steps if len(_symbols_in(step, of)) > 1}


def check_at(
    instruction: Instruction, types: Sequence[TensorType], sizes: Mapping[str, int]
) -> None:
    """Check a verified instruction at the sizes of a call.

    One that has several symbols may fit only where their sizes go together, which
    `check_signature` leaves to the call.

    Args:
        instruction: of an op that runs no blocks.
        types: of the graph's values.
        sizes: of the program's symbols.

    Raises:
        Misfit: it does not fit.
    """
    names = _symbols_in(instruction, lambda value: symbols_of(types[value].dims))
    if len(names) > 1:
        point = Point(sizes)
        concrete = [_concrete(a, types, point) for a in instruction.arguments]
        results = [types[i] for i in instruction.results]
        _compare(_infer(OPS[instruction.op], concrete), results, point, names)


def _symbols_in(
    instruction: Instruction, symbols_at: Callable[[int], Iterable[str]]
) -> KeysView[str]:
    """Return the symbols of an instruction's results, operands and arguments.

    Args:
        instruction: whose they are.
        symbols_at: returns those of a value's type.
    """
    names: dict[str, None] = {}
    for value in instruction.results:
        names |= dict.fromkeys(symbols_at(value))
    for argument in instruction.arguments:
        for item in argument if type(argument) is tuple else (argument,):
            if type(item) is Ref:
                names |= dict.fromkeys(symbols_at(item.value))
            elif type(item) is Affine:
                names |= dict.fromkeys(item.symbols)
    return names.keys()


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
    if kind is ParamKind.TENSOR:
        return isinstance(item, tensor)
    return type(item) in _ITEMS[kind]


def _concrete(
    argument: Argument, types: Sequence[TensorType], point: Point
) -> Concrete:
    if isinstance(argument, tuple):
        return tuple([cast(ConcreteItem, _concrete(x, types, point)) for x in argument])
    if isinstance(argument, Ref):
        return point.at(types[argument.value])
    return argument.evaluate(point.sizes) if isinstance(argument, Affine) else argument


def _infer(spec: OpSpec, arguments: Sequence[Concrete]) -> tuple[Inferred, ...]:
    try:
        return spec.rule(*arguments)
    except (ValueError, ArithmeticError, LookupError) as error:
        raise Misfit(str(error)) from error


def _compare(
    inferred: tuple[Inferred, ...],
    results: Sequence[TensorType],
    point: Point,
    names: Collection[str],
) -> None:
    if len(inferred) != len(results):
        raise Misfit(f"it gives {len(inferred)} results, not {len(results)}")
    for (dtype, shape), kind in zip(inferred, results, strict=True):
        if point.at(kind).dims != tuple(shape) or dtype not in (None, kind.dtype):
            label = dtype.label if dtype is not None else kind.dtype.label
            sizes = ", ".join(f"{n} = {point.sizes[n]}" for n in point.sizes if names)
            at = f" at {sizes}" if sizes else ""
            raise Misfit(f"it gives {label}{list(shape)}, declared is {kind}{at}")
