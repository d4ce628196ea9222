"""Check types at all allowed sizes of the symbols: by bounds, and at test points.

In: the symbols of a program. Out: a `CheckedTypes`, which checks each type once, and
returns the type's greatest size in bytes and its shape at each test point. A test point
is a choice of one size for each symbol.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from math import prod

from kvc.schema.types import (
    MAX_MULTIPLIED,
    Affine,
    Dim,
    Symbol,
    TensorType,
    affine,
    bounds,
    floor_divide,
)
from kvc.schema.verify.limits import (
    MAX_BUCKETS,
    MAX_BUCKETS_TOGETHER,
    MAX_DIM,
    MAX_RANK,
    MAX_SYMBOLS_TOGETHER,
    MAX_TENSOR_NBYTES,
    Reporter,
)

Shape = tuple[int, ...]


class Point:
    """A test point: a size for each symbol; shapes of types are cached."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.sizes = sizes
        # Keyed by identity, as in `CheckedTypes`, which owns these types.
        self._types: dict[int, tuple[TensorType, TensorType]] = {}

    def at(self, kind: TensorType) -> TensorType:
        """Return a type with ints as dims: the dims at the sizes of this point."""
        found = self._types.get(id(kind))
        if found is None:
            static = TensorType(kind.dtype, kind.shape(self.sizes))
            found = self._types[id(kind)] = kind, static
        return found[1]


class CheckedTypes:
    """Checker of the types of one program; each type is checked once."""

    def __init__(self, symbols: Sequence[Symbol], report: Reporter) -> None:
        self.report = report
        self.symbols = {symbol.name: symbol for symbol in symbols}
        self.points = _points(symbols)
        # Keyed by identity: after decoding, equal types are one object. The values keep
        # the types alive, so that no id is used twice.
        self._seen: dict[int, tuple[TensorType, int]] = {}

    def check_symbols(self, symbols: Sequence[Symbol]) -> None:
        """Check the names and bounds of the program's symbols."""
        self.report.unique([symbol.name for symbol in symbols], "symbols")
        for symbol in symbols:
            where = f"symbol {symbol.name!r}"
            fits = 0 <= symbol.lower <= symbol.upper <= MAX_DIM
            self.report.require(fits, where, f"bounds {symbol.lower}..{symbol.upper}")
            sizes = symbol.sizes
            self.report.limit(f"{where}: its buckets", len(sizes), MAX_BUCKETS)
            ascend = list(sizes) == sorted(set(sizes))
            inside = not sizes or (
                symbol.lower <= sizes[0] and sizes[-1] <= symbol.upper
            )
            what = f"buckets {list(sizes)} of {symbol.lower}..{symbol.upper}"
            self.report.require(ascend and inside, where, what)

    def check(self, kind: TensorType, where: str) -> int:
        """Check a type, and return its greatest size in bytes."""
        found = self._seen.get(id(kind))
        if found is None:
            self.report.limit(f"{where}: the rank", len(kind.dims), MAX_RANK)
            for dim in kind.dims:
                self.check_dim(dim, where)
            nbytes = kind.max_nbytes(self.symbols)
            if nbytes > MAX_TENSOR_NBYTES:
                what = f"{where}: the size of {kind}"
                self.report.limit(what, nbytes, MAX_TENSOR_NBYTES)
            found = self._seen[id(kind)] = kind, nbytes
        return found[1]

    def check_dim(self, dim: Dim, where: str) -> None:
        """Check that a dim is never negative or too large, at any allowed sizes."""
        if isinstance(dim, Affine):
            self.check_affine(dim, where)
            counts = (len(self.symbols[name].sizes) or 1 for name in dim.symbols)
            what = f"{where}: combinations of buckets in {dim}"
            self.report.limit(what, prod(counts), MAX_BUCKETS_TOGETHER)
        low, high = bounds(dim, self.symbols)
        if low < 0:
            self.report.fail(where, f"the dim {dim} can be {low}")
        if high > MAX_DIM:
            self.report.limit(f"{where}: the dim {dim}", high, MAX_DIM)

    def mixed_points(self, names: Iterable[str], where: str) -> Iterator[Point]:
        """Yield points with some symbols at their lower, others at upper bounds.

        The point of all lower bounds and the point of all upper bounds are in `points`,
        and are not yielded. Together, all these points suffice for dims without
        quotients: such a dim is affine in each symbol, so that two dims that agree at
        all of these points agree at all sizes.

        Raises:
            LimitExceeded: there are too many symbols.
        """
        mixed = [s for s in map(self.symbols.__getitem__, names) if s.lower < s.upper]
        what = f"{where}: symbols together"
        self.report.limit(what, len(mixed), MAX_SYMBOLS_TOGETHER)
        lowest = self.points[0].sizes
        for uppers in product((False, True), repeat=len(mixed)):
            if len(set(uppers)) > 1:
                ends = zip(mixed, uppers, strict=True)
                chosen = {s.name: s.upper if up else s.lower for s, up in ends}
                yield Point({**lowest, **chosen})

    def check_affine(self, expression: Affine, where: str) -> None:
        """Check that an expression is canonical and uses declared symbols."""
        unknown = [name for name in expression.symbols if name not in self.symbols]
        self.report.require(not unknown, where, f"undeclared symbols {unknown}")
        what = f"{expression.terms} {expression.products} is not canonical"
        self.report.require(_is_canonical(expression), where, what)
        for quotient in expression.quotients:
            self.check_affine(quotient.of, where)
            divided = max(map(abs, bounds(quotient.of, self.symbols)))
            self.report.limit(f"{where}: what {quotient} divides", divided, MAX_DIM)
        multiplied = len(expression.multiplied)
        self.report.limit(f"{where}: symbols in products", multiplied, MAX_MULTIPLIED)


def _is_canonical(expression: Affine) -> bool:
    """Tell whether an expression has the form that `affine` and `floor_divide` make."""
    factors, products = dict(expression.terms), dict(expression.products)
    ordered = (tuple(sorted(set(names), key=str)) for names in products)
    return (
        affine(expression.constant, factors, products) == expression
        and all(names == each for names, each in zip(products, ordered, strict=True))
        and all(len(names) > 1 for names in products)
        and all(
            floor_divide(quotient.of, quotient.by) == Affine(0, ((quotient, 1),))
            for quotient in expression.quotients
        )
    )


def _points(symbols: Sequence[Symbol]) -> tuple[Point, ...]:
    """Return three test points: all lower bounds, all upper bounds, the middle."""
    return (
        Point({symbol.name: symbol.lower for symbol in symbols}),
        Point({symbol.name: symbol.upper for symbol in symbols}),
        Point({s.name: (s.lower + s.upper) // 2 for s in symbols}),
    )
