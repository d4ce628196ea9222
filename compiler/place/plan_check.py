"""Check a plan by brute force, independently of the planner that made it."""

from collections.abc import Sequence

from kvc.compiler.place.plan import ALIGNMENT, MemoryPlan, Request


class PlanFault(Exception):
    """A plan breaks a rule; the message says which rule."""


def check_plan(requests: Sequence[Request], plan: MemoryPlan) -> None:
    """Check that a plan places exactly the requests, without overlaps.

    Raises:
        PlanFault: two requests that live at the same time share bytes, or a request is
            missing, misaligned or outside the arena.
    """
    served = {p.request.key: p.request for p in plan.placements}
    if served != {r.key: r for r in requests} or len(served) != len(requests):
        raise PlanFault("the plan does not serve the requests")
    for p in plan.placements:
        if p.offset < 0 or p.offset % ALIGNMENT:
            raise PlanFault(f"offset {p.offset} of %{p.request.key}")
        if p.offset + p.request.nbytes > plan.nbytes:
            raise PlanFault(f"%{p.request.key} ends outside the arena")
    filled = [p for p in plan.placements if p.request.nbytes]
    ordered = sorted(filled, key=lambda p: p.offset)
    for i, a in enumerate(ordered):
        for b in ordered[i + 1 :]:
            if b.offset >= a.offset + a.request.nbytes:
                break
            if a.request.first <= b.request.last and b.request.first <= a.request.last:
                raise PlanFault(f"%{a.request.key} and %{b.request.key} share bytes")
