"""The whole check of a program, and of a delegate's graph-shaped payload."""

from kvc.schema.garbage import collection_paused
from kvc.schema.model import Caller, Delegate, Payload, Program
from kvc.schema.ops import UNCHECKED
from kvc.schema.types import TensorType
from kvc.schema.verify.blocks import check_blocks
from kvc.schema.verify.counts import check_counts
from kvc.schema.verify.dims import Sizes
from kvc.schema.verify.faults import Reporter
from kvc.schema.verify.graphs import GraphChecker
from kvc.schema.verify.memory import check_memory
from kvc.schema.verify.methods import check_effects, check_methods
from kvc.schema.verify.rings import RingChecker
from kvc.schema.verify.semantics import call_of, check_delegates, check_tables
from kvc.schema.verify.values import Surroundings


@collection_paused()
def verify_program(program: Program, path: str, thorough: bool = False) -> None:
    """Check all that a program says; ids within graphs are in range.

    Args:
        program: decoded, or about to be written.
        path: for messages.
        thorough: check memory a second time, by the slow replay.

    Raises:
        BadProgram: something is impossible.
        LimitExceeded: something is too large.
    """
    report = Reporter(path)
    sizes = Sizes(program.symbols, report)
    check_tables(program, sizes, report)
    check_methods(program, sizes, report)
    checker = GraphChecker(report)
    rings = RingChecker(program, sizes, report)
    constants = [named.type for named in program.names]
    for method in program.methods:
        where = f"method {method.name!r}"
        around = Surroundings(where, constants, program.states, sizes)
        operands = checker.check(method.graph, around)
        check_memory(method.graph, operands, where, report, thorough)
        check_effects(method, operands, program, report)
        rings.check(method, operands)
        check_blocks(method, checker, around, thorough)
        check_counts(method, program, report)
    rings.finish()
    check_delegates(program, report)


def verify_payload(
    payload: Payload, program: Program, delegate: Delegate, path: str
) -> None:
    """Check a payload against the verified program that it belongs to.

    Raises:
        BadProgram: something is impossible, or does not fit the program.
        LimitExceeded: something is too large.
    """
    report = Reporter(path)
    number = program.delegates.index(delegate)
    where = f"delegate {number}"
    backend = payload.backend
    report.require(backend == delegate.backend, where, f"made for {backend!r}")
    known = set(program.symbols)
    strange = [symbol.name for symbol in payload.symbols if symbol not in known]
    report.require(not strange, where, f"symbols {strange} are not the program's")
    _check_names(payload, program, delegate, where, report)
    sizes = Sizes(payload.symbols, report)
    sizes.check_symbols(payload.symbols)
    around = Surroundings(where, payload.types, (), sizes)
    operands = GraphChecker(report).check(payload.graph, around)
    nested = [s for s in payload.graph.instructions if s.op in UNCHECKED]
    report.require(not nested, where, "it calls a delegate or a block itself")
    storages = [value.storage for value in payload.graph.values]
    outside = Caller() in storages
    report.require(not outside, where, "it uses a caller's array")
    check_memory(payload.graph, operands, where, report, thorough=False)
    _check_border(payload, program, delegate, where, report)


def _check_names(
    payload: Payload, program: Program, delegate: Delegate, where: str, report: Reporter
) -> None:
    report.unique(list(payload.names), where)
    allowed = {program.names[i].name: program.names[i].type for i in delegate.names}
    found = dict(zip(payload.names, payload.types, strict=False))
    fits = len(payload.names) == len(payload.types)
    for name, kind in found.items():
        what = f"{name!r} as {kind} is not among its data"
        report.require(fits and allowed.get(name) == kind, where, what)


def _check_border(
    payload: Payload, program: Program, delegate: Delegate, where: str, report: Reporter
) -> None:
    """Check that the call passes what the payload takes, and takes what it gives."""
    graph = payload.graph
    sides = zip(call_of(program, delegate), (graph.inputs, graph.outputs), strict=True)
    for (passed, own), what in zip(sides, ("inputs", "outputs"), strict=True):
        b: list[TensorType] = [graph.values[i].type for i in own]
        report.require(passed == b, where, f"its {what} differ from those of its call")
