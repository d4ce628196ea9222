"""The identity of a program: a digest of its code, data and states.

In: a verified program with all of its recipes. Out: SHA-256 in hexadecimal. Bundles
have equal identities even if they differ in blob locations, packed data, added files
and settings, or provenance. FORMAT.md describes how the digest is made.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import replace

from kvc.schema.codec import encode
from kvc.schema.graph import Graph, Instruction
from kvc.schema.model import (
    Blob,
    Block,
    DataFile,
    Delegate,
    Method,
    NamedData,
    Program,
    Update,
)
from kvc.schema.provenance import Provenance
from kvc.schema.uses import FILE, count_unpacked

_NO_PROVENANCE = Provenance("", "", "", "", "")


def identity(program: Program) -> str:
    """Return the identity of a program."""
    return hashlib.sha256(encode(_bare(program))).hexdigest()


def with_identity(program: Program) -> Program:
    """Return a program whose bound lists, if it has any, name its identity."""
    if program.bounds is None:
        return program
    named = replace(program.bounds, identity=bytes.fromhex(identity(program)))
    return replace(program, bounds=named)


def _bare(program: Program) -> Program:
    """Return a program without the parts on which its identity does not depend."""
    # Files and packed data come last.
    count = count_unpacked(program)
    while count and program.names[count - 1].format == FILE:
        count -= 1
    names = program.names[:count]
    contents = sorted({_content(program, named) for named in names})
    number = {content: blob for blob, content in enumerate(contents)}
    return replace(
        program,
        provenance=_NO_PROVENANCE,
        files=(DataFile("", b""),),
        blobs=tuple(Blob(digest, nbytes, 0, 0, 1) for digest, nbytes in contents),
        names=tuple(
            replace(named, blob=number[_content(program, named)], provenance="")
            for named in names
        ),
        methods=tuple(map(_bare_method, program.methods)),
        delegates=_bare_delegates(program.delegates, count),
        metadata={},
        bounds=None,
        variants=tuple(
            replace(
                one,
                recipe="",
                recipe_text="",
                methods=tuple(map(_bare_method, one.methods)),
                delegates=_bare_delegates(one.delegates, count),
            )
            for one in program.variants
        ),
    )


def _content(program: Program, named: NamedData) -> tuple[bytes, int]:
    """Return the digest and the size of the blob of a named data."""
    blob = program.blobs[named.blob]
    return blob.digest, blob.nbytes


def _bare_delegates(delegates: Iterable[Delegate], count: int) -> tuple[Delegate, ...]:
    return tuple(
        replace(one, names=tuple(name for name in one.names if name < count))
        for one in delegates
    )


def _bare_method(method: Method) -> Method:
    """Return a method without source locations and without the reasons for copies."""
    return replace(
        method,
        graph=_bare_graph(method.graph),
        updates=_bare_updates(method.updates),
        blocks=tuple(
            Block(_bare_graph(one.graph), _bare_updates(one.updates))
            for one in method.blocks
        ),
    )


def _bare_updates(updates: Iterable[Update]) -> tuple[Update, ...]:
    """Return verdicts on writes without the reasons for copies; the copies remain."""
    return tuple(replace(one, reason="") for one in updates)


def _bare_graph(graph: Graph) -> Graph:
    steps = (Instruction(i.op, i.arguments, i.results) for i in graph.instructions)
    return replace(graph, instructions=tuple(steps))
