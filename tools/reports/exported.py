"""A target's own file, as `kvc export` writes it: partitions, memory, cycles.

In: a zip archive whose first file is `report.json`, of anybody. Out: what it says, or
that the file is none of these. Nothing else of the archive is read.
"""

import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from kvc.schema.container import OpenFile
from kvc.schema.errors import FileProblem
from kvc.schema.text import columns, escape, size

T = TypeVar("T")

_MARK: Final = b"PK\x03\x04"
_REPORT: Final = "report.json"
_MOST_NBYTES: Final = 1 << 24
_MOST: Final = (1 << 63) - 1  # of bytes, cycles and multiplications


@dataclass(frozen=True, slots=True)
class ExportedPartition:
    """A partition at some sizes.

    Attributes:
        file: its name in the archive.
        method: that it belongs to.
        inputs, outputs: how many.
        sram_nbytes, other_nbytes: that a run takes in SRAM, and beside it.
        cycles: of a run, as the target's compiler estimates them.
        macs: multiplications of a run.
    """

    file: str
    method: str
    inputs: int
    outputs: int
    sram_nbytes: int
    other_nbytes: int
    cycles: int
    macs: int


@dataclass(frozen=True, slots=True)
class ExportedReport:
    """What a target's own file says of itself.

    Attributes:
        target: that it was made for, with its version.
        partitions: in the order of the bundle.
    """

    target: str
    partitions: tuple[ExportedPartition, ...]


def describe_exported(path: str) -> ExportedReport | None:
    """Return what a target's file says, None for other files.

    Raises:
        FileProblem: the system refuses, or the archive or its report is damaged.
    """
    with OpenFile(path) as file:
        if file.pread(0, min(len(_MARK), file.size)) != _MARK:
            return None
    try:
        return _report(path)
    except Exception as error:  # zipfile and json have a dozen kinds
        reason = f"no file of kvc export, or damaged: {error!r}"
        raise FileProblem(path=path, reason=reason) from error


def _report(path: str) -> ExportedReport:
    with zipfile.ZipFile(path) as archive:
        entry = archive.getinfo(_REPORT)
        if entry.compress_type != zipfile.ZIP_STORED or entry.file_size > _MOST_NBYTES:
            raise ValueError(f"{_REPORT} of {entry.file_size} bytes, or compressed")
        told = json.loads(archive.read(entry))
    partitions = tuple(_partition(one) for one in told["partitions"])
    return ExportedReport(_typed(told["target"], str), partitions)


def _partition(told: Mapping[str, object]) -> ExportedPartition:
    return ExportedPartition(
        file=_typed(told["file"], str),
        method=_typed(told["method"], str),
        inputs=len(_typed(told["inputs"], list)),
        outputs=len(_typed(told["outputs"], list)),
        sram_nbytes=_count(told["sram_nbytes"]),
        other_nbytes=_count(told["other_nbytes"]),
        cycles=_count(told["cycles"]),
        macs=_count(told["macs"]),
    )


def _count(found: object) -> int:
    number = _typed(found, int)
    if not 0 <= number <= _MOST:
        raise ValueError(f"a count below 0 or above {_MOST}")
    return number


def _typed(found: object, kind: type[T]) -> T:
    if type(found) is not kind:
        raise TypeError(f"{found!r} is no {kind.__name__}")
    return found


def exported_lines(path: str, report: ExportedReport) -> list[str]:
    """Lay the report out."""
    titles = ("file", "method", "in", "out", "SRAM", "beside it", "cycles", "macs")
    rows = [
        (
            escape(one.file),
            escape(one.method),
            f"{one.inputs}",
            f"{one.outputs}",
            size(one.sram_nbytes),
            size(one.other_nbytes),
            f"{one.cycles:,}",
            f"{one.macs:,}",
        )
        for one in report.partitions
    ]
    return [
        f"{escape(path)}: a file for {escape(report.target)}, of kvc export",
        "cycles are what the target's compiler estimates",
        "",
        *columns([titles, *rows], "<<>>>>>>"),
    ]
