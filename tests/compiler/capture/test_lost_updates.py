"""A cache update whose result nothing uses."""

import pytest
import torch
from torch import nn

from kvc.compiler import Method
from kvc.compiler.capture import capture
from kvc.schema.errors import CaptureError


class Cached(nn.Module):
    """A cache of four slots."""

    def __init__(self):
        super().__init__()
        self.register_buffer("k", torch.zeros(1, 4, 2))

    def lose(self, rows):
        torch.ops.kvc.cache_update(self.k, rows)
        return self.k.sum()

    def keep(self, rows):
        self.k.copy_(torch.ops.kvc.cache_update(self.k, rows))
        return self.k.sum()


ROWS = torch.ones(1, 1, 2)


def test_an_update_that_is_lost_is_refused_with_its_line():
    with pytest.raises(CaptureError, match=r"write it back: cache.copy_") as caught:
        capture(Cached(), Method("lose", (ROWS,)))
    line = Cached.lose.__code__.co_firstlineno + 1
    assert caught.value.place.endswith(f"test_lost_updates:{line}")


def test_an_update_that_is_written_back_is_not():
    assert capture(Cached(), Method("keep", (ROWS,))).method.name == "keep"
