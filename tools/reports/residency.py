"""Lay out as text what memory the data of a loaded program takes.

In: a report of the runtime. Out: a line for each blob with something to report, with
blobs whose names differ only in a number together, the largest first; the sums by the
methods that share blobs; and the totals.
"""

from collections.abc import Iterable, Sequence

from kvc.runtime import BlobResidency, Residency, Totals
from kvc.tools.reports.families import families
from kvc.tools.text import columns, escape, plural

_TITLE = ("blobs", "bytes", "mapped", "touched", "packed", "freed", "handles", "name")
_GROUP_TITLE = ("bytes", "mapped", "touched", "packed", "freed", "used by")
_UNKNOWN = "?"


def residency_lines(report: Residency) -> list[str]:
    """Lay out a report; blobs that nobody has used are counted, not listed."""
    used = [blob for blob in report.blobs if _is_used(blob)]
    idle = len(report.blobs) - len(used)
    lines = [f"memory of the data, loaded with mode {report.mode}, in bytes:"]
    lines += columns([_TITLE, *_rows(used)], ">>>>>>>")
    if idle:
        lines.append(f"  {plural(idle, 'blob')} not used and not listed")
    rows = [(*_counts(Totals.over(group)), who) for who, group in _groups(report.blobs)]
    total = (*_counts(report.totals), "all")
    lines += columns([_GROUP_TITLE, *rows, total], ">>>>>")
    return lines


def _is_used(blob: BlobResidency) -> bool:
    return bool(blob.touched or blob.packed or blob.freed or blob.handles)


def _rows(blobs: Sequence[BlobResidency]) -> list[tuple[str, ...]]:
    """Return a row for the blobs of each family of names, the largest first."""
    found = families(blobs, name=lambda b: " = ".join(b.names), like=lambda b: b.file)
    found.sort(key=lambda one: -sum(blob.nbytes for blob in one[1]))
    return [_row(pattern, group) for pattern, group in found]


def _row(pattern: str, group: Sequence[BlobResidency]) -> tuple[str, ...]:
    names, file = escape(pattern) or "no name", group[0].file
    where = f"{names}, in {escape(file)}" if file else names
    handles = sum(blob.handles for blob in group)
    return (str(len(group)), *_counts(Totals.over(group)), str(handles), where)


def _counts(one: BlobResidency | Totals) -> tuple[str, ...]:
    counts = (one.nbytes, one.mapped, one.touched, one.packed, one.freed)
    return tuple(map(_count, counts))


def _count(nbytes: int | None) -> str:
    return _UNKNOWN if nbytes is None else f"{nbytes:,}"


def _groups(
    blobs: Iterable[BlobResidency],
) -> Iterable[tuple[str, Sequence[BlobResidency]]]:
    """Return the blobs by the methods that use them, in the order of the program."""
    groups: dict[tuple[str, ...], list[BlobResidency]] = {}
    for blob in blobs:
        groups.setdefault(blob.methods, []).append(blob)
    for methods, group in groups.items():
        yield " + ".join(map(escape, methods)) or "no method", group
