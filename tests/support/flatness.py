"""Whether a process takes more and more: samples of what it has, and their trend.

A single number tells nothing, since libraries keep what they may need again. What is
taken at the end of the run is compared with what was at its beginning, after warm-up.
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
    """Return what this process has: bytes in memory and of addresses, counts."""
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
    """Return by how much each amount grew: medians of the two ends after warm-up."""
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
