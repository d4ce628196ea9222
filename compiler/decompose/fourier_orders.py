"""Let a Fourier transform lie in memory as torch lays it out.

Whether `x.reshape(-1)` is a view, which a write goes through, or a copy depends on
where the elements of x lie. In: a transform that was computed in other words, and the
call that it stands for. Out: the same numbers, with the axes in torch's order.

torch.export traces transforms by `torch._refs`, of which some think that all results
are contiguous. Here the same code calls the operators that eager's transforms call.
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
    """Return what a transform has made in the order in which torch would lay it out."""
    order, now = _order_by(func, args, kwargs), _order_of(made)
    if order is None or now is None or order == now:
        return made
    whole = made.permute(order).clone(memory_format=torch.contiguous_format)
    back = sorted(range(len(order)), key=order.__getitem__)
    return whole.permute(back)


def _order_by(
    func: Callable[..., Tensor], args: Sequence[object], kwargs: Mapping[str, object]
) -> list[int] | None:
    """Return the order of what a transform gives, which one of zeros tells.

    torch's rules for tensors without values do not have all orders right (2.13).
    """
    name = func.__name__.removeprefix("fft_")
    reference = getattr(references, name)
    if name.endswith(("2", "n")):  # of several axes, of which one may be a number
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
    """Return zeros of the same geometry, with its sizes of now."""
    sizes, steps = ([_now(n) or 2 for n in some] for some in (x.shape, x.stride()))
    last = sum((n - 1) * step for n, step in zip(sizes, steps, strict=True))
    return torch.zeros(last + 1, dtype=x.dtype).as_strided(sizes, steps)


def _order_of(x: Tensor) -> list[int] | None:
    """Return the axes by their steps in memory, the longest first.

    None is known where a step is not.
    """
    steps = [_now(n) for n in x.stride()]
    if None in steps:
        return None
    return sorted(range(x.dim()), key=lambda axis: -(steps[axis] or 0))


def _now(n: int | SymInt) -> int | None:
    """Return a size as it is in the example, None where it is not known."""
    known: int | None = n.node.hint if isinstance(n, SymInt) else n
    return known
