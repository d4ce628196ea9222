"""Choose the tests of states that run with `pytest -m libraries`: a fixed sample.

All tests of states can run on the libraries of vendors, but that takes hours. The
sample has one case of each test for each backend, so that each test runs on each
library. Where a backend has several recipes, the tests of the sample are spread over
them.
"""

from collections.abc import Iterable
from zlib import crc32

# They take minutes with a device that is an emulator.
_AT_LENGTH = ("_at_length", "_for_long", "test_so_it_is_where_forks_copy")


def one_of_each(cases: Iterable[tuple[str, str, bool]]) -> frozenset[str]:
    """Return the ids of the cases to run: one for each test and backend.

    Args:
        cases: For each case its id `MODULE::TEST[PARAMETERS]`, its recipe, and whether
            it runs only on request. A case that runs only on request is taken where a
            test has no other for the backend.
    """
    best: dict[tuple[str, str], tuple[bool, int, str]] = {}
    for case, recipe, rarely in cases:
        test, backend = case.partition("[")[0], recipe.partition("_")[0]
        if any(test.endswith(end) for end in _AT_LENGTH):
            continue
        mine = rarely, crc32(case.encode()), case
        best[test, backend] = min(mine, best.get((test, backend), mine))
    return frozenset(case for _, _, case in best.values())
