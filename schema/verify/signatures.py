"""Check that an instruction fits its op: argument kinds, then shapes at a few sizes.

The verdict depends on the op, the types of operands and results, and the other
arguments, so equal layers are checked once: see `SignatureChecker.check`.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, cast

from kvc.schema.dtypes import DType
from kvc.schema.model import Argument, Graph, Instruction, Item, Ref
from kvc.schema.ops import CONTROL_OPS, OPS, OpSpec, Param, ParamKind
from kvc.schema.ops.spec import Concrete, ConcreteItem, Inferred
from kvc.schema.types import Affine, Dim, TensorType, symbols_of
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
    names = symbols_of(_dims_in(instruction, lambda value: types[value].dims))
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
    """Return the instructions with several symbols or a quotient, for `check_at`."""
    types = {id(value.type): value.type for value in graph.values}
    known = {kind: types[kind].dims for kind in types}
    of = [known[id(value.type)] for value in graph.values].__getitem__
    steps = enumerate(graph.instructions)
    return {index for index, step in steps if _depends_on_call(_dims_in(step, of))}


def check_at(
    instruction: Instruction, types: Sequence[TensorType], sizes: Mapping[str, int]
) -> None:
    """Check a verified instruction at the sizes of a call.

    One that has several symbols may fit only where their sizes go together, and one
    that has quotients only where a remainder is what it was at the sizes tried;
    `check_signature` leaves both to the call.

    Args:
        instruction: of an op that runs no blocks.
        types: of the graph's values.
        sizes: of the program's symbols.

    Raises:
        Misfit: it does not fit.
    """
    dims = _dims_in(instruction, lambda value: types[value].dims)
    if _depends_on_call(dims):
        names, point = symbols_of(dims), Point(sizes)
        concrete = [_concrete(a, types, point) for a in instruction.arguments]
        results = [types[i] for i in instruction.results]
        _compare(_infer(OPS[instruction.op], concrete), results, point, names)


def _dims_in(
    instruction: Instruction, dims_of: Callable[[int], Sequence[Dim]]
) -> Sequence[Dim]:
    """Return the dims of an instruction's results, operands and arguments.

    Args:
        instruction: whose they are.
        dims_of: returns those of a value's type.
    """
    dims: list[Dim] = []
    for value in instruction.results:
        dims += dims_of(value)
    for argument in instruction.arguments:
        for item in argument if type(argument) is tuple else (argument,):
            if type(item) is Ref:
                dims += dims_of(item.value)
            elif type(item) is Affine:
                dims.append(item)
    return dims


def _depends_on_call(dims: Sequence[Dim]) -> bool:
    """Tell whether sizes that the verifier has not tried may give other shapes."""
    divided = any(isinstance(dim, Affine) and dim.quotients for dim in dims)
    return divided or len(symbols_of(dims)) > 1


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
