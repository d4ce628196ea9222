"""Find the elements of eager's results that other roundings change.

In: a program and eager's results. Out: for each result which elements are not compared
with a bundle, because they change by more than `TOLERANCES` with other roundings, or
because torch leaves them open.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

import torch
from open_results import CHOOSING, OPEN, chosen_otherwise
from operator_programs import OperatorProgram, flat
from other_attention import Attending
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
ROUNDINGS = 16  # times that eager runs with other roundings


def close(one: Tensor, other: Tensor) -> Tensor:
    if not one.is_floating_point():
        return one == other
    relative, absolute = TOLERANCES[one.dtype]
    return torch.isclose(one, other, rtol=relative, atol=absolute, equal_nan=True)


def undecided(
    program: OperatorProgram, known: Sequence[Tensor], flushed: bool
) -> list[Tensor | None]:
    """Return, for each result of eager, a bool mask of the elements not to compare.

    These elements change by more than the tolerance when rounding errors are other
    ones, when numbers of 16 bits are computed in 32, or when attention treats infinity
    and NaN in another way. With `flushed` the recipe's library takes denormal numbers
    for zeros and interpolates infinity to NaN: then elements that change by this count
    too.
    """
    free: list[Tensor] = [torch.zeros(each.shape, dtype=torch.bool) for each in known]
    ways = [_OtherRounding(number) for number in range(ROUNDINGS)]
    for way in [*ways, *([_flushing(), _NoInfinities()] if flushed else [])]:
        try:
            with way:
                made = flat(program.expected())
        except RuleFailedError:
            raise
        except Exception:  # eager has no answer to such numbers
            return [torch.ones(each.shape, dtype=torch.bool) for each in known]
        _free_what_differs(free, made, known)
    for without_nan in (False, True):
        with suppress(Exception), Attending(without_nan):
            _free_what_differs(free, flat(program.expected()), known)
    if any(each.dtype in _SHORT for each in known):
        with suppress(Exception):  # not all operators can
            _free_what_differs(free, flat(_widened(program).expected()), known)
    return list(free)


def _free_what_differs(free, made, known) -> None:
    for each, one, other in zip(free, made, known, strict=True):
        same = one.shape == other.shape
        each |= ~close(one.to(other.dtype), other) if same else True


_SHORT = (torch.float16, torch.bfloat16)


def _widened(program: OperatorProgram) -> OperatorProgram:
    """Return the program with its 16-bit inputs and buffers as float32."""
    return _with_each(program, lambda x: x.float() if x.dtype in _SHORT else x)


def _with_each(program, change) -> OperatorProgram:
    held, *calls = (tuple(map(change, some)) for some in (program.held, *program.calls))
    return replace(program, calls=tuple(calls), held=held)


def without_denormals(program: OperatorProgram) -> OperatorProgram | None:
    """Return the program with zeros for denormal numbers; None if it has none."""
    each = flat((program.held, *program.calls))
    if not any(_denormal(x).any() for x in each):
        return None
    return _with_each(program, lambda x: torch.where(_denormal(x), 0, x))


def _denormal(x: Tensor) -> Tensor:
    if not x.is_floating_point():
        return torch.zeros(x.shape, dtype=torch.bool)
    return (x != 0) & (x.abs() < torch.finfo(torch.float32).tiny)


@contextmanager
def _flushing() -> Iterator[None]:
    """Let eager take denormal numbers for zeros within a `with` block."""
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


class RuleFailedError(Exception):
    """A rule of `open_results` is wrong: it raises for an operator's result."""


class Dispatching(TorchDispatchMode):
    """Calls `dispatched` in the place of each operator."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return self.dispatched(func, *args, **(kwargs or {}))


class _OtherRounding(Dispatching):
    """Changes the last digits of results, and results that torch leaves open."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._random = torch.Generator().manual_seed(seed)

    def dispatched(self, func: OpOverload, *args: object, **kwargs: object) -> object:
        place = CHOOSING.get(func.name())
        if place is not None and not kwargs:
            return chosen_otherwise(func, args, place, self._random)
        made = func(*args, **kwargs)
        if func.name() in OPEN:
            try:
                made = OPEN[func.name()](self._random, made, *args, **kwargs)
            except Exception as error:
                raise RuleFailedError(func.name()) from error
        if not func.is_view:
            for each in tree_leaves(made):
                if isinstance(each, Tensor):
                    self._round(each)
        return made

    def _round(self, tensor: Tensor) -> None:
        """Multiply a float tensor in place by random numbers close to 1."""
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


class _NoInfinities(Dispatching):
    """Makes results NaN that are interpolated from infinity or NaN."""

    def dispatched(self, func: OpOverload, *args: object, **kwargs: object) -> object:
        made = func(*args, **kwargs)
        if func.name() != "aten::upsample_bilinear2d":
            return made
        x, *settings = args
        assert isinstance(x, Tensor)
        lost = torch.where(x.isfinite(), 0, torch.nan).to(x.dtype)
        return made + func(lost, *settings, **kwargs)
