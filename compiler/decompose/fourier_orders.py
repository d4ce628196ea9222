"""Give Fourier transforms the memory layout that torch gives them.

The strides of x decide whether `x.reshape(-1)` is a copy, or a view through which x can
be written. In: the result of a decomposed transform, and the original call. Out: the
same numbers, with the axes in torch's order. torch.export traces transforms by
`torch._refs`, some of which wrongly report contiguous results, so this module calls the
operators that transforms call in eager mode.
"""

from collections.abc import Callable, Mapping, Sequence
from unittest.mock import patch

import torch
from torch import SymInt, Tensor
from torch._refs import fft as references
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map_only


def laid_out(
    made: Tensor,
    func: Callable[..., Tensor],
    args: Sequence[object],
    kwargs: Mapping[str, object],
) -> Tensor:
    """Copy the result of a transform into the order of axes that torch gives it."""
    order, now = _order_by(func, args, kwargs), _order_of(made)
    if order is None or now is None or order == now:
        return made
    whole = made.permute(order).clone(memory_format=torch.contiguous_format)
    return whole.permute(sorted(range(len(order)), key=order.__getitem__))


def _order_by(
    func: Callable[..., Tensor], args: Sequence[object], kwargs: Mapping[str, object]
) -> list[int] | None:
    """Return the order of a transform's axes in memory, found by a run on zeros.

    torch's rules for tensors without values have some orders wrong (2.13).
    """
    name = func.__name__.removeprefix("fft_")
    reference = getattr(references, name)
    # Over several axes; a single one may be given as a number.
    if name.endswith(("2", "n")):
        args, kwargs = [*map(_listed, args)], {k: _listed(kwargs[k]) for k in kwargs}
    prims = patch.multiple(
        torch._prims,
        fft_r2c=_real,
        fft_c2c=_complex,
        fft_c2r=_to_real,
        conj_physical=torch.clone,
    )
    with _disable_current_modes(), torch._C.DisableTorchFunction(), prims:
        alike, named = tree_map_only(Tensor, _of_zeros, (tuple(args), {**kwargs}))
        made = reference(*alike, **named)
    assert isinstance(made, Tensor)
    return _order_of(made)


def _listed(given: object) -> object:
    return (given,) if isinstance(given, int) else given


def _real(x: Tensor, *, dim: tuple[int, ...], onesided: bool) -> Tensor:
    return torch._fft_r2c(x, dim, 0, onesided)


def _complex(x: Tensor, *, dim: tuple[int, ...], forward: bool) -> Tensor:
    return torch._fft_c2c(x, dim, 0, forward)


def _to_real(x: Tensor, *, dim: tuple[int, ...], last_dim_size: int) -> Tensor:
    return torch._fft_c2r(x, dim, 0, last_dim_size)


def _of_zeros(x: Tensor) -> Tensor:
    """Return zeros with a tensor's strides, and its sizes in the example."""
    sizes, steps = ([_now(n) or 2 for n in some] for some in (x.shape, x.stride()))
    last = sum((n - 1) * step for n, step in zip(sizes, steps, strict=True))
    return torch.zeros(last + 1, dtype=x.dtype).as_strided(sizes, steps)


def _order_of(x: Tensor) -> list[int] | None:
    """Return the axes of x by stride, largest first; None if a stride is unknown."""
    steps = [_now(n) for n in x.stride()]
    if None in steps:
        return None
    return sorted(range(x.dim()), key=lambda axis: -(steps[axis] or 0))


def _now(n: int | SymInt) -> int | None:
    """Return the value of a size in the example; None if the value is unknown."""
    known: int | None = n.node.hint if isinstance(n, SymInt) else n
    return known
