"""Import all exported programs of a model as one IR program.

In: the captured methods. Out: their IR, in which all methods share constants and
states. `states_and_constants` finds the model's tensors that are states, and `carried`
and `grown` find the arguments that are states. `inputs_and_outputs` and `method` import
one method.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from torch import Tensor, nn

from kvc.compiler.decompose.renormed import Bound, TablePlace, other_reads, places_read
from kvc.compiler.ingest.carried import CarriedTensors, check_positions, read_carry
from kvc.compiler.ingest.grown import Use, carried_state
from kvc.compiler.ingest.inputs_and_outputs import SessionOwned, mutated_tensors
from kvc.compiler.ingest.merged_sizes import define_joined_sizes
from kvc.compiler.ingest.method import MethodImporter
from kvc.compiler.ingest.signature import (
    TracedSignature,
    input_tree,
    output_tree,
    read_signature,
)
from kvc.compiler.ingest.sized import (
    buffer_states,
    check_one_meaning,
    check_written,
    sized_types,
)
from kvc.compiler.ingest.states_and_constants import TensorTable
from kvc.compiler.ingest.symbols import (
    SizeReader,
    declared_symbols,
    qualified_names,
    size_reader,
)
from kvc.compiler.ir import Method, Node, Program, State
from kvc.compiler.ir.verify import Malformed, concrete, sample_sizes, verify
from kvc.compiler.trace import CapturedMethod
from kvc.compiler.trace.aliases import RegisteredMemory
from kvc.compiler.trace.guard import unseen
from kvc.compiler.trace.traced import paths_of
from kvc.schema.errors import CaptureError, StateConflict, UnsupportedOps
from kvc.schema.ops import OPS
from kvc.schema.ops.spec import ShapeMismatch
from kvc.schema.types import Symbol, symbols_in

# Refuse access to the memory of a state outside of the trace, with a remedy.


def check_reached(captured: Sequence[CapturedMethod], tensors: TensorTable) -> None:
    """Check that methods access the memory of states only by code that was traced.

    Raises:
        StateConflict: a method reads, or possibly reads, the memory of a state by code
            that the trace did not record.
        CaptureError: a method assigns a new tensor to a buffer that other code uses.
    """
    for one in captured:
        for name, place in one.observed.missed.items():
            if tensors.state(tensors.named[name]) is not None:
                raise unseen(one.method.name, name, place)
        for name, path in one.observed.arrays.items():
            if tensors.state(tensors.named[name]) is not None:
                reason = (
                    f"{path!r} is a numpy array over its memory, and a read of it is "
                    "not traced; keep a tensor, or make the array where it is needed"
                )
                raise StateConflict(state=name, reason=reason)
    kept = {n: path for one in captured for n, path in one.observed.aliases.items()}
    for one in captured:
        for name in one.observed.assigned:
            if name in kept:
                raise _apart(one.method.name, name, kept[name])


def _apart(method: str, name: str, path: str) -> CaptureError:
    other = repr(path) if path else "a tensor that is kept outside of the model"
    reason = (
        f"it assigns the buffer {name!r} anew, so that {other}, which is the same "
        "memory and is used as well, would keep the old value; write into the buffer "
        "instead, with copy_(...)"
    )
    return CaptureError(method=method, place="", reason=reason)


# Refuse a table whose rows one method shortens and another does not.


def check_bounded(captured: Sequence[CapturedMethod]) -> None:
    """Check that all methods that read a table have one bound for its rows' norms.

    Raises:
        CaptureError: two methods have different bounds for the norms.
    """
    bounds: Mapping[TablePlace, Bound] = {}
    for each in captured:
        bounds = {**each.bounds, **bounds}
    for each in captured if bounds else ():
        made = each.exported
        tensors = {**made.state_dict, **made.constants}
        places = places_read(made.graph, made.graph_signature, tensors)
        for read in places.values():
            wanted = {bound for table, bound in bounds.items() if table.meets(read)}
            if wanted - {each.bounds.get(read)}:
                raise other_reads(each.method.name)


# Import the methods of a model.


@dataclass(frozen=True, slots=True)
class _Traced:
    """A method before it is imported: trace, signature, sizes and carried tensors."""

    captured: CapturedMethod
    signature: TracedSignature
    sizes: SizeReader
    carried: CarriedTensors


def import_program(
    model: nn.Module, captured: tuple[CapturedMethod, ...], slots: Sequence[str] = ()
) -> Program:
    """Return the IR of all methods, which share constants and states.

    A tensor that several methods use becomes one constant or state. `slots` are names
    of constants that the bundle will not contain.

    Raises:
        UnsupportedOps: operators have no kernel; the error lists all of them with their
            source lines.
        CompileError, CaptureError, StateConflict: the message gives the reason.
    """
    named = RegisteredMemory(model).named
    names = qualified_names(captured)
    symbols = declared_symbols(captured, names)
    mutated = [tensor for one in captured for tensor in mutated_tensors(one, named)]
    mutated += [named[one.name] for one in captured[0].lifted if one.given]
    tensors = TensorTable(named, mutated, sized_types(captured, named), slots)
    check_written(captured, tensors)
    check_reached(captured, tensors)
    check_bounded(captured)
    traced = _read(captured, names)
    carried = _carried_states(traced, symbols, frozenset(named))
    methods = _import_all(model, traced, tensors, carried)
    states = (*tensors.states.values(), *carried.values())
    fixed = symbols_in(state.type for state in states)
    check_one_meaning(captured, fixed)
    check_positions(methods, fixed)
    program = Program(
        symbols=symbols,
        constants=(*tensors.constants.values(), *tensors.initial),
        states=states,
        methods=methods,
    )
    _check_all_sizes(program)
    return program


def _read(
    captured: Sequence[CapturedMethod], names: Mapping[tuple[str, str], str]
) -> tuple[_Traced, ...]:
    signatures = [read_signature(one) for one in captured]
    sizes = [
        size_reader(one, _inputs_by_path(one, signature), names)
        for one, signature in zip(captured, signatures, strict=True)
    ]
    for one, size in zip(captured, sizes, strict=True):
        define_joined_sizes(one.exported.graph_module, size)
    carried = read_carry([one.method for one in captured], signatures)
    return tuple(map(_Traced, captured, signatures, sizes, carried))


def _inputs_by_path(
    captured: CapturedMethod, signature: TracedSignature
) -> dict[str, Tensor]:
    """Return path -> traced tensor, for all inputs of a method.

    The paths are those that `Method.dynamic` uses.
    """
    buffers = zip(paths_of(captured.lifted), signature.buffers, strict=True)
    return {**signature.arguments, **dict(buffers)}


def _carried_states(
    traced: Sequence[_Traced], symbols: Sequence[Symbol], taken: Set[str]
) -> dict[str, State]:
    """Return path -> state, for the arguments in `Method.carry` of all methods.

    Args:
        traced: all traced methods.
        symbols: the program's symbols.
        taken: names of the model's tensors, which no state may have.
    """
    uses: dict[str, list[Use]] = {}
    for one in traced:
        arguments = one.signature.arguments
        results = list(one.signature.results.values())
        for pair in one.carried.pairs:
            old = arguments.get(pair.path)
            use = Use(
                one.captured.method.name,
                None if old is None else one.sizes.tensor_type(old),
                one.sizes.tensor_type(results[pair.result]),
            )
            uses.setdefault(pair.path, []).append(use)
    by_name = {symbol.name: symbol for symbol in symbols}
    return {
        path: carried_state(
            f"carry.{path}" if path in taken else path, of_path, by_name
        )
        for path, of_path in uses.items()
    }


def _import_all(
    model: nn.Module,
    traced: Sequence[_Traced],
    tensors: TensorTable,
    carried: Mapping[str, State],
) -> tuple[Method, ...]:
    missing: list[tuple[str, str, str, str]] = []
    methods: list[Method] = []
    blocks: list[Method] = []
    for one in traced:
        method, unknown = _import_method(model, one, tensors, carried, blocks)
        methods.append(method)
        missing += [(*item, one.captured.method.name) for item in unknown]
    if missing:
        raise _unsupported(missing)
    return (*methods, *blocks)


def _import_method(
    model: nn.Module,
    traced: _Traced,
    tensors: TensorTable,
    carried: Mapping[str, State],
    blocks: list[Method],
) -> tuple[Method, list[tuple[str, str, str]]]:
    captured, signature, kept = traced.captured, traced.signature, traced.carried
    position = captured.method.position
    filled = {position} if position else set()
    trees = (
        input_tree(model, captured, kept.arguments | filled),
        output_tree(captured, signature, kept.results),
    )
    owned = _owned(traced, tensors, carried)
    names = [
        path
        for number, path in enumerate(signature.arguments)
        if number not in owned.arguments
    ]
    importer = MethodImporter(captured, tensors, traced.sizes, owned, blocks)
    return importer.run(tuple(names), trees), importer.missing


def _owned(
    traced: _Traced, tensors: TensorTable, carried: Mapping[str, State]
) -> SessionOwned:
    """Return the inputs and results of a method that are states."""
    pairs = traced.carried.pairs
    first = len(traced.signature.arguments)
    buffers = buffer_states(traced.captured, tensors)
    return SessionOwned(
        arguments={
            pair.argument: carried[pair.path]
            for pair in pairs
            if pair.argument is not None
        },
        buffers={first + i: state for i, state in enumerate(buffers)},
        results={pair.result: carried[pair.path] for pair in pairs},
    )


def _check_all_sizes(program: Program) -> None:
    """Refuse code that does not hold for all of the declared sizes.

    torch traces a method at one size, so it does not notice that `x[:, 1]` fails at a
    smaller size. torch also does not check everything that an operator refuses at run
    time.
    """
    try:
        verify(program)
    except Malformed as error:
        node = error.node
        if node is None or not (
            error.sizes or isinstance(error.__cause__, ShapeMismatch)
        ):
            return  # a bug of ours, which the pass manager reports
        place = f" at {node.source}" if node.source else ""
        reason = (
            f"{node.op} does not accept its arguments: {error.reason}. Change shapes, "
            "dtypes or axes in this line"
        )
        if any(_takes(node, sizes) for sizes in sample_sizes(program.symbols)):
            reason = _wrong_sizes(node, error)
        raise CaptureError(method=error.method, place=place, reason=reason) from error


def _takes(node: Node, sizes: Mapping[str, int]) -> bool:
    """Tell whether an operator accepts the arguments of a node at the given sizes."""
    try:
        OPS[node.op].rule(*(concrete(a, sizes) for a in node.arguments))
    except ShapeMismatch:
        return False
    return True


def _wrong_sizes(node: Node, error: Malformed) -> str:
    sizes = ", ".join(f"{name} = {size}" for name, size in error.sizes.items())
    return (
        f"{node.op} does not hold for all declared sizes; with {sizes}: "
        f"{error.reason}. Change the bounds of the Dim, or the code"
    )


def _unsupported(missing: list[tuple[str, str, str, str]]) -> UnsupportedOps:
    """Return an error that lists all unsupported operators with their source lines."""
    places: dict[tuple[str, str], list[str]] = {}
    for op, reason, source, method in missing:
        places.setdefault((op, reason), []).append(
            f"{method}: {source}" if source else method
        )
    lines = []
    for (op, reason), found in sorted(places.items()):
        unique = list(dict.fromkeys(found))
        more = f" and {len(unique) - 3} more places" if len(unique) > 3 else ""
        lines.append(f"  {op} ({reason}) in {'; '.join(unique[:3])}{more}")
    return UnsupportedOps(
        count=len(places), listing="\n".join(lines), ops=tuple(op for op, _ in places)
    )
