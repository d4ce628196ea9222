"""A cache update whose result nothing uses."""

import inspect

import pytest
import torch
from torch import nn
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

from kvc.compiler import Method
from kvc.compiler.trace import capture
from kvc.schema.errors import CaptureError


class Cached(nn.Module):
    """A cache of four slots."""

    def __init__(self):
        super().__init__()
        self.register_buffer("k", torch.zeros(1, 4, 2))

    def lose(self, rows):
        torch.ops.kvc.cache_update(self.k, rows)
        return self.k.sum()

    def lose_in_a_branch(self, rows):
        def yes(k, rows):
            torch.ops.kvc.cache_update(k, rows)
            return rows * 2

        def no(k, rows):
            return rows + 1

        return torch.cond(rows.sum() > 0, yes, no, (self.k, rows))

    def lose_of_a_branch(self, rows):
        def yes(k, rows):
            return torch.ops.kvc.cache_update(k, rows), rows * 2

        def no(k, rows):
            return k.clone(), rows + 1

        return torch.cond(rows.sum() > 0, yes, no, (self.k, rows))[1]

    def lose_in_a_loop(self, rows):
        def turn(i, rows):
            def yes(rows):
                torch.ops.kvc.cache_update(self.k, rows)
                return rows * 2

            return i + 1, torch.cond(i > 1, yes, lambda rows: rows + 1, (rows,))

        start = torch.zeros((), dtype=torch.int64), rows
        return while_loop(lambda i, rows: i < 3, turn, start)[1]

    def lose_in_a_scan(self, rows):
        def turn(n, row):
            torch.ops.kvc.cache_update(self.k, row[None, None])
            return n + 1, row * 2

        return scan(turn, rows[0, 0], rows[0])[1]

    def keep_in_a_branch(self, rows):
        def yes(k, rows):
            return torch.ops.kvc.cache_update(k, rows)

        new = torch.cond(rows.sum() > 0, yes, lambda k, _: k.clone(), (self.k, rows))
        self.k.copy_(new)
        return rows.sum()

    def keep(self, rows):
        self.k.copy_(torch.ops.kvc.cache_update(self.k, rows))
        return self.k.sum()


ROWS = torch.ones(1, 1, 2)


def test_an_update_that_is_lost_is_refused_with_its_line():
    with pytest.raises(CaptureError, match=r"write it back: cache.copy_") as caught:
        capture(Cached(), Method("lose", (ROWS,)))
    line = Cached.lose.__code__.co_firstlineno + 1
    assert caught.value.place.endswith(f"test_lost_updates:{line}")


@pytest.mark.parametrize("name", [n for n in vars(Cached) if n.startswith("lose_")])
def test_an_update_that_a_body_loses_is_refused_with_the_line_of_the_call(name):
    method = getattr(Cached, name)
    with pytest.raises(CaptureError, match=r"self.cache.copy_\(new\)") as caught:
        capture(Cached(), Method(name, (ROWS,)))
    lines, first = inspect.getsourcelines(method)
    _, line = caught.value.place.rsplit(":", 1)
    assert first < int(line) < first + len(lines)


@pytest.mark.parametrize("name", ["keep", "keep_in_a_branch"])
def test_an_update_that_is_written_back_is_not(name):
    assert capture(Cached(), Method(name, (ROWS,))).method.name == name
