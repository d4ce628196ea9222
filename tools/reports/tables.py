"""The tables of `kvc dump` on a bundle, as text, one for each option.

In: reports on a bundle. Out: lines in exact bytes.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from kvc.schema.text import NUMBER, columns, escape, families, pattern_of, share, size
from kvc.schema.uses import PLAIN
from kvc.tools.reports.blobs import BlobReport, PartReport, SizeReport
from kvc.tools.reports.instructions import InstructionReport, ListingReport
from kvc.tools.reports.memory import (
    MemoryReport,
    StateReport,
    UpdateReport,
)
from kvc.tools.reports.methods import DelegateReport, OperatorReport
from kvc.tools.reports.overview import (
    copy_summary,
    data_file_title,
    packed_text,
    part_text,
    state_families,
    state_users,
)
from kvc.tools.text import folded, in_runs, table

_LAID_OUT_BY = {"planned": "kvc", "opaque": "the library"}


def size_lines(report: SizeReport) -> list[str]:
    """Lay out every part of every file in exact bytes."""
    lines = _table(report.parts, report.nbytes)
    for file in report.data_files:
        lines += ["", *data_file_title(file), *_table(file.parts, file.nbytes)]
    return lines


def _table(parts: Sequence[PartReport], nbytes: int) -> list[str]:
    rows = [("bytes", "share", "part", "")]
    rows += [
        (f"{part.nbytes:,}", share(part.nbytes, nbytes), part.category, part_text(part))
        for part in parts
    ]
    rows.append((f"{nbytes:,}", "100.0%", "the file", ""))
    return columns(rows, ">>")


def blob_size_lines(blobs: Sequence[BlobReport], full: bool) -> list[str]:
    """Return lines with the bytes of each module's blobs, the most first.

    Args:
        blobs: blobs of a bundle and its data files.
        full: whether to print the modules of equal layers on separate lines.
    """
    groups = families(blobs, lambda blob: blob.names[0].name, _kind_of, apart=full)
    groups.sort(key=lambda one: -_sum(one[1]))
    whole = _sum(blobs)
    rows = [
        (
            f"{_sum(group):,}",
            share(_sum(group), whole),
            f"{len(group):,}",
            _kind_of(group[0]),
            escape(name),
        )
        for name, group in groups
    ]
    total = (f"{whole:,}", "100.0%", f"{len(blobs):,}", "", "all blobs")
    title = ("bytes", "share", "blobs", "type", "name in the model")
    return columns([title, *rows, total], ">>>") if rows else []


def _sum(blobs: Sequence[BlobReport]) -> int:
    return sum(blob.nbytes for blob in blobs)


def _kind_of(blob: BlobReport) -> str:
    first = blob.names[0]
    if first.format != PLAIN:
        return first.format
    return first.type.partition("[")[0]


def memory_lines(report: MemoryReport) -> list[str]:
    """Return the memory of each method and of the program as lines of exact bytes."""
    titles = ("method", "planned", "peak live", "over", "states", "backends")
    rows = [
        (
            escape(method.method),
            f"{method.planned:,}",
            f"{method.peak_live:,}",
            share(method.planned - method.peak_live, method.peak_live),
            f"{method.states:,}",
            f"{method.workspace:,}",
        )
        for method in report.methods
    ]
    lines = columns([titles, *rows], "<>>>>>")
    for method in report.methods:
        if method.peak_at:
            name, at = escape(method.method), escape(method.peak_at)
            lines.append(f"  {name}: most is live at instruction {at}")
            lines.append(f"      {escape(method.formula)} bytes")
    for name, (lower, upper) in report.symbols.items():
        lines.append(f"  {lower} <= {escape(name)} <= {upper}; planned at {upper}")
    return [
        *lines,
        f"  one call at a time: {size(report.scratch)} of scratch, planned, and up to "
        f"{size(report.workspace)} that backends lay out themselves",
        f"  one session: {size(report.states)} of state",
    ]


def state_lines(states: Sequence[StateReport], full: bool) -> list[str]:
    """Return lines of states in exact bytes.

    Args:
        states: states of a program.
        full: whether to print states of equal layers, whose names differ only in a
            number, on separate lines.
    """
    groups = state_families(states, apart=full)
    rows = [_state_row(escape(pattern), group) for pattern, group in groups]
    titles = ("state", "type", "kind, axis", "bytes", "used by", "starts as")
    return table(titles, rows, "<<<>", "  none")


def _state_row(name: str, group: Sequence[StateReport]) -> tuple[str, ...]:
    state, times = group[0], f"{len(group)} x " * (len(group) > 1)
    kind = state.kind if state.axis is None else f"{state.kind}, {state.axis}"
    if state.window is not None:
        kind += f", window {state.window}"
    initial = escape(pattern_of([one.initial for one in group]))
    nbytes = f"{times}{state.nbytes:,}"
    return name, state.type, kind, nbytes, state_users(state), initial


def copy_lines(updates: Sequence[UpdateReport], full: bool) -> list[str]:
    """Return lines of updates; updates that differ only in the layer share a line.

    The bytes on a line are the sum over its updates. With `full`, each update has its
    own line.
    """
    groups = families(
        updates,
        name=lambda u: u.state,
        like=lambda u: (u.method, u.verdict, u.reason, NUMBER.sub("#", u.source)),
        apart=full,
    )
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
    titles = ("method", "state", "verdict", "bytes copied", "source", "reason")
    lines = table(titles, rows, "<<<>", "  no method writes a state")
    return [*lines, *[copy_summary(updates)] * bool(rows)]


def blob_lines(blobs: Sequence[BlobReport]) -> list[str]:
    """Lay out a line for each name; a blob's other names follow its first."""
    title = ("bytes", "offset", "digest", "type", "name", "used by")
    rows = [title]
    for blob in blobs:
        file = f"{escape(blob.file)}:" if blob.file else ""
        place = (f"{blob.nbytes:,}", f"{file}{blob.offset:,}", blob.digest[:12])
        for index, name in enumerate(blob.names):
            head = place if index == 0 else ("", "", "  same blob")
            users = ", ".join(map(escape, name.users)) or "nobody"
            named = escape(name.name) + packed_text(name.format)
            rows.append((*head, name.type, named, users))
    return columns(rows, ">>")


def delegate_lines(delegates: Sequence[DelegateReport], full: bool) -> list[str]:
    """Return lines of delegates in exact bytes.

    Args:
        delegates: delegates of a program.
        full: whether to print consecutive equal delegates, such as those of equal
            layers, on separate lines.
    """
    if not delegates:
        return ["  no backend runs anything"]
    groups = groupby(
        enumerate(delegates), lambda one: one if full else replace(one[1], block=0)
    )
    rows = [_delegate_row(list(group)) for _, group in groups]
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


def _delegate_row(group: Sequence[tuple[int, DelegateReport]]) -> tuple[str, ...]:
    """Return the cells of a line of equal delegates, with the bytes of one delegate."""
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
        _LAID_OUT_BY.get(one.memory, one.memory),
        f"{one.tail_nbytes:,}",
    )


def operator_lines(operators: Sequence[OperatorReport]) -> list[str]:
    """Return lines of what backends run, then what PyTorch runs, and the reasons."""
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
    lines = [table[0]]
    for row, one in zip(table[1:], operators, strict=True):
        lines.append(row)
        lines += [
            f"      {escape(name)}: {escape(reason)}"
            for name, reason in one.reasons.items()
        ]
    return lines


def listing_lines(report: ListingReport, full: bool) -> list[str]:
    """Return the lines of a method's code, with the code inside delegates indented.

    Args:
        report: listing of the method.
        full: whether to print repeated lines, such as those of equal layers, each time.
    """
    lines = [f"  {value}" for value in report.values]
    for index, call in enumerate(report.instructions):
        lines.append(f"  {index:>4}  {call.text}{_comment(call)}")
        inside = [f"          | {c.text}{_comment(c)}" for c in call.delegate]
        lines += inside if full else folded(inside, "          | ")
    return [
        f"method {escape(report.method)}",
        *(lines if full else folded(lines, "        ")),
        f"  return {report.returns}",
        *(f"  advance {advance}" for advance in report.advances),
    ]


def _comment(call: InstructionReport) -> str:
    said = [escape(call.source)] * bool(call.source)
    said += [f"writes {in_runs(call.writes)}"] * bool(call.writes)
    return f"  # {'; '.join(said)}" * bool(said)
