"""Where the bytes go: every byte of the file belongs to exactly one part.

What is not a blob, the program or the header is padding. Inside the program, the part
of a payload is its length. The part of a method, computed only on request since it
takes a while, is what the program shrinks by without the method's code, including its
delegates' code, by all recipes. The rest is the tables that all share.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from kvc.schema.codec import encode
from kvc.schema.model import Blob, Method, NamedData, Program
from kvc.schema.text import columns, escape, plural, share, size
from kvc.schema.uses import FILE, FILES, is_packed

NOT_OURS = "not of this program"


@dataclass(frozen=True, slots=True)
class PartReport:
    """A part of the file.

    Attributes:
        category: "header", "blobs", "padding", "program" or "index".
        what: which of them: the dtype of the blobs or the file that goes along, the
            method, the payloads of its delegates.
        count: how many pieces it is in.
        nbytes: their bytes together.
    """

    category: str
    what: str
    count: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class DataFileReport:
    """A file beside the bundle that holds blobs of its program.

    Attributes:
        name, digest: what the bundle knows it by.
        path: where it was found, "" where it is not there.
        problem: why it is not there, "" where it is.
        nbytes: its size; of one that is not there, what this program needs of it.
        parts: of one that is not there, only the blobs of this program.
    """

    name: str
    digest: str
    path: str
    problem: str
    nbytes: int
    parts: tuple[PartReport, ...]


@dataclass(frozen=True, slots=True)
class SizeReport:
    """The parts of a bundle, whose bytes add up to `nbytes`, and its data files."""

    nbytes: int
    parts: tuple[PartReport, ...]
    data_files: tuple[DataFileReport, ...]


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A data file that is there."""

    path: str
    nbytes: int
    index_nbytes: int
    blobs: tuple[Blob, ...]


def describe_size(
    program: Program,
    file_nbytes: int,
    header_nbytes: int,
    program_nbytes: int,
    by_method: bool,
    found: Sequence[FoundFile | str],
) -> SizeReport:
    """Attribute every byte of a bundle of `file_nbytes` bytes, and of its data files.

    Args:
        program: what the bundle says.
        file_nbytes: size of the file.
        header_nbytes: size of its header, and of that of a data file.
        program_nbytes: size of its program.
        by_method: whether to tell the code of each method from the tables.
        found: each data file, or why it is not there.
    """
    parts = (
        PartReport("header", "", 1, header_nbytes),
        *_blobs(program, 0),
        *_program(program, program_nbytes, by_method),
    )
    others = tuple(
        _data_file(program, number, one, header_nbytes)
        for number, one in enumerate(found, 1)
    )
    return SizeReport(file_nbytes, _padded(parts, file_nbytes), others)


def _data_file(
    program: Program, number: int, found: FoundFile | str, header_nbytes: int
) -> DataFileReport:
    file, own = program.files[number], tuple(_blobs(program, number))
    digest = file.digest.hex()
    if isinstance(found, str):
        needed = sum(part.nbytes for part in own)
        return DataFileReport(file.name, digest, "", found, needed, own)
    known = {
        (blob.digest, blob.nbytes) for blob in program.blobs if blob.file == number
    }
    others = [
        blob.nbytes for blob in found.blobs if (blob.digest, blob.nbytes) not in known
    ]
    parts = [
        PartReport("header", "", 1, header_nbytes),
        *own,
        PartReport("index", "", 1, found.index_nbytes),
    ]
    if others:
        parts.insert(-1, PartReport("blobs", NOT_OURS, len(others), sum(others)))
    padded = _padded(parts, found.nbytes)
    return DataFileReport(file.name, digest, found.path, "", found.nbytes, padded)


def _padded(parts: Sequence[PartReport], nbytes: int) -> tuple[PartReport, ...]:
    """Add what no part holds, which is padding, before the part that ends the file."""
    known = sum(part.nbytes for part in parts)
    padding = PartReport("padding", "between blobs", 1, nbytes - known)
    last = max(
        i for i, part in enumerate(parts) if part.category in ("header", "blobs")
    )
    return (*parts[: last + 1], padding, *parts[last + 1 :])


def _blobs(program: Program, file: int) -> Iterator[PartReport]:
    """Yield a part for each dtype and format of the blobs in one file.

    A file that goes along is a part by itself.
    """
    groups: dict[str, list[int]] = {}
    first_name = {data.blob: data for data in reversed(program.names)}
    for index, blob in enumerate(program.blobs):
        if blob.file == file:
            data = first_name[index]
            kind = _kind(data)
            groups.setdefault(kind, []).append(blob.nbytes)
    for kind, members in sorted(groups.items(), key=lambda g: (-sum(g[1]), g[0])):
        yield PartReport("blobs", kind, len(members), sum(members))


def _kind(data: NamedData) -> str:
    if data.format == FILE:
        return f"file {data.name.removeprefix(FILES)}"
    packed = f", {data.format}" if is_packed(data) else ""
    return data.type.dtype.label + packed


def _program(program: Program, nbytes: int, by_method: bool) -> Iterator[PartReport]:
    left = nbytes
    for index, method in enumerate(program.methods):
        if by_method:
            code = nbytes - len(encode(_without_code(program, index)))
            left -= code
            yield PartReport("program", f"{method.name}: code", 1, code)
        delegates = (one for body in program.bodies for one in body.delegates)
        own = (d.payload for d in delegates if d.method == index)
        payloads = [payload for payload in own if payload]
        inside = sum(map(len, payloads))
        if payloads:
            what = f"{method.name}: delegate payloads"
            left -= inside
            yield PartReport("program", what, len(payloads), inside)
    what = "tables of names, blobs, states" + ("" if by_method else "; code")
    yield PartReport("program", what, 1, left)


def _without_code(program: Program, index: int) -> Program:
    variants = tuple(
        replace(one, methods=_one_empty(one.methods, index)) for one in program.variants
    )
    methods = _one_empty(program.methods, index)
    return replace(program, methods=methods, variants=variants)


def _one_empty(methods: Sequence[Method], index: int) -> tuple[Method, ...]:
    """Return methods of which one has no code."""
    method = methods[index]
    bare = replace(method.graph, values=(), inputs=(), outputs=(), instructions=())
    empty: Method = replace(method, graph=bare, blocks=())
    return (*methods[:index], empty, *methods[index + 1 :])


def size_lines(report: SizeReport) -> list[str]:
    """Lay out every part of every file in exact bytes."""
    lines = _table(report.parts, report.nbytes)
    for file in report.data_files:
        lines += ["", *data_file_title(file), *_table(file.parts, file.nbytes)]
    return lines


def data_file_title(file: DataFileReport) -> list[str]:
    """Say which data file it is, and whether it is there."""
    known = f"DATA FILE {escape(file.name)} (digest {file.digest[:16]}), "
    if not file.problem:
        return [known + size(file.nbytes)]
    return [f"{known}NOT USABLE", f"  {escape(file.problem)}", "  it should hold:"]


def _table(parts: Sequence[PartReport], nbytes: int) -> list[str]:
    rows = [("bytes", "share", "part", "")]
    rows += [
        (f"{part.nbytes:,}", share(part.nbytes, nbytes), part.category, _what(part))
        for part in parts
    ]
    rows.append((f"{nbytes:,}", "100.0%", "the file", ""))
    return columns(rows, ">>")


def size_summary_lines(parts: Sequence[PartReport], nbytes: int) -> list[str]:
    """Lay out the parts in three digits, most bytes first, the crumbs left out."""
    shown = sorted(parts, key=lambda part: -part.nbytes)
    kept = [part for part in shown if part.nbytes * 1000 >= nbytes]
    rows = [
        (size(p.nbytes), share(p.nbytes, nbytes), f"{p.category} {_what(p)}".rstrip())
        for p in kept
    ]
    rest = sum(part.nbytes for part in shown) - sum(part.nbytes for part in kept)
    if rest:
        rows.append((size(rest), share(rest, nbytes), "the rest (kvc dump --size)"))
    return columns(rows, ">>")


def _what(part: PartReport) -> str:
    if part.category == "blobs":
        return f"{escape(part.what)} ({plural(part.count, 'blob')})"
    return escape(part.what)
