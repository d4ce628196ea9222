"""Types of values: a dtype and dimensions, which may be symbolic.

A dimension is a plain int or an `Affine` expression of bounded `Symbol`s and of
quotients of such expressions. The compiler's IR and the decoded file both use these
types.
"""

import math
from collections.abc import Iterable, KeysView, Mapping
from itertools import product
from typing import Final

from kvc.schema.dtypes import DType
from kvc.schema.frozen import frozen


@frozen
class Symbol:
    """A size that is known only at run time, within inclusive bounds.

    Attributes:
        sizes: the *buckets*, for a target with fixed shapes: the only allowed sizes,
            ascending; () if all sizes within the bounds are allowed.
    """

    name: str
    lower: int
    upper: int
    sizes: tuple[int, ...] = ()

    def takes(self, size: int) -> bool:
        """Tell whether `size` is an allowed size of the symbol."""
        return self.lower <= size <= self.upper and (
            not self.sizes or size in self.sizes
        )

    @property
    def greatest(self) -> int:
        """Return the greatest allowed size of the symbol."""
        return self.sizes[-1] if self.sizes else self.upper

    @property
    def allowed(self) -> str:
        """Return the symbol's allowed sizes as text: `1..64`, or `1, 16, 64`."""
        return ", ".join(map(str, self.sizes)) or f"{self.lower}..{self.upper}"


MAX_MULTIPLIED: Final = 4  # factors in the products of one expression
MAX_PARTS: Final = 64  # of an expression with quotients, including their parts


@frozen
class Quotient:
    """A size divided by a number and rounded down: a factor in other sizes.

    `floor_divide` makes all quotients in a form in which equal quotients have equal
    fields: no part of `of` is divisible by `by`, and `of` is not a single quotient plus
    a number.

    Attributes:
        of: the dividend.
        by: the divisor, 2 or more.
    """

    of: "Affine"
    by: int

    def __str__(self) -> str:
        alone = len(self.of.parts) == 1 and not self.of.constant
        return f"({self.of if alone else f'({self.of})'}//{self.by})"


Factor = str | Quotient  # a symbol's name, or a quotient
Terms = tuple[tuple[Factor, int], ...]
Products = tuple[tuple[tuple[Factor, ...], int], ...]


@frozen
class Affine:
    """`constant + sum(coefficient * factor) + sum(coefficient * product of factors)`.

    A factor is a symbol or a quotient. The factors of a product differ, so that the
    expression is affine in each factor, and takes its least and its greatest size where
    factors are at their bounds. An expression without quotients can be solved for any
    of its symbols. Every expression has at least one term or product.

    Attributes:
        constant: the number that is added to all terms and products.
        terms: pairs (factor, coefficient), sorted by the factor's text; no coefficient
            is 0.
        products: pairs (factors, coefficient), sorted by the factors' texts; there are
            two factors or more, sorted by text, and no coefficient is 0.
    """

    constant: int
    terms: Terms
    products: Products = ()

    @property
    def parts(self) -> Products:
        """Return all terms and products as pairs (factors, coefficient)."""
        return (*(((factor,), c) for factor, c in self.terms), *self.products)

    @property
    def count(self) -> int:
        """Return the number of terms and products, including those in dividends."""
        inner = (q for factors, _ in self.parts for q in factors)
        return len(self.parts) + sum(
            q.of.count for q in inner if isinstance(q, Quotient)
        )

    @property
    def quotients(self) -> tuple[Quotient, ...]:
        """Return the quotients among the expression's factors, each once."""
        factors = (factor for factors, _ in self.parts for factor in factors)
        found = (factor for factor in factors if isinstance(factor, Quotient))
        return tuple(dict.fromkeys(found))

    @property
    def symbols(self) -> KeysView[str]:
        """Return the names of all symbols, also those in quotients, each once."""
        names: dict[str, None] = {}
        for factor in (factor for factors, _ in self.parts for factor in factors):
            of = (factor,) if isinstance(factor, str) else factor.of.symbols
            names |= dict.fromkeys(of)
        return names.keys()

    @property
    def multiplied(self) -> KeysView[Factor]:
        """Return the factors in the expression's products, each once."""
        factors = (factor for factors, _ in self.products for factor in factors)
        return dict.fromkeys(factors).keys()

    def evaluate(self, sizes: Mapping[str, int]) -> int:
        """Return the value at `sizes`, which has each symbol's size by name."""
        size = self.constant + sum(c * _size_of(f, sizes) for f, c in self.terms)
        for factors, c in self.products:
            size += c * math.prod(_size_of(factor, sizes) for factor in factors)
        return size

    def __str__(self) -> str:
        products = [("*".join(map(str, factors)), c) for factors, c in self.products]
        terms = (*products, *((str(factor), c) for factor, c in self.terms))
        parts = [text if c == 1 else f"{c}*{text}" for text, c in terms]
        if self.constant:
            parts.append(str(self.constant))
        return "+".join(parts).replace("+-", "-")


Dim = int | Affine


def _size_of(factor: Factor, sizes: Mapping[str, int]) -> int:
    if isinstance(factor, str):
        return sizes[factor]
    return factor.of.evaluate(sizes) // factor.by


def affine(
    constant: int,
    terms: Mapping[Factor, int] | Mapping[str, int],
    products: Mapping[tuple[Factor, ...], int]
    | Mapping[tuple[str, ...], int]
    | None = None,
) -> Dim:
    """Return a dimension in canonical form; it is an int if all coefficients are 0."""
    kept = [(factor, c) for factor, c in terms.items() if c]
    multiplied = [(factors, c) for factors, c in (products or {}).items() if c]
    kept.sort(key=lambda term: str(term[0]))
    multiplied.sort(key=lambda term: tuple(map(str, term[0])))
    found = Affine(constant, tuple(kept), tuple(multiplied))
    return found if found.parts else constant


def _of_parts(constant: int, parts: Iterable[tuple[tuple[Factor, ...], int]]) -> Dim:
    """Return the sum of a constant and of parts (sorted factors, coefficient)."""
    sums: dict[tuple[Factor, ...], int] = {}
    for factors, coefficient in parts:
        sums[factors] = sums.get(factors, 0) + coefficient
    terms = {factors[0]: c for factors, c in sums.items() if len(factors) == 1}
    return affine(constant, terms, {f: c for f, c in sums.items() if len(f) > 1})


def _split(dim: Dim) -> tuple[int, Products]:
    """Return the constant of a dim, and its terms and products."""
    return (dim, ()) if isinstance(dim, int) else (dim.constant, dim.parts)


def evaluate(dim: Dim, sizes: Mapping[str, int]) -> int:
    """Return the size of a dimension at `sizes`, the size of each symbol by name."""
    return dim if isinstance(dim, int) else dim.evaluate(sizes)


def add_dims(a: Dim, b: Dim, factor: int = 1) -> Dim:
    """Return `a + factor * b`."""
    (constant, parts), (other, others) = _split(a), _split(b)
    scaled = ((factors, factor * c) for factors, c in others)
    return _of_parts(constant + factor * other, (*parts, *scaled))


def multiply_dims(a: Dim, b: Dim) -> Dim | None:
    """Return `a * b`; None if a product repeats a factor, or there are too many."""
    (constant, parts), (other, others) = _split(a), _split(b)
    made = [
        (tuple(sorted((*left, *right), key=str)), c * d)
        for (left, c), (right, d) in product(
            [*parts, ((), constant)], [*others, ((), other)]
        )
    ]
    size = _of_parts(constant * other, [part for part in made if part[0]])
    powers = any(len(set(factors)) < len(factors) for factors, c in made if c)
    many = isinstance(size, Affine) and len(size.multiplied) > MAX_MULTIPLIED
    return None if powers or many else size


def floor_divide(dim: Dim, by: int) -> Dim:
    """Return `dim // by`, rounded down, for a divisor of 1 or more.

    The result has a canonical form, which is made in three steps. First, all parts of
    `dim` that `by` divides are divided, and are no longer in the quotient. Then `by`
    and the remaining parts are divided by their common divisor. Last, a quotient of a
    quotient becomes a single quotient: `(x // a + k) // b` is `(x + k*a) // (a*b)`.
    """
    constant, parts = _split(dim)
    whole = _of_parts(constant // by, ((factors, c // by) for factors, c in parts))
    rest = add_dims(dim, whole, -by)
    if isinstance(rest, int):
        return whole
    common = math.gcd(by, *(c for _, c in rest.parts))
    by //= common
    left = [(factors, c // common) for factors, c in rest.parts]
    rest = _of_parts(rest.constant // common, left)
    assert isinstance(rest, Affine)
    ((first, *_), scale), *others = rest.parts
    if isinstance(first, Quotient) and scale == 1 and len(rest.terms) and not others:
        inner = add_dims(first.of, rest.constant * first.by)
        return add_dims(whole, floor_divide(inner, first.by * by))
    return add_dims(whole, Affine(0, ((Quotient(rest, by), 1),)))


def count_from_front(place: Dim, size: Dim) -> Dim:
    """Return an index along an axis of `size` elements, counted from the front.

    Only a negative int counts from the end in `place`.
    """
    from_back = isinstance(place, int) and place < 0
    return add_dims(size, place) if from_back else place


def only_symbol(dim: Dim) -> str | None:
    """Return the name of the symbol that a dim is; None if the dim is anything else."""
    if not isinstance(dim, Affine) or dim.constant or dim.products:
        return None
    factor, coefficient = dim.terms[0]
    alone = len(dim.terms) == 1 and coefficient == 1
    return factor if alone and isinstance(factor, str) else None


def settle_symbol(dim: Dim, size: int, sizes: dict[str, int]) -> None:
    """Find the size of the only symbol of a dim that `sizes` lacks.

    The symbol's size is added to `sizes`, rounded down if the solution is not whole;
    the dim then has another size than `size`. Nothing is added if the symbol's
    coefficient is 0, or if the dim has quotients.
    """
    if not isinstance(dim, Affine) or dim.quotients:
        return
    unknown = [name for name in dim.symbols if name not in sizes]
    if len(unknown) == 1:
        (name,) = unknown
        rest = dim.evaluate({**sizes, name: 0})
        coefficient = dim.evaluate({**sizes, name: 1}) - rest
        if coefficient:
            sizes[name] = (size - rest) // coefficient


def bounds(dim: Dim, symbols: Mapping[str, Symbol]) -> tuple[int, int]:
    """Return a lower and an upper bound of the sizes that a dimension can have.

    Both bounds are inclusive. For a dimension without quotients, they are its least and
    its greatest size. For a dimension with quotients, they can lie further apart. They
    are computed in two ways, and the narrower bounds are returned: as if each factor
    could have any size within its own bounds, and as if each division could have any
    remainder.
    """
    if isinstance(dim, int):
        return dim, dim
    low, high = _bounds_of_factors(dim, symbols)
    if not any(isinstance(factor, Quotient) for factor, _ in dim.terms):
        return low, high
    scale = _common_divisor(dim)
    exact, least, most = _unrounded(dim, scale)
    ends = _bounds_of_factors(exact, symbols) if isinstance(exact, Affine) else (exact,)
    low = max(low, -(-(ends[0] + least) // scale))
    return low, min(high, (ends[-1] + most) // scale)


def _bounds_of_factors(dim: Affine, symbols: Mapping[str, Symbol]) -> tuple[int, int]:
    """Return bounds of a dim, as if each factor had any size in its own bounds."""
    ranges: dict[Factor, tuple[int, int]] = {}
    for factors, _ in dim.parts:
        for factor in factors:
            if isinstance(factor, str):
                ranges[factor] = symbols[factor].lower, symbols[factor].upper
            else:
                low, high = bounds(factor.of, symbols)
                ranges[factor] = low // factor.by, high // factor.by
    corners = product(*(ranges[factor] for factor in dim.multiplied))
    chosen = (dict(zip(dim.multiplied, ends, strict=True)) for ends in corners)
    ends = [_bounds_at(dim, corner, ranges) for corner in chosen]
    return min(low for low, _ in ends), max(high for _, high in ends)


def _bounds_at(
    dim: Affine, corner: Mapping[Factor, int], ranges: Mapping[Factor, tuple[int, int]]
) -> tuple[int, int]:
    """Return the bounds of a dim while some factors have fixed sizes.

    Args:
        dim: the dim.
        corner: the sizes of the factors in the dim's products.
        ranges: the bounds of each factor; factors that are not in `corner` vary.
    """
    multiplied = (c * math.prod(corner[f] for f in names) for names, c in dim.products)
    low = high = dim.constant + sum(multiplied)
    for factor, coefficient in dim.terms:
        sizes = (corner[factor],) if factor in corner else ranges[factor]
        ends = [size * coefficient for size in sizes]
        low, high = low + min(ends), high + max(ends)
    return low, high


def _common_divisor(dim: Affine) -> int:
    """Return a number that all divisors in a dim divide, also for nested quotients."""
    inner = (f for f, _ in dim.terms if isinstance(f, Quotient))
    return math.lcm(*(f.by * _common_divisor(f.of) for f in inner))


def _unrounded(dim: Affine, scale: int) -> tuple[Dim, int, int]:
    """Return `scale` times a dim as if its quotients were exact, and error bounds.

    A quotient is `(of - rest) / by`, where the remainder `rest` is from 0 to `by - 1`.
    The first result is the dim with each remainder 0. The second and the third result
    are the least and the greatest number that the remainders add.
    """
    kept = [(fs, c) for fs, c in dim.parts if len(fs) > 1 or isinstance(fs[0], str)]
    total = add_dims(0, _of_parts(dim.constant, kept), scale)
    least = most = 0
    for factor, c in dim.terms:
        if isinstance(factor, Quotient):
            part = scale // factor.by
            exact, low, high = _unrounded(factor.of, part)
            low -= (factor.by - 1) * part
            total = add_dims(total, exact, c)
            least, most = least + min(c * low, c * high), most + max(c * low, c * high)
    return total, least, most


def symbols_of(dims: Iterable[Dim]) -> KeysView[str]:
    """Return the names of the symbols in dims, in order, each name once."""
    sizes = [dim for dim in dims if isinstance(dim, Affine)]
    return dict.fromkeys(name for dim in sizes for name in dim.symbols).keys()


@frozen
class TensorType:
    """The dtype and dimensions of a contiguous tensor; `dims` is () for a scalar."""

    dtype: DType
    dims: tuple[Dim, ...]

    def shape(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Return the dimensions as ints at `sizes`, the size of each symbol by name."""
        return tuple(evaluate(dim, sizes) for dim in self.dims)

    def nbytes(self, sizes: Mapping[str, int]) -> int:
        """Return the size in bytes at `sizes`, each symbol's size by name."""
        return math.prod(self.shape(sizes)) * self.dtype.itemsize

    def max_nbytes(self, symbols: Mapping[str, Symbol]) -> int:
        """Return the size in bytes if every dimension is at its upper bound."""
        upper = (bounds(dim, symbols)[1] for dim in self.dims)
        return math.prod(upper) * self.dtype.itemsize

    @property
    def is_static(self) -> bool:
        """Tell whether no dimension is symbolic."""
        return all(isinstance(dim, int) for dim in self.dims)

    def __str__(self) -> str:
        return f"{self.dtype.label}[{', '.join(str(dim) for dim in self.dims)}]"


def symbols_in(types: Iterable[TensorType]) -> KeysView[str]:
    """Return the names of the symbols in types, in order, each name once."""
    return symbols_of(dim for kind in types for dim in kind.dims)
