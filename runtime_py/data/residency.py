"""Report the memory of a program's data, for each blob and in total.

In: a program, its blobs in memory, the bytes that delegates have packed. Out: frozen
reports and their text. The text has a line for each blob in use, the largest first;
blobs whose names differ only in a number share a line. Then come sums for each set of
methods that use the same blobs, and the totals.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Self

from kvc.runtime.data.held import HeldBlobs
from kvc.runtime.data.locations import ByteRange
from kvc.runtime.memory.pages import PageTable
from kvc.schema.frozen import frozen
from kvc.schema.model import Program
from kvc.schema.text import columns, escape, families, plural
from kvc.schema.uses import methods_of_blobs

_RESIDENCY_TITLES = (
    "blobs",
    "bytes",
    "mapped",
    "touched",
    "shared",
    "packed",
    "freed",
    "handles",
    "name",
)
_GROUP_TITLES = (
    "bytes",
    "mapped",
    "touched",
    "shared",
    "packed",
    "freed",
    "used by",
)


@frozen
class BlobResidency:
    """The memory of a blob; sizes are in bytes.

    Attributes:
        names: the names of the blob.
        nbytes: the size of the blob.
        methods: the methods that use the blob, in their own code or in a delegate, in
            program order.
        file: the name of the data file that holds the blob, "" for the bundle itself.
        handles: the number of handles on the blob, of users and of calls.
        mapped: the blob's bytes of address space, resident or not.
        touched: the resident bytes of `mapped`; None if the system does not report
            them.
        shared: the bytes of `touched` that other programs of this process have in use,
            too; they are in memory once. None if `touched` is None.
        packed: the bytes of packed copies of the blob that delegates hold; those that
            programs share count for each program.
        freed: the resident bytes that were freed so far; bytes that were freed twice
            count twice. None if the system does not report them. What programs shared
            goes with the last of them; a map reports it there, a copy to each of them.
    """

    names: tuple[str, ...]
    nbytes: int
    methods: tuple[str, ...]
    file: str
    handles: int
    mapped: int
    touched: int | None
    shared: int | None
    packed: int
    freed: int | None


@frozen
class Totals:
    """The sums of `BlobResidency` over blobs, in bytes.

    A sum is None if one of its terms is None.
    """

    nbytes: int
    mapped: int
    touched: int | None
    shared: int | None
    packed: int
    freed: int | None

    @classmethod
    def over(cls, blobs: Sequence[BlobResidency]) -> Self:
        """Add up the reports of the given blobs."""
        return cls(
            nbytes=sum(blob.nbytes for blob in blobs),
            mapped=sum(blob.mapped for blob in blobs),
            touched=_sum(blob.touched for blob in blobs),
            shared=_sum(blob.shared for blob in blobs),
            packed=sum(blob.packed for blob in blobs),
            freed=_sum(blob.freed for blob in blobs),
        )


@frozen
class Residency:
    """The memory of a program's data.

    Attributes:
        mode: the mode in which the program was loaded.
        blobs: a report of each blob, in program order.
        totals: the sums over all blobs.
    """

    mode: str
    blobs: tuple[BlobResidency, ...]
    totals: Totals

    def __str__(self) -> str:
        return "\n".join(_lines(self))

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        """Show the text in a notebook."""
        return {"text/plain": str(self)}


def describe_residency(
    program: Program, mode: str, held: HeldBlobs, packed: Mapping[str, int]
) -> Residency:
    """Return the memory that a program's data occupies now.

    Args:
        program: the program of the bundle.
        mode: the mode in which the program was loaded.
        held: the blobs in memory.
        packed: the bytes of packed copies that delegates hold, by data name.
    """
    names: list[list[str]] = [[] for _ in program.blobs]
    for named in program.names:
        names[named.blob].append(named.name)
    methods = methods_of_blobs(program)
    blobs = []
    with PageTable() as table:
        for index, blob in enumerate(program.blobs):
            place = held.find(index)
            touched = _touched(table, place, blob.nbytes)
            report = BlobResidency(
                names=tuple(names[index]),
                nbytes=blob.nbytes,
                methods=methods[index],
                file=program.files[blob.file].name,
                handles=held.handles(index),
                mapped=0 if place is None else blob.nbytes,
                touched=touched,
                shared=touched if held.sharers(index) else touched and 0,
                packed=sum(packed.get(name, 0) for name in names[index]),
                freed=held.freed_nbytes(index),
            )
            blobs.append(report)
    return Residency(mode, tuple(blobs), Totals.over(blobs))


def _touched(table: PageTable, place: ByteRange | None, nbytes: int) -> int | None:
    if place is None:
        return table.resident_nbytes(0, 0)
    return table.resident_nbytes(place.address, nbytes)


def _sum(counts: Iterable[int | None]) -> int | None:
    total = 0
    for count in counts:
        if count is None:
            return None
        total += count
    return total


def _lines(report: Residency) -> list[str]:
    """Return the lines of a report's text; unused blobs are counted, not listed."""
    used = [b for b in report.blobs if b.touched or b.packed or b.freed or b.handles]
    idle = len(report.blobs) - len(used)
    lines = [f"memory of the data, loaded with mode {report.mode}, in bytes:"]
    lines += columns([_RESIDENCY_TITLES, *_rows(used)], ">>>>>>>>")
    if idle:
        lines.append(f"  {plural(idle, 'blob')} not used and not listed")
    rows = [(*_counts(Totals.over(group)), who) for who, group in _groups(report.blobs)]
    total = (*_counts(report.totals), "all")
    lines += columns([_GROUP_TITLES, *rows, total], ">>>>>>")
    return lines


def _rows(blobs: Sequence[BlobResidency]) -> list[tuple[str, ...]]:
    """Return a table row for each group of similar names, the largest first."""
    found = families(blobs, name=lambda b: " = ".join(b.names), like=lambda b: b.file)
    found.sort(key=lambda one: -sum(blob.nbytes for blob in one[1]))
    rows = []
    for pattern, group in found:
        names, file = escape(pattern) or "no name", group[0].file
        where = f"{names}, in {escape(file)}" if file else names
        handles = str(sum(blob.handles for blob in group))
        counts = _counts(Totals.over(group))
        rows.append((str(len(group)), *counts, handles, where))
    return rows


def _counts(one: BlobResidency | Totals) -> tuple[str, ...]:
    sizes = one.nbytes, one.mapped, one.touched, one.shared, one.packed, one.freed
    return tuple("?" if nbytes is None else f"{nbytes:,}" for nbytes in sizes)


def _groups(
    blobs: Iterable[BlobResidency],
) -> Iterable[tuple[str, Sequence[BlobResidency]]]:
    """Group the blobs by the methods that use them, in program order.

    Return (text that names the methods, blobs) for each group.
    """
    groups: dict[tuple[str, ...], list[BlobResidency]] = {}
    for blob in blobs:
        groups.setdefault(blob.methods, []).append(blob)
    for methods, group in groups.items():
        yield " + ".join(map(escape, methods)) or "no method", group
