"""The tests of `kvc bench` and `kvc profile` that nobody asked for.

In: the paths of bundles, and the tokens that tests usually have. Out: those that a
session of each bundle has room for.
"""

from collections.abc import Sequence

from kvc.runtime.sessions.sizes import position_limit
from kvc.schema.container import BundleFile


def most_tokens(bundles: Sequence[str], depth: int) -> int | None:
    """Return how many tokens a session of each bundle takes after `depth` of them.

    None where nothing limits it; 1 at the least.

    Raises:
        KvcError: a bundle cannot be read.
    """
    limits = [limit for path in bundles if (limit := _limit(path)) is not None]
    return max(1, min(limits) - depth) if limits else None


def fitting(counts: Sequence[int], most: int | None) -> list[int]:
    """Return the counts of tokens that are at most so many, or that number."""
    if most is None:
        return list(counts)
    return [count for count in counts if count <= most] or [most]


def _limit(path: str) -> int | None:
    """Return how many tokens a session holds at most, None where nothing limits it."""
    with BundleFile.open(path) as file:
        program = file.program
    if program.position is None:
        return None
    return position_limit(
        program, {each.name: each.greatest for each in program.symbols}
    )
