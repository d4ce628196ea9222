from dataclasses import replace

import pytest

from kvc.compiler.place.plan import MemoryPlan, Placement, Request
from kvc.compiler.place.plan_check import PlanFault, check_plan

FIRST, SECOND = Request(1, 100, 0, 2), Request(2, 64, 2, 4)
LATER = Request(3, 128, 3, 5)
NEEDS = (FIRST, SECOND, LATER)
PLACED = (Placement(FIRST, 0), Placement(SECOND, 128), Placement(LATER, 0))
PLAN = MemoryPlan(PLACED, 192, 192)


def test_a_right_plan_passes():
    check_plan(NEEDS, PLAN)


@pytest.mark.parametrize(
    ("placements", "reason"),
    [
        (PLACED[:2], "does not serve"),
        ((*PLACED, Placement(Request(4, 8, 9, 9), 0)), "does not serve"),
        ((Placement(replace(FIRST, nbytes=64), 0), *PLACED[1:]), "does not serve"),
        ((Placement(replace(FIRST, last=1), 0), *PLACED[1:]), "does not serve"),
        ((*PLACED[:2], Placement(LATER, 32)), "offset 32"),
        ((*PLACED[:2], Placement(LATER, -64)), "offset -64"),
        ((PLACED[0], Placement(SECOND, 192), PLACED[2]), "outside"),
        ((PLACED[0], Placement(SECOND, 64), PLACED[2]), "%1 and %2 share bytes"),
        ((PLACED[0], PLACED[1], Placement(LATER, 64)), "%3 and %2 share bytes"),
    ],
)
def test_a_broken_plan_is_refused(placements, reason):
    with pytest.raises(PlanFault, match=reason):
        check_plan(NEEDS, MemoryPlan(placements, 192, 192))


def test_a_request_asked_for_twice_is_refused():
    with pytest.raises(PlanFault, match="does not serve"):
        check_plan((*NEEDS, FIRST), PLAN)


def test_a_large_request_is_compared_with_all_that_lie_within_it():
    large, inside = Request(1, 640, 0, 9), Request(3, 64, 5, 5)
    before = Request(2, 64, 20, 20)
    placements = (Placement(large, 0), Placement(before, 64), Placement(inside, 512))
    with pytest.raises(PlanFault, match="%1 and %3 share bytes"):
        check_plan((large, before, inside), MemoryPlan(placements, 640, 640))


def test_requests_of_no_bytes_share_nothing():
    nothing = Request(2, 0, 0, 2)
    placements = (Placement(FIRST, 0), Placement(nothing, 64))
    check_plan((FIRST, nothing), MemoryPlan(placements, 128, 128))
