"""Which cache writes happen in place, and which copy.

An update op whose result shares the state's memory costs no copy (SAFE). One whose
result has memory of its own has copied the state (COPY), and a later `aten::copy`
that carries this result back into the state belongs to the same update.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from kvc.schema.model import Graph, Instruction, Method, Program
from kvc.schema.ops import OPS, Aliasing
from kvc.schema.types import Symbol
from kvc.tools.reports.uses import operands, root_of, state_of
from kvc.tools.text import columns, escape, plural, size


@dataclass(frozen=True, slots=True)
class UpdateReport:
    """One write to a state; bytes with every size at its upper bound."""

    method: str
    state: str
    verdict: Literal["SAFE", "COPY"]
    bytes_per_call: int
    reason: str
    source: str


def describe_copies(program: Program) -> tuple[UpdateReport, ...]:
    """Return a report on each update of a state, in running order."""
    symbols = {symbol.name: symbol for symbol in program.symbols}
    return tuple(
        update
        for method in program.methods
        for update in _of_method(program, method, symbols)
    )


def _of_method(
    program: Program, method: Method, symbols: Mapping[str, Symbol]
) -> list[UpdateReport]:
    graph = method.graph
    updates: list[UpdateReport] = []
    copied: dict[int, int] = {}  # value with a state's copy -> index of its update
    for call in graph.instructions:
        spec = OPS.get(call.op)
        if spec is None or spec.aliasing is not Aliasing.UPDATE:
            continue
        back = _carried_back(graph, call, copied)
        if back is not None:
            nbytes = updates[back].bytes_per_call + _nbytes(graph, call, symbols)
            updates[back] = replace(updates[back], bytes_per_call=nbytes)
            continue
        target = operands(call.arguments)[0]
        state = state_of(graph, target)
        earlier = copied.get(root_of(graph, target))
        in_place = root_of(graph, call.results[0]) == root_of(graph, target)
        if in_place and earlier is not None:
            copied[root_of(graph, call.results[0])] = earlier
        if state is None:
            continue
        nbytes = 0 if in_place else _nbytes(graph, call, symbols)
        if nbytes:
            copied[root_of(graph, call.results[0])] = len(updates)
        name = program.states[state].name
        updates.append(_report(program, method, call, nbytes, name))
    return updates


def _carried_back(
    graph: Graph, call: Instruction, copied: Mapping[int, int]
) -> int | None:
    """Return the update whose copied result this call puts back into its state."""
    values = operands(call.arguments)
    if call.op != "aten::copy" or state_of(graph, values[0]) is None:
        return None
    return copied.get(root_of(graph, values[1]))


def _nbytes(graph: Graph, call: Instruction, symbols: Mapping[str, Symbol]) -> int:
    return graph.values[call.results[0]].type.max_nbytes(symbols)


def _report(
    program: Program, method: Method, call: Instruction, nbytes: int, state: str
) -> UpdateReport:
    return UpdateReport(
        method=method.name,
        state=state,
        verdict="COPY" if nbytes else "SAFE",
        bytes_per_call=nbytes,
        reason="",
        source=call.source,
    )


def copy_lines(updates: Sequence[UpdateReport]) -> list[str]:
    """Lay out every update."""
    rows = [
        (
            escape(u.method),
            escape(u.state),
            u.verdict,
            f"{u.bytes_per_call:,}",
            escape(u.source),
            escape(u.reason),
        )
        for u in updates
    ]
    title = ("method", "state", "verdict", "bytes copied", "source", "reason")
    lines = columns([title, *rows], "<<<>") if rows else ["  no method writes a state"]
    return [*lines, copy_summary(updates)] if rows else lines


def copy_summary(updates: Sequence[UpdateReport]) -> str:
    """Say in one line whether writing the states copies them."""
    copies = [u for u in updates if u.verdict == "COPY"]
    if not copies:
        return f"  {plural(len(updates), 'update')} of states, all in place"
    worst = sum(u.bytes_per_call for u in copies)
    return (
        f"  {plural(len(updates), 'update')} of states, {len(copies)} by copy: "
        f"{size(worst)} if each method is called once (kvc dump --copies)"
    )
