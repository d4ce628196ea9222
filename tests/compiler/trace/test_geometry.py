import random

import pytest
import torch

from kvc.compiler.trace.geometry import (
    StridedLayout,
    taken,
    touched_axes,
    views_between,
)

BASE = torch.arange(24.0).reshape(2, 3, 4)


def between(whole, part):
    return views_between(StridedLayout.of(whole), StridedLayout.of(part))


@pytest.mark.parametrize(
    "part",
    [
        BASE,
        BASE.detach(),
        BASE[1],
        BASE[1, 2, 3],
        BASE[:, 1:],
        BASE[:, ::2],
        BASE[..., 1::2],
        BASE.transpose(0, 2),
        BASE.permute(1, 2, 0)[1:, 2],
        BASE.view(-1),
        BASE.view(-1)[5:9],
        BASE.view(6, 4)[2],
        BASE.view(2, 3, 2, 2)[:, 1, :, 1],
        BASE.unsqueeze(1),
        BASE[0].expand(5, 3, 4),
        BASE[:1],
        BASE[0, :1, :1],
    ],
)
def test_a_view_is_found_again(part):
    views = between(BASE, part)
    assert torch.equal(taken(BASE, views), part)
    other = torch.rand(2, 3, 4)
    shown = other.as_strided(part.shape, part.stride(), part.storage_offset())
    assert torch.equal(taken(other, views), shown)


def test_the_whole_takes_no_views():
    assert between(BASE, BASE.view(2, 3, 4)) == ()


def test_the_parts_of_a_buffer_that_lies_otherwise_in_memory_are_found():
    whole = BASE.permute(2, 0, 1)
    for part in (whole[1], whole[:, 1], BASE.view(-1), whole.transpose(1, 2)[::2]):
        assert torch.equal(taken(whole, between(whole, part)), part)


@pytest.mark.parametrize(
    "part",
    [
        BASE.view(torch.int32),
        BASE.as_strided((5, 2), (4, 3)),
        torch.zeros(2, 3, 4),
        BASE.view(-1).unfold(0, 5, 2),
    ],
)
def test_what_no_view_leads_to_is_not_guessed(part):
    assert between(BASE, part) is None


def test_what_lies_before_or_after_is_no_part():
    assert between(BASE[1], BASE[0]) is None
    assert between(BASE[0], BASE[1]) is None
    assert between(BASE[0], BASE) is None


def test_axes_that_are_cut_are_known():
    assert touched_axes(between(BASE, BASE.transpose(0, 1)), 3) == set()
    assert touched_axes(between(BASE, BASE[:, 1]), 3) == {1}
    assert touched_axes(between(BASE, BASE[1, :, ::2]), 3) == {0, 2}
    assert touched_axes(between(BASE, BASE.view(-1)), 3) == {0, 1, 2}


VIEWS = {
    "select": lambda t, c: t.select(a := c.randrange(t.dim()), c.randrange(t.shape[a])),
    "narrow": lambda t, c: t.narrow(
        a := c.randrange(t.dim()), 0, max(1, t.shape[a] - 1)
    ),
    "step": lambda t, c: t[::2],
    "permute": lambda t, c: t.permute(c.sample(range(t.dim()), t.dim())),
    "flat": lambda t, c: t.view(-1),
    "unsqueeze": lambda t, c: t.unsqueeze(c.randint(0, t.dim())),
    "expand": lambda t, c: t.expand(3, *t.shape),
}


@pytest.mark.parametrize("seed", range(5))
def test_random_views_give_the_same_elements(seed):
    chance, missed = random.Random(seed), 0
    for _ in range(300):
        shape = [chance.choice((1, 2, 3, 4)) for _ in range(chance.randint(1, 4))]
        whole = torch.arange(float(torch.Size(shape).numel())).reshape(shape)
        part = whole
        for _ in range(chance.randint(0, 4)):
            name = chance.choice(list(VIEWS))
            if part.dim() and (name != "flat" or part.is_contiguous()):
                part = VIEWS[name](part, chance)
        views = between(whole, part)
        missed += views is None
        assert views is None or torch.equal(taken(whole, views), part)
    assert missed < 9  # steps that no axis of the whole divides by
