"""Report what memory the data of a program takes: each blob, and the totals.

In: a program, what holds its blobs, what delegates have packed. Out: frozen reports.
`kvc.tools.reports` lays them out as text.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Self

from kvc.runtime.data.held import HeldBlobs
from kvc.runtime.data.locations import Place
from kvc.runtime.data.pages import PageTable
from kvc.runtime.summaries import residency_summary
from kvc.schema.frozen import frozen
from kvc.schema.model import Program
from kvc.schema.uses import methods_of_blobs


@frozen
class BlobResidency:
    """What memory a blob takes; sizes are in bytes.

    Attributes:
        names: its names.
        nbytes: its size.
        methods: those that use it, in their own code or in a delegate; in the program's
            order.
        file: the name of its data file, "" for the bundle itself.
        handles: how many users and calls hold it.
        mapped: bytes of address space that it takes, in memory or not.
        touched: those of them that are in memory; None where the system does not say.
        packed: bytes that delegates keep in a form of their own.
        freed: bytes that were in memory and have been given back, counted each time;
            None where the system does not say.
    """

    names: tuple[str, ...]
    nbytes: int
    methods: tuple[str, ...]
    file: str
    handles: int
    mapped: int
    touched: int | None
    packed: int
    freed: int | None


@frozen
class Totals:
    """The sums of `BlobResidency` over blobs, in bytes; None where one is None."""

    nbytes: int
    mapped: int
    touched: int | None
    packed: int
    freed: int | None

    @classmethod
    def over(cls, blobs: Sequence[BlobResidency]) -> Self:
        """Add up the reports of some blobs."""
        return cls(
            nbytes=sum(blob.nbytes for blob in blobs),
            mapped=sum(blob.mapped for blob in blobs),
            touched=_sum(blob.touched for blob in blobs),
            packed=sum(blob.packed for blob in blobs),
            freed=_sum(blob.freed for blob in blobs),
        )


@frozen
class Residency:
    """What memory the data of a program takes.

    Attributes:
        mode: how it was loaded.
        blobs: a report of each, in the order of the program.
        totals: over all of them.
    """

    mode: str
    blobs: tuple[BlobResidency, ...]
    totals: Totals

    def __str__(self) -> str:
        return residency_summary(self)

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        """Show the text in a notebook."""
        return {"text/plain": str(self)}


def describe_residency(
    program: Program, mode: str, held: HeldBlobs, packed: Mapping[str, int]
) -> Residency:
    """Return what memory the data of a program takes just now.

    Args:
        program: what the bundle says.
        mode: for the report.
        held: what holds its blobs.
        packed: what delegates keep in a form of their own, in bytes by name of data.
    """
    names: list[list[str]] = [[] for _ in program.blobs]
    for named in program.names:
        names[named.blob].append(named.name)
    methods = methods_of_blobs(program)
    blobs = []
    with PageTable() as table:
        for index, blob in enumerate(program.blobs):
            place = held.find(index)
            report = BlobResidency(
                names=tuple(names[index]),
                nbytes=blob.nbytes,
                methods=methods[index],
                file=program.files[blob.file].name,
                handles=held.handles(index),
                mapped=0 if place is None else blob.nbytes,
                touched=_touched(table, place, blob.nbytes),
                packed=sum(packed.get(name, 0) for name in names[index]),
                freed=held.freed_nbytes(index),
            )
            blobs.append(report)
    return Residency(mode, tuple(blobs), Totals.over(blobs))


def _touched(table: PageTable, place: Place | None, nbytes: int) -> int | None:
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
