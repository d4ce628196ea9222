"""`fit`: find a form of sizes that has given values at some samples of them.

In: the size of each symbol at each sample, and a whole number for each sample. Out: a
constant and products of symbols times factors that give these numbers, as few products
as possible, or None. Numbers of bound lists are sizes, strides and offsets: products of
few dims.
"""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import combinations, combinations_with_replacement
from math import prod
from typing import Final

from kvc.schema.frozen import frozen

_MOST_FACTORS: Final = 3  # in a product
_MOST_TERMS: Final = 2
_SPARE: Final = 2  # samples that a form must meet beside those that it is made from
Product = tuple[int, ...]  # ids of symbols, ascending


@frozen
class Form:
    """A constant, and (product of symbols, factor) for each term."""

    constant: int
    terms: tuple[tuple[Product, int], ...] = ()

    def greatest(self, bounds: Sequence[tuple[int, int]]) -> int:
        """Return what the form is at most, if each size is within its bounds."""
        return self.constant + sum(
            factor * prod(bounds[i][factor > 0] for i in product)
            for product, factor in self.terms
        )


class Fitter:
    """Finds forms over samples; equal rows of values have the same form."""

    def __init__(self, samples: Sequence[Sequence[int]]) -> None:
        """Take over the sizes of all symbols at each sample."""
        self._count = len(samples)
        columns = list(zip(*samples, strict=True))
        varying = [i for i, column in enumerate(columns) if len(set(column)) > 1]
        products = [
            product
            for size in range(1, _MOST_FACTORS + 1)
            for product in combinations_with_replacement(varying, size)
        ]
        self._products = {
            product: [prod(sample[i] for i in product) for sample in samples]
            for product in products
        }
        self._known: dict[tuple[int, ...], Form | None] = {}

    def fit(self, values: tuple[int, ...]) -> Form | None:
        """Return the form with a value for each sample; None if none is found."""
        if values not in self._known:
            self._known[values] = next(self._found(values), None)
        return self._known[values]

    def _found(self, values: tuple[int, ...]) -> Iterator[Form]:
        if len(set(values)) == 1:
            yield Form(values[0])
            return
        for count in range(1, _MOST_TERMS + 1):
            if count + 1 + _SPARE > self._count:
                return
            for chosen in combinations(self._products, count):
                made = self._solve(chosen, values)
                if made is not None:
                    yield made

    def _solve(self, chosen: Sequence[Product], values: Sequence[int]) -> Form | None:
        """Return the form over these products, None if the values are none of it."""
        columns = [[1] * self._count, *(self._products[one] for one in chosen)]
        rows = [[column[i] for column in columns] for i in range(self._count)]
        factors = _solution(rows, values)
        if factors is None or any(one.denominator != 1 for one in factors):
            return None
        constant, *others = (int(one) for one in factors)
        for row, value in zip(rows, values, strict=True):
            made = sum(a * b for a, b in zip((constant, *others), row, strict=True))
            if made != value:
                return None
        pairs = zip(chosen, others, strict=True)
        return Form(constant, tuple((one, by) for one, by in pairs if by))


def _solution(
    rows: Sequence[Sequence[int]], values: Sequence[int]
) -> list[Fraction] | None:
    """Solve the first equations that determine all unknowns; None if none do.

    Gauss-Jordan elimination over fractions.
    """
    count = len(rows[0])
    table = [
        [Fraction(x) for x in (*row, value)]
        for row, value in zip(rows, values, strict=True)
    ]
    for place in range(count):
        pivot = next((i for i in range(place, len(table)) if table[i][place]), None)
        if pivot is None:
            return None
        table[place], table[pivot] = table[pivot], table[place]
        own = [x / table[place][place] for x in table[place]]
        table[place] = own
        for i, row in enumerate(table):
            if i != place and row[place]:
                by = row[place]
                table[i] = [x - by * y for x, y in zip(row, own, strict=True)]
    return [table[i][count] for i in range(count)]
