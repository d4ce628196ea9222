"""`Metrics`: numbers of a server, as text for Prometheus.

In: what the endpoints count, the status of each scheduler. Out: the exposition format
of Prometheus, version 0.0.4. All labels come from the server itself: names of models,
paths that it serves, statuses.
"""

import mmap
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from kvc.serving.models.catalog import Catalog
from kvc.serving.models.text_model import TextModel
from kvc.serving.scheduling import Status

TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_BOUNDS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_GAUGES: Final[Mapping[str, tuple[str, str]]] = {
    "rows": ("rows", "Greatest number of answers at once."),
    "running": ("running", "Requests that are read or answered."),
    "waiting": ("waiting", "Requests that wait."),
    "cache_bytes": ("nbytes", "Size of the caches of texts."),
    "cache_remembered_bytes": ("remembered_nbytes", "The part of ended texts."),
}
_COUNTERS: Final[Mapping[str, tuple[str, str]]] = {
    "prompt_tokens": ("prompt_tokens", "Tokens of prompts that were read."),
    "prompt_tokens_reused": ("reused_tokens", "Tokens of prompts not read again."),
    "generated_tokens": ("tokens", "Tokens of answers."),
    "decode_steps": ("steps", "Calls that made tokens."),
    "answers_finished": ("finished", "Answers that ended by themselves."),
    "answers_cancelled": ("cancelled", "Answers that were cancelled."),
    "answers_failed": ("failed", "Answers that failed."),
    "requests_refused": ("refused", "Requests refused since too many waited."),
}


class Histogram:
    """Counts of seconds, by upper bounds."""

    def __init__(self) -> None:
        """Begin with no counts."""
        self._counts = [0] * (len(_BOUNDS) + 1)
        self._sum = 0.0

    def add(self, seconds: float) -> None:
        """Count a time."""
        self._counts[bisect_left(_BOUNDS, seconds)] += 1
        self._sum += seconds

    def lines(self, name: str, label: str) -> Iterable[str]:
        """Yield the lines of the histogram."""
        total = 0
        for bound, count in zip((*_BOUNDS, "+Inf"), self._counts, strict=True):
            total += count
            yield f'{name}_bucket{{{label},le="{bound}"}} {total}'
        yield f"{name}_sum{{{label}}} {self._sum:.6f}"
        yield f"{name}_count{{{label}}} {total}"


class Metrics:
    """The numbers of a server; used in the event loop alone."""

    def __init__(self, catalog: Catalog) -> None:
        """Count for some models."""
        self._catalog = catalog
        self._requests: Counter[tuple[str, int]] = Counter()
        self._first: dict[str, Histogram] = {}
        self.connections = 0

    def request(self, endpoint: str, status: int) -> None:
        """Count an answered request."""
        self._requests[endpoint, status] += 1

    def first_token(self, model: str, seconds: float) -> None:
        """Count the time from a request to the first token of its answers."""
        self._first.setdefault(model, Histogram()).add(seconds)

    def text(self) -> str:
        """Return all numbers."""
        lines = [
            "# HELP kvc_http_requests_total Requests by endpoint and status.",
            "# TYPE kvc_http_requests_total counter",
        ]
        for (endpoint, status), count in sorted(self._requests.items()):
            label = f'endpoint="{endpoint}",status="{status}"'
            lines.append(f"kvc_http_requests_total{{{label}}} {count}")
        for name, (field, told) in _GAUGES.items():
            lines += self._of_models(f"kvc_{name}", field, told, "gauge")
        for name, (field, told) in _COUNTERS.items():
            lines += self._of_models(f"kvc_{name}_total", field, told, "counter")
        lines += _memory()
        name = "kvc_first_token_seconds"
        lines.append(f"# HELP {name} Seconds from a request to its first token.")
        lines.append(f"# TYPE {name} histogram")
        for model, histogram in self._first.items():
            lines += histogram.lines(name, f'model="{escaped(model)}"')
        return "\n".join(lines) + "\n"

    def _of_models(self, name: str, field: str, told: str, kind: str) -> Iterable[str]:
        yield f"# HELP {name} {told}"
        yield f"# TYPE {name} {kind}"
        for model, status in self._statuses():
            yield f'{name}{{model="{escaped(model)}"}} {getattr(status, field)}'

    def _statuses(self) -> Iterable[tuple[str, Status]]:
        for name, model in self._catalog.models.items():
            if isinstance(model, TextModel):
                yield name, model.scheduler.status


def _memory() -> Iterable[str]:
    """Yield the memory of this process, as Prometheus names it; on Linux alone."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return
    name = "process_resident_memory_bytes"
    yield f"# HELP {name} Resident memory size in bytes."
    yield f"# TYPE {name} gauge"
    yield f"{name} {pages * mmap.PAGESIZE}"


def escaped(label: str) -> str:
    """Return a label's value as the format wants it."""
    return label.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
