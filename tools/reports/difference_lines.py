"""Lay out what differs between two bundles, as `kvc diff` prints it."""

from collections.abc import Callable, Mapping, Sequence

from kvc.schema.families import families
from kvc.schema.text import columns, escape, plural, size
from kvc.tools.reports.differences import (
    Change,
    DifferenceReport,
    Item,
    OperatorChange,
)


def difference_lines(report: DifferenceReport, code: bool) -> list[str]:
    """Lay out what differs.

    Args:
        report: of two bundles.
        code: whether to show how the listings differ, not only that they do.
    """
    if report.equal:
        return ["equal: the same content, with the same digest"]
    sections: list[tuple[str, list[str]]] = [
        ("FILE", _change_lines(report.file, _shortened)),
        ("METHODS", _item_lines(report.methods)),
        ("OPERATORS, how often", _operator_lines(report.operators)),
        ("CODE", _code_lines(report.code, code)),
        ("STATES", _item_lines(report.states)),
        ("WEIGHTS", _weight_lines(report)),
        ("MEMORY, in bytes", _change_lines(report.memory, _counted)),
        ("SIZE OF PARTS, in bytes", _change_lines(report.size, _counted)),
        ("METADATA", _change_lines(report.metadata, _shortened)),
    ]
    shown = [(title, lines) for title, lines in sections if lines]
    return [line for title, lines in shown for line in ("", title, *lines)][1:]


def _change_lines(
    changes: Sequence[Change], text: Callable[[str], str] = str, indent: int = 2
) -> list[str]:
    rows = [
        (escape(one.what), *(escape(text(v)) or "-" for v in (one.old, one.new)))
        for one in changes
    ]
    return columns([(what, old, "->", new) for what, old, new in rows], indent=indent)


def _operator_lines(operators: Sequence[OperatorChange]) -> list[str]:
    rows = [
        (
            escape(one.op),
            escape(one.backend or "PyTorch"),
            str(one.old),
            "->",
            str(one.new),
            ", ".join(map(escape, one.methods)),
        )
        for one in operators
    ]
    return columns(rows, "<<><>")


def _counted(number: str) -> str:
    return f"{int(number):,}" if number.isdecimal() else number


def _shortened(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:39]}…"


def _item_lines(items: Sequence[Item]) -> list[str]:
    """Lay out items; those whose names differ in numbers alone are one line."""
    found = families(items, lambda one: one.name, lambda one: (one.kind, _like(one)))
    lines = []
    for pattern, group in found:
        many = f" ({len(group)})" if len(group) > 1 else ""
        lines.append(f"  {escape(pattern)}{many}: {group[0].kind}{_sizes(group)}")
        lines += _change_lines(group[0].changes, indent=6)
    return lines


def _like(item: Item) -> tuple[object, ...]:
    """Return what must be equal for items to share a line; digests never are."""
    differing = {"digest", "name"}
    return tuple(
        change.what if change.what in differing else change for change in item.changes
    )


def _sizes(group: Sequence[Item]) -> str:
    old = sum(item.old_nbytes for item in group)
    new = sum(item.new_nbytes for item in group)
    if not old and not new:
        return ""
    return f", {size(old)}" if old == new else f", {size(old)} -> {size(new)}"


def _weight_lines(report: DifferenceReport) -> list[str]:
    if not report.weights:
        return []
    same = plural(report.same_weights, "weight")
    lines = _item_lines(report.weights)
    return [*lines, f"  {same} the same, {size(report.same_nbytes)}"]


def _code_lines(code: Mapping[str, Sequence[str]], whole: bool) -> list[str]:
    lines = []
    for name, changed in code.items():
        if not changed:
            lines.append(f"  {escape(name)}: the same instructions, other values")
            continue
        removed = sum(line.startswith("-") for line in changed)
        added = sum(line.startswith("+") for line in changed)
        said = f"{plural(removed, 'line')} less, {plural(added, 'line')} more"
        lines.append(f"  {escape(name)}: {said}")
        if whole:
            lines += [f"      {escape(line)}" for line in changed]
    if any(code.values()) and not whole:
        lines.append("  kvc diff --code shows them")
    return lines
