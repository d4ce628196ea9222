"""Which tests of states run with `pytest -m libraries`: a sample, the same each time.

Thousands run on the libraries of vendors on request, for hours. The sample has one case
of each test for each backend, so that each is tried on each library; where a backend
has several recipes, tests are by turns one's and another's.
"""

from collections.abc import Iterable
from zlib import crc32

# They take minutes with a device that is an emulator.
_AT_LENGTH = ("_at_length", "_for_long", "test_so_it_is_where_forks_copy")


def one_of_each(cases: Iterable[tuple[str, str, bool]]) -> frozenset[str]:
    """Return the ids of the cases to run.

    Args:
        cases: Of each its id, `MODULE::TEST[PARAMETERS]`, its recipe, and whether it
            is one of many, which run on request on any backend: these are taken where
            a test has no others.
    """
    best: dict[tuple[str, str], tuple[bool, int, str]] = {}
    for case, recipe, rarely in cases:
        test, backend = case.partition("[")[0], recipe.partition("_")[0]
        if any(test.endswith(end) for end in _AT_LENGTH):
            continue
        mine = rarely, crc32(case.encode()), case
        best[test, backend] = min(mine, best.get((test, backend), mine))
    return frozenset(case for _, _, case in best.values())
