"""Bound lists: methods as flat lists of steps for native kernels, as a bundle has them.

A list says everything that binding finds out, for all sizes of symbols within bounds:
kernels, and where each operand lies in memory that is named, not addressed. Columns are
those of the tables `Bounds` and `BoundList` in `program.fbs`; FORMAT.md tells what they
mean. `evaluate_forms` returns the numbers that forms have at some sizes.
"""

from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kvc.schema.frozen import frozen

Numbers = NDArray[np.generic]
Ints = NDArray[np.int64]

# Kernels that look rows up: result, table, and indices last
LOOKUPS: Final = ("aten::embedding", "kvc::embedding_q8")
_CHOICE: Final = "aten::where.self"  # which replaces what pads a row
TABLE_COLUMNS: Final = (
    "form_constants", "term_ends", "term_factors", "term_products", "product_ends",
    "product_symbols", "layout_dtypes", "layout_ends", "layout_dims", "layout_strides",
    "operand_regions", "operand_places", "operand_offsets", "operand_layouts",
)  # fmt: skip
LIST_COLUMNS: Final = (
    "lowers", "uppers", "cursor_fields", "cursor_counts", "step_kernels",
    "operand_ends", "operands", "integer_ends", "integers", "number_ends", "numbers",
    "varied_numbers", "varied_forms", "inputs", "outputs",
)  # fmt: skip


class RegionKind(IntEnum):
    """What the memory of an operand is; the numbers of `program.fbs`."""

    ABSENT = 0
    CONSTANT = 1
    STATE = 2
    SCRATCH = 3
    CURSOR = 4
    CALLER = 5
    FILLED = 6


class Columns(Mapping[str, Numbers]):
    """Read-only arrays by name; equal if all bytes are equal."""

    def __init__(self, arrays: Mapping[str, Numbers]) -> None:
        self._arrays = dict(arrays)

    def __getitem__(self, name: str) -> Numbers:
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Columns) and self._bytes() == other._bytes()

    def __hash__(self) -> int:
        return hash(tuple(self._bytes().items()))

    def _bytes(self) -> dict[str, bytes]:
        return {name: array.tobytes() for name, array in self._arrays.items()}

    def ints(self, name: str) -> Ints:
        """Return a column of integers, int64."""
        return self._arrays[name].astype(np.int64)

    @property
    def nbytes(self) -> int:
        """Return how many bytes the arrays take."""
        return sum(array.nbytes for array in self._arrays.values())


@frozen
class BoundList:
    """The steps of a method at all sizes within bounds.

    Attributes:
        method: id of the method.
        scratch_nbytes: the size of the region `SCRATCH`.
        columns: the vectors of the table, by name.
    """

    method: int
    scratch_nbytes: int
    columns: Columns


@frozen
class Bounds:
    """All bound lists of a program, and what they refer to by number.

    Attributes:
        kernels_version: the version of the native kernels that the lists are for.
        identity: the identity of the program, SHA-256, for programs without a graph.
        kernels: the names of kernels.
        columns: the vectors of the table, by name.
        lists: the lists; several of one method have different bounds.
    """

    kernels_version: int
    identity: bytes
    kernels: tuple[str, ...]
    columns: Columns
    lists: tuple[BoundList, ...]

    @property
    def scratch_nbytes(self) -> int:
        """Return the size of the region `SCRATCH` that is enough for any list."""
        return max(one.scratch_nbytes for one in self.lists)

    def find(self, method: int, sizes: Ints) -> BoundList | None:
        """Return the first list of a method for the sizes of all symbols, or None."""
        for one in self.lists:
            lowers, uppers = one.columns.ints("lowers"), one.columns.ints("uppers")
            if one.method == method and np.all((lowers <= sizes) & (sizes <= uppers)):
                return one
        return None


def listed_vocabulary(bounds: Bounds, method: int) -> int | None:
    """Return the row count of the first table that a method's first input indexes.

    Returns None if the method has no list, or no step of it looks tokens up.
    """
    tables = bounds.columns
    places = list(
        zip(
            tables["operand_regions"].tolist(),
            tables["operand_places"].tolist(),
            tables["operand_offsets"].tolist(),
            strict=True,
        )
    )
    for one in bounds.lists:
        if one.method == method:
            found = {places[one.columns["inputs"][0]]}
            for kernel, run in _steps(one):
                name = bounds.kernels[kernel]
                reads = found & {places[i] for i in run[1:]}
                if name == _CHOICE and reads:
                    found.add(places[run[0]])
                elif name in LOOKUPS and len(run) > 2 and places[run[-1]] in found:
                    return _first_dim(tables, run[1])
    return None


def _steps(one: BoundList) -> Iterator[tuple[int, list[int]]]:
    """Yield the kernel of each step and its operands."""
    operands, start = one.columns["operands"].tolist(), 0
    kernels, ends = one.columns["step_kernels"], one.columns["operand_ends"]
    for kernel, end in zip(kernels.tolist(), ends.tolist(), strict=True):
        yield kernel, operands[start:end]
        start = end


def _first_dim(tables: Columns, operand: int) -> int | None:
    """Return the first dim of an operand that does not follow sizes, None without."""
    if tables["operand_regions"][operand] == RegionKind.ABSENT:
        return None
    layout = int(tables["operand_layouts"][operand])
    first = int(tables["layout_ends"][layout - 1]) if layout else 0
    if first == tables["layout_ends"][layout]:
        return None
    return int(tables["form_constants"][tables["layout_dims"][first]])


def evaluate_forms(columns: Columns, sizes: Ints) -> Ints:
    """Return the value of each form at some sizes, int64 [forms].

    Args:
        columns: those of `Bounds`, checked.
        sizes: the size of each symbol, then the lengths of callers' arrays, int64.

    Raises:
        OverflowError: a value that follows sizes has more than 61 bits.
    """
    constants, factors = columns["form_constants"], sizes.astype(np.float64)
    varied = np.diff(columns.ints("term_ends"), prepend=0) > 0
    near = constants.astype(np.float64) + _sums(columns, factors)
    if np.any(np.abs(near[varied]) >= 2.0**61):
        raise OverflowError("a number of a bound list has more than 61 bits")
    found: Ints = constants + _sums(columns, sizes)
    return found


def _sums(columns: Columns, sizes: Any) -> Any:  # noqa: ANN401  int64 or float64
    """Return the sum of the terms of each form."""
    multiplied = sizes[columns["product_symbols"]]
    products = _of_runs(np.multiply, multiplied, columns["product_ends"])
    terms = columns["term_factors"] * products[columns["term_products"]]
    return _of_runs(np.add, terms, columns["term_ends"])


def _of_runs(combine: np.ufunc, items: Numbers, ends: Numbers) -> Numbers:
    """Return what `combine` makes of each run of items; 0 of an empty run."""
    stops = ends.astype(np.int64)
    starts = np.concatenate([np.zeros(1, np.int64), stops[:-1]])
    found = np.zeros(len(stops), items.dtype)
    there = starts < stops
    if np.any(there):
        found[there] = combine.reduceat(items, starts[there])
    return found
