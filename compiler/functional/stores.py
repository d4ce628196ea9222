"""Writes into places: what has another content afterwards.

A write gives one memory a new value. Memories that are this one at some sizes follow;
memories that may be this one, as a branch decides, cannot be read any more.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod

import torch
from torch import Tensor, fx

from kvc.compiler.functional.by_size import ByLayout, Compared, is_dynamic
from kvc.compiler.functional.contents import Contents
from kvc.compiler.functional.memory import Memory
from kvc.compiler.functional.undone import through
from kvc.compiler.functional.views import Size, Unwritable, equal

_aten = torch.ops.aten


class Stores(Contents):  # type: ignore[no-untyped-call]
    """Contents that can be written."""

    _inputs: tuple[Tensor, ...] = ()

    def store(
        self,
        tensor: Tensor,
        new: Tensor,
        *,
        uniform: bool = False,
        same: bool = False,
        cause: ByLayout | None = None,
    ) -> None:
        """Give the memory of a tensor a new value, in which the tensor is `new`.

        Args:
            tensor: the tensor that is written.
            new: its new content, of its sizes and dtype.
            uniform: whether all elements of `new` are equal.
            same: whether memories that may be this one have that content too.
            cause: the call by which this follows from another write.

        Raises:
            Unwritable: the tensor has elements several times.
        """
        place, node = self.place(tensor), self.read(new)
        whole = through(self, place.path(), new, uniform)
        self.store_whole(place.memory, whole, same, cause)
        place.node, place.version = node, place.memory.version

    def store_whole(
        self,
        memory: Memory,
        whole: Tensor,
        same: bool = False,
        cause: ByLayout | None = None,
    ) -> None:
        """Give a memory a new value; the other arguments are as in `store`."""
        memory.value = self.read(whole)
        memory.version += 1
        for call in memory.coupled:
            if call is not cause:
                self._follow(call, memory)
        if memory.linked and not same:
            for other, reason in memory.related().items():
                if other is not memory and other.stale is None:
                    other.stale = Unwritable(reason, self.meta)

    def link(self, one: Tensor, other: Tensor, reason: str) -> None:
        """Note that a tensor is, or may be, in the memory of another one.

        Once either is written, the other cannot be read any more, by that reason.
        """
        first, second = self.place(one).memory, self.place(other).memory
        first.linked[second] = second.linked[first] = reason

    # Views at some sizes, copies at others.

    def couple(self, call: ByLayout) -> None:
        """Note that a call that has copied returns views at some sizes."""
        one, other = (self.place(x).memory for x in (call.source, call.result))
        if not any(each in other.coupled for each in one.coupled):
            one.coupled.append(call)
            other.coupled.append(call)

    def _follow(self, call: ByLayout, written: Memory) -> None:
        """Write into one side of a call what has been written into the other.

        It is written at those sizes at which the call returns a view.
        """
        if call.condition is None:
            call.condition = self._condition(call)
        tensor, other = call.source, call.result
        if self.place(tensor).memory is written:
            tensor, other = other, tensor
        if isinstance(call.condition, Tensor):
            with self:
                new = self.shaped(other, tensor.shape)
                new = torch.where(call.condition, new, tensor)
            self.store(tensor, new, cause=call)

    def _condition(self, call: ByLayout) -> Tensor | bool:
        """Return whether a call returns a view, a bool []; False if it never does."""
        is_view, ways = call.views(self._sizes)
        if not ways:
            return False
        with self:
            some = functools.reduce(torch.logical_or, map(self._all, ways))
            return some if is_view else some.logical_not()

    def _all(self, way: Sequence[Compared]) -> Tensor:
        """Return whether all sizes are, or are not, certain numbers, as a bool []."""
        full: Callable[..., Tensor] = torch.full
        each = [full((), self._sizes[s][0]).eq(n).eq(is_it) for s, n, is_it in way]
        return functools.reduce(torch.logical_and, each)

    # Inputs.

    def add_input(self, tensor: Tensor, node: fx.Node) -> None:
        """Give an input a memory of its own."""
        self.own(tensor, node)
        self._inputs = (*self._inputs, tensor)

    def is_input(self, tensor: Tensor) -> bool:
        """Tell whether a tensor is an input itself."""
        return any(tensor is each for each in self._inputs)

    def check_inputs(self) -> None:
        """Check that all inputs have a known content at the end.

        Raises:
            Unwritable: an input may be what a branch returned, which was written.
        """
        for tensor in self._inputs:
            self.read(tensor)

    # Other sizes in place.

    def become(self, tensor: Tensor, other: Tensor) -> None:
        """Let a tensor be another one, whose sizes it has been given in place."""
        place = self.place(other)
        view = place.view and replace(place.view, result=tensor)
        self._places[id(tensor)] = replace(place, tensor=tensor, view=view)

    def let_go(self, tensor: Tensor) -> None:
        """Keep the layout of a tensor for what refers to it, before it is changed."""

        def kept(each: Tensor) -> Tensor:
            return old if each is tensor else each

        old, place = self.alike(tensor), self.place(tensor)
        place.tensor = old
        if place.several is not None:
            place.several.results = [*map(kept, place.several.results)]
        for node in self.graph.nodes:
            value = node.meta.get("val")
            listed = isinstance(value, list | tuple)
            node.meta["val"] = tuple(map(kept, value)) if listed else kept(value)
        for each in self._places.values():
            if each.view is not None:
                source, result = kept(each.view.source), kept(each.view.result)
                each.view = replace(each.view, source=source, result=result)

    def resize(self, tensor: Tensor, sizes: Sequence[Size]) -> None:
        """Give a tensor other sizes, with the elements that are next in its memory.

        Raises:
            Unwritable: it is an input, other tensors view its memory, or it would have
                more elements than before, of no known content.
        """
        if len(sizes) == tensor.dim() and all(map(equal, tensor.shape, sizes)):
            return
        if self._is_reshaped(tensor, sizes):
            made = self.view(_aten.view.default, [tensor, [*sizes]], {})
            assert isinstance(made, Tensor)
            self._give_sizes(tensor, sizes)
            self.become(tensor, made)
            return
        memory = self.place(tensor).memory
        shared = sum(place.memory is memory for place in self._places.values()) > 1
        empty = equal(tensor.numel(), 0)
        known = empty or all(isinstance(n, int) for n in (*sizes, *tensor.shape))
        if shared or self.is_input(tensor) or not known:
            reason = "it gives a tensor another size in place; return a new tensor"
            raise Unwritable(reason)
        if not empty and prod(sizes) > tensor.numel():
            raise Unwritable("it gives a tensor more elements in place, without values")
        if not empty:
            old = self.snapshot(self.place(tensor))
            steps = [prod(sizes[axis + 1 :]) for axis in range(len(sizes))]
            made = self.taken_apart(_aten.as_strided.default, old, sizes, steps)
        else:
            made = self.call(_aten.full.default, ([*sizes], 0), {"dtype": tensor.dtype})
        assert isinstance(made, Tensor)
        self._give_sizes(tensor, sizes)
        self.own(tensor, self.read(made))

    def _is_reshaped(self, tensor: Tensor, sizes: Sequence[Size]) -> bool:
        """Tell whether other sizes have the elements of a tensor, in their order."""
        if self.is_input(tensor) or is_dynamic(tensor):
            return False
        known = all(isinstance(n, int) for n in sizes)
        return known and prod(sizes) == tensor.numel() and tensor.is_contiguous()

    def _give_sizes(self, tensor: Tensor, sizes: Sequence[Size]) -> None:
        self.let_go(tensor)
        with self._fake:
            tensor.resize_(tuple(sizes))
