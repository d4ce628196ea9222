"""Check the JSON texts of trees, which come from files and are not trusted.

In: a text that should have the form that `kvc.schema.trees` writes. Out: the number of
leaves of the tree, or the first error.
"""

import json
from collections.abc import Sequence
from typing import Final, cast

from kvc.schema.records import KINDS, check_record
from kvc.schema.trees import Json

MAX_DEPTH: Final = 32


def check_tree(tree_text: str) -> tuple[int, Sequence[int]]:
    """Check the JSON text of a tree of arguments or results.

    Returns:
        The number of leaves; and the indices of the leaves that callers get as Python
        numbers instead of tensors.

    Raises:
        ValueError: `flatten` would not write this text.
    """
    counter = _Counter()
    counter.visit(_parse(tree_text), 0)
    return counter.leaves, counter.scalars


def check_call_tree(tree_text: str) -> int:
    """Check the JSON text of a call's tree, and return the number of leaves.

    Raises:
        ValueError: `describe_call` would not write this text.
    """
    call, counter = _parse(tree_text), _Counter()
    if not isinstance(call, dict) or call.keys() != {"parameters", "arguments"}:
        raise ValueError("the tree of a call has other parts")
    names, pairs = call["parameters"], call["arguments"]
    if not isinstance(names, list) or not all(isinstance(n, str) for n in names):
        raise ValueError("the tree of a call has bad parameters")
    counter.visit({"dict": pairs}, 0)
    given = [cast(list[Json], pair)[0] for pair in cast(list[Json], pairs)]
    if given != [name for name in names if name in given] or len(set(names)) < len(
        names
    ):
        raise ValueError("the tree of a call has other arguments than parameters")
    if counter.scalars:
        raise ValueError("the tree of a call has numbers that are tensors")
    return counter.leaves


def _parse(tree_text: str) -> Json:
    try:
        return cast(Json, json.loads(tree_text))
    except RecursionError as error:
        raise ValueError("a tree is nested too deeply") from error


class _Counter:
    """Walker that counts the leaves of a tree; they must be numbered in order."""

    def __init__(self) -> None:
        self.leaves = 0
        self.scalars: list[int] = []

    def visit(self, tree: Json, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise ValueError("a tree is nested too deeply")
        if isinstance(tree, int) and not isinstance(tree, bool):
            if tree != self.leaves:
                raise ValueError("leaves of a tree are not in order")
            self.leaves += 1
            return
        if not isinstance(tree, dict) or len(tree) != 1:
            raise ValueError("a tree has an unknown part")
        ((kind, content),) = tree.items()
        if kind in ("constant", "scalar"):
            self._visit_single(kind, content, depth)
            return
        known = ("tuple", "list", "dict", *KINDS)
        if kind not in known or not isinstance(content, list):
            raise ValueError("a tree has an unknown part")
        if kind in KINDS:
            if len(content) != 2 or not isinstance(content[1], list):
                raise ValueError("a tree has a record that is none")
            values = self._values(content[1])
            names = [cast(list[Json], pair)[0] for pair in content[1]]
            check_record(kind, content[0], names)
            content = values
        for item in self._values(content) if kind == "dict" else content:
            self.visit(item, depth + 1)

    def _visit_single(self, kind: str, content: Json, depth: int) -> None:
        if kind == "constant":
            if isinstance(content, (list, dict)):
                raise ValueError("a tree has a constant that is none")
            return
        if isinstance(content, bool) or not isinstance(content, int):
            raise ValueError("a tree has a number that is no leaf")
        self.scalars.append(content)
        self.visit(content, depth + 1)

    def _values(self, pairs: list[Json]) -> list[Json]:
        keys: list[object] = []
        values: list[Json] = []
        for pair in pairs:
            if (
                not isinstance(pair, list)
                or len(pair) != 2
                or not isinstance(pair[0], str)
            ):
                raise ValueError("a tree has a dict that is none")
            keys.append(pair[0])
            values.append(pair[1])
        if len(set(map(str, keys))) != len(keys):
            raise ValueError("a tree has a key twice")
        return values
