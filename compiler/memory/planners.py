"""Planners: pure functions from requests to a plan."""

from bisect import insort
from collections.abc import Callable, Sequence

from kvc.compiler.memory.plan import MemoryPlan, Placement, Request, aligned

Order = Callable[[Request], tuple[int, ...]]


def plan_memory(requests: Sequence[Request]) -> MemoryPlan:
    """Return the smallest of the greedy plans of several orders.

    No order is best for all graphs: by size is for stacks of equal layers, the others
    for chains of tensors that grow or shrink. The first that reaches the lower bound
    is taken.
    """
    bound = peak(requests)
    best: MemoryPlan | None = None
    for order in ORDERS:
        plan = greedy(requests, order)
        if best is None or plan.nbytes < best.nbytes:
            best = plan
        if best.nbytes == bound:
            break
    assert best is not None
    return best


def greedy(requests: Sequence[Request], order: Order) -> MemoryPlan:
    """Place requests in an order, each in the smallest gap that fits.

    Greedy by size with best fit is from Pisarchyk and Lee (2020), "Efficient Memory
    Management for Deep Neural Net Inference".
    """
    placed: list[tuple[int, int, Placement]] = []  # by offset; (offset, key, placement)
    for request in sorted(requests, key=order):
        offset = _best_gap(request, placed)
        insort(placed, (offset, request.key, Placement(request, offset)))
    placements = sorted((p for _, _, p in placed), key=lambda p: p.request.key)
    size = max((p.offset + aligned(p.request.nbytes) for p in placements), default=0)
    return MemoryPlan(tuple(placements), size, peak(requests))


def by_size(request: Request) -> tuple[int, ...]:
    """Put the largest first."""
    return (-request.nbytes, request.first, request.last, request.key)


def by_area(request: Request) -> tuple[int, ...]:
    """Put the largest product of size and lifetime first."""
    area = request.nbytes * (request.last - request.first + 1)
    return (-area, request.first, request.key)


def by_lifetime(request: Request) -> tuple[int, ...]:
    """Put the longest-lived first."""
    return (request.first - request.last, -request.nbytes, request.key)


def by_end(request: Request) -> tuple[int, ...]:
    """Put the last to die first."""
    return (-request.last, -request.nbytes, request.key)


ORDERS: tuple[Order, ...] = (by_size, by_area, by_lifetime, by_end)


def _best_gap(request: Request, placed: list[tuple[int, int, Placement]]) -> int:
    """Return the offset of the smallest gap among those alive at the same time."""
    need = aligned(request.nbytes)
    best: tuple[int, int] | None = None
    end = 0
    for offset, _, placement in placed:
        other = placement.request
        if other.last < request.first or request.last < other.first:
            continue
        gap = offset - end
        if gap >= need and (best is None or gap < best[0]):
            best = (gap, end)
        end = max(end, offset + aligned(other.nbytes))
    return end if best is None else best[1]


def peak(requests: Sequence[Request]) -> int:
    """Return the most bytes alive at one time."""
    steps: dict[int, int] = {}
    for request in requests:
        steps[request.first] = steps.get(request.first, 0) + aligned(request.nbytes)
        after = request.last + 1
        steps[after] = steps.get(after, 0) - aligned(request.nbytes)
    most = live = 0
    for step in sorted(steps):
        live += steps[step]
        most = max(most, live)
    return most
