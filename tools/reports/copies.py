"""Which writes of states, and of callers' arrays, happen in place, and which copy.

The verdicts are the compiler's, as the file states them; the bytes are counted here.
SAFE: nothing is copied but what is written. COPY: the instructions that the verdict
names copy bytes so that the write, or the caller, gets what it needs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from kvc.schema.model import Method, Program, Update
from kvc.schema.types import Symbol
from kvc.tools.reports.uses import state_of
from kvc.tools.text import columns, escape, plural, size


@dataclass(frozen=True, slots=True)
class UpdateReport:
    """One write to a state or a caller's array; sizes at their upper bounds."""

    method: str
    state: str
    verdict: Literal["SAFE", "COPY"]
    bytes_per_call: int
    reason: str
    source: str


def describe_copies(program: Program) -> tuple[UpdateReport, ...]:
    """Return a report on each write, in running order."""
    symbols = {symbol.name: symbol for symbol in program.symbols}
    return tuple(
        _report(program, method, update, symbols)
        for method in program.methods
        for update in method.updates
    )


def _report(
    program: Program, method: Method, update: Update, symbols: Mapping[str, Symbol]
) -> UpdateReport:
    call = method.graph.instructions[update.instruction]
    return UpdateReport(
        method=method.name,
        state=", ".join(_homes(program, method, call.results)),
        verdict="COPY" if update.copies else "SAFE",
        bytes_per_call=sum(_nbytes(method, copy, symbols) for copy in update.copies),
        reason=update.reason,
        source=call.source,
    )


def _homes(program: Program, method: Method, results: Sequence[int]) -> list[str]:
    """Return the states, or inputs, in whose memory results lie."""
    graph, names = method.graph, []
    inputs = dict(zip(graph.inputs, method.input_names, strict=True))
    for value in results:
        state, root = state_of(graph, value), graph.root_of(value)
        if state is not None:
            names.append(program.states[state].name)
        elif root in inputs:
            names.append(f"input {inputs[root]}")
    return list(dict.fromkeys(names))


def _nbytes(method: Method, copy: int, symbols: Mapping[str, Symbol]) -> int:
    values = method.graph.instructions[copy].results
    kinds = (method.graph.values[value].type for value in values)
    return sum(kind.max_nbytes(symbols) for kind in kinds)


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
