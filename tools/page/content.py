"""What the page of a bundle shows, and the page itself: one file without a network.

In: the decoded program and the reports on it. Out: a `PageContent`, whose fields are
the JSON in the page, and the page as HTML. Every size is in bytes, with every symbol at
its upper bound.
"""

import html
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path

from kvc.schema.control import computes, read_control
from kvc.schema.graph import Graph, Instruction, Scratch
from kvc.schema.model import Block, Program
from kvc.schema.ops import CONTROL_OPS, DELEGATE
from kvc.schema.text import escape
from kvc.schema.uses import FILE
from kvc.tools.outputs import write_file
from kvc.tools.reports.bundle import DumpReport
from kvc.tools.reports.footprint import Footprint, describe_footprint
from kvc.tools.reports.instructions import line_of, module_of, operands, state_of
from kvc.tools.reports.memory import copied_nbytes, lifetimes

_LIBRARIES = ("vendor/echarts.min.js", "vendor/tabulator.min.js")


@dataclass(frozen=True, slots=True)
class Step:
    """An instruction; a partition is replaced by its instructions.

    Attributes:
        op, type: name of the operator, and type of its result.
        backend: backend that runs the instruction, "" for PyTorch.
        computes: whether the instruction computes; views and control flow do not.
        module, line: module and source line in the user's model.
        reads, writes: names of the states that the instruction reads and writes.
        copied: bytes of state that the instruction copies.
        inside: number of blocks of control flow around the instruction.
    """

    op: str
    type: str
    backend: str
    computes: bool
    module: str
    line: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    copied: int
    inside: int


@dataclass(frozen=True, slots=True)
class Region:
    """Scratch memory of a value.

    Attributes:
        first, last: first and last instruction of the value's lifetime, both included.
        offset, nbytes: offset in the arena and size, in bytes.
        op: operator that makes the value, "input" for an array of the caller.
        type, module, line: type of the value; module and line of the operator in the
            user's model.
    """

    first: int
    last: int
    offset: int
    nbytes: int
    op: str
    type: str
    module: str
    line: str


@dataclass(frozen=True, slots=True)
class Arena:
    """The memory plan of a method, partition or block.

    Attributes:
        name: name of the method, with the partition or block if it is not the method.
        steps: number of instructions.
        nbytes, peak: bytes of the arena, and the most bytes in use at one time.
    """

    name: str
    steps: int
    nbytes: int
    peak: int
    regions: tuple[Region, ...]


@dataclass(frozen=True, slots=True)
class Code:
    """The instructions of a method."""

    method: str
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of the file; `path` is split at the dots of its name."""

    path: tuple[str, ...]
    kind: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class PageContent:
    """The content of the page.

    Attributes:
        report: the report that `kvc dump --json` prints.
        cost: memory with every size at its upper bound.
        total: sum of the bytes in `cost`.
        pieces: parts of the bundle and its data files; their bytes add up to the size
            of these files.
    """

    report: DumpReport
    cost: Footprint
    total: int
    pieces: tuple[Piece, ...]
    arenas: tuple[Arena, ...]
    code: tuple[Code, ...]


def describe_page(report: DumpReport, program: Program) -> PageContent:
    """Return what the page of a program shows.

    Args:
        report: report on the program, from `describe_file` with `by_method`.
        program: the decoded program.
    """
    cost = describe_footprint(program, {})
    walks = [_Walk(program, index) for index in range(len(program.methods))]
    return PageContent(
        report=report,
        cost=cost,
        total=cost.total,
        pieces=tuple(_pieces(report, program)),
        arenas=tuple(arena for walk in walks for arena in walk.arenas()),
        code=tuple(Code(walk.method.name, tuple(walk.steps())) for walk in walks),
    )


def _pieces(report: DumpReport, program: Program) -> Iterator[Piece]:
    """Yield each blob, then the other parts of the files."""
    first_name = {named.blob: named for named in reversed(program.names)}
    for index, blob in enumerate(program.blobs):
        named = first_name[index]
        whole = named.format == FILE
        path = (named.name,) if whole else tuple(named.name.split("."))
        kind = "file that goes along" if whole else named.type.dtype.label
        yield Piece(path, kind, blob.nbytes)
    beside = (part for file in report.size.data_files for part in file.parts)
    for part in (*report.size.parts, *beside):
        if part.category != "blobs":
            path = (f"({part.category})", part.what or part.category)
            yield Piece(path, "of kvc", part.nbytes)


class _Walk:
    """A walk through the code of a method, in running order."""

    def __init__(self, program: Program, index: int) -> None:
        self._program = program
        self._symbols = {symbol.name: symbol for symbol in program.symbols}
        self.method = program.methods[index]
        self._backends = {
            one.block: one.backend for one in program.delegates if one.method == index
        }

    def steps(self) -> Iterator[Step]:
        """Yield each instruction; an instruction is followed by those of its blocks."""
        graph = self.method.graph
        names = {
            value: self._program.states[state].name
            for value in range(len(graph.values))
            if graph.root_of(value) == value
            and (state := state_of(graph, value)) is not None
        }
        yield from self._steps(Block(graph, self.method.updates), names, "", 0)

    def _steps(
        self, code: Block, names: Mapping[int, str], backend: str, inside: int
    ) -> Iterator[Step]:
        """Yield the steps of a graph.

        Args:
            code: the graph, and the verdicts on its writes.
            names: values in the memory of a state -> name of the state.
            backend: backend that runs the graph.
            inside: number of blocks of control flow around the graph.
        """
        graph = code.graph
        updates = {update.instruction: update for update in code.updates}
        for index, call in enumerate(graph.instructions):
            if call.op != DELEGATE:
                given = map(graph.root_of, operands(call.arguments))
                used = dict.fromkeys(names[root] for root in given if root in names)
                update = updates.get(index)
                roots = () if update is None else update.accesses
                writes = [names[a.root] for a in roots if a.root in names]
                copies = () if update is None else update.copies
                yield Step(
                    op=call.op,
                    type=", ".join(str(graph.values[i].type) for i in call.results),
                    backend=backend,
                    computes=computes(graph, call, delegated=bool(backend)),
                    module=module_of(call.source),
                    line=line_of(call.source),
                    reads=tuple(name for name in used if name not in writes),
                    writes=tuple(dict.fromkeys(writes)),
                    copied=copied_nbytes(graph, copies, self._symbols),
                    inside=inside,
                )
            if call.op in CONTROL_OPS:
                yield from self._blocks(graph, call, names, backend, inside)

    def _blocks(
        self,
        graph: Graph,
        call: Instruction,
        names: Mapping[int, str],
        backend: str,
        inside: int,
    ) -> Iterator[Step]:
        control = read_control(call.op, call.arguments)
        lent = operands((control.operands,))
        for number in control.blocks:
            block = self.method.blocks[number]
            known = {
                inner: names[graph.root_of(outer)]
                for inner, outer in zip(block.graph.inputs, lent, strict=True)
                if graph.root_of(outer) in names
            }
            runner = self._backends.get(number, backend)
            yield from self._steps(block, known, runner, inside + (call.op != DELEGATE))

    def arenas(self) -> Iterator[Arena]:
        """Yield the memory plans of the method and of its blocks, if they have any."""
        name = self.method.name
        graphs = [(name, self.method.graph)]
        for number, block in enumerate(self.method.blocks):
            backend = self._backends.get(number)
            run = f", run by {backend}" if backend else ""
            graphs.append((f"{name}, block {number}{run}", block.graph))
        for title, graph in graphs:
            regions = tuple(_regions(graph))
            if regions:
                yield Arena(
                    name=title,
                    steps=len(graph.instructions),
                    nbytes=graph.scratch_nbytes,
                    peak=graph.peak_nbytes,
                    regions=regions,
                )


def _regions(graph: Graph) -> Iterator[Region]:
    makers = {
        value: call for call in reversed(graph.instructions) for value in call.results
    }
    for value, (first, last) in lifetimes(graph).items():
        storage = graph.values[value].storage
        if isinstance(storage, Scratch) and storage.nbytes:
            maker = makers.get(value)
            source = "" if maker is None else maker.source
            yield Region(
                first=first,
                last=last,
                offset=storage.offset,
                nbytes=storage.nbytes,
                op="input" if maker is None else maker.op,
                type=str(graph.values[value].type),
                module=module_of(source),
                line=line_of(source),
            )


def page_text(content: PageContent) -> str:
    """Return the page as HTML.

    Equal bundles give equal text. Names from an untrusted file are embedded as escaped
    JSON, which cannot end the HTML element around it.
    """
    parts = {
        "title": html.escape(escape(Path(content.report.file.path).name)),
        "style": "\n".join(map(_own, ("vendor/tabulator.min.css", "page.css"))),
        "libraries": "\n".join(map(_own, _LIBRARIES)),
        # Of ASCII alone.
        "content": json.dumps(asdict(content), separators=(",", ":")).replace(
            "<", "\\u003c"
        ),
        "script": _own("page.js"),
    }
    # The template is split once: inserted text is never searched for placeholders.
    pieces = re.split(r"<!--(\w+)-->", _own("page.html"))
    pieces[1::2] = [parts[name] for name in pieces[1::2]]
    return "".join(pieces)


def page_start() -> bytes:
    """Return the bytes that every page begins with, which identify a page."""
    mark = '<meta name="generator" content="kvc dump">'
    before, _, _ = _own("page.html").partition(mark)
    return (before + mark).encode()


def write_page(path: Path, content: PageContent) -> None:
    """Write the page, completely or not at all.

    Raises:
        CannotWrite: the file cannot be written; an existing file is unchanged.
    """
    write_file(path, page_text(content).encode())


def _own(name: str) -> str:
    return files(__package__).joinpath(name).read_text("utf-8")
