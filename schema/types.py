"""Types of values: a dtype and dimensions, which may be symbolic.

A dimension is a plain int or an `Affine` expression of bounded `Symbol`s. Both
sides use these types: the compiler's IR and the decoded file.
"""

import math
from collections.abc import Iterable, Iterator, KeysView, Mapping
from itertools import product
from typing import Final

from kvc.schema.dtypes import DType
from kvc.schema.frozen import frozen


@frozen
class Symbol:
    """A size that is known only at run time, within inclusive bounds."""

    name: str
    lower: int
    upper: int


MAX_MULTIPLIED: Final = 4  # symbols in the products of one expression

Terms = tuple[tuple[str, int], ...]
Products = tuple[tuple[tuple[str, ...], int], ...]


@frozen
class Affine:
    """`constant + sum(coefficient * symbol) + sum(coefficient * product of symbols)`.

    The symbols of a product differ, so that the expression is affine in each symbol:
    its bounds lie at the bounds of symbols, and it can be solved for any one of them.
    There is at least one term or product.

    Attributes:
        constant: the part that no symbol scales.
        terms: (symbol name, coefficient that is not 0), sorted by name.
        products: (names of two symbols or more, sorted; coefficient that is not 0),
            sorted by names.
    """

    constant: int
    terms: Terms
    products: Products = ()

    @property
    def symbols(self) -> KeysView[str]:
        """Return the names of its symbols, each once."""
        names = [name for name, _ in self.terms]
        names += [name for factors, _ in self.products for name in factors]
        return dict.fromkeys(names).keys()

    @property
    def multiplied(self) -> KeysView[str]:
        """Return the names of the symbols in its products, each once."""
        names = (name for factors, _ in self.products for name in factors)
        return dict.fromkeys(names).keys()

    def evaluate(self, sizes: Mapping[str, int]) -> int:
        """Return the value under `sizes`, which maps each symbol's name to a size."""
        size = self.constant + sum(c * sizes[name] for name, c in self.terms)
        for names, c in self.products:
            size += c * math.prod(sizes[name] for name in names)
        return size

    def __str__(self) -> str:
        products = [("*".join(names), c) for names, c in self.products]
        terms = (*products, *self.terms)
        parts = [name if c == 1 else f"{c}*{name}" for name, c in terms]
        if self.constant:
            parts.append(str(self.constant))
        return "+".join(parts).replace("+-", "-")


Dim = int | Affine


def affine(
    constant: int,
    terms: Mapping[str, int],
    products: Mapping[tuple[str, ...], int] | None = None,
) -> Dim:
    """Return the canonical dimension: an int when no symbol is left."""
    kept = tuple(sorted((name, c) for name, c in terms.items() if c))
    multiplied = tuple(sorted((n, c) for n, c in (products or {}).items() if c))
    return Affine(constant, kept, multiplied) if kept or multiplied else constant


def evaluate(dim: Dim, sizes: Mapping[str, int]) -> int:
    """Return a dimension's size under `sizes`."""
    return dim if isinstance(dim, int) else dim.evaluate(sizes)


def add_dims(a: Dim, b: Dim, factor: int = 1) -> Dim:
    """Return `a + factor * b`."""
    terms = dict(a.terms) if isinstance(a, Affine) else {}
    for name, coefficient in b.terms if isinstance(b, Affine) else ():
        terms[name] = terms.get(name, 0) + factor * coefficient
    products = dict(a.products) if isinstance(a, Affine) else {}
    for names, coefficient in b.products if isinstance(b, Affine) else ():
        products[names] = products.get(names, 0) + factor * coefficient
    numbers = [d.constant if isinstance(d, Affine) else d for d in (a, b)]
    return affine(numbers[0] + factor * numbers[1], terms, products)


def count_from_front(place: Dim, size: Dim) -> Dim:
    """Return a place of an axis as counted from its front; only ints count back."""
    from_back = isinstance(place, int) and place < 0
    return add_dims(size, place) if from_back else place


def only_symbol(dim: Dim) -> str | None:
    """Return the symbol that a dim is, None where it is anything else."""
    if not isinstance(dim, Affine) or dim.constant or dim.products:
        return None
    return dim.terms[0][0] if [c for _, c in dim.terms] == [1] else None


def settle_symbol(dim: Dim, size: int, sizes: dict[str, int]) -> None:
    """Add the size of the only symbol of a dim that `sizes` lacks, given the dim's.

    A size that does not divide is rounded down: the dim is then another one. A symbol
    that the others multiply by 0 is not added.
    """
    if not isinstance(dim, Affine):
        return
    unknown = [name for name in dim.symbols if name not in sizes]
    if len(unknown) == 1:
        (name,) = unknown
        rest = dim.evaluate({**sizes, name: 0})
        coefficient = dim.evaluate({**sizes, name: 1}) - rest
        if coefficient:
            sizes[name] = (size - rest) // coefficient


def bounds(dim: Dim, symbols: Mapping[str, Symbol]) -> tuple[int, int]:
    """Return the inclusive least and greatest size that a dimension can have."""
    if isinstance(dim, int):
        return dim, dim
    ends = [_bounds_at(dim, corner, symbols) for corner in _corners(dim, symbols)]
    return min(low for low, _ in ends), max(high for _, high in ends)


def _corners(dim: Affine, symbols: Mapping[str, Symbol]) -> Iterator[Mapping[str, int]]:
    """Yield all choices among the bounds of the symbols in products."""
    names = dim.multiplied
    ends = ((symbols[name].lower, symbols[name].upper) for name in names)
    for sizes in product(*ends):
        yield dict(zip(names, sizes, strict=True))


def _bounds_at(
    dim: Affine, corner: Mapping[str, int], symbols: Mapping[str, Symbol]
) -> tuple[int, int]:
    """Return the bounds of a dim with the symbols of its products at given sizes."""
    low = high = Affine(dim.constant, (), dim.products).evaluate(corner)
    for name, coefficient in dim.terms:
        symbol = symbols[name]
        sizes = (corner[name],) if name in corner else (symbol.lower, symbol.upper)
        ends = [size * coefficient for size in sizes]
        low, high = low + min(ends), high + max(ends)
    return low, high


def symbols_of(dims: Iterable[Dim]) -> KeysView[str]:
    """Return the names of the symbols in dims, in order, each once."""
    sizes = [dim for dim in dims if isinstance(dim, Affine)]
    return dict.fromkeys(name for dim in sizes for name in dim.symbols).keys()


@frozen
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
