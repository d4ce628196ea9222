"""Types of values: a dtype and dimensions, which may be symbolic.

A dimension is a plain int or an `Affine` expression of bounded `Symbol`s. Both
sides use these types: the compiler's IR and the decoded file.
"""

import math
from collections.abc import Iterable, KeysView, Mapping
from dataclasses import dataclass

from kvc.schema.dtypes import DType


@dataclass(frozen=True, slots=True)
class Symbol:
    """A size that is known only at run time, within inclusive bounds."""

    name: str
    lower: int
    upper: int


@dataclass(frozen=True, slots=True)
class Affine:
    """`constant + sum(coefficient * symbol)`; at least one term, sorted by name.

    Attributes:
        constant: the part that no symbol scales.
        terms: (symbol name, coefficient that is not 0), sorted by name.
    """

    constant: int
    terms: tuple[tuple[str, int], ...]

    def evaluate(self, sizes: Mapping[str, int]) -> int:
        """Return the value under `sizes`, which maps each symbol's name to a size."""
        return self.constant + sum(c * sizes[name] for name, c in self.terms)

    def __str__(self) -> str:
        parts = [name if c == 1 else f"{c}*{name}" for name, c in self.terms]
        if self.constant:
            parts.append(str(self.constant))
        return "+".join(parts).replace("+-", "-")


Dim = int | Affine


def affine(constant: int, terms: Mapping[str, int]) -> Dim:
    """Return the canonical dimension: an int when no symbol is left."""
    kept = tuple(sorted((name, c) for name, c in terms.items() if c))
    return Affine(constant, kept) if kept else constant


def evaluate(dim: Dim, sizes: Mapping[str, int]) -> int:
    """Return a dimension's size under `sizes`."""
    return dim if isinstance(dim, int) else dim.evaluate(sizes)


def add_dims(a: Dim, b: Dim, factor: int = 1) -> Dim:
    """Return `a + factor * b`."""
    terms = dict(a.terms) if isinstance(a, Affine) else {}
    for name, coefficient in b.terms if isinstance(b, Affine) else ():
        terms[name] = terms.get(name, 0) + factor * coefficient
    numbers = [d.constant if isinstance(d, Affine) else d for d in (a, b)]
    return affine(numbers[0] + factor * numbers[1], terms)


def count_from_front(place: Dim, size: Dim) -> Dim:
    """Return a place of an axis as counted from its front; only ints count back."""
    from_back = isinstance(place, int) and place < 0
    return add_dims(size, place) if from_back else place


def settle_symbol(dim: Dim, size: int, sizes: dict[str, int]) -> None:
    """Add the size of the only symbol of a dim that `sizes` lacks, given the dim's.

    A size that does not divide is rounded down: the dim is then another one.
    """
    if not isinstance(dim, Affine):
        return
    unknown = [(name, c) for name, c in dim.terms if name not in sizes]
    if len(unknown) == 1:
        name, coefficient = unknown[0]
        known = sum(c * sizes[n] for n, c in dim.terms if n != name)
        sizes[name] = (size - dim.constant - known) // coefficient


def bounds(dim: Dim, symbols: Mapping[str, Symbol]) -> tuple[int, int]:
    """Return the inclusive least and greatest size that a dimension can have."""
    if isinstance(dim, int):
        return dim, dim
    low = high = dim.constant
    for name, coefficient in dim.terms:
        ends = (symbols[name].lower * coefficient, symbols[name].upper * coefficient)
        low, high = low + min(ends), high + max(ends)
    return low, high


def symbols_of(dims: Iterable[Dim]) -> KeysView[str]:
    """Return the names of the symbols in dims, in order, each once."""
    sizes = [dim for dim in dims if isinstance(dim, Affine)]
    return dict.fromkeys(name for dim in sizes for name, _ in dim.terms).keys()


@dataclass(frozen=True, slots=True)
class TensorType:
    """The dtype and dimensions of a contiguous tensor; `dims` is () for a scalar."""

    dtype: DType
    dims: tuple[Dim, ...]

    def shape(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Return the dimensions under `sizes`."""
        return tuple(evaluate(dim, sizes) for dim in self.dims)

    def nbytes(self, sizes: Mapping[str, int]) -> int:
        """Return the size in bytes under `sizes`."""
        return math.prod(self.shape(sizes)) * self.dtype.itemsize

    def max_nbytes(self, symbols: Mapping[str, Symbol]) -> int:
        """Return the size in bytes with every dimension at its upper bound."""
        upper = (bounds(dim, symbols)[1] for dim in self.dims)
        return math.prod(upper) * self.dtype.itemsize

    @property
    def is_static(self) -> bool:
        """Tell whether no dimension is symbolic."""
        return all(isinstance(dim, int) for dim in self.dims)

    def __str__(self) -> str:
        return f"{self.dtype.label}[{', '.join(str(dim) for dim in self.dims)}]"


def symbols_in(types: Iterable[TensorType]) -> KeysView[str]:
    """Return the names of the symbols in types, in order, each once."""
    return symbols_of(dim for kind in types for dim in kind.dims)
