"""Bound lists changed a column at a time, with right digests.

In: the lists of a bundle. Out: others, which a file may have: every number fits its
column, but it need not mean anything. `mutated` gives the same for the same numbers.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from listed_bundles import changed_list, changed_tables

from kvc.schema.bounds import LIST_COLUMNS, TABLE_COLUMNS, Bounds, Columns, Numbers

NUMBERS = (0, 1, 2, 3, 4, 7, 8, 255, 4096, 1 << 20, (1 << 31) - 1, (1 << 32) - 1)
LARGE = (1 << 40, 1 << 60, 1 << 61, (1 << 62) + 1, -1, -2, -4, -8, -(1 << 60))
NARROW = {"operand_regions": 7, "layout_dtypes": 10}  # how many numbers mean something
Change = Callable[[Numbers, str, random.Random], Numbers]


def _fitting(column: Numbers, number: int) -> int:
    """Return a number of the column's dtype, wrapped if it is too large."""
    info = np.iinfo(column.dtype)
    return (number - int(info.min)) % (1 << info.bits) + int(info.min)


def _set(column: Numbers, name: str, dice: random.Random) -> Numbers:
    """Set a number to one nearby, to one of the column, or to any."""
    if not column.size:
        return column
    made, place = column.copy(), dice.randrange(column.size)
    if column.dtype.kind == "f":
        made[place] = dice.choice((0.0, -1.0, 1e-30, 1e30, np.inf, np.nan))
        return made
    kind, old = dice.random(), int(column[place])
    if name in NARROW and kind < 0.7:
        new = dice.randrange(NARROW[name])
    elif kind < 0.45:
        new = int(dice.choice(column.tolist()))
    elif kind < 0.8:
        new = old + dice.choice((-64, -8, -4, -2, -1, 1, 2, 4, 8, 64))
    else:
        new = dice.choice(NUMBERS + LARGE)
    made[place] = _fitting(column, new)
    return made


def _swap(column: Numbers, name: str, dice: random.Random) -> Numbers:
    if column.size < 2:
        return column
    made = column.copy()
    i, j = dice.sample(range(column.size), 2)
    made[i], made[j] = column[j], column[i]
    return made


def _resize(column: Numbers, name: str, dice: random.Random) -> Numbers:
    """Leave a number out, or repeat one."""
    place = dice.randrange(column.size + 1)
    if dice.random() < 0.5:
        return np.concatenate([column[:place], column[place + 1 :]])
    return np.concatenate([column[:place], column[max(0, place - 1) :]])


def _step_out(bounds: Bounds, number: int, dice: random.Random) -> Bounds:
    """Leave a step of a list out, or run it twice."""
    one = bounds.lists[number].columns
    if not len(one["step_kernels"]):
        return bounds
    step = dice.randrange(len(one["step_kernels"]))
    again = dice.choice((0, 2))
    changes: dict[str, object] = {}
    kept = [*range(step), *[step] * again, *range(step + 1, len(one["step_kernels"]))]
    changes["step_kernels"] = one["step_kernels"][kept]
    for ends, items in (
        ("operand_ends", "operands"),
        ("integer_ends", "integers"),
        ("number_ends", "numbers"),
    ):
        runs = np.split(one[items], one[ends][:-1])
        runs = [runs[i] for i in kept]
        joined = np.concatenate(runs) if runs else one[items][:0]
        changes[items] = joined.astype(one[items].dtype)
        changes[ends] = np.cumsum([len(run) for run in runs]).astype(one[ends].dtype)
    return changed_list(bounds, number, **changes)


def _kernels(bounds: Bounds, dice: random.Random) -> Bounds:
    """Rename a kernel: to another, to one that there is not, or to one not allowed."""
    names = list(bounds.kernels)
    place = dice.randrange(len(names))
    others = ["aten::add.Tensor", "aten::mul.Tensor", "aten::tanh", "aten::cumsum"]
    names[place] = dice.choice([*names, *others, "call", "ask", "", "none", "mm"])
    return replace(bounds, kernels=tuple(names))


def _scalars(bounds: Bounds, dice: random.Random) -> Bounds:
    """Change what is no column."""
    number = dice.randrange(len(bounds.lists))
    one, lists = bounds.lists[number], list(bounds.lists)
    match dice.randrange(7):
        case 0:
            nbytes = one.scratch_nbytes
            near = nbytes + dice.choice((-4096, -64, -8, -4, -1, 1, 64))
            odd = dice.choice((0, 1, nbytes // 2, 1 << 34, 1 << 40, (1 << 40) + 1))
            new = dice.choice((near, odd, (1 << 64) - 1))
            lists[number] = replace(one, scratch_nbytes=max(0, new))
        case 1:
            lists[number] = replace(one, method=dice.choice((0, 1, 2, 64, 1 << 31)))
        case 2:
            lists[number] = dice.choice(lists)
        case 3:
            del lists[number]
        case 4:
            return replace(bounds, identity=dice.randbytes(dice.choice((0, 31, 32))))
        case 5:
            return replace(bounds, kernels_version=dice.choice((0, 1, (1 << 32) - 1)))
        case _:
            dice.shuffle(lists)
    return replace(bounds, lists=tuple(lists))


def _columns(bounds: Bounds, dice: random.Random) -> Bounds:
    """Change a column of the tables or of a list."""
    change: Change = dice.choices((_set, _swap, _resize), (8, 2, 1))[0]
    if not bounds.lists or dice.random() < 0.5:
        name = dice.choice(TABLE_COLUMNS)
        own = change(bounds.columns[name], name, dice)
        return changed_tables(bounds, **{name: own})
    number, name = dice.randrange(len(bounds.lists)), dice.choice(LIST_COLUMNS)
    own = change(bounds.lists[number].columns[name], name, dice)
    return changed_list(bounds, number, **{name: own})


def mutated(bounds: Bounds, seed: int, number: int) -> Bounds:
    """Return lists with one to three changes; they differ from `bounds`."""
    dice = random.Random(seed << 32 | number)
    made = bounds
    for _ in range(dice.choices((1, 2, 3), (6, 2, 1))[0]):
        kind = dice.random()
        if kind < 0.85 or not made.lists:
            made = _columns(made, dice)
        elif kind < 0.90:
            made = _step_out(made, dice.randrange(len(made.lists)), dice)
        elif kind < 0.94:
            made = _kernels(made, dice)
        else:
            made = _scalars(made, dice)
    return mutated(bounds, seed, number + (1 << 24)) if made == bounds else made


def differences(bounds: Bounds, other: Bounds) -> list[str]:
    """Return what differs, in words."""
    facts = ("kernels_version", "identity", "kernels")
    found = _other_facts("", facts, bounds, other)
    found += _differing("", bounds.columns, other.columns)
    if len(bounds.lists) != len(other.lists):
        found.append(f"{len(other.lists)} lists")
    for number, (one, two) in enumerate(zip(bounds.lists, other.lists, strict=False)):
        where = f"[{number}] "
        found += _other_facts(where, ("method", "scratch_nbytes"), one, two)
        found += _differing(where, one.columns, two.columns)
    return found


def _other_facts(
    where: str, names: Sequence[str], one: object, two: object
) -> list[str]:
    both = [(name, getattr(one, name), getattr(two, name)) for name in names]
    return [f"{where}{name}: {b!r}"[:300] for name, a, b in both if a != b]


def _differing(where: str, columns: Columns, others: Columns) -> list[str]:
    found = []
    for name in columns:
        old, new = columns[name].tolist(), others[name].tolist()
        if len(old) != len(new):
            found.append(f"{where}{name}: {len(old)} -> {len(new)} numbers")
            continue
        changed = [i for i, a in enumerate(old) if repr(a) != repr(new[i])]
        found += [f"{where}{name}[{i}]: {old[i]} -> {new[i]}" for i in changed]
    return found
