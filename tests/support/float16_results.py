"""Run tests that are written for float32 and any size on devices with float16.

A device of fixed shapes gets all sizes that a model allows as buckets. Comparisons of
numbers allow a difference that is relative to the largest number.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from kvc.compiler.ir import Program
from kvc.recipes import Recipe
from kvc.schema.types import Symbol

MOST = 256


def with_every_size(program: Program, recipe: Recipe) -> Program:
    """Return a program in which all allowed sizes of each symbol are buckets."""
    return replace(program, symbols=tuple(map(_every, program.symbols)))


def _every(symbol: Symbol) -> Symbol:
    if symbol.upper - symbol.lower >= MOST:
        pytest.skip(f"{symbol.name} has more than {MOST} sizes")
    return replace(symbol, sizes=tuple(range(symbol.lower, symbol.upper + 1)))


_close, _all_close = np.testing.assert_allclose, np.allclose
_equal = np.testing.assert_array_equal
_torch_close = torch.testing.assert_close


def allow_for(
    patch: pytest.MonkeyPatch, relative: float, *, rounded_caches: bool = False
) -> None:
    """Make comparisons of floats allow a difference, relative to the largest number.

    Args:
        patch: undoes the changes after the test.
        relative: the allowed difference, as a fraction of the largest number.
        rounded_caches: whether assertions that float32 arrays are equal allow the
            difference, too, since the arrays may come from a rounded cache.
    """

    def slack(wanted: object, atol: float) -> float:
        largest = np.max(np.abs(np.asarray(wanted, np.float64)), initial=0)
        return max(atol, relative * float(largest))

    def assert_close(found, wanted, rtol=1e-7, atol=0, **rest) -> None:
        _close(found, wanted, rtol=rtol, atol=slack(wanted, atol), **rest)

    def is_close(found, wanted, rtol=1e-5, atol=1e-8) -> bool:
        return bool(_all_close(found, wanted, rtol, slack(wanted, atol)))

    def assert_tensors_close(found, wanted, rtol=1e-5, atol=1e-5, **rest) -> None:
        allowed = slack(wanted.detach().numpy(), atol)
        _torch_close(found, wanted, rtol=rtol, atol=allowed, **rest)

    def assert_equal(found: object, wanted: object, *rest: object) -> None:
        if np.asarray(wanted).dtype == np.float32:
            assert_close(np.asarray(found), np.asarray(wanted))
        else:
            _equal(found, wanted, *rest)

    if rounded_caches:
        patch.setattr(np.testing, "assert_array_equal", assert_equal)
    patch.setattr(np.testing, "assert_allclose", assert_close)
    patch.setattr(np, "allclose", is_close)
    patch.setattr(torch.testing, "assert_close", assert_tensors_close)
