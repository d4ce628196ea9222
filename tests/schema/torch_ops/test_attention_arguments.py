"""What does not fit is refused with a sentence, on real and on fake tensors."""

import contextlib
import math

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from kvc.schema.torch_ops import attention

F32, BF16 = torch.float32, torch.bfloat16


@pytest.mark.parametrize("mode", [contextlib.nullcontext, FakeTensorMode])
@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"q": (4, 3, 8)}, "have 3, 4 and 4 dimensions, not 4 each"),
        ({"q": (1, 4, 3, 8)}, "different batches"),
        ({"v": (3, 2, 6, 8)}, "different batches"),
        ({"q": (2, 4, 3, 7)}, "different widths of q and k"),
        ({"q": (2, 4, 3, 0), "k": (2, 2, 6, 0)}, "heads of no width"),
        ({"v": (2, 2, 7, 8)}, "different slots of k and v"),
        ({"q": (2, 3, 3, 8)}, "3 query heads, 2 key heads and 2 value heads"),
        ({"v": (2, 1, 6, 8)}, "2 key heads and 1 value heads do not group"),
        ({"k": (2, 0, 6, 8), "v": (2, 0, 6, 8)}, "0 key heads"),
        ({"k": ((2, 2, 6, 8), BF16)}, "not one floating dtype"),
        ({"valid_length": ((3,), torch.int64)}, "3 valid lengths for 2 rows"),
        ({"valid_length": ((2,), torch.int32)}, "not int64 of one dimension"),
        ({"valid_length": ((2, 1), torch.int64)}, "not int64 of one dimension"),
        ({"window_left": -1}, "window_left is -1, less than 0"),
        ({"window_right": -2}, "window_right is -2, less than 0"),
        ({"softcap": 0.0}, "softcap is 0.0, not a positive number"),
        ({"softcap": math.nan}, "softcap is nan, not a positive number"),
        ({"softcap": math.inf}, "softcap is inf, not a positive number"),
        ({"mask": (3, 6)}, r"the mask is \[3, 6\], not \[2 or 1, 4 or 1, 3, pos"),
        ({"mask": (3, 1, 3, 6)}, r"the mask is \[3, 1, 3, 6\]"),
        ({"mask": (1, 2, 3, 6)}, r"the mask is \[1, 2, 3, 6\]"),
        ({"mask": (1, 1, 1, 6)}, r"the mask is \[1, 1, 1, 6\]"),
        ({"mask": ((1, 1, 3, 6), torch.int64)}, "neither bool nor floating"),
        ({"slopes": (2,)}, r"slopes are \[2\], not one for each of 4 heads"),
        ({"slopes": ((4,), BF16)}, "slopes are torch.bfloat16, not float32"),
        ({"sinks": (4, 1)}, r"sinks are \[4, 1\], not one for each of 4 heads"),
        ({"sinks": ((4,), torch.int64)}, "sinks are torch.int64, not floating"),
        ({"row_lengths": ((3,), torch.int64)}, "3 row_lengths for 2 rows"),
        ({"row_lengths": ((), torch.int64)}, "of 0 dimensions, not int64 of one"),
        ({"row_lengths": ((2,), torch.int32)}, "torch.int32 of 1 dimensions"),
        ({"keep": 2}, "2 of 6 positions kept, linear"),
        ({"keep": -1, "layout": "circular"}, "-1 of 6 positions kept, circular"),
        ({"keep": 6, "layout": "circular"}, "6 of 6 positions kept, circular"),
        ({"layout": "round"}, "layout 'round' is not 'linear' or 'circular'"),
    ],
    ids=str,
)
def test_arguments_that_do_not_fit_are_refused(mode, changes, text):
    shapes = {
        "q": (2, 4, 3, 8),
        "k": (2, 2, 6, 8),
        "v": (2, 2, 6, 8),
        "valid_length": ((2,), torch.int64),
    }
    with mode(), pytest.raises(ValueError, match=f"^attention: .*{text}"):
        attention(**{name: made(value) for name, value in (shapes | changes).items()})


def made(value):
    """Return zeros for a shape, or a shape and dtype; anything else as it is."""
    if not isinstance(value, tuple):
        return value
    shape, dtype = value if isinstance(value[-1], torch.dtype) else (value, F32)
    return torch.zeros(shape, dtype=dtype)
