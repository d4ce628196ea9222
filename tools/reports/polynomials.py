"""Byte counts as formulas of symbolic sizes: `4096*seq + 1024`.

A polynomial is a mapping from a sorted tuple of symbol names (one for each factor,
() for the constant) to its coefficient.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from kvc.schema.types import Affine, TensorType

Polynomial = Mapping[tuple[str, ...], int]


def nbytes_of(types: Iterable[TensorType]) -> Polynomial:
    """Return the bytes of tensors together."""
    total: Counter[tuple[str, ...]] = Counter()
    for one in types:
        product: Polynomial = {(): one.dtype.itemsize}
        for dim in one.dims:
            product = _times(product, dim)
        total.update(product)
    return {factors: c for factors, c in total.items() if c}


def _times(polynomial: Polynomial, dim: int | Affine) -> Polynomial:
    terms: dict[tuple[str, ...], int] = {}
    if isinstance(dim, Affine):
        terms = {tuple(map(str, factors)): c for factors, c in dim.parts}
    terms[()] = dim.constant if isinstance(dim, Affine) else dim
    product: Counter[tuple[str, ...]] = Counter()
    for factors, a in polynomial.items():
        for more, b in terms.items():
            product[tuple(sorted(factors + more))] += a * b
    return product


def formula(polynomial: Polynomial) -> str:
    """Return the text, highest powers first: `8*seq*seq + 512`."""
    ordered = sorted(polynomial.items(), key=lambda item: (-len(item[0]), item[0]))
    parts = ["*".join([str(c), *factors]) for factors, c in ordered]
    return " + ".join(parts).replace("+ -", "- ") or "0"
