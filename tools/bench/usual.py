"""The tests of `kvc bench` and `kvc profile` that nobody asked for.

In: the paths of bundles, and the tokens that tests usually have. Out: those that a
session of each bundle has room for.
"""

from collections.abc import Sequence

from kvc.runtime.sessions.sizes import position_limit
from kvc.schema.container import BundleFile


def fitting(bundles: Sequence[str], counts: Sequence[int], depth: int) -> list[int]:
    """Return the counts that fit into a session, or the most that does.

    Args:
        bundles: paths of them.
        counts: tokens of each test.
        depth: tokens that the session holds before it.

    Raises:
        KvcError: a bundle cannot be read.
    """
    limits = [limit for path in bundles if (limit := _limit(path)) is not None]
    if not limits:
        return list(counts)
    room = max(1, min(limits) - depth)
    return [count for count in counts if count <= room] or [room]


def _limit(path: str) -> int | None:
    """Return how many tokens a session holds at most, None where nothing limits it."""
    with BundleFile.open(path) as file:
        program = file.program
    if program.position is None:
        return None
    return position_limit(
        program, {each.name: each.greatest for each in program.symbols}
    )
