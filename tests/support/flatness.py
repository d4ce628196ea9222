"""Tell whether a process uses more and more memory or other resources.

A single sample tells nothing, since libraries keep memory that they may need again.
Samples at the end of a run are therefore compared with samples at its beginning, after
a warm-up.
"""

import gc
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from resident_memory import count_descriptors, count_maps, resident_nbytes

# How much more may be there at the end: bytes, or how many. Libraries keep caches,
# and malloc cuts its maps in other places.
TOLERANCE: Mapping[str, int] = {
    "resident": 8 << 20,
    "shared": 0,
    "reserved": 64 << 20,
    "descriptors": 0,
    "maps": 16,
    "threads": 0,
}
WARM_UP = 0.2  # of the samples


def sample() -> dict[str, int]:
    """Return how much this process uses of each resource.

    Memory and address space are in bytes; descriptors, maps and threads are numbers.
    """
    gc.collect()
    status = Path("/proc/self/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in status)
    nbytes = {
        name: int(fields[name].split()[0]) << 10 for name in ("RssShmem", "VmSize")
    }
    return {
        "resident": resident_nbytes(),
        "shared": nbytes["RssShmem"],
        "reserved": nbytes["VmSize"],
        "descriptors": count_descriptors(),
        "maps": count_maps(),
        "threads": int(fields["Threads"]),
    }


def growth(samples: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """Return the growth of each resource over a series of samples.

    The growth is the difference between the medians of the last and of the first
    quarter of the samples, after the warm-up.
    """
    warm = samples[int(len(samples) * WARM_UP) :]
    part = max(1, len(warm) // 4)

    def median(name: str, some: Sequence[Mapping[str, int]]) -> int:
        return int(statistics.median(one[name] for one in some))

    return {
        name: median(name, warm[-part:]) - median(name, warm[:part])
        for name in TOLERANCE
    }


def steeper(samples: Sequence[Mapping[str, int]]) -> dict[str, int]:
    grown = growth(samples)
    return {name: more for name, more in grown.items() if more > TOLERANCE[name]}
