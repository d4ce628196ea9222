"""What eager makes of a program when its numbers are rounded otherwise.

In: a program and what eager makes of it. Out: which elements decide nothing, since they
change by more than `TOLERANCES` with other roundings, or are what torch leaves open.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

import torch
from operator_programs import OperatorProgram, Tensors
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

TOLERANCES = {
    torch.float64: (1e-9, 1e-11),
    torch.float32: (1e-4, 1e-5),
    torch.float16: (4e-3, 1e-3),
    torch.bfloat16: (3e-2, 1e-2),
}  # relative, absolute
ROUNDINGS = 8  # times that eager runs with other roundings


def close(one: Tensor, other: Tensor) -> Tensor:
    """Tell which elements are equal, within the tolerance of the dtype."""
    if not one.is_floating_point():
        return one == other
    relative, absolute = TOLERANCES[one.dtype]
    return torch.isclose(one, other, rtol=relative, atol=absolute, equal_nan=True)


def undecided(
    program: OperatorProgram, known: Sequence[Tensor], flushed: bool
) -> list[Tensor | None]:
    """Tell which elements decide nothing.

    These change by more than the tolerance with other roundings: with numbers of 16
    bits computed in 32, or, where the recipe's library takes denormal numbers for zeros
    and interpolates infinity to NaN, by these.
    """
    free: list[Tensor] = [torch.zeros(each.shape, dtype=torch.bool) for each in known]
    ways = [_OtherRounding(number) for number in range(ROUNDINGS)]
    for way in [*ways, *([_flushing(), _NoInfinities()] if flushed else [])]:
        try:
            with way:
                made = _flat(program.expected())
        except Exception:
            return [torch.ones(each.shape, dtype=torch.bool) for each in known]
        _free_what_differs(free, made, known)
    if any(each.dtype in _SHORT for each in known):
        with suppress(Exception):  # not all operators can
            _free_what_differs(free, _flat(_widened(program).expected()), known)
    return list(free)


def _free_what_differs(
    free: Sequence[Tensor], made: Sequence[Tensor], known: Sequence[Tensor]
) -> None:
    for each, one, other in zip(free, made, known, strict=True):
        same = one.shape == other.shape
        each |= ~close(one.to(other.dtype), other) if same else True


_SHORT = (torch.float16, torch.bfloat16)


def _widened(program: OperatorProgram) -> OperatorProgram:
    """Return a program whose inputs and buffers of 16 bits have 32."""

    def wide(tensors: Tensors) -> Tensors:
        return tuple(x.float() if x.dtype in _SHORT else x for x in tensors)

    calls = tuple(wide(call) for call in program.calls)
    return replace(program, calls=calls, held=wide(program.held))


def without_denormals(program: OperatorProgram) -> OperatorProgram | None:
    """Return a program with zeros for denormal numbers, None if it has none."""

    def flushed(tensors: Tensors) -> Tensors:
        return tuple(torch.where(_denormal(x), 0, x) for x in tensors)

    each = (*program.held, *(x for call in program.calls for x in call))
    if not any(_denormal(x).any() for x in each):
        return None
    calls = tuple(flushed(call) for call in program.calls)
    return replace(program, calls=calls, held=flushed(program.held))


def _denormal(x: Tensor) -> Tensor:
    if not x.is_floating_point():
        return torch.zeros(x.shape, dtype=torch.bool)
    return (x != 0) & (x.abs() < torch.finfo(torch.float32).tiny)


@contextmanager
def _flushing() -> Iterator[None]:
    """Let eager take denormal numbers for zeros."""
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


# Operators that choose among equal values as they like: where their axis is among the
# arguments.
_CHOOSING = {
    "aten::topk": 2,
    "aten::sort": 1,
    "aten::kthvalue": 2,
    "aten::median.dim": 1,
    "aten::nanmedian.dim": 1,
    "aten::mode": 1,
}


_CONVERTING = ("aten::_to_copy", "aten::copy_")

# Operators that add up, whose zeros have the sign of the numbers that they begin with.
_ADDING = frozenset(
    f"aten::{name}"
    for name in (
        "mm", "bmm", "addmm", "baddbmm", "addmv", "mv", "addbmm", "dot", "vdot",
        "convolution", "sum", "sum.dim_IntList", "mean", "mean.dim", "cumsum",
    )
)  # fmt: skip


class _OtherRounding(TorchDispatchMode):
    """Changes results in their last places, and what torch leaves open.

    That is which of equal values an operator chooses, which integer stands for a float
    that none can be, the sign of a sum that is zero, whether the mean beside a variance
    of infinities is infinite or NaN, which depends on their order, and whether `gelu`
    of infinity is infinite, as of one number, or NaN, as of several (torch 2.13).
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._random = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        place = _CHOOSING.get(func.name())
        if place is not None and not kwargs:
            return _chosen_otherwise(func, args, place, self._random)
        made = func(*args, **(kwargs or {}))
        if func.name() in _CONVERTING and isinstance(made, Tensor):
            self._make_up(made, args[int(func.name() == "aten::copy_")])
        if func.name() == "aten::gelu" and isinstance(args[0], Tensor):
            made = torch.where(args[0] == torch.inf, args[0], made)
        if func.name() in _WITH_MEANS:
            made = _with_plain_mean(
                made, *_WITH_MEANS[func.name()](*args, **kwargs or {})
            )
        if func.name() in _ADDING and isinstance(made, Tensor):
            made = self._signed_anew(made)
        if not func.is_view:
            for each in tree_leaves(made):
                if isinstance(each, Tensor):
                    self._round(each)
        return made

    def _signed_anew(self, made: Tensor) -> Tensor:
        """Return sums of fractions, in which zeros have any sign."""
        if not made.is_floating_point():
            return made
        signs = torch.randint(0, 2, made.shape, generator=self._random) * 2 - 1
        return torch.where(made == 0, 0.0 * signs.to(made.dtype), made)

    def _round(self, tensor: Tensor) -> None:
        """Multiply a tensor of fractions in place by numbers close to 1."""
        if tensor.is_complex() and not tensor.is_conj():
            tensor = torch.view_as_real(tensor)
        if not tensor.is_floating_point():
            return
        sizes = zip(tensor.shape, tensor.stride(), strict=True)
        if any(size > 1 and not stride for size, stride in sizes):
            return  # several elements in one place
        most = 4 * torch.finfo(tensor.dtype).eps
        factors = 1 + most * (2 * torch.rand(tensor.shape, generator=self._random) - 1)
        tensor.mul_(factors.to(tensor.dtype))

    def _make_up(self, made: Tensor, given: object) -> None:
        """Choose integers, in place, for floats that are too large, or no numbers."""
        assert isinstance(given, Tensor)
        if made.is_floating_point() or made.dtype == torch.bool:
            return
        if given.is_floating_point() and given.shape == made.shape:
            limits = torch.iinfo(made.dtype)
            fits = (given.trunc() >= limits.min) & (given.trunc() <= limits.max)
            some = torch.randint(0, 100, made.shape, generator=self._random)
            made.copy_(torch.where(fits, made, some.to(made.dtype)))


def _means_of_layers(x: Tensor, shape: Sequence[int], *_: object) -> tuple[object, ...]:
    return 1, x, [*range(x.ndim - len(shape), x.ndim)], True


def _means_of_axes(
    x: Tensor,
    dim: Sequence[int] | None = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> tuple[object, ...]:
    return 1, x, dim, keepdim


# Operators that give means beside variances: where, of what, along which axes, kept.
_WITH_MEANS = {
    "aten::native_layer_norm": _means_of_layers,
    "aten::var_mean.correction": _means_of_axes,
    "aten::std_mean.correction": _means_of_axes,
}


def _with_plain_mean(
    made: object, place: int, x: Tensor, axes: Sequence[int] | None, kept: bool
) -> tuple[object, ...]:
    """Return results, with means that are not finite as sums make them."""
    assert isinstance(made, tuple)
    mean = made[place]
    plain = x.float().mean(axes, kept).to(mean.dtype).reshape(mean.shape)
    mean = torch.where(mean.isfinite(), mean, plain)
    return (*made[:place], mean, *made[place + 1 :])


class _NoInfinities(TorchDispatchMode):
    """Makes NaN of all that is interpolated from a number that is not finite."""

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        made = func(*args, **(kwargs or {}))
        if func.name() != "aten::upsample_bilinear2d":
            return made
        x, *settings = args
        assert isinstance(x, Tensor)
        lost = torch.where(x.isfinite(), 0, torch.nan).to(x.dtype)
        return made + func(lost, *settings, **(kwargs or {}))


def _chosen_otherwise(
    func: OpOverload, args: Sequence[object], place: int, chance: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Let an operator choose values and places from a tensor in another order."""
    tensor, *others = args
    axis = args[place] if len(args) > place else -1
    assert isinstance(tensor, Tensor)
    assert isinstance(axis, int)
    if not tensor.ndim:
        return func(*args)
    order = torch.randperm(tensor.shape[axis], generator=chance)
    values, places = func(tensor.index_select(axis, order), *others)
    return values, order[places]


def _flat(calls: Sequence[Tensors]) -> list[Tensor]:
    return [each for call in calls for each in call]
