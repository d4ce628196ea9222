"""Calls that return a view at some declared sizes, and a copy at others.

`x.mT.reshape(n, 4)` is a view for n = 1 and a copy for any other n. In a trace, where
sizes are not 1, it is a copy. What is written into its operand afterwards is then also
in its result, and the other way around, but only at those sizes.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import sympy  # type: ignore[import-untyped]
import torch
from torch import SymInt, Tensor
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves, tree_map_only

from kvc.compiler.functional.views import Unwritable
from kvc.compiler.request.spec import Dim

# Symbol -> the size in the trace, and its Dim.
SizesOf = Mapping[sympy.Symbol, tuple[SymInt, Dim]]
Sizes = Mapping[sympy.Symbol, int]
_aten = torch.ops.aten
# Operators whose result is a view for some layouts, and a copy for others.
BY_LAYOUT = {
    _aten.contiguous.default,
    _aten.flatten.using_ints,
    _aten.ravel.default,
    _aten.reshape.default,
    _aten.reshape_as.default,
    _aten.to.device,
    _aten.to.dtype,
    _aten.to.dtype_layout,
    _aten.to.other,
}
_ALL = 2048  # a Dim with fewer sizes is tried with all of them
_MOST_SIZES = 8  # that are compared one by one
Compared = tuple[sympy.Symbol, int, bool]
_REASON = (
    "the result of {operator} is a view for {view} and a copy for {copy}, so a later "
    "write would differ between sizes; use "
    ".clone(memory_format=torch.contiguous_format) of its operand"
)


@dataclass(slots=True, eq=False)
class ByLayout:
    """A call whose result may be a view at some sizes.

    Attributes:
        op, args, kwargs: the call; its first argument is a tensor.
        source: its first argument.
        result: its result, in memory of its own.
        condition: whether the result is a view, as a bool [] that is computed from
            sizes; False if it never is, None if this is not known yet.
    """

    op: OpOverload
    args: Sequence[object]
    kwargs: Mapping[str, object]
    source: Tensor
    result: Tensor
    condition: Tensor | bool | None = None

    def views(self, dims: SizesOf) -> tuple[bool, list[Sequence[Compared]]]:
        """Return at which sizes the call returns a view.

        Returns:
            Whether what follows are the sizes at which it returns a view, or those at
                which it returns a copy; and a list, of which each item is one way to be
                so: symbols, and a number that each is, or is not.

        Raises:
            Unwritable: it depends on more than which sizes are 1, or on many sizes.
        """
        symbols = sorted(_symbols((self.args, self.kwargs)), key=str)
        if not dims.keys() >= set(symbols):
            return True, []
        found: dict[bool, list[tuple[int, ...]]] = {True: [], False: []}
        for numbers in samples([dims[symbol][1] for symbol in symbols]):
            way = self._is_view(dict(zip(symbols, numbers, strict=True)))
            if way is not None:
                found[way].append(numbers)
        ones = {way: {_ones(each) for each in found[way]} for way in found}
        if not ones[True] & ones[False]:
            return True, [
                [(s, 1, one) for s, one in zip(symbols, each, strict=True)]
                for each in sorted(ones[True])
            ]
        fewer = len(found[True]) <= len(found[False])
        if len(symbols) > 1 or len(found[fewer]) > _MOST_SIZES:
            raise self._refused(found, [dims[symbol][1] for symbol in symbols])
        return fewer, [[(symbols[0], n, True)] for (n,) in found[fewer]]

    def _is_view(self, sizes: Sizes) -> bool | None:
        """Tell whether the call returns a tensor in the memory of its operand.

        Return None if the operand is empty, or if the call raises an error.
        """

        def at(each: Tensor | SymInt | torch.device) -> object:
            if isinstance(each, torch.device):
                return torch.device("meta")
            if isinstance(each, SymInt):
                return number(each)
            shape, steps = ([*map(number, x)] for x in (each.shape, each.stride()))
            return torch.empty_strided(shape, steps, dtype=each.dtype, device="meta")

        def number(size: int | SymInt) -> int:
            return size if isinstance(size, int) else int(size.node.expr.subs(sizes))

        kinds = (Tensor, SymInt, torch.device)
        args, kwargs = tree_map_only(kinds, at, (self.args, self.kwargs))
        if not args[0].numel():
            return None
        try:
            made = self.op(*args, **kwargs)
        except RuntimeError:
            return None
        shared: bool = made.untyped_storage()._cdata == args[0].untyped_storage()._cdata
        return shared

    def _refused(
        self, found: Mapping[bool, Sequence[tuple[int, ...]]], dims: Sequence[Dim]
    ) -> Unwritable:
        view, copy = (
            ", ".join(
                f"{dim.name} = {n}" for dim, n in zip(dims, found[way][0], strict=True)
            )
            for way in (True, False)
        )
        return Unwritable(
            _REASON.format(operator=self.op._opname, view=view, copy=copy)
        )


def _ones(numbers: Sequence[int]) -> tuple[bool, ...]:
    return tuple(number == 1 for number in numbers)


def is_dynamic(tensor: Tensor) -> bool:
    """Tell whether the layout of a tensor depends on sizes."""
    return any(isinstance(n, SymInt) for n in (*tensor.shape, *tensor.stride()))


def samples(dims: Sequence[Dim]) -> Iterator[tuple[int, ...]]:
    """Yield one size per Dim: all sizes of a single Dim, else some combinations.

    The combinations have the ten least and the two greatest sizes of each Dim, and half
    of the greatest. They are also used for a single Dim with many sizes.
    """
    if len(dims) == 1 and dims[0].upper - dims[0].lower < _ALL:
        yield from ((n,) for n in range(dims[0].lower, dims[0].upper + 1))
        return
    choices = []
    for dim in dims:
        small = range(dim.lower, dim.lower + 10)
        near = {*small, dim.upper // 2, dim.upper - 1, dim.upper}
        choices.append(sorted(n for n in near if dim.lower <= n <= dim.upper))
    yield from itertools.product(*choices)


def _symbols(values: object) -> set[sympy.Symbol]:
    """Return the symbols in sizes, and in the shapes and strides of tensors."""
    found: set[sympy.Symbol] = set()
    for each in tree_leaves(values):
        sizes = [*each.shape, *each.stride()] if isinstance(each, Tensor) else [each]
        for size in sizes:
            if isinstance(size, SymInt):
                found |= size.node.expr.free_symbols
    return found
