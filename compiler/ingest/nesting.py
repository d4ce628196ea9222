"""Paths into nested containers, and containers without some of their members.

A path is written as `kvc.schema.trees` writes it: "past[0].key"; the path of a member
of the outermost dict is its key, that of the outermost thing itself is "".
"""

from collections.abc import Iterator, Set
from dataclasses import replace

from kvc.schema.records import record_type, values_of
from kvc.schema.trees import Scalar, member

GONE = object()  # what is left of a container when all of it is taken out


def leaves(
    structure: object, kind: type, path: str = ""
) -> Iterator[tuple[str, object]]:
    """Yield (path, leaf) for all leaves of a kind, in order."""
    if isinstance(structure, Scalar):
        structure = structure.leaf
    if isinstance(structure, kind):
        yield path, structure
    else:
        for within, item in _items(structure, path):
            yield from leaves(item, kind, within)


def _items(structure: object, path: str) -> Iterator[tuple[str, object]]:
    kind = record_type(structure)
    if kind is not None:
        for name, value in zip(kind.fields, values_of(structure, kind), strict=True):
            yield member(path, name), value
    elif isinstance(structure, dict):
        for key, item in structure.items():
            yield member(path, key), item
    elif isinstance(structure, tuple | list):
        for i, item in enumerate(structure):
            yield f"{path}[{i}]", item


def without(structure: object, gone: Set[str], path: str = "") -> object:
    """Return a structure without what lies at some paths.

    A container of which nothing is left goes too; GONE when all of it does. What comes
    after it in a list or tuple moves up.
    """
    if path in gone:
        return GONE
    items = [without(item, gone, within) for within, item in _items(structure, path)]
    if not items:
        return structure
    return GONE if all(i is GONE for i in items) else _rebuilt(structure, items)


def _rebuilt(structure: object, items: list[object]) -> object:
    """Return a container with other items, GONE ones left out."""
    kind = record_type(structure)
    if kind is not None:
        left = {
            name: item
            for name, item in zip(kind.fields, items, strict=True)
            if item is not GONE
        }
        return replace(kind, fields=tuple(left)).made(list(left.values()))
    if isinstance(structure, dict):
        pairs = zip(structure, items, strict=True)
        return {key: item for key, item in pairs if item is not GONE}
    kept = [item for item in items if item is not GONE]
    return kept if isinstance(structure, list) else tuple(kept)


def beneath(path: str, root: str) -> bool:
    """Tell whether a path is another one, or leads into its container."""
    return not root or path == root or path.startswith((f"{root}[", f"{root}."))


def relative(path: str, root: str) -> str:
    """Return the rest of a path beneath a root."""
    return path.removeprefix(root).removeprefix(".")
