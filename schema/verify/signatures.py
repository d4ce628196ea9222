"""Check that an instruction fits its operator: arguments, then shapes at test sizes.

The result depends on the operator, the types of operands and results, and the other
arguments. `graphs.py` caches the result, so that equal layers are checked once.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, cast

from kvc.schema.dtypes import DType
from kvc.schema.graph import Argument, Graph, Instruction, Item, Ref
from kvc.schema.ops import CONTROL_OPS, OPS, OpSpec, Param, ParamKind
from kvc.schema.ops.spec import Concrete, ConcreteItem, Inferred
from kvc.schema.types import Affine, Dim, TensorType, symbols_of
from kvc.schema.verify.dims import CheckedTypes, Point
from kvc.schema.verify.limits import MAX_LIST

_ITEMS: Final[Mapping[ParamKind, frozenset[type]]] = {
    ParamKind.INT: frozenset({int, Affine}),
    ParamKind.FLOAT: frozenset({float, int}),
    ParamKind.BOOL: frozenset({bool}),
    ParamKind.STR: frozenset({str}),
    ParamKind.DTYPE: frozenset({DType}),
    ParamKind.SCALAR: frozenset({int, float, bool, Affine}),
}


_Said = tuple[frozenset[str], bool]  # the symbols of dims, whether they have quotients


class Misfit(ValueError):
    """An instruction does not fit its operator; the text has the reason."""


def check_signature(
    instruction: Instruction,
    spec: OpSpec,
    types: Sequence[TensorType],
    sizes: CheckedTypes,
) -> None:
    """Check an instruction's arguments and results against its operator.

    Args:
        instruction: an instruction whose ids are all in range.
        spec: the operator of the instruction.
        types: the types of the graph's values.
        sizes: the checked types of the program, which include `types`.

    Raises:
        Misfit: the instruction does not fit.
    """
    count = len(instruction.arguments)
    if count != len(spec.params):
        lacking = spec.params[count:]
        grown = lacking and all(param.optional for param in lacking)
        older = "; compile the model again" if grown else ""
        raise Misfit(f"{count} arguments for {len(spec.params)}{older}")
    for param, argument in zip(spec.params, instruction.arguments, strict=True):
        _check_argument(param, argument, sizes)
    if instruction.op in CONTROL_OPS:
        if _uses(instruction)[1]:
            raise Misfit("a block, a count or an index depends on the sizes of calls")
        return
    arguments = instruction.arguments
    results = [types[i] for i in instruction.results]
    if spec.halves:
        _check_halves(results)
    names = symbols_of(_dims_in(instruction, types))
    for point in sizes.points if names else sizes.points[:1]:
        concrete = [_concrete(a, types, point) for a in arguments]
        _compare(_infer(spec, concrete), results, point, names)
    for point in sizes.mixed_points(names, f"an instruction {instruction.op}"):
        concrete = [_concrete(a, types, point) for a in arguments]
        try:
            inferred = _infer(spec, concrete)
        except Misfit:
            continue  # some sizes fit only together; such a call fails
        _compare(inferred, results, point, names)


def _check_halves(results: Sequence[TensorType]) -> None:
    """Check that the last axis of each result has a fixed size.

    The operator splits this axis in halves, and its shape rule is tested at a few sizes
    only.
    """
    for kind in results:
        width = kind.dims[-1] if kind.dims else 0
        if not isinstance(width, int):
            raise Misfit(f"halves of {width} elements, which must be a number")


def sized_together(graph: Graph) -> Collection[int]:
    """Return the indices of the instructions that `check_at` must check at each call.

    Their sizes have several symbols, or a quotient.
    """
    return _where(graph, lambda names, divides: divides or len(names) > 1)


def divided(graph: Graph) -> Collection[int]:
    """Return the indices of the instructions whose sizes have a quotient."""
    return _where(graph, lambda _, divides: divides)


def _where(
    graph: Graph, holds: Callable[[Collection[str], bool], bool]
) -> Collection[int]:
    """Return the indices of a graph's instructions whose sizes satisfy a condition.

    Args:
        graph: the graph; instructions in blocks that it runs are not examined.
        holds: the condition. It gets the names of the symbols in an instruction's
            sizes, and whether these sizes have a quotient. A condition that holds for
            some symbols must also hold for these and further symbols.
    """
    types = {id(value.type): value.type for value in graph.values}
    known = {kind: _said(types[kind].dims) for kind in types}
    if not holds(*_together([*known.values(), _said(_sizes_in(graph))])):
        return ()  # true for most graphs; skips their instructions
    of = [known[id(value.type)] for value in graph.values]
    verdicts: dict[frozenset[_Said], bool] = {}
    found = set()
    for index, step in enumerate(graph.instructions):
        values, sizes = _uses(step)
        parts = {of[value] for value in values}
        if sizes:
            parts.add(_said(sizes))
        key = frozenset(parts)
        if key not in verdicts:
            verdicts[key] = holds(*_together(key))
        if verdicts[key] and step.op not in CONTROL_OPS:
            found.add(index)
    return found


def _together(said: Collection[_Said]) -> _Said:
    """Return all symbols of the entries, and whether any entry has a quotient."""
    names = frozenset[str]().union(*(names for names, _ in said))
    return names, any(divides for _, divides in said)


def _sizes_in(graph: Graph) -> Sequence[Dim]:
    """Return the symbolic sizes among instructions' arguments, each object once."""
    given = {id(a): a for step in graph.instructions for a in step.arguments}
    lists = [argument for argument in given.values() if type(argument) is tuple]
    given |= {id(item): item for items in lists for item in items}
    return [item for item in given.values() if type(item) is Affine]


def _said(dims: Sequence[Dim]) -> _Said:
    """Return the names of the symbols in dims, and whether the dims have quotients."""
    return frozenset(symbols_of(dims)), _divides(dims)


def check_at(
    instruction: Instruction, types: Sequence[TensorType], point: Point
) -> None:
    """Check a verified instruction at the sizes of a call.

    Some instructions fit their operator only at some sizes. An instruction with several
    symbols can need sizes that fit together. An instruction with a quotient can need
    that its division leaves the same remainder as at the test sizes. `check_signature`
    does not know the sizes of a call, so it cannot check these conditions.

    Args:
        instruction: an instruction that runs no blocks.
        types: the types of the graph's values.
        point: the sizes of the program's symbols; all instructions of a graph may
            share it.

    Raises:
        Misfit: the instruction does not fit.
    """
    concrete = [_concrete(a, types, point) for a in instruction.arguments]
    results = [types[i] for i in instruction.results]
    _compare(_infer(OPS[instruction.op], concrete), results, point, point.sizes)


def _uses(instruction: Instruction) -> tuple[list[int], list[Affine]]:
    """Return an instruction's results and operands, and the sizes in its arguments."""
    values, sizes = [*instruction.results], []
    for argument in instruction.arguments:
        for item in argument if type(argument) is tuple else (argument,):
            if type(item) is Ref:
                values.append(item.value)
            elif type(item) is Affine:
                sizes.append(item)
    return values, sizes


def _dims_in(instruction: Instruction, types: Sequence[TensorType]) -> tuple[Dim, ...]:
    """Return the dims of an instruction's results, operands and arguments."""
    values, sizes = _uses(instruction)
    return (*(dim for value in values for dim in types[value].dims), *sizes)


def _divides(dims: Sequence[Dim]) -> bool:
    return any(isinstance(dim, Affine) and bool(dim.quotients) for dim in dims)


def _check_argument(param: Param, argument: Argument, sizes: CheckedTypes) -> None:
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


def _check_item(param: Param, item: Item, sizes: CheckedTypes) -> None:
    if not accepts(param.kind, item, Ref):
        raise Misfit(f"{param.name} must be {param.kind.value}, not {item!r}")
    if isinstance(item, Affine):
        sizes.check_affine(item, f"argument {param.name}")


def accepts(kind: ParamKind, item: object, tensor: type) -> bool:
    """Tell whether an argument, or an item of a list, is of a parameter kind.

    Args:
        kind: the kind that the parameter accepts.
        item: the argument or item.
        tensor: the class of items that are tensors.
    """
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
