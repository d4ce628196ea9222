"""Read the symbolic sizes of a pool: sums of symbols, quotients and products.

In: the pool's vectors. Out: an `Affine` for each expression id. A factor of a term is a
symbol, a quotient or a product; factor ids count the symbols first, then the quotients,
then the products. The dividend of a quotient is an expression with a lower id than the
expressions that contain the quotient. The number of parts of an expression is limited,
which also limits the work of all code that reads the expression.
"""

from collections.abc import Sequence

from kvc.schema.codec.records import TableReader, check_ids, check_lengths, cut
from kvc.schema.errors import BadProgram
from kvc.schema.types import MAX_MULTIPLIED, MAX_PARTS, Affine, Factor, Quotient

_WHERE = "affine expressions"
Group = Sequence[tuple[tuple[int, ...], int]]  # ids of factors, coefficient


def read_expressions(
    table: TableReader, names: Sequence[str], path: str
) -> tuple[Affine, ...]:
    """Return the expressions of a pool.

    Args:
        table: the pool.
        names: the names of the pool's symbols.
        path: path of the file, for messages.

    Raises:
        BadProgram: an id is out of range, an expression has too many parts, a divisor
            is below 2, or a quotient divides a later expression.
    """
    constants = table.integers("affine_constants")
    divisions = _read_divisions(table, len(constants), path)
    groups = _read_groups(table, len(names) + len(divisions), len(constants), path)
    affines: list[Affine] = []
    counts: list[int] = []  # of parts, those of quotients at each place
    for constant, group in zip(constants, groups, strict=True):
        used = [i - len(names) for ids, _ in group for i in ids if i >= len(names)]
        inner = [divisions[i][0] for i in used]
        if any(dividend >= len(affines) for dividend in inner):
            what = f"expression {len(affines)} divides a later one, or itself"
            raise BadProgram(path=path, where=_WHERE, what=what)
        counts.append(len(group) + sum(counts[dividend] for dividend in inner))
        if inner and counts[-1] > MAX_PARTS:
            what = f"expression {len(affines)} has more than {MAX_PARTS} parts"
            raise BadProgram(path=path, where=_WHERE, what=what)
        factors: dict[int, Factor] = dict(enumerate(names))
        for i in used:
            dividend, divisor = divisions[i]
            factors[len(names) + i] = Quotient(affines[dividend], divisor)
        affines.append(_sum(constant, group, factors))
    if any(len(affine.multiplied) > MAX_MULTIPLIED for affine in affines):
        what = f"products of more than {MAX_MULTIPLIED} symbols"
        raise BadProgram(path=path, where=_WHERE, what=what)
    return tuple(affines)


def _read_divisions(
    table: TableReader, count: int, path: str
) -> Sequence[tuple[int, int]]:
    """Return, for each quotient, the expression id of its dividend, and its divisor."""
    where, divisors = "quotients", table.integers("quotient_divisors")
    dividends = check_ids(table.vector("quotient_dividends"), count, path, where)
    check_lengths(path, where, dividends, divisors)
    if min(divisors, default=2) < 2:
        what = f"a divisor is {min(divisors)}; the least is 2"
        raise BadProgram(path=path, where=where, what=what)
    return list(zip(dividends, divisors, strict=True))


def _read_groups(
    table: TableReader, single: int, count: int, path: str
) -> Sequence[Group]:
    """Return the terms of each expression.

    A term is the ids of the factors that it multiplies, and a coefficient.

    Args:
        table: the pool.
        single: the number of symbols and quotients; their ids are below it.
        count: the number of expressions.
        path: path of the file, for messages.
    """
    where, ends = "products of symbols", table.vector("product_ends")
    factors = check_ids(table.vector("product_symbols"), single, path, where)
    runs = [
        *((i,) for i in range(single)),
        *cut(factors, ends, len(ends), path, where),
    ]
    ids = check_ids(table.vector("term_symbols"), len(runs), path, _WHERE)
    coefficients = table.integers("term_coefficients")
    check_lengths(path, _WHERE, ids, coefficients)
    terms = list(zip([runs[i] for i in ids], coefficients, strict=True))
    return cut(terms, table.vector("affine_ends"), count, path, _WHERE)


def _sum(constant: int, group: Group, factors: dict[int, Factor]) -> Affine:
    parts = [(tuple(factors[i] for i in ids), c) for ids, c in group]
    terms = tuple((names[0], c) for names, c in parts if len(names) == 1)
    products = tuple((names, c) for names, c in parts if len(names) != 1)
    return Affine(constant, terms, products)
