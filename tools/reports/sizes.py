"""Where the bytes go: every byte of the file belongs to exactly one part.

What is not a blob, the program or the header is padding. Inside the program, a
payload's part is its length; a method's part, worked out only on request since it
takes a while, is what the program shrinks by when the method's code is taken out; what
is left is the tables that all share.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from kvc.schema.codec import encode
from kvc.schema.model import Method, Program
from kvc.tools.text import columns, escape, plural, share, size


@dataclass(frozen=True, slots=True)
class PartReport:
    """A part of the file.

    Attributes:
        category: "header", "blobs", "padding" or "program".
        what: which of them: the dtype of the blobs, the method, the payload.
        count: how many pieces it is in.
        nbytes: their bytes together.
    """

    category: str
    what: str
    count: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class SizeReport:
    """The parts of a file; their bytes add up to `nbytes`."""

    nbytes: int
    parts: tuple[PartReport, ...]


def describe_size(
    program: Program,
    file_nbytes: int,
    header_nbytes: int,
    program_nbytes: int,
    by_method: bool,
) -> SizeReport:
    """Attribute every byte of a bundle of `file_nbytes` bytes.

    Args:
        program: what the bundle says.
        file_nbytes: size of the file.
        header_nbytes: size of its header.
        program_nbytes: size of its program.
        by_method: whether to tell the code of each method from the tables.
    """
    header = PartReport("header", "", 1, header_nbytes)
    blobs = tuple(_blobs(program))
    known = header_nbytes + program_nbytes + sum(part.nbytes for part in blobs)
    padding = PartReport("padding", "between blobs", 1, file_nbytes - known)
    parts = (header, *blobs, padding, *_program(program, program_nbytes, by_method))
    return SizeReport(file_nbytes, parts)


def _blobs(program: Program) -> Iterator[PartReport]:
    """Yield a part for each dtype and format of the blobs in the bundle itself."""
    groups: dict[str, list[int]] = {}
    first_name = {data.blob: data for data in reversed(program.names)}
    for index, blob in enumerate(program.blobs):
        if blob.file == 0:
            data = first_name[index]
            packed = "" if data.format == "plain" else f", {data.format}"
            kind = data.type.dtype.label + packed
            groups.setdefault(kind, []).append(blob.nbytes)
    for kind, members in sorted(groups.items(), key=lambda g: (-sum(g[1]), g[0])):
        yield PartReport("blobs", kind, len(members), sum(members))


def _program(program: Program, nbytes: int, by_method: bool) -> Iterator[PartReport]:
    left = nbytes
    for index, method in enumerate(program.methods):
        if by_method:
            code = nbytes - len(encode(_without_code(program, index)))
            left -= code
            yield PartReport("program", f"{method.name}: code", 1, code)
        payloads = [d.payload for d in program.delegates if d.method == index]
        inside = sum(map(len, payloads))
        if payloads:
            what = f"{method.name}: delegate payloads"
            left -= inside
            yield PartReport("program", what, len(payloads), inside)
    what = "tables of names, blobs, states" + ("" if by_method else "; code")
    yield PartReport("program", what, 1, left)


def _without_code(program: Program, index: int) -> Program:
    method = program.methods[index]
    bare = replace(method.graph, values=(), inputs=(), outputs=(), instructions=())
    empty: Method = replace(method, graph=bare)
    methods = (*program.methods[:index], empty, *program.methods[index + 1 :])
    return replace(program, methods=methods)


def size_lines(report: SizeReport) -> list[str]:
    """Lay out every part in exact bytes."""
    rows = [("bytes", "share", "part", "")]
    rows += [
        (
            f"{part.nbytes:,}",
            share(part.nbytes, report.nbytes),
            part.category,
            _what(part),
        )
        for part in report.parts
    ]
    rows.append((f"{report.nbytes:,}", "100.0%", "the file", ""))
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
