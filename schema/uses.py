"""Find the methods that use each constant and blob, and list packed data."""

import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Final

from kvc.schema.dtypes import DType
from kvc.schema.graph import Constant, Graph
from kvc.schema.model import NamedData, Program
from kvc.schema.types import TensorType

PLAIN: Final = "plain"  # the format of data in the layout of its type
FILE: Final = "file"  # the format of files: bytes that no method uses
SLOT: Final = "slot"  # the format of slots: no bytes; zeros until somebody fills them
PACKED: Final = "packed/"  # prefix of the formats of packed data
FILES: Final = "files/"  # prefix of the names of files

_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")


def is_plain_name(name: str) -> bool:
    """Tell whether a bundle may contain a file of this name: no path, no folders."""
    return _PLAIN_NAME.fullmatch(name) is not None


def named_file(name: str, nbytes: int, blob: int) -> NamedData:
    """Return the named data of an added file, from the id of the file's blob."""
    kind = TensorType(DType.UINT8, (nbytes,))
    return NamedData(FILES + name, blob, kind, FILE, "file")


def is_packed(named: NamedData) -> bool:
    """Tell whether named data is packed: a copy of other data in a backend's form."""
    return named.format not in (PLAIN, FILE, SLOT)


def count_unpacked(program: Program) -> int:
    """Return the number of named data that are not packed; packed data comes last."""
    for index, named in enumerate(program.names):
        if is_packed(named):
            return index
    return len(program.names)


def constants_of(graph: Graph) -> set[int]:
    """Return the ids of the named data that a graph's values refer to."""
    return {
        value.storage.name
        for value in graph.values
        if isinstance(value.storage, Constant)
    }


def methods_of_blobs(program: Program) -> Mapping[int, tuple[str, ...]]:
    """Return, for each blob id, the names of the methods that use the blob.

    A method also uses the blobs of its delegates. The methods of all recipes count.
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
