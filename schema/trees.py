"""Nested containers of arguments and results, as JSON text and flat leaves.

A tree is a tuple, a list, a dict with string keys, a record (`kvc.schema.records`), a
constant (None, bool, int, float, str) or a leaf. The caller defines which objects are
leaves. Leaves are numbered in the order in which a walk through the tree meets them;
the walk follows the order of the keys in a dict. In JSON a leaf is its number, and
everything else is an object with one key: {"tuple": [...]}, {"list": [...]}, {"dict":
[[key, tree], ...]}, {KIND: [name, [[field, tree], ...]]} for a record, {"constant":
value}, or {"scalar": leaf} for a tensor without dims that a method returns as a Python
number. `kvc.schema.verify.trees` checks such a text.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, cast

from kvc.schema.records import (
    KINDS,
    RecordType,
    check_record,
    named_values,
    record_type,
    values_of,
)

Leaf = object
IsLeaf = Callable[[object], bool]
Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


def any_leaf(thing: object) -> bool:
    """Tell whether an object is a leaf: neither container nor constant."""
    known = (tuple, list, dict, bool, int, float, str, type(None))
    return not isinstance(thing, known) and record_type(thing) is None


class Scalar:
    """A mark around a leaf of a structure: the leaf is returned as a Python number."""

    __slots__ = ("leaf",)

    def __init__(self, leaf: Leaf) -> None:
        self.leaf = leaf


def flatten(
    structure: object, is_leaf: IsLeaf = any_leaf
) -> tuple[tuple[Leaf, ...], str]:
    """Return the leaves of a structure, and the structure's tree as JSON text.

    Raises:
        ValueError: the structure holds an object that is no leaf, container or
            constant.
    """
    leaves: list[Leaf] = []
    tree = _describe(structure, is_leaf, leaves, "result")
    return tuple(leaves), _dump(tree)


def _dump(tree: Json) -> str:
    return json.dumps(tree, separators=(",", ":"), ensure_ascii=True)


def _describe(thing: object, is_leaf: IsLeaf, leaves: list[Leaf], path: str) -> Json:
    if isinstance(thing, Scalar):
        return {"scalar": _describe(thing.leaf, is_leaf, leaves, path)}
    if is_leaf(thing):
        leaves.append(thing)
        return len(leaves) - 1
    kind = record_type(thing)
    if kind is not None:
        try:
            check_record(kind.kind, kind.name, kind.fields)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
        values = dict(zip(kind.fields, values_of(thing, kind), strict=True))
        return {kind.kind: [kind.name, _describe_dict(values, is_leaf, leaves, path)]}
    if isinstance(thing, (tuple, list)):
        items: list[Json] = [
            _describe(item, is_leaf, leaves, f"{path}[{i}]")
            for i, item in enumerate(thing)
        ]
        return {"tuple" if isinstance(thing, tuple) else "list": items}
    if isinstance(thing, dict):
        return {"dict": _describe_dict(thing, is_leaf, leaves, path)}
    if thing is None or isinstance(thing, (bool, int, float, str)):
        return {"constant": thing}
    raise ValueError(
        f"{path}: a {type(thing).__name__} cannot be an argument or result"
    )


def _describe_dict(
    thing: Mapping[Any, object], is_leaf: IsLeaf, leaves: list[Leaf], path: str
) -> list[Json]:
    pairs: list[Json] = []
    for key, value in thing.items():
        if not isinstance(key, str):
            raise ValueError(f"{path}: the key {key!r} is not text")
        pairs.append([key, _describe(value, is_leaf, leaves, member(path, key))])
    return pairs


def member(path: str, key: object) -> str:
    """Return the path of a member of the dict or record at `path`: `past.key`."""
    if isinstance(key, str) and key.isidentifier():
        return f"{path}.{key}" if path else key
    return f"{path}[{key!r}]"


def unflatten(tree_text: str, leaves: Sequence[Leaf]) -> object:
    """Return the structure that a tree describes, with the given leaves in it."""
    return _build(_load(tree_text), leaves)


@lru_cache(maxsize=256)
def _load(tree_text: str) -> Json:
    """Parse the JSON text of a tree; the result is cached, so do not change it."""
    return cast(Json, json.loads(tree_text))


def _build(tree: Json, leaves: Sequence[Leaf]) -> object:
    if isinstance(tree, int):
        return leaves[tree]
    ((kind, content),) = cast(dict[str, Json], tree).items()
    if kind == "constant":
        return content
    if kind == "scalar":
        return cast(Any, leaves[cast(int, content)]).item()
    items = cast(list[Json], content)
    if kind == "dict":
        pairs = [cast(list[Json], item) for item in items]
        return {cast(str, key): _build(value, leaves) for key, value in pairs}
    if kind in KINDS:
        record, values = _read_record(kind, items)
        return record.made([_build(value, leaves) for value in values])
    built = [_build(item, leaves) for item in items]
    return tuple(built) if kind == "tuple" else built


def _read_record(kind: str, content: list[Json]) -> tuple[RecordType, list[Json]]:
    """Return the type of a record's tree, and the trees of its fields."""
    name, pairs = content
    fields = [cast(list[Json], pair) for pair in cast(list[Json], pairs)]
    names = tuple(cast(str, field) for field, _ in fields)
    return RecordType(kind, cast(str, name), names), [value for _, value in fields]


def match(tree_text: str, structure: object, path: str = "result") -> list[Leaf]:
    """Return the leaves of a structure, which must be nested as a tree describes.

    Raises:
        ValueError: the nesting differs; the message begins with the path at which it
            differs.
    """
    leaves: list[Leaf] = []
    _match(_load(tree_text), structure, path, leaves)
    return leaves


def _match(tree: Json, thing: object, path: str, leaves: list[Leaf]) -> None:
    if isinstance(tree, int):
        if isinstance(thing, (tuple, list, dict, str, type(None))):
            found = f"{_say(thing)}; pass a numpy array or a torch tensor"
            raise ValueError(f"{path}: expected a tensor, got {found}")
        leaves.append(thing)
        return
    ((kind, content),) = cast(dict[str, Json], tree).items()
    if kind == "constant":
        if type(thing) is not type(content) or not _same(thing, content):
            wanted = f"{path}: this program was compiled for {content!r}"
            advice = "compile a method for each value, or let it be a tensor"
            raise ValueError(f"{wanted}, got {_say(thing)}; {advice}")
    elif kind == "scalar":
        leaves.append(thing)
    elif kind == "dict":
        _match_dict(cast(list[list[Json]], content), thing, path, leaves)
    elif kind in KINDS:
        _match_record(kind, cast(list[Json], content), thing, path, leaves)
    else:
        _match_items(kind, cast(list[Json], content), thing, path, leaves)


def _same(a: object, b: object) -> bool:
    return a == b or (a != a and b != b)


def _match_items(
    kind: str, trees: list[Json], thing: object, path: str, leaves: list[Leaf]
) -> None:
    if not isinstance(thing, (tuple, list)) or len(thing) != len(trees):
        raise ValueError(
            f"{path}: expected a {kind} of {len(trees)}, got {_say(thing)}"
        )
    for i, (tree, item) in enumerate(zip(trees, thing, strict=True)):
        _match(tree, item, f"{path}[{i}]", leaves)


def _match_dict(
    pairs: list[list[Json]], thing: object, path: str, leaves: list[Leaf]
) -> None:
    keys = [cast(str, key) for key, _ in pairs]
    if not isinstance(thing, Mapping) or thing.keys() != set(keys):
        wanted = ", ".join(map(repr, keys)) or "no keys"
        raise ValueError(f"{path}: expected a dict with {wanted}, got {_say(thing)}")
    for key, (_, tree) in zip(keys, pairs, strict=True):
        _match(tree, thing[key], member(path, key), leaves)


def _match_record(
    kind: str, content: list[Json], thing: object, path: str, leaves: list[Leaf]
) -> None:
    """Collect the leaves of an object that must have the fields of a record.

    The class of the object does not matter.
    """
    record, trees = _read_record(kind, content)
    found = named_values(thing)
    if found is None or found.keys() != set(record.fields):
        raise ValueError(f"{path}: expected a {record}, got {_say(thing)}")
    for name, tree in zip(record.fields, trees, strict=True):
        _match(tree, found[name], member(path, name), leaves)


def _say(thing: object) -> str:
    kind = record_type(thing)
    if kind is not None:
        return f"a {kind}"
    if isinstance(thing, Mapping):
        return f"a dict with {', '.join(map(repr, thing)) or 'no keys'}"
    if isinstance(thing, (tuple, list)):
        return f"a {type(thing).__name__} of {len(thing)}"
    if thing is None or isinstance(thing, (bool, int, float, str)):
        return repr(thing)
    return f"a {type(thing).__name__}"


def describe_call(
    parameter_names: Sequence[str],
    args: Sequence[object],
    kwargs: Mapping[str, object],
    is_leaf: IsLeaf = any_leaf,
) -> tuple[str, tuple[Leaf, ...], tuple[str, ...]]:
    """Describe an example call of a method.

    Args:
        parameter_names: the method's parameters in order, without self.
        args: positional arguments, for the first parameters.
        kwargs: arguments by name.
        is_leaf: tells whether an object is a leaf, such as a tensor.

    Returns:
        The tree as JSON text, its leaves, and a name for each leaf:
        `tokens`, `past[0].key`.

    Raises:
        ValueError: there are too many arguments, an argument is given twice, or an
            argument is not a tree.
    """
    given = _by_name(parameter_names, args, kwargs)
    leaves: list[Leaf] = []
    names: list[str] = []
    arguments: list[Json] = []
    for name in parameter_names:
        if name in given:
            described = _describe(given[name], is_leaf, leaves, name)
            arguments.append([name, described])
            names += _leaf_names(described, name)
    tree: Json = {"parameters": list(parameter_names), "arguments": arguments}
    return _dump(tree), tuple(leaves), tuple(names)


def _leaf_names(tree: Json, path: str) -> list[str]:
    if isinstance(tree, int):
        return [path]
    ((kind, content),) = cast(dict[str, Json], tree).items()
    if kind == "constant":
        return []
    items = cast(list[Json], content)
    if kind in KINDS:
        kind, items = "dict", cast(list[Json], items[1])
    if kind == "dict":
        pairs = [cast(list[Json], item) for item in items]
        nested = [_leaf_names(value, member(path, cast(str, k))) for k, value in pairs]
    else:
        nested = [_leaf_names(item, f"{path}[{i}]") for i, item in enumerate(items)]
    return [name for names in nested for name in names]


def _by_name(
    parameter_names: Sequence[str], args: Sequence[object], kwargs: Mapping[str, object]
) -> dict[str, object]:
    if len(args) > len(parameter_names):
        raise ValueError(
            f"{len(args)} positional arguments, more than it has parameters: "
            f"{', '.join(parameter_names) or 'none'}"
        )
    given = dict(zip(parameter_names, args, strict=False))
    for name, value in kwargs.items():
        if name in given:
            raise ValueError(f"{name}: given twice")
        if name not in parameter_names:
            known = ", ".join(parameter_names) or "none"
            raise ValueError(f"{name}: no such parameter; there are: {known}")
        given[name] = value
    return given


def bind_call(
    tree_text: str,
    args: Sequence[object],
    kwargs: Mapping[str, object],
    optional: int | None = None,
) -> list[Leaf]:
    """Return the leaves of a call's arguments, in the order of the tree.

    Each argument may be passed by position or by name. A caller may leave out an
    argument without tensors, and must leave out an argument that the example call left
    out. If an argument is the leaf `optional`, a caller may leave it out or pass None;
    in both cases the leaf is None.

    Raises:
        ValueError: the call does not fit the tree; the message names the path.
    """
    call: dict[str, list[Any]] = _load(tree_text)  # type: ignore[assignment]
    given = _by_name(call["parameters"], args, kwargs)
    trees: dict[str, Json] = dict(call["arguments"])
    for name in given:
        if name not in trees:
            raise ValueError(f"{name}: this program was compiled without it")
    leaves: list[Leaf] = []
    for name, tree in trees.items():
        if tree == optional and given.get(name) is None:
            leaves.append(None)
        elif name in given:
            _match(tree, given[name], name, leaves)
        elif _leaf_names(tree, name):
            raise ValueError(f"{name}: missing")
    return leaves
