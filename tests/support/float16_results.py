"""Let tests that are written for float32 judge what was computed in float16.

Sizes: a device of fixed shapes is given every size that a model allows as a bucket.
Numbers: whatever compares them allows for what float16 has.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from kvc.compiler.ir import Program
from kvc.recipes import Recipe
from kvc.schema.types import Symbol

# Of the largest number that is compared: a few layers make 5e-3 of 5e-4, the rounding
# of one number. A wrong slot of a cache makes more than 1e-1.
RELATIVE = 1e-2
MOST = 256


def with_every_size(program: Program, recipe: Recipe) -> Program:
    """Return a program whose sizes are all that they may be, as buckets."""
    return replace(program, symbols=tuple(map(_every, program.symbols)))


def _every(symbol: Symbol) -> Symbol:
    if symbol.upper - symbol.lower >= MOST:
        pytest.skip(f"{symbol.name} has more than {MOST} sizes")
    return replace(symbol, sizes=tuple(range(symbol.lower, symbol.upper + 1)))


_close, _all_close = np.testing.assert_allclose, np.allclose
_equal = np.testing.assert_array_equal
_torch_close = torch.testing.assert_close


def allow_for_float16(
    patch: pytest.MonkeyPatch, *, rounded_caches: bool = False
) -> None:
    """Let comparisons of floats be as exact as float16 is.

    Also where they are to be equal, if `rounded_caches`: what a test calls
    equal may be a number that was cached.
    """
    if rounded_caches:
        patch.setattr(np.testing, "assert_array_equal", _assert_equal)
    patch.setattr(np.testing, "assert_allclose", _assert_close)
    patch.setattr(np, "allclose", _is_close)
    patch.setattr(torch.testing, "assert_close", _assert_tensors_close)


def _slack(wanted: object, atol: float) -> float:
    largest = np.max(np.abs(np.asarray(wanted, np.float64)), initial=0)
    return max(atol, RELATIVE * float(largest))


def _assert_close(
    found: object, wanted: object, rtol: float = 1e-7, atol: float = 0, **rest: object
) -> None:
    _close(found, wanted, rtol=rtol, atol=_slack(wanted, atol), **rest)


def _assert_equal(found: object, wanted: object, *rest: object) -> None:
    if np.asarray(wanted).dtype == np.float32:
        _assert_close(np.asarray(found), np.asarray(wanted))
    else:
        _equal(found, wanted, *rest)


def _is_close(
    found: object, wanted: object, rtol: float = 1e-5, atol: float = 1e-8
) -> bool:
    return bool(_all_close(found, wanted, rtol, _slack(wanted, atol)))


def _assert_tensors_close(
    found: torch.Tensor,
    wanted: torch.Tensor,
    rtol: float = 1e-5,
    atol: float = 1e-5,
    **rest: object,
) -> None:
    slack = _slack(wanted.detach().numpy(), atol)
    _torch_close(found, wanted, rtol=rtol, atol=slack, **rest)
