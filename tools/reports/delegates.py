"""Which partitions backends run: the code, weights and memory of each."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from kvc.schema.control import computes, graphs_within
from kvc.schema.model import Delegate, Program
from kvc.schema.text import columns, escape, plural, size
from kvc.schema.uses import count_unpacked, is_packed
from kvc.tools.reports.methods import instructions_text


@dataclass(frozen=True, slots=True)
class DelegateReport:
    """A partition of a method that a backend runs.

    Attributes:
        method: that it belongs to.
        block: of the method, its code.
        backend: by name.
        instructions: of its code, views too.
        payload_nbytes: of what the backend adds to the code.
        names: how many weights it reads.
        weights_nbytes: of these, each blob once.
        packed_nbytes: of those that lie here packed as well, for some machine.
        memory: who lays its workspace out, "planned" or "opaque".
        workspace_nbytes: at the most.
        tail_nbytes: readable after each of its inputs and outputs.
        computing: how many of its instructions compute; views do not.
    """

    method: str
    block: int
    backend: str
    instructions: int
    payload_nbytes: int
    names: int
    weights_nbytes: int
    packed_nbytes: int
    memory: str
    workspace_nbytes: int
    tail_nbytes: int
    computing: int = 0


def describe_delegates(program: Program) -> tuple[DelegateReport, ...]:
    """Return a report on each, in the order of the file."""
    plain = count_unpacked(program)
    return tuple(
        DelegateReport(
            method=program.methods[partition.method].name,
            block=partition.block,
            backend=partition.backend,
            instructions=_instructions(program, partition),
            payload_nbytes=len(partition.payload),
            names=sum(name < plain for name in partition.names),
            weights_nbytes=_nbytes(program, partition.names, packed=False),
            packed_nbytes=_nbytes(program, partition.names, packed=True),
            memory=partition.memory.name.lower(),
            workspace_nbytes=partition.workspace_nbytes,
            tail_nbytes=partition.tail_nbytes,
            computing=_computing(program, partition),
        )
        for partition in program.delegates
    )


def _instructions(program: Program, partition: Delegate) -> int:
    graphs = graphs_within(program.methods[partition.method], partition.block)
    return sum(len(graph.instructions) for graph in graphs)


def _computing(program: Program, partition: Delegate) -> int:
    graphs = graphs_within(program.methods[partition.method], partition.block)
    return sum(
        computes(graph, step, delegated=True)
        for graph in graphs
        for step in graph.instructions
    )


def _nbytes(program: Program, names: Sequence[int], packed: bool) -> int:
    """Return how many bytes the plain or the packed ones of some names have."""
    blobs = {
        program.names[name].blob
        for name in names
        if is_packed(program.names[name]) is packed
    }
    return sum(program.blobs[blob].nbytes for blob in blobs)


def delegate_lines(delegates: Sequence[DelegateReport], full: bool) -> list[str]:
    """Lay every delegate out, in exact bytes.

    Args:
        delegates: of a program.
        full: whether to give those that follow each other and are alike, as those of
            equal layers are, a line each.
    """
    if not delegates:
        return ["  no backend runs anything"]
    groups: list[list[tuple[int, DelegateReport]]] = [
        list(group)
        for _, group in groupby(
            enumerate(delegates), lambda one: one if full else replace(one[1], block=0)
        )
    ]
    rows = [_row(group) for group in groups]
    code = (
        "delegate",
        "method",
        "block",
        "backend",
        "instructions",
        "with views",
        "payload",
    )
    memory = ("weights", "bytes", "workspace", "laid out by", "tail")
    return columns([(*code, *memory), *rows], "><><>>>>>><>")


def _row(group: Sequence[tuple[int, DelegateReport]]) -> tuple[str, ...]:
    """Return the cells of delegates that are alike; bytes are those of each."""
    (first, one), (last, other) = group[0], group[-1]
    return (
        str(first) if first == last else f"{first}..{last}",
        escape(one.method),
        str(one.block) if first == last else f"{one.block}..{other.block}",
        escape(one.backend),
        f"{one.computing:,}",
        f"{one.instructions:,}",
        f"{one.payload_nbytes:,}",
        str(one.names),
        f"{one.weights_nbytes:,}",
        f"{one.workspace_nbytes:,}",
        _BY.get(one.memory, one.memory),
        f"{one.tail_nbytes:,}",
    )


_BY = {"planned": "kvc", "opaque": "the library"}


def delegate_summary_lines(delegates: Sequence[DelegateReport]) -> list[str]:
    """Lay out a line for the delegates of each method and backend."""
    groups: dict[tuple[str, str, str], list[DelegateReport]] = {}
    for one in delegates:
        groups.setdefault((one.method, one.backend, one.memory), []).append(one)
    rows = [
        (
            escape(method),
            escape(backend),
            plural(len(group), "delegate"),
            instructions_text(
                sum(d.computing for d in group), sum(d.instructions for d in group)
            ),
            f"{plural(sum(d.names for d in group), 'weight')}",
            f"{_laid_out(memory)} {size(max(d.workspace_nbytes for d in group))}",
        )
        for (method, backend, memory), group in groups.items()
    ]
    return columns(rows, "<<>>>")


def _laid_out(memory: str) -> str:
    """Say whose memory it is that a delegate takes while it runs."""
    return {
        "planned": "memory, laid out by kvc:",
        "opaque": "memory of its own, at most",
    }.get(memory, f"memory ({memory}):")
