"""Find which methods use which constants and blobs, and what is packed."""

import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Final

from kvc.schema.dtypes import DType
from kvc.schema.graph import Constant, Graph
from kvc.schema.model import NamedData, Program
from kvc.schema.types import TensorType

PLAIN: Final = "plain"  # the format of data that is as its type says
FILE: Final = "file"  # the format of files: bytes that no method uses
PACKED: Final = "packed/"  # what names of packed data begin with
FILES: Final = "files/"  # what names of files begin with

_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")


def is_plain_name(name: str) -> bool:
    """Return whether a bundle may call a file this: a name, never a path."""
    return _PLAIN_NAME.fullmatch(name) is not None


def named_file(name: str, nbytes: int, blob: int) -> NamedData:
    """Return the named data that a file in a bundle is."""
    kind = TensorType(DType.UINT8, (nbytes,))
    return NamedData(FILES + name, blob, kind, FILE, "file")


def is_packed(named: NamedData) -> bool:
    """Return whether data is a copy of other data in a backend's own form."""
    return named.format not in (PLAIN, FILE)


def count_unpacked(program: Program) -> int:
    """Return how many names come before those of packed data, which are the last."""
    for index, named in enumerate(program.names):
        if is_packed(named):
            return index
    return len(program.names)


def constants_of(graph: Graph) -> set[int]:
    """Return the ids of the named data that a graph's values are."""
    return {
        value.storage.name
        for value in graph.values
        if isinstance(value.storage, Constant)
    }


def methods_of_blobs(program: Program) -> Mapping[int, tuple[str, ...]]:
    """Return for each blob the methods that use it, themselves or by a delegate.

    By any of the program's recipes.
    """
    found: dict[int, set[int]] = defaultdict(set)
    for body in program.bodies:
        for index, method in enumerate(body.methods):
            names = set().union(*map(constants_of, method.graphs))
            for delegate in body.delegates:
                if delegate.method == index:
                    names |= set(delegate.names)
            for name in names:
                found[program.names[name].blob].add(index)
    return {
        blob: tuple(program.methods[i].name for i in sorted(found[blob]))
        for blob in range(len(program.blobs))
    }
