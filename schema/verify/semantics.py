"""Check a whole program: its files, blobs, names and delegates.

In: a decoded program, or the index of a data file. Out: nothing, or the first error.
`verify_program` also calls the checks of the other modules. `states.py` checks states,
`methods.py` checks methods, and the container's reader checks the layout of blobs.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from kvc.schema.control import blocks_run, graphs_within, read_control
from kvc.schema.dtypes import DType
from kvc.schema.garbage import collection_paused
from kvc.schema.graph import Graph, Ref, Scratch
from kvc.schema.model import Blob, Delegate, Method, Program
from kvc.schema.ops import DELEGATE
from kvc.schema.types import TensorType
from kvc.schema.uses import (
    FILE,
    FILES,
    SLOT,
    constants_of,
    count_unpacked,
    is_packed,
    is_plain_name,
)
from kvc.schema.verify import limits
from kvc.schema.verify.blocks import check_blocks
from kvc.schema.verify.bounds import check_bounds
from kvc.schema.verify.cursors import CursorChecker
from kvc.schema.verify.dims import CheckedTypes
from kvc.schema.verify.graphs import GraphChecker
from kvc.schema.verify.limits import Reporter
from kvc.schema.verify.methods import (
    check_accesses,
    check_effects,
    check_methods,
    check_told,
)
from kvc.schema.verify.slots import check_slots
from kvc.schema.verify.states import check_states
from kvc.schema.verify.values import Surroundings
from kvc.schema.verify.variants import check_adapted, check_variants

_MAX_OFFSET: Final = 1 << 62


def check_tables(
    program: Program, sizes: CheckedTypes, report: Reporter, *, uses: bool
) -> None:
    """Check all tables of a program except its methods.

    If `uses`, check also what named data is used by, which reads the methods' code.

    Raises:
        BadProgram, LimitExceeded: an entry is wrong.
    """
    sizes.check_symbols(program.symbols)
    where, files = "data files", program.files
    own = bool(files) and (files[0].name, files[0].digest) == ("", b"")
    report.require(own, where, "file 0 is not the bundle itself")
    report.limit("the number of data files", len(files), limits.MAX_FILES)
    names = [file.name for file in files[1:]]
    for file in files[1:]:
        plain = is_plain_name(file.name)
        report.require(plain, where, f"{file.name!r} is not a plain file name")
        report.require(len(file.digest) == 32, where, f"{file.name}: digest")
    report.unique(names, where)
    digests = {file.digest for file in files}
    report.require(len(digests) == len(files), where, "two have one digest")
    blobs = program.blobs
    _check_each_blob(blobs, len(program.files), report)
    named = {named.blob for named in program.names}
    lost = set(range(len(blobs))) - named
    report.require(not lost, "blobs", f"blob {min(lost, default=0)} has no name")
    unused = set(range(1, len(program.files))) - {blob.file for blob in blobs}
    what = f"file {min(unused, default=0)} holds no blob of this program"
    report.require(not unused, "data files", what)
    _check_names(program, sizes, report)
    if uses:
        _check_uses(program, report)
    check_states(program, sizes, report)
    for key in program.metadata:
        report.name(key, "metadata")


def verify_index(blobs: Sequence[Blob], path: str) -> None:
    """Check the index of a data file, but not whether its blobs fill the file.

    Raises:
        BadProgram, LimitExceeded: an entry is wrong.
    """
    report = Reporter(path)
    _check_each_blob(blobs, 1, report)
    offsets = [blob.offset for blob in blobs]
    report.require(offsets == sorted(offsets), "index", "offsets do not ascend")


def _check_each_blob(blobs: Sequence[Blob], files: int, report: Reporter) -> None:
    report.limit("the number of blobs", len(blobs), limits.MAX_BLOBS)
    for i, blob in enumerate(blobs):
        where = f"blob {i}"
        report.require(len(blob.digest) == 32, where, "the digest has not 32 bytes")
        report.require(0 <= blob.file < files, where, "no such file")
        report.limit(f"{where}: its size", blob.nbytes, limits.MAX_TENSOR_NBYTES)
        report.limit(f"{where}: its offset", blob.offset, _MAX_OFFSET)
        power = blob.align > 0 and not blob.align & (blob.align - 1)
        fits = power and blob.align <= limits.MAX_BLOB_ALIGN
        report.require(fits, where, f"alignment {blob.align}")
        report.require(blob.offset % blob.align == 0, where, "it is misaligned")
    contents = {(blob.digest, blob.nbytes) for blob in blobs}
    what = "two have one digest and size"
    report.require(len(contents) == len(blobs), "blobs", what)


def _check_names(program: Program, sizes: CheckedTypes, report: Reporter) -> None:
    report.limit("the number of names", len(program.names), limits.MAX_NAMES)
    report.unique([named.name for named in program.names], "named data")
    for named in program.names:
        where = f"named data {named.name!r}"
        report.name(named.format, where)
        report.text(named.provenance, where)
        if named.blob >= len(program.blobs):
            report.fail(where, f"no blob {named.blob}")
        if not named.type.is_static:
            report.fail(where, f"{named.type} is not static")
        nbytes, found = sizes.check(named.type, where), program.blobs[named.blob].nbytes
        expected = 0 if named.format == SLOT else nbytes
        if expected != found:
            what = f"{named.type} takes {expected} bytes, the blob has {found}"
            report.fail(where, what)


def _check_uses(program: Program, report: Reporter) -> None:
    """Check what named data is used by: code, delegates, or nothing."""
    used = _used_names(program)
    _check_packed(program, used, report)
    _check_bundled(program, used, report)


def _used_names(program: Program) -> set[int]:
    """Return the ids of the named data that methods' graphs and states use.

    A state uses the data of its initial value.
    """
    used = {s.initial for s in program.states if s.initial is not None}
    methods = (method for body in program.bodies for method in body.methods)
    graphs = (graph for method in methods for graph in method.graphs)
    return used.union(*map(constants_of, graphs))


def _check_packed(program: Program, used: set[int], report: Reporter) -> None:
    """Check that packed data can be removed without changing the ids of other data."""
    count = count_unpacked(program)
    for named in program.names[count:]:
        where = f"named data {named.name!r}"
        report.require(is_packed(named), where, "it comes after packed data")
    what = "it is packed, and only delegates may use it"
    for name in used:
        if count <= name < len(program.names):
            report.fail(f"named data {program.names[name].name!r}", what)


def _check_bundled(program: Program, used: set[int], report: Reporter) -> None:
    """Check added files: a name without folders, type uint8, and no use in code."""
    delegates = (one for body in program.bodies for one in body.delegates)
    taken = used.union(*(delegate.names for delegate in delegates))
    for name, named in enumerate(program.names):
        if named.format != FILE:
            continue
        where, what = f"named data {named.name!r}", f"{FILES} and a plain file name"
        plain = is_plain_name(named.name.removeprefix(FILES))
        fits = named.name.startswith(FILES) and plain
        report.require(fits, where, f"it is a file, whose name must be {what}")
        flat = named.type == TensorType(DType.UINT8, named.type.dims[:1])
        kind = f"it is a file, whose type must be uint8 [n], not {named.type}"
        report.require(flat and len(named.type.dims) == 1, where, kind)
        what = "it is a file, and nothing may compute with it"
        report.require(name not in taken, where, what)


def check_delegates(program: Program, report: Reporter) -> None:
    """Check the delegates, and that each delegate runs a single block of its method.

    Must be called after the check of the blocks and their inputs.
    """
    found = [
        (number, block)
        for number, method in enumerate(program.methods)
        for graph in method.graphs
        for block in blocks_run(graph, DELEGATE)
    ]
    told = [(delegate.method, delegate.block) for delegate in program.delegates]
    what = f"they run the blocks (method, block) {told}, called are {sorted(found)}"
    report.require(sorted(told) == sorted(found), "delegates", what)
    for number, delegate in enumerate(program.delegates):
        _check_delegate(number, delegate, program, report)
    for number, method in enumerate(program.methods):
        own = [one for one in program.delegates if one.method == number]
        _check_tails(method, {one.block: one.tail_nbytes for one in own}, report)


def _check_delegate(
    number: int, delegate: Delegate, program: Program, report: Reporter
) -> None:
    where, names = f"delegate {number}", delegate.names
    report.name(delegate.backend, where)
    ascending = list(names) == sorted(set(names))
    inside = not names or (names[0] >= 0 and names[-1] < len(program.names))
    report.require(ascending and inside, where, f"names {names}")
    limit = limits.MAX_TENSOR_NBYTES
    report.limit(f"{where}: its workspace", delegate.workspace_nbytes, limit)
    report.limit(f"{where}: its tail", delegate.tail_nbytes, limits.MAX_DIM)
    graphs = graphs_within(program.methods[delegate.method], delegate.block)
    strange = sorted(set().union(*map(constants_of, graphs)) - set(names))
    report.require(not strange, where, f"it uses the data {strange} beside its names")
    nested = any(True for graph in graphs for _ in blocks_run(graph, DELEGATE))
    report.require(not nested, where, "it calls a delegate itself")
    nbytes, needed = delegate.workspace_nbytes, graphs[0].scratch_nbytes
    what = f"a workspace of {nbytes} bytes, its code needs {needed}"
    report.require(nbytes >= needed, where, what)


def _check_tails(method: Method, tails: Mapping[int, int], report: Reporter) -> None:
    """Check that a method's scratch arenas have the bytes that delegates may read.

    A delegate may read some bytes (a tail) after each of its inputs and outputs. The
    inputs of a block can lie in any arena of the method.
    """
    lent = any(True for one in method.blocks for _ in blocks_run(one.graph, DELEGATE))
    most = max(tails.values(), default=0)
    for graph in method.graphs if most else ():
        if lent:
            _check_tail(graph, range(len(graph.values)), most, method, report)
            continue
        for step in graph.instructions:
            if step.op == DELEGATE:
                control = read_control(step.op, step.arguments)
                reads = [ref.value for ref in control.operands if isinstance(ref, Ref)]
                tail = tails[control.blocks[0]]
                _check_tail(graph, (*reads, *step.results), tail, method, report)


def _check_tail(
    graph: Graph, values: Iterable[int], tail: int, method: Method, report: Reporter
) -> None:
    for value in values:
        storage = graph.values[graph.root_of(value)].storage
        if isinstance(storage, Scratch):
            end = storage.offset + storage.nbytes + tail
            what = f"value {value} and its tail end past the scratch arena"
            report.require(end <= graph.scratch_nbytes, f"method {method.name!r}", what)


@collection_paused()
def verify_outline(program: Program, path: str) -> None:
    """Check what a program declares, its bound lists, and its methods but their blocks.

    Raises:
        BadProgram, LimitExceeded: as `verify_program`.
    """
    _check_declared(program, Reporter(path), uses=False)
    for number, body in enumerate(program.bodies):
        within = f"variant {body.provenance.recipe!r}, " if number else ""
        own = Reporter(path, within)
        sizes = CheckedTypes(body.symbols, own)
        check_methods(body, sizes, own)
        checker = GraphChecker(own)
        constants = [named.type for named in body.names]
        for method in body.methods:
            where = f"method {method.name!r}"
            around = Surroundings(where, constants, body.states, sizes)
            operands = checker.check(method.graph, around, False)
            check_effects(method, operands, body, own)
            check_told(method, (method.graph,), body, own)


@collection_paused()
def verify_program(program: Program, path: str, thorough: bool = False) -> None:
    """Check all declarations and code of a program; ids in graphs must be in range.

    Args:
        program: a program that was decoded, or is about to be encoded.
        path: path of the bundle, for messages.
        thorough: whether to check memory a second time, by the slow replay.

    Raises:
        BadProgram: the program is impossible.
        LimitExceeded: a size is too large.
    """
    _check_declared(program, Reporter(path), uses=True)
    for number, body in enumerate(program.bodies):
        within = f"variant {body.provenance.recipe!r}, " if number else ""
        _check_code(body, Reporter(path, within), thorough)


def _check_declared(program: Program, report: Reporter, *, uses: bool) -> None:
    """Check all that the recipes of a program share.

    If `uses`, also what named data is used by, for which all code has to be read.
    """
    check_tables(program, CheckedTypes(program.symbols, report), report, uses=uses)
    check_variants(program, report)
    check_adapted(program, report)
    check_slots(program, report)
    check_bounds(program, report)


def _check_code(program: Program, report: Reporter, thorough: bool) -> None:
    """Check the methods and delegates of one recipe."""
    sizes = CheckedTypes(program.symbols, report)
    check_methods(program, sizes, report)
    checker = GraphChecker(report)
    cursors = CursorChecker(program, sizes, report)
    constants = [named.type for named in program.names]
    for method in program.methods:
        where = f"method {method.name!r}"
        around = Surroundings(where, constants, program.states, sizes)
        operands = checker.check(method.graph, around, thorough)
        check_effects(method, operands, program, report)
        inside = check_blocks(method, checker, around, thorough)
        check_accesses(method, report)
        cursors.check(method, [operands, *inside])
        check_told(method, method.graphs, program, report)
    cursors.finish()
    check_delegates(program, report)
