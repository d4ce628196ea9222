"""Which operators backends run, and why others are left to PyTorch.

All of it is told from the program: the backends that its recipe names, what is in
their partitions, and the lists of what each of them takes (`kvc.schema.backends`).
Views and control flow, which compute nothing, are left out, and so is what moves
elements between partitions, which numpy does where nothing is left to PyTorch.
"""

import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from kvc.schema.backends.known import NO_OPTIONS, why_apart, why_left
from kvc.schema.backends.operands import Arguments, Results, arguments_of
from kvc.schema.control import blocks_run, computes, graphs_within, left_to_torch
from kvc.schema.graph import Graph, Instruction, StateSlot
from kvc.schema.model import Method, Program
from kvc.schema.ops import APPEND, CONTROL_OPS, DELEGATE
from kvc.schema.text import columns, escape


@dataclass(frozen=True, slots=True)
class OperatorReport:
    """Instructions of one operator that the same backend runs, or none.

    Attributes:
        method: that they are in, themselves or in its blocks.
        op: the operator.
        backend: that runs them, "" for PyTorch.
        count: how many.
        reasons: backend that was offered them, before the one that runs them -> why
            it does not.
    """

    method: str
    op: str
    backend: str
    count: int
    reasons: Mapping[str, str] = field(default_factory=dict)


Offered = Mapping[str, Mapping[str, object]]  # a backend's options, by name
_Kind = tuple[str, str, tuple[tuple[str, str], ...]]  # op, backend, reasons


def describe_operators(program: Program) -> tuple[OperatorReport, ...]:
    """Return reports by method, backend and falling count."""
    given = options_offered(program)
    names = backends_offered(program)
    offered = {each: given if each == names[0] else NO_OPTIONS for each in names}
    reports: list[OperatorReport] = []
    for index, method in enumerate(program.methods):
        counts = Counter[_Kind](_inside(program, index, offered))
        for graph, used in graphs_outside(program, index):
            counts.update(_outside(graph, used, offered))
        ranked = sorted(counts.items(), key=lambda one: (-one[1], one[0]))
        reports += [
            OperatorReport(method.name, op, backend, count, dict(reasons))
            for (op, backend, reasons), count in ranked
        ]
    return tuple(reports)


def backends_offered(program: Program) -> tuple[str, ...]:
    """Return the backends that were offered the program, in the order of the recipe.

    A recipe that is no TOML, which only a file made by hand has, names none.
    """
    named = _backend_of_recipe(program)
    said = [named[key] for key in ("name", "rest") if isinstance(named.get(key), str)]
    return tuple(dict.fromkeys(name for name in said if name))


def options_offered(program: Program) -> Mapping[str, object]:
    """Return what the recipe says to its first backend."""
    options = _backend_of_recipe(program).get("options")
    return options if isinstance(options, dict) else NO_OPTIONS


def _backend_of_recipe(program: Program) -> dict[str, Any]:
    try:
        named = tomllib.loads(program.provenance.recipe_text).get("backend")
    except (tomllib.TOMLDecodeError, RecursionError):
        return {}
    return named if isinstance(named, dict) else {}


def _inside(program: Program, method: int, offered: Offered) -> Iterator[_Kind]:
    """Yield the instructions of a method's partitions, with why others left them."""
    beside = {
        block: used
        for graph, used in graphs_outside(program, method)
        for block in blocks_run(graph, DELEGATE)
    }
    for partition in program.delegates:
        if partition.method != method:
            continue
        earlier = [*takewhile(partition.backend.__ne__, offered)]
        if len(earlier) == len(offered):
            earlier = []  # of a recipe that does not name it
        used = beside[partition.block]
        for graph in graphs_within(program.methods[method], partition.block):
            for step in graph.instructions:
                if not computes(graph, step, delegated=True):
                    continue
                reasons = {
                    name: _why(name, graph, step, name in used, offered[name])
                    for name in earlier
                }
                yield step.op, partition.backend, tuple(reasons.items())


def graphs_outside(
    program: Program, method: int
) -> Iterator[tuple[Graph, frozenset[str]]]:
    """Yield a method's graphs that are no partitions, and the backends each calls."""
    code: Method = program.methods[method]
    owners = {d.block: d.backend for d in program.delegates if d.method == method}
    graphs = [code.graph]
    for graph in graphs:
        for op in CONTROL_OPS - {DELEGATE}:
            graphs += [code.blocks[number].graph for number in blocks_run(graph, op)]
        yield graph, frozenset(owners[i] for i in blocks_run(graph, DELEGATE))


def _outside(graph: Graph, used: frozenset[str], offered: Offered) -> Iterator[_Kind]:
    """Yield the instructions of a graph, with why no backend has them."""
    for step in left_to_torch(graph):
        reasons = {
            name: _why(name, graph, step, name in used, options)
            for name, options in offered.items()
        }
        yield step.op, "", tuple(reasons.items())


def takes_the_rest(program: Program, backend: str) -> bool:
    """Tell whether a backend could run all that is left to PyTorch, by its own list."""
    return not any(
        _lengthens_an_array(graph, step)
        or why_left(backend, step.op, *_signature(graph, step), True)
        for index in range(len(program.methods))
        for graph, _ in graphs_outside(program, index)
        for step in left_to_torch(graph)
    )


def _lengthens_an_array(graph: Graph, step: Instruction) -> bool:
    """Tell whether it appends to what is no state, which no partition does."""
    root = graph.root_of(step.results[0]) if step.op == APPEND else None
    return root is not None and not isinstance(graph.values[root].storage, StateSlot)


def _why(
    backend: str,
    graph: Graph,
    step: Instruction,
    used: bool,
    options: Mapping[str, object],
) -> str:
    reason = why_left(backend, step.op, *_signature(graph, step), used, options)
    return reason or why_apart(backend, step.op)


def _signature(graph: Graph, step: Instruction) -> tuple[Arguments, Results]:
    results = [graph.values[value].type for value in step.results]
    return arguments_of(graph, step), results


def operator_lines(operators: Sequence[OperatorReport]) -> list[str]:
    """Lay out what backends run, then what is left, and why others left it."""
    titles = ("method", "backend", "instructions", "operator, views left out")
    taken = [one for one in operators if one.backend]
    rows = [
        (escape(one.method), escape(one.backend), f"{one.count:,}", escape(one.op))
        for one in taken
    ]
    left = [one for one in operators if not one.backend]
    lines = _with_reasons(columns([titles, *rows], "<<><"), taken) if taken else []
    if left:
        lines += [""] * bool(taken) + _left_lines(left)
    return lines


def _left_lines(left: Sequence[OperatorReport]) -> list[str]:
    offered = any(one.reasons for one in left)
    why = "why backends leave it" if offered else "the recipe names no backend"
    titles = ("method", "instructions", f"operator, left to PyTorch; {why}")
    rows = [(escape(one.method), f"{one.count:,}", escape(one.op)) for one in left]
    return _with_reasons(columns([titles, *rows], "<><"), left)


def _with_reasons(
    table: Sequence[str], operators: Sequence[OperatorReport]
) -> list[str]:
    """Return a table of operators, with the reasons of each after it."""
    lines = [table[0]]
    for row, one in zip(table[1:], operators, strict=True):
        lines.append(row)
        lines += [
            f"      {escape(name)}: {escape(reason)}"
            for name, reason in one.reasons.items()
        ]
    return lines
