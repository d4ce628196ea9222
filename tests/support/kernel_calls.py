"""Call a kernel as the executor does, into guarded memory.

Results are laid out in the middle of a larger buffer that is filled with one byte
value. So the tests notice a kernel that resizes its result, leaves an element
unwritten, or writes outside it.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from kvc.runtime.kernels.table import load_kernels
from kvc.schema.ops import OPS, Aliasing

GUARD_NBYTES = 64
GUARD = 0x5A


class Guarded:
    """A contiguous tensor with guard bytes before and after it."""

    def __init__(self, shape: Sequence[int], dtype: torch.dtype) -> None:
        nbytes = torch.Size(shape).numel() * dtype.itemsize
        self.memory = torch.full((nbytes + 2 * GUARD_NBYTES,), GUARD, dtype=torch.uint8)
        inner = self.memory[GUARD_NBYTES : GUARD_NBYTES + nbytes]
        self.tensor = inner.view(dtype).view(shape)
        self.address = self.tensor.data_ptr()

    def check(self, shape: Sequence[int]) -> Tensor:
        """Return the tensor; fail if it has moved or its guard bytes have changed."""
        assert tuple(self.tensor.shape) == tuple(shape)
        assert self.tensor.data_ptr() == self.address
        assert (self.memory[:GUARD_NBYTES] == GUARD).all()
        assert (self.memory[-GUARD_NBYTES:] == GUARD).all()
        return self.tensor


def run(op, arguments, results) -> tuple[Tensor, ...]:
    """Return the results of `op`'s kernel, each of the shape and dtype given."""
    kernel = load_kernels()[op]
    aliasing = OPS[op].aliasing
    if aliasing is Aliasing.VIEW:
        viewed = kernel(*arguments)
        return viewed if isinstance(viewed, tuple) else (viewed,)
    outs = [Guarded(shape, dtype) for shape, dtype in results]
    if aliasing is Aliasing.UPDATE:
        outs[0].tensor.copy_(arguments[0])
        returned = kernel(outs[0].tensor, *arguments[1:])
    elif len(outs) == 1:
        returned = kernel(outs[0].tensor, *arguments)
    else:
        returned = kernel(tuple(out.tensor for out in outs), *arguments)
    assert returned is None
    return tuple(
        out.check(shape) for out, (shape, _) in zip(outs, results, strict=True)
    )


def bits(tensor: Tensor) -> bytes:
    """Return a tensor's elements as bytes; NaN and -0.0 keep their bits."""
    whole = tensor.clone(memory_format=torch.contiguous_format)
    return whole.reshape(-1).view(torch.uint8).numpy().tobytes()
