"""Change bundles with bound lists in places that mean something, with right digests.

In: a valid bundle, the number of a case. Out: the bytes of a variant, and the family of
its change: numbers of the columns of bound lists, whole columns and lists, the other
tables that libkvc reads, or raw bytes of the program.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from libkvc_mutations import mutate_lists
from program_mutations import Mutator, mutate_bytes
from sealing import parts, seal

from kvc.schema.bounds import LIST_COLUMNS, TABLE_COLUMNS, BoundList, Bounds, Columns
from kvc.schema.codec import decode, encode
from kvc.schema.model import Program

Change = Callable[[Bounds, random.Random], Bounds]
NUMBERS = (0, 1, 2, 3, 7, 63, 64, 4096, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**60)
FAR = (2**61 - 1, 2**61, 2**62, 2**63 - 1, -(2**63), -(2**61), -1, -2, -64)
FLOATS = (0.0, -1.0, 1e-30, 1e30, np.inf, -np.inf, np.nan)
# Fields of the program that libkvc reads, by how their kinds begin
READ = (
    *("Symbol.", "Program.symbols", "Program.files", "Program.blobs", "Program.names"),
    *("Program.states", "Program.cursors", "Blob.", "NamedData.", "State.", "Cursor."),
    *("Advance.", "Access", "Effect", "Affine", "TensorType", "Type.", "Method.role"),
    *("Method.name", "Method.input", "Method.states", "Method.writes", "Method.adv"),
    *("Window.", "Program.metadata", "Graph.inputs", "Graph.outputs", "Value."),
)


def _near(column: np.ndarray, place: int, dice: random.Random) -> object:
    """Return another number for a place of a column."""
    if column.dtype.kind == "f":
        return dice.choice(FLOATS)
    old, how = int(column[place]), dice.random()
    if how < 0.45:
        return int(column[dice.randrange(len(column))])
    if how < 0.8:
        return old + dice.choice((-64, -8, -2, -1, 1, 1, 2, 8, 64))
    return dice.choice(NUMBERS if how < 0.93 else FAR)


def _put(column: np.ndarray, place: int, number: object) -> np.ndarray:
    made = column.copy()
    if column.dtype.kind == "f":
        made[place] = number
        return made
    size = column.dtype.itemsize
    raw = (int(str(number)) % (1 << 8 * size)).to_bytes(size, "little")
    made[place : place + 1] = np.frombuffer(raw, column.dtype)
    return made


def _resized(column: np.ndarray, dice: random.Random) -> np.ndarray:
    """Return a column in which an entry is lost or doubled, or all are."""
    if not len(column) or dice.random() < 0.1:
        return column[:0]
    place = dice.randrange(len(column))
    if dice.random() < 0.5:
        return np.delete(column, place)
    return np.insert(column, place, column[place])


def _in_column(columns: Columns, name: str, dice: random.Random) -> Columns:
    column = columns[name]
    if not len(column) or dice.random() < 0.04:
        made = _resized(column, dice)
    else:
        place = dice.randrange(len(column))
        made = _put(column, place, _near(column, place, dice))
    return Columns({**columns, name: made})


def _numbers(bounds: Bounds, dice: random.Random) -> Bounds:
    """Change one number of the tables or of a list."""
    which = dice.randrange(len(bounds.lists) + 1)
    if which == len(bounds.lists) or dice.random() < 0.4:
        name = dice.choice(TABLE_COLUMNS)
        return replace(bounds, columns=_in_column(bounds.columns, name, dice))
    one = bounds.lists[which]
    name = dice.choice(LIST_COLUMNS)
    changed = replace(one, columns=_in_column(one.columns, name, dice))
    return _with_list(bounds, which, changed)


def _with_list(bounds: Bounds, which: int, one: BoundList) -> Bounds:
    lists = [*bounds.lists]
    lists[which] = one
    return replace(bounds, lists=tuple(lists))


_RUNS = (("operand", "operands"), ("integer", "integers"), ("number", "numbers"))


def _with_steps(one: BoundList, order: Sequence[int]) -> BoundList:
    """Return a list with these of its steps; what varies of numbers is dropped."""
    columns = dict(one.columns)
    for ends, items in _RUNS:
        stops = one.columns.ints(f"{ends}_ends")
        runs = np.split(one.columns[items], stops[:-1]) if len(stops) else []
        chosen = [runs[i] for i in order]
        empty = one.columns[items][:0]
        columns[items] = np.concatenate([empty, *chosen]).astype(empty.dtype)
        cut = np.cumsum([len(run) for run in chosen]).astype(np.uint32)
        columns[f"{ends}_ends"] = cut
    columns["step_kernels"] = one.columns["step_kernels"][list(order)]
    if len(order) != len(one.columns["step_kernels"]):
        for name in ("varied_numbers", "varied_forms"):
            columns[name] = one.columns[name][:0]
    return replace(one, columns=Columns(columns))


def _steps(bounds: Bounds, dice: random.Random) -> Bounds:
    """Lose, double or swap steps of a list."""
    which = dice.randrange(len(bounds.lists))
    one = bounds.lists[which]
    order = list(range(len(one.columns["step_kernels"])))
    if not order:
        return bounds
    a, b = dice.randrange(len(order)), dice.randrange(len(order))
    how = dice.randrange(4)
    if how == 0:
        del order[a]
    elif how == 1:
        order.insert(b, a)
    elif how == 2:
        order[a], order[b] = order[b], order[a]
    else:
        order = []
    return _with_list(bounds, which, _with_steps(one, order))


def _whole_lists(bounds: Bounds, dice: random.Random) -> Bounds:
    """Lose, double, move or mix up lists, or give one other bounds or another method."""
    lists = [*bounds.lists]
    a, b = dice.randrange(len(lists)), dice.randrange(len(lists))
    how = dice.randrange(7)
    if how == 0:
        del lists[a]
    elif how == 1:
        lists.insert(b, lists[a])
    elif how == 2:
        lists[a], lists[b] = lists[b], lists[a]
    elif how == 3:
        lists[a] = replace(lists[a], method=lists[b].method)
    elif how == 4:
        far = dice.choice((0, 1, 64, 4096, 1 << 20, 1 << 34, (1 << 40) - 1, 1 << 41))
        near = lists[a].scratch_nbytes + dice.choice((-4096, -64, -1, 1, 64, 4096))
        lists[a] = replace(lists[a], scratch_nbytes=dice.choice((far, max(near, 0))))
    elif how == 5:
        name = dice.choice(LIST_COLUMNS)
        other = {**lists[a].columns, name: lists[b].columns[name]}
        lists[a] = replace(lists[a], columns=Columns(other))
    else:
        name = dice.choice(("lowers", "uppers"))
        column = lists[a].columns[name]
        lists[a] = replace(lists[a], columns=_in_column(lists[a].columns, name, dice))
        if len(column) and dice.random() < 0.5:  # the same bounds again, behind
            lists.append(bounds.lists[a])
    return replace(bounds, lists=tuple(lists))


def _names(bounds: Bounds, dice: random.Random) -> Bounds:
    """Change kernels, their version or the identity."""
    how = dice.random()
    if how < 0.1:
        version = bounds.kernels_version + dice.choice((-1, 1))
        return replace(bounds, kernels_version=version)
    if how < 0.25:
        return replace(bounds, identity=mutate_bytes(bounds.identity, dice))
    kernels = [*bounds.kernels]
    a, b = dice.randrange(len(kernels)), dice.randrange(len(kernels))
    others = ("call", "ask", "", "no kernel", *_OTHERS, *_OTHERS, kernels[b])
    if dice.random() < 0.3:
        kernels[a], kernels[b] = kernels[b], kernels[a]
    else:
        kernels[a] = dice.choice(others)
    return replace(bounds, kernels=tuple(kernels))


_OTHERS = (
    *("aten::add.Tensor", "aten::mul.Tensor", "aten::embedding", "aten::index.Tensor"),
    *("kvc::cache_update", "kvc::attention", "aten::mm", "aten::cat", "aten::copy"),
    *("aten::where.self", "aten::arange", "aten::index_select", "aten::gather"),
    *("aten::scatter.src", "aten::sort", "aten::topk", "aten::cumsum", "aten::neg"),
)


class ListMutations:
    """Makes the variants of one bundle."""

    def __init__(self, path: Path) -> None:
        self.name = path.stem
        self.blobs, self.raw = parts(path)
        self._program = decode(self.raw, str(path))
        assert self._program.bounds is not None
        plain = replace(self._program, bounds=None)
        self._mutator = _Tables(plain)

    def content(self, number: int) -> tuple[str, bytes | None]:
        """Return the family of a case and the bytes of its file.

        The bytes are None if no program can be encoded so, or nothing has changed.
        """
        dice = random.Random(f"{self.name} {number}")
        family = dice.choice(list(FAMILIES))
        try:
            raw = FAMILIES[family](self, dice)
        except Exception:  # what cannot be encoded is no file
            return family, None
        return family, None if raw == self.raw else seal(self.blobs, raw)

    def of_bounds(self, change: Change, dice: random.Random) -> bytes:
        """Return a program with other bounds, from one to three changes of a kind."""
        bounds = self._program.bounds
        assert bounds is not None
        for _ in range(dice.choice((1, 1, 1, 2, 3))):
            bounds = change(bounds, dice)
        return encode(replace(self._program, bounds=bounds))

    def of_tables(self, dice: random.Random) -> bytes:
        """Return a program with other tables, and the same bounds."""
        made = self._mutator.mutate(dice)
        return encode(replace(made, bounds=self._program.bounds))

    def of_both(self, dice: random.Random) -> bytes:
        """Return a program with other tables, and other bounds."""
        made, bounds = self._mutator.mutate(dice), self._program.bounds
        assert bounds is not None
        change = dice.choice((_numbers, _steps, _whole_lists))
        return encode(replace(made, bounds=change(bounds, dice)))


class _Tables(Mutator[Program]):
    """A mutator that changes only what libkvc reads."""

    def __init__(self, whole: Program) -> None:
        super().__init__(whole)
        self._kinds = [kind for kind in self._kinds if kind.startswith(READ)]


def _bytes(seed: ListMutations, dice: random.Random) -> bytes:
    raw = seed.raw
    for _ in range(dice.choice((1, 1, 2))):
        raw = mutate_bytes(raw, dice)
    return raw


Family = Callable[[ListMutations, random.Random], bytes]
FAMILIES: Mapping[str, Family] = {
    "numbers": lambda seed, dice: seed.of_bounds(_numbers, dice),
    "raw numbers": lambda seed, dice: mutate_lists(seed.raw, dice),
    "steps": lambda seed, dice: seed.of_bounds(_steps, dice),
    "lists": lambda seed, dice: seed.of_bounds(_whole_lists, dice),
    "names": lambda seed, dice: seed.of_bounds(_names, dice),
    "tables": ListMutations.of_tables,
    "tables and lists": ListMutations.of_both,
    "bytes": _bytes,
}
