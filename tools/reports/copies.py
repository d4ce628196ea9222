"""Which writes of states and callers' arrays happen in place, and which copy.

The verdicts are the compiler's, as the file states them; the bytes are counted here.
SAFE: nothing is copied except what is written. COPY: the instructions that the verdict
names copy bytes so that the write, or the caller, gets what it needs.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from kvc.schema.control import read_control
from kvc.schema.families import NUMBER, families, pattern_of
from kvc.schema.graph import Graph, Instruction, Ref
from kvc.schema.model import Block, Method, Program
from kvc.schema.ops import CONTROL_OPS
from kvc.schema.text import columns, escape, plural, size
from kvc.schema.types import Symbol
from kvc.tools.reports.uses import state_of


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
        report
        for method in program.methods
        for report in _reports(
            method,
            Block(method.graph, method.updates),
            _names(program, method),
            symbols,
        )
    )


def _names(program: Program, method: Method) -> dict[int, str]:
    """Return the memory of a method that outlives it: value -> state, or input."""
    graph = method.graph
    named = zip(graph.inputs, method.input_names, strict=True)
    names = {value: f"input {name}" for value, name in named}
    for value in range(len(graph.values)):
        state = state_of(graph, value)
        if state is not None and graph.root_of(value) == value:
            names[value] = program.states[state].name
    return names


def _reports(
    method: Method, code: Block, names: Mapping[int, str], symbols: Mapping[str, Symbol]
) -> Iterator[UpdateReport]:
    """Yield a report on each write of a method or block, and of the blocks it runs.

    Args:
        method: whose blocks they are.
        code: of the method, or one of these blocks.
        names: of its values that are memory which outlives the method.
        symbols: the program's, by name.
    """
    graph = code.graph
    for update in code.updates:
        call = graph.instructions[update.instruction]
        roots = dict.fromkeys(graph.root_of(value) for value in call.results)
        homes = [names[root] for root in roots if root in names]
        inside = list(_inside(method, graph, call, names, symbols))
        if homes and (update.copies or not inside):
            yield UpdateReport(
                method=method.name,
                state=", ".join(homes),
                verdict="COPY" if update.copies else "SAFE",
                bytes_per_call=sum(_nbytes(graph, i, symbols) for i in update.copies),
                reason=update.reason,
                source=call.source,
            )
        yield from inside


def _inside(
    method: Method,
    graph: Graph,
    call: Instruction,
    names: Mapping[int, str],
    symbols: Mapping[str, Symbol],
) -> Iterator[UpdateReport]:
    """Yield the reports on the blocks that a call runs, none if it runs none."""
    if call.op not in CONTROL_OPS:
        return
    control = read_control(call.op, call.arguments)
    lent = [ref.value for ref in control.operands if isinstance(ref, Ref)]
    for number in control.blocks:
        block = method.blocks[number]
        known = {
            block.graph.inputs[over]: names[root]
            for over in control.over
            if over is not None and (root := graph.root_of(lent[over])) in names
        }
        yield from _reports(method, block, known, symbols)


def _nbytes(graph: Graph, copy: int, symbols: Mapping[str, Symbol]) -> int:
    kinds = (graph.values[i].type for i in graph.instructions[copy].results)
    return sum(kind.max_nbytes(symbols) for kind in kinds)


def copy_lines(updates: Sequence[UpdateReport], full: bool) -> list[str]:
    """Lay out every update; those that differ only in the layer together, unless full.

    Bytes are those of all that share a line.
    """
    groups = [(u.state, [u]) for u in updates]
    if not full:
        groups = families(updates, name=lambda u: u.state, like=_like)
    rows = [
        (
            escape(group[0].method),
            escape(state),
            group[0].verdict,
            f"{sum(u.bytes_per_call for u in group):,}",
            escape(pattern_of([u.source for u in group])),
            escape(group[0].reason),
        )
        for state, group in groups
    ]
    title = ("method", "state", "verdict", "bytes copied", "source", "reason")
    lines = columns([title, *rows], "<<<>") if rows else ["  no method writes a state"]
    return [*lines, copy_summary(updates)] if rows else lines


def _like(update: UpdateReport) -> tuple[str, ...]:
    source = NUMBER.sub("#", update.source)
    return update.method, update.verdict, update.reason, source


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
