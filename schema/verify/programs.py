"""The whole check of a program."""

from kvc.schema.garbage import collection_paused
from kvc.schema.model import Program
from kvc.schema.verify.blocks import check_blocks
from kvc.schema.verify.cursors import CursorChecker
from kvc.schema.verify.dims import Sizes
from kvc.schema.verify.faults import Reporter
from kvc.schema.verify.graphs import GraphChecker
from kvc.schema.verify.methods import check_accesses, check_effects, check_methods
from kvc.schema.verify.semantics import check_delegates, check_tables
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
    cursors = CursorChecker(program, sizes, report)
    constants = [named.type for named in program.names]
    for method in program.methods:
        where = f"method {method.name!r}"
        around = Surroundings(where, constants, program.states, sizes)
        operands = checker.check(method.graph, around, thorough)
        check_effects(method, operands, program, report)
        inside = check_blocks(method, checker, around, thorough)
        check_accesses(method, report)
        cursors.check(method, [operands, *inside])
    cursors.finish()
    check_delegates(program, report)
