"""Check the declarations of a program's methods.

In: decoded methods. Some checks run before the methods' graphs are checked. Others run
later, and also take the operands of all instructions. Out: nothing, or the first error.
"""

from collections.abc import Sequence
from typing import Final

from kvc.schema.accesses import accesses_of
from kvc.schema.graph import Graph, StateSlot
from kvc.schema.model import Method, Program, StateKind, Update
from kvc.schema.roles import LOGITS, ROLES, SINGLE_ROLES, TOKENS, has_signature
from kvc.schema.types import symbols_in, symbols_of
from kvc.schema.verify import limits
from kvc.schema.verify.dims import CheckedTypes
from kvc.schema.verify.effects import effects
from kvc.schema.verify.limits import Reporter
from kvc.schema.verify.trees import check_call_tree, check_tree

_COPYING: Final = frozenset({"aten::clone", "aten::copy", "kvc::replace"})


def check_methods(program: Program, sizes: CheckedTypes, report: Reporter) -> None:
    """Check the methods' names, roles, trees and advances, but not their graphs."""
    report.limit("the number of methods", len(program.methods), limits.MAX_METHODS)
    report.unique([method.name for method in program.methods], "methods")
    called = [method for method in program.methods if method.adapts is None]
    for role in SINGLE_ROLES:
        found = [method.name for method in called if method.role == role]
        report.require(len(found) <= 1, "methods", f"several {role}: {found}")
    for method in program.methods:
        where = f"method {method.name!r}"
        report.require(method.role in ROLES, where, f"role {method.role!r}")
        inputs, names = method.graph.inputs, method.input_names
        report.require(len(names) == len(inputs), where, "names and inputs differ")
        report.unique(list(names), f"{where}, inputs")
        _check_trees(method, len(inputs), where, report)
        _check_role(method, where, report)
        advanced = [one.cursor for one in method.advances]
        ascending = advanced == sorted(set(advanced))
        known = not advanced or advanced[-1] < len(program.cursors)
        what = f"it advances the cursors {advanced}"
        report.require(ascending and known, where, what)
        for advance in method.advances:
            if advance.tokens is not None:
                sizes.check_dim(advance.tokens, where)
        counted = [a.cursor for a in method.advances if a.lengths is not None]
        what = f"rows count tokens of several cursors, {counted}"
        report.require(len(counted) <= 1, where, what)


def check_told(
    method: Method, graphs: Sequence[Graph], program: Program, report: Reporter
) -> None:
    """Check that the types of inputs and states determine the sizes of all symbols.

    `graphs` are those of the method whose values are looked at.
    """
    graph = method.graph
    held = (v.type for v in graph.values if isinstance(v.storage, StateSlot))
    given = (graph.values[value].type for value in graph.inputs)
    told = symbols_in((*(state.type for state in program.states), *held, *given))
    kinds = {id(v.type): v.type for g in graphs for v in g.values}
    added = [one.tokens for one in method.advances if one.tokens is not None]
    used = symbols_in(kinds.values()) | symbols_of(added)
    missing = sorted(used - told)
    what = f"no input or state determines the sizes {missing}"
    report.require(not missing, f"method {method.name!r}", what)


def _check_role(method: Method, where: str, report: Reporter) -> None:
    """Check that a method's inputs and outputs fit its role."""
    graph, role, tree = method.graph, method.role, method.output_tree
    taken = [graph.values[v].type for v in graph.inputs]
    given = [graph.values[v].type for v in graph.outputs]
    if has_signature(role, taken, given, tree):
        return
    tokens, logits = (", ".join(map(str, kinds)) for kinds in (taken, given))
    what = f"of the role {role} it takes ({tokens}) and gives ({logits}) as {tree}"
    report.fail(where, f"{what}, not {TOKENS[role]} first and {LOGITS[role]}")


def _check_trees(method: Method, inputs: int, where: str, report: Reporter) -> None:
    try:
        found = check_call_tree(method.input_tree)
        report.require(found == inputs, where, f"{found} leaves for {inputs} inputs")
        graph, (results, scalars) = method.graph, check_tree(method.output_tree)
        what = f"{results} leaves, {len(graph.outputs)} outputs"
        report.require(results == len(graph.outputs), where, what)
        for number in scalars:
            kind = graph.values[graph.outputs[number]].type
            what = f"it returns {kind} as a number"
            report.require(not kind.dims, where, what)
    except ValueError as error:
        report.fail(where, str(error))


def check_effects(
    method: Method,
    operands: Sequence[Sequence[int]],
    program: Program,
    report: Reporter,
) -> None:
    """Check that a method declares all states that its graph reads and writes."""
    where = f"method {method.name!r}"
    found = effects(method.graph, operands)
    what = f"it reads the states {found.reads}"
    report.require(method.reads == found.reads, where, what)
    what = f"it writes the states {found.writes}"
    report.require(method.writes == found.writes, where, what)
    for number in method.writes:
        state = program.states[number]
        if state.kind is StateKind.COUNTER and state.cursor is not None:
            told = method.advance_of(state.cursor) is not None
            report.require(told, where, "it writes a counter without an advance")
    for advance in method.advances:
        cursor = program.cursors[advance.cursor]
        counted = cursor.state is None or cursor.state in method.writes
        report.require(counted, where, "it advances a cursor that it does not write")
    check_verdicts(method.updates, method.graph, found.updates, where, report)


def check_accesses(method: Method, report: Reporter) -> None:
    """Check the accesses that a method's writes declare.

    Must be called after all other checks of the method.
    The accesses of a control instruction are compared with the accesses of its blocks.
    Blocks are checked in reverse order, so that a block is checked before the
    instruction that runs it.
    """
    where = f"method {method.name!r}"
    codes = [(where, method.graph, method.updates)]
    for number, block in enumerate(method.blocks):
        codes.append((f"{where}, block {number}", block.graph, block.updates))
    for place, graph, updates in reversed(codes):
        roots = graph.roots()
        for update in updates:
            found = accesses_of(graph, update.instruction, method.blocks, roots)
            if update.accesses != found:
                what = f"instruction {update.instruction} makes other accesses: {found}"
                report.fail(place, what)


def check_verdicts(
    updates: Sequence[Update],
    graph: Graph,
    found: Sequence[int],
    where: str,
    report: Reporter,
) -> None:
    """Check that each write to memory that outlives the graph has a valid verdict.

    A verdict, an `Update`, says whether the write is in place or needs copies.

    Args:
        updates: the verdicts on the graph's writes.
        graph: the graph that contains the writes.
        found: the indices of the instructions that make such writes.
        where: the graph's name in messages.
        report: the reporter of the file.
    """
    judged = tuple(update.instruction for update in updates)
    what = f"verdicts on {judged}, its writes in place are {found}"
    report.require(judged == tuple(found), where, what)
    for update in updates:
        verdict = f"{where}, verdict on {update.instruction}"
        report.text(update.reason, verdict)
        copies, steps = update.copies, graph.instructions
        agree = bool(update.reason) == bool(copies)
        report.require(agree, verdict, f"reason {update.reason!r} for copies {copies}")
        ascending = list(copies) == sorted(set(copies))
        inside = not copies or (copies[0] >= 0 and copies[-1] <= update.instruction)
        report.require(ascending and inside, verdict, f"copies {copies}")
        ops = [steps[copy].op for copy in copies if steps[copy].op not in _COPYING]
        report.require(not ops, verdict, f"{ops} copy nothing")
