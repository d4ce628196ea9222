"""Files other than bundles: saved sessions, and the files of `kvc export`.

In: the path of an untrusted file. Out: its content as a report and as lines of text;
or that the file is of neither kind. A file of `kvc export` is a zip archive whose
first entry, `report.json`, holds partitions, memory and cycles. No other entry of the
archive is read.
"""

import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from kvc.runtime.sessions.snapshot_files import SnapshotFile
from kvc.schema.container import OpenFile
from kvc.schema.errors import FileProblem
from kvc.schema.text import columns, escape, plural, size
from kvc.tools.printing import json_text

T = TypeVar("T")
_ZIP_MARK: Final = b"PK\x03\x04"
_REPORT: Final = "report.json"
_MOST_NBYTES: Final = 1 << 24
_MOST: Final = (1 << 63) - 1  # of bytes, cycles and multiplications


# What stays of a chat beside its settings.
_OF_CHATS: Final = ("template_arguments", "special_tokens", "on_full")


@dataclass(frozen=True, slots=True)
class SessionReport:
    """A saved session.

    Attributes:
        path, nbytes: path of the file, and its size in bytes.
        program: identity of the bundle's program; in older files the program's digest.
        position: position of each row, null if nothing counts tokens.
        pending: tokens of each row that were generated but not run yet.
        capacity: the greatest position, null if nothing limits it.
        sizes: sizes that the session chose, by name.
        states: number of states.
        settings: of a chat the settings of its answers, and what else stays; null of
            other sessions.
    """

    path: str
    nbytes: int
    program: str
    position: Sequence[int] | None
    pending: Sequence[Sequence[int]]
    capacity: int | None
    sizes: Mapping[str, int]
    states: int
    settings: Mapping[str, object] | None


def describe_session(path: str) -> SessionReport:
    """Read a saved session.

    Raises:
        FileProblem: the system cannot read it.
        BadSnapshot: it is damaged.
    """
    with SnapshotFile(path) as file:
        header = file.header
        return SessionReport(
            path=file.path,
            nbytes=file.nbytes,
            program=header.program,
            position=header.position,
            pending=header.pending,
            capacity=header.capacity,
            sizes=header.sizes,
            states=len(header.states),
            settings=_settings_of(header.attached),
        )


def _settings_of(attached: Mapping[str, object]) -> dict[str, object] | None:
    """Return the settings of the chat that a file carries, None without a chat.

    The file is untrusted: whatever is no mapping counts as empty.
    """
    chat = attached.get("chat")
    if not isinstance(chat, dict):
        return None
    found = chat.get("settings")
    settings = found if isinstance(found, dict) else {}
    more = {name: chat.get(name) for name in _OF_CHATS}
    said = {**settings, **more}
    return {name: value for name, value in said.items() if value not in (None, {}, ())}


def session_lines(report: SessionReport) -> list[str]:
    """Lay a report out."""
    position = "none; nothing in the program counts tokens"
    if report.position is not None:
        position = ", ".join(map(str, report.position))
    pending = ""
    if any(report.pending):
        tokens = plural(sum(map(len, report.pending)), "token")
        pending = f"{tokens} generated but not run yet"
    rows = [
        ("program", f"identity {escape(report.program[:16])}, as kvc dump BUNDLE says"),
        ("position", position),
        ("capacity", "no limit" if report.capacity is None else str(report.capacity)),
        ("pending", pending),
        (
            "sizes",
            ", ".join(f"{escape(k)} {escape(str(v))}" for k, v in report.sizes.items()),
        ),
        ("states", str(report.states)),
        (
            "settings",
            ", ".join(
                f"{escape(name)} {escape(json_text(value, ensure_ascii=False))}"
                for name, value in (report.settings or {}).items()
            ),
        ),
    ]
    title = f"{escape(report.path)}: a saved session, {size(report.nbytes)}"
    return [title, *columns(row for row in rows if row[1])]


@dataclass(frozen=True, slots=True)
class ExportedPartition:
    """A partition compiled for one combination of sizes.

    Attributes:
        file: name of the partition's file in the archive.
        method: method that the partition belongs to.
        inputs, outputs: number of inputs and of outputs.
        sram_nbytes, other_nbytes: bytes that a run takes in SRAM, and in other memory.
        cycles: cycles of a run, as the target's compiler estimates them.
        macs: number of multiplications in a run.
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
    """The report in a file of `kvc export`.

    Attributes:
        target: target that the file was made for, with its version.
        partitions: partitions in the order of the bundle.
    """

    target: str
    partitions: tuple[ExportedPartition, ...]


def describe_exported(path: str) -> ExportedReport | None:
    """Return the report of a file of `kvc export`, None for other files.

    Raises:
        FileProblem: the system cannot read the file, or the archive or its report is
            damaged.
    """
    with OpenFile(path) as file:
        if file.pread(0, min(len(_ZIP_MARK), file.size)) != _ZIP_MARK:
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
    partitions = tuple(
        ExportedPartition(
            file=_typed(one["file"], str),
            method=_typed(one["method"], str),
            inputs=len(_typed(one["inputs"], list)),
            outputs=len(_typed(one["outputs"], list)),
            sram_nbytes=_count(one["sram_nbytes"]),
            other_nbytes=_count(one["other_nbytes"]),
            cycles=_count(one["cycles"]),
            macs=_count(one["macs"]),
        )
        for one in told["partitions"]
    )
    return ExportedReport(_typed(told["target"], str), partitions)


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
