"""How much memory this process may use: the machine's, or its control groups'."""

import os
from collections.abc import Iterator

from kvc.runtime.threads import own_groups


def system_nbytes() -> int:
    """Return the greatest number of bytes that this process may use."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *_group_limits()])


def _group_limits() -> Iterator[int]:
    """Yield the limit in each control group's file `memory.max` that has one."""
    for group in own_groups():
        try:
            yield int((group / "memory.max").read_text())
        except (OSError, ValueError):  # the file is missing, or has "max"
            continue
