"""What is stored: every blob, the methods that use it, and the parts of each file.

In: a program, and the sizes of its files. Out: reports on blobs; on the blobs that
several methods use; on the parts of a file, where every byte belongs to exactly one
part; and on how memory holds each blob (`Held`): whole, by rows, or packed by a
library.

Bytes of a file outside its blobs, its program and its header are padding. Within the
program, a payload counts with its length. The bytes of a method are computed only on
request, because that takes a while: they are what the program shrinks by, over all
recipes, without the code of the method and of its delegates. The remaining bytes of
the program are the tables that all methods use.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Final

from kvc.schema.codec import encode
from kvc.schema.control import graphs_within
from kvc.schema.graph import Constant, Graph, Ref
from kvc.schema.model import Blob, MemoryKind, Method, NamedData, Program
from kvc.schema.uses import (
    FILE,
    FILES,
    PLAIN,
    SLOT,
    constants_of,
    is_packed,
    methods_of_blobs,
)

NOT_OURS = "not of this program"
_NEARBY: Final = 1 << 16  # bytes that Linux maps around a byte of a file that is read
# Operator -> position of the argument that it looks rows up in.
LOOKUPS: Final = {"aten::embedding": 1, "kvc::embedding_q8": 2}


@dataclass(frozen=True, slots=True)
class NameReport:
    """A name of a blob, and the methods that use the blob under this name."""

    name: str
    type: str
    format: str
    provenance: str
    users: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BlobReport:
    """A blob; `file` is the name of its data file, "" for the bundle itself.

    Attributes:
        methods: the methods that use the blob under any of its names, in their own code
            or in a delegate.
    """

    nbytes: int
    file: str
    offset: int
    align: int
    digest: str
    methods: tuple[str, ...]
    names: tuple[NameReport, ...]


@dataclass(frozen=True, slots=True)
class SharingReport:
    """All blobs of one format that the same methods use.

    Attributes:
        format: "plain"; "file" for files stored in the bundle, such as a tokenizer; or
            the name of the packing of packed weights.
    """

    methods: tuple[str, ...]
    format: str
    blobs: int
    nbytes: int


def describe_blobs(program: Program) -> tuple[BlobReport, ...]:
    """Return a report on each blob, in the order of the file."""
    users, methods = users_of_names(program), methods_of_blobs(program)
    names: list[list[NameReport]] = [[] for _ in program.blobs]
    for index, n in enumerate(program.names):
        names[n.blob].append(
            NameReport(n.name, str(n.type), n.format, n.provenance, users[index])
        )
    return tuple(
        BlobReport(
            nbytes=blob.nbytes,
            file=program.files[blob.file].name,
            offset=blob.offset,
            align=blob.align,
            digest=blob.digest.hex(),
            methods=methods[index],
            names=tuple(names[index]),
        )
        for index, blob in enumerate(program.blobs)
    )


def describe_sharing(program: Program) -> tuple[SharingReport, ...]:
    """Group the blobs by the methods that use them, most bytes first, packed last."""
    formats = {named.blob: named.format for named in reversed(program.names)}
    groups: dict[tuple[tuple[str, ...], str], list[int]] = {}
    for index, methods in methods_of_blobs(program).items():
        key, nbytes = (methods, formats[index]), program.blobs[index].nbytes
        if formats[index] != SLOT:  # which has no bytes
            groups.setdefault(key, []).append(nbytes)
    reports = [SharingReport(*key, len(g), sum(g)) for key, g in groups.items()]
    return tuple(
        sorted(reports, key=lambda r: (r.format != PLAIN, -r.nbytes, r.methods))
    )


def users_of_names(program: Program) -> Mapping[int, tuple[str, ...]]:
    """Map each id of named data to the methods that use it, in the program's order."""
    found: dict[int, list[str]] = {i: [] for i in range(len(program.names))}
    for body in program.bodies:
        for index, method in enumerate(body.methods):
            for name in sorted(set().union(*map(constants_of, method.graphs))):
                found[name].append(method.name)
            for delegate in body.delegates:
                if delegate.method == index:
                    for name in delegate.names:
                        found[name].append(f"{method.name}/{delegate.backend}")
    for state in program.states:
        if state.initial is not None:
            found[state.initial].append(f"state {state.name}")
    return {name: tuple(dict.fromkeys(users)) for name, users in found.items()}


@dataclass(frozen=True, slots=True)
class PartReport:
    """A part of the file.

    Attributes:
        category: "header", "blobs", "padding", "program" or "index".
        what: what the part holds within its category, such as the dtype of the blobs,
            the name of a stored file, a method, or the payloads of a method's
            delegates.
        count: number of pieces that the part consists of.
        nbytes: bytes of all its pieces.
    """

    category: str
    what: str
    count: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class DataFileReport:
    """A file beside the bundle that holds blobs of its program.

    Attributes:
        name, digest: name and digest by which the bundle refers to the file.
        path: path where the file was found, "" if it was not found.
        problem: why the file was not found, "" if it was.
        nbytes: size of the file; if it was not found, bytes that this program needs of
            it.
        parts: parts of the file; if it was not found, only the blobs of this program.
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
    """A data file that was found."""

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
        program: the bundle's decoded program.
        file_nbytes: size of the bundle in bytes.
        header_nbytes: size in bytes of the bundle's header, and of a data file's
            header.
        program_nbytes: size in bytes of the encoded program.
        by_method: whether to list the code of each method apart from the tables.
        found: for each data file, the file or the reason why it was not found.
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
    known = {(one.digest, one.nbytes) for one in program.blobs if one.file == number}
    others = [b.nbytes for b in found.blobs if (b.digest, b.nbytes) not in known]
    rest = [PartReport("blobs", NOT_OURS, len(others), sum(others))] * bool(others)
    header = PartReport("header", "", 1, header_nbytes)
    index = PartReport("index", "", 1, found.index_nbytes)
    padded = _padded([header, *own, *rest, index], found.nbytes)
    return DataFileReport(file.name, digest, found.path, "", found.nbytes, padded)


def _padded(parts: Sequence[PartReport], nbytes: int) -> tuple[PartReport, ...]:
    """Insert the bytes that no part holds, as padding, before the last part."""
    known = sum(part.nbytes for part in parts)
    padding = PartReport("padding", "between blobs", 1, nbytes - known)
    before = ("header", "blobs")
    last = max(i for i, part in enumerate(parts) if part.category in before)
    return (*parts[: last + 1], padding, *parts[last + 1 :])


def _blobs(program: Program, file: int) -> Iterator[PartReport]:
    """Yield a part for each dtype and format of the blobs in one file.

    A stored file, such as a tokenizer, is a part by itself.
    """
    groups: dict[str, list[int]] = {}
    first_name = {data.blob: data for data in reversed(program.names)}
    for index, blob in enumerate(program.blobs):
        if blob.file == file:
            groups.setdefault(_kind(first_name[index]), []).append(blob.nbytes)
    for kind, members in sorted(groups.items(), key=lambda g: (-sum(g[1]), g[0])):
        yield PartReport("blobs", kind, len(members), sum(members))


def _kind(data: NamedData) -> str:
    if data.format == FILE:
        return f"file {data.name.removeprefix(FILES)}"
    return data.type.dtype.label + (f", {data.format}" if is_packed(data) else "")


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
    if program.bounds is not None:
        lists = nbytes - len(encode(replace(program, bounds=None)))
        left -= lists
        yield PartReport("program", "bound lists", len(program.bounds.lists), lists)
    what = "tables of names, blobs, states" + ("" if by_method else "; code")
    yield PartReport("program", what, 1, left)


def _without_code(program: Program, index: int) -> Program:
    return replace(
        program,
        methods=_one_empty(program.methods, index),
        variants=tuple(
            replace(one, methods=_one_empty(one.methods, index))
            for one in program.variants
        ),
    )


def _one_empty(methods: Sequence[Method], index: int) -> tuple[Method, ...]:
    method = methods[index]
    bare = replace(method.graph, values=(), inputs=(), outputs=(), instructions=())
    empty: Method = replace(method, graph=bare, blocks=())
    return (*methods[:index], empty, *methods[index + 1 :])


@dataclass(frozen=True, slots=True)
class Held:
    """How memory holds a blob; more than one field can apply.

    Attributes:
        whole: whether all pages of the blob are read.
        rows: number of rows that are looked up in the blob as a table, 0 if none are.
        packed: whether a backend's library keeps a copy in its own format.
    """

    whole: bool
    rows: int
    packed: bool

    def pages(self, nbytes: int) -> int:
        """Return how many bytes are read from the file for a blob of `nbytes` bytes.

        For a table of which only some rows are looked up, count the pages around them.
        """
        return nbytes if self.whole else min(nbytes, self.rows * _NEARBY)

    def own(self, nbytes: int) -> int:
        """Return the bytes of process memory that a library's packed copy takes."""
        return nbytes if self.packed else 0


def held_weights(
    program: Program, sizes: Mapping[str, int], tokens: int
) -> Mapping[int, Held]:
    """Return how memory holds each blob that a method uses.

    Args:
        program: the bundle's program.
        sizes: size of every symbol.
        tokens: number of tokens that a session holds in each row.
    """
    whole, packed = set[int](), set[int]()
    rows: dict[int, int] = defaultdict(int)
    for method, graph, opaque in _graphs(program):
        names = {
            name: program.names[name].blob
            for name in constants_of(graph)
            if not is_packed(program.names[name])
        }
        if opaque:
            packed |= set(names.values())
            continue
        counts_tokens = program.position is not None and method.role != "encode"
        looked_up = _looked_up(graph, sizes)
        for name, blob in names.items():
            if name not in looked_up:
                whole.add(blob)
            elif counts_tokens:
                rows[blob] = max(rows[blob], tokens * sizes.get("batch", 1))
            else:
                rows[blob] = max(rows[blob], looked_up[name])
    return {
        blob: Held(blob in whole, rows.get(blob, 0), blob in packed)
        for blob in sorted({*whole, *rows, *packed})
    }


def _graphs(program: Program) -> Iterator[tuple[Method, Graph, bool]]:
    """Yield each graph with its method and whether a weight-packing library runs it."""
    for number, method in enumerate(program.methods):
        inside = {
            id(graph)
            for part in program.delegates
            if part.method == number and part.memory is MemoryKind.OPAQUE
            for graph in graphs_within(method, part.block)
        }
        for graph in method.graphs:
            yield method, graph, id(graph) in inside


def _looked_up(graph: Graph, sizes: Mapping[str, int]) -> dict[int, int]:
    """Map named data of which only rows are looked up to the most rows looked up."""
    found: dict[int, int] = {}
    others: set[int] = set()
    for step in graph.instructions:
        place = LOOKUPS.get(step.op)
        count = 0
        if place is not None and isinstance(at := step.arguments[place], Ref):
            count = prod(graph.values[at.value].type.shape(sizes))
        for argument in step.arguments:
            if isinstance(argument, Ref):
                storage = graph.values[graph.root_of(argument.value)].storage
                if isinstance(storage, Constant):
                    name = storage.name
                    found[name] = max(found.get(name, 0), count)
                    others |= set() if place is not None else {name}
    return {name: count for name, count in found.items() if name not in others}
