"""List the combinations of sizes for which a backend with fixed shapes compiles.

In: the symbols of a program, some of which have buckets, and the types of the tensors
that need fixed shapes. Out: each combination of sizes of the symbols in these types.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from math import prod

from kvc.schema.errors import LimitExceeded
from kvc.schema.types import Symbol, TensorType, symbols_in
from kvc.schema.verify.limits import MAX_COMBINATIONS


def fixed_sizes(
    symbols: Sequence[Symbol], types: Iterable[TensorType]
) -> tuple[Mapping[str, int], ...] | None:
    """Return all combinations of bucket sizes of the symbols that occur in `types`.

    Returns:
        For each combination, the size by symbol name; None if one of these symbols has
        no buckets.

    Raises:
        LimitExceeded: there are too many combinations to compile.
    """
    used = symbols_in(types)
    found = [symbol for symbol in symbols if symbol.name in used]
    if any(not symbol.sizes for symbol in found):
        return None
    count = prod(len(symbol.sizes) for symbol in found)
    if count > MAX_COMBINATIONS:
        what = "the number of combinations of buckets in one partition"
        raise LimitExceeded(
            path="the program", what=what, found=count, limit=MAX_COMBINATIONS
        )
    names = [symbol.name for symbol in found]
    chosen = product(*(symbol.sizes for symbol in found))
    return tuple(dict(zip(names, sizes, strict=True)) for sizes in chosen)
