"""The contents of traced tensors, as nodes of a graph without writes.

A memory has a current value, and a tensor in it has a place: the views that lead to it.
What a tensor contains is these views, applied to the current value.
"""

import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import torch
from torch import SymBool, SymFloat, SymInt, Tensor, fx
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from kvc.compiler.functional.by_size import SizesOf
from kvc.compiler.functional.layouts import WRONG, real_orders
from kvc.compiler.functional.memory import Memory, Place, Several
from kvc.compiler.functional.operators import with_defaults
from kvc.compiler.functional.views import Size, View, equal, parts_of

_aten = torch.ops.aten
Table = Mapping[torch._ops.OperatorBase, Callable[..., object]]
Arguments = Sequence[object]
Named = Mapping[str, object]
Made = TypeVar("Made")
Symbolic = SymInt | SymFloat | SymBool
# Views that are their operand.
_UNCHANGED = {_aten.alias.default, _aten.detach.default, _aten.lift_fresh.default}
_VIEW_KEY = torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)


class Contents(TorchDispatchMode):
    """Knows what tensors contain, and adds nodes to a graph.

    Attributes:
        graph: the nodes so far.
        meta: what a new node has as its metadata, apart from its value.
        constants: node -> real tensor, for tensors that code made while it ran.
    """

    def __init__(
        self,
        fake: FakeTensorMode,
        table: Table,
        kept: Collection[OpOverload],
        sizes: SizesOf,
    ) -> None:
        """Start an empty graph.

        Args:
            fake: the mode of the trace's tensors, which have no values.
            table: operator -> the function that takes it apart.
            kept: composite operators that stay whole.
            sizes: torch's symbols of the declared Dims.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        self.graph = fx.Graph()
        self.meta: dict[str, object] = {}
        self.constants: dict[fx.Node, Tensor] = {}
        self._fake, self._table = fake, table
        self._kept, self._sizes = kept, sizes
        self._excluded = torch._C._dispatch_tls_local_exclude_set() | _VIEW_KEY
        self._reals: dict[int, tuple[Tensor, Tensor]] = {}
        self._places: dict[int, Place] = {}  # by the identity of the tensor
        self._numbers: dict[object, fx.Node] = {}  # by their expressions

    def call(self, op: OpOverload, args: Arguments, kwargs: Named) -> object:
        """Record a call, and return its results as tensors without values."""
        raise NotImplementedError

    # Tensors without values.

    def computed(self, op: OpOverload, args: Arguments, kwargs: Named) -> object:
        """Return the results of a call, without recording it."""
        # As outside of this mode, where composite operators are taken apart.
        include = torch._C._dispatch_tls_local_include_set()
        with torch._C._ForceDispatchKeyGuard(include, self._excluded), self._fake:
            made = op(*args, **kwargs)
        if op not in WRONG:
            return made
        orders = real_orders(op, args, kwargs, made)
        results = made if isinstance(made, list | tuple) else [made]
        laid = list(map(self._ordered, results, orders))
        return laid if isinstance(made, list | tuple) else laid[0]

    def _ordered(self, tensor: Tensor, order: Sequence[int] | None) -> Tensor:
        """Return a tensor like another whose axes lie in another order in memory."""
        if order is None:
            return tensor
        back = [order.index(axis) for axis in range(len(order))]
        with self._fake:
            made = torch.empty([tensor.shape[i] for i in order], dtype=tensor.dtype)
            return made.permute(back)

    def alike(self, tensor: Tensor) -> Tensor:
        """Return a tensor of the layout of another, which lies nowhere yet."""
        sizes, steps = tensor.shape, tensor.stride()
        with self._fake:
            made: Tensor = torch.empty_strided(sizes, steps, dtype=tensor.dtype)
        return made

    def without_values(self, each: object) -> object:
        """Return a tensor without values for a real tensor, which is a constant."""
        if isinstance(each, list | tuple):
            return [self.without_values(item) for item in each]
        if not isinstance(each, Tensor) or isinstance(each, FakeTensor):
            return each
        return self.constant(each)

    def constant(self, real: Tensor) -> Tensor:
        """Return the tensor that stands for a real tensor, an input of the graph."""
        known = self._reals.get(id(real))
        if known is None:
            node = self._added_input(f"constant_{len(self.constants)}")
            made = self._fake.from_tensor(real, static_shapes=True)
            node.meta["val"] = made
            self.own(made, node)
            self.constants[node] = real
            known = self._reals[id(real)] = (real, made)
        return known[1]

    # Inputs.

    def _added_input(self, name: str) -> fx.Node:
        first = next((n for n in self.graph.nodes if n.op != "placeholder"), None)
        if first is None:
            return self.graph.placeholder(name)
        with self.graph.inserting_before(first):
            return self.graph.placeholder(name)

    def add_unread(self, before: int, after: int) -> None:
        """Add inputs that nothing reads before and after those of the constants."""
        first = next(iter(self.constants), None)
        for i in range(before + after):
            node = self._added_input(f"unread_{i}")
            node.meta["val"] = None
            if first is not None and i < before:
                first.prepend(node)

    def order_inputs(self, order: Sequence[int]) -> None:
        """Give the inputs another order; those of constants stay last."""
        inputs = self.graph.find_nodes(op="placeholder")
        for i in reversed(order):
            inputs[i].graph._root.append(inputs[i])

    # Nodes.

    def add(
        self, target: object, args: Arguments, kwargs: Named, value: object
    ) -> fx.Node:
        """Add a node that reads the current content of its arguments."""
        node = self.graph.call_function(
            target,  # type: ignore[arg-type]  # an operator or a function
            tuple(map(self._argument, args)),  # type: ignore[arg-type]  # nodes, numbers
            {name: self._argument(each) for name, each in kwargs.items()},  # type: ignore[misc]
        )
        node.meta = {**self.meta, "val": value}
        return node

    def _argument(self, value: object) -> object:
        if isinstance(value, Tensor):
            return self.read(value)
        if isinstance(value, list | tuple):
            made = map(self._argument, value)
            return [*made] if isinstance(value, list) else tuple(made)
        if isinstance(value, SymFloat | SymBool):
            return self._numbers.get(value.node.expr, value)
        return value

    def record(
        self, target: object, args: Arguments, kwargs: Named, made: Made
    ) -> Made:
        """Add a node whose results, the tensors `made`, have memory of their own."""
        node = self.add(target, args, kwargs, made)
        if isinstance(made, Tensor):
            self.own(made, node)
        elif isinstance(made, list | tuple):
            for i, each in enumerate(made):
                if isinstance(each, Tensor):
                    self.own(each, self._item(node, i, each))
        self.number(made, node)
        return made

    def _item(self, node: fx.Node, index: int, value: object) -> fx.Node:
        made = self.graph.call_function(operator.getitem, (node, index))
        made.meta = {**self.meta, "val": value}
        return made

    def number(self, value: object, node: fx.Node) -> None:
        """Record the node that computes a number."""
        if isinstance(value, Symbolic):
            self._numbers[value.node.expr] = node

    def taken_apart(self, op: OpOverload, *args: object, **kwargs: object) -> object:
        """Return what a rule of the table makes of a call; else NotImplemented."""
        rule = self._table.get(op)
        if rule is None:
            return NotImplemented
        with self:
            return rule(*args, **kwargs)

    def whole(self, op: OpOverload, *args: object) -> Tensor:
        """Record a call without taking it apart, unless it has complex numbers."""
        if any(isinstance(each, Tensor) and each.is_complex() for each in args):
            made = self.call(op, args, {})
        else:
            made = self.record(op, args, {}, self.computed(op, args, {}))
        assert isinstance(made, Tensor)
        return made

    def shaped(self, tensor: Tensor, sizes: Sequence[Size]) -> Tensor:
        """Return a tensor with the same elements in the same order, in other sizes."""
        if len(sizes) == tensor.dim() and all(map(equal, tensor.shape, sizes)):
            return tensor
        if tensor.is_complex():
            other = self.taken_apart(_aten.view.default, tensor, [*sizes])
            assert isinstance(other, Tensor)
            return other
        with self._fake:
            made = torch.empty(tuple(sizes), dtype=tensor.dtype)
        return self.record(_aten.view.default, (tensor, [*sizes]), {}, made)

    # Places.

    def own(self, tensor: Tensor, node: fx.Node) -> None:
        """Give a tensor a memory of its own, whose content is a node."""
        self._places[id(tensor)] = Place(tensor, Memory(node), node=node)

    def place(self, tensor: Tensor) -> Place:
        """Return where a tensor lies."""
        return self._places[id(tensor)]

    def is_within(self, tensor: object, given: Sequence[object]) -> bool:
        """Tell whether a tensor lies in the memory of one of others."""
        assert isinstance(tensor, Tensor)
        memory = self.place(tensor).memory
        some = (each for each in given if isinstance(each, Tensor))
        return any(self.place(each).memory is memory for each in some)

    def is_written(self, given: object) -> bool:
        """Tell whether the memory of a tensor has been written."""
        return isinstance(given, Tensor) and self.place(given).memory.version > 0

    def view(self, op: OpOverload, args: Arguments, kwargs: Named) -> object:
        """Note where the results of a view lie, and return them."""
        made = self.computed(op, args, kwargs)
        source = args[0]
        assert isinstance(source, Tensor)
        given = with_defaults(op, args, kwargs)[1:]
        if isinstance(made, Tensor):
            self._note(View(op, given, source, made))
            return made
        assert isinstance(made, list | tuple)
        several = None if op is _aten.unbind.int else Several(op, given, made)
        for index, view in enumerate(parts_of(op, given, source, made)):
            self._note(view, several, index)
        return made

    def _note(self, view: View, several: Several | None = None, index: int = 0) -> None:
        parent = self.place(view.source)
        if view.op is _aten.as_strided.default:  # of the whole memory
            while parent.parent is not None:
                parent = parent.parent
            args = (*view.args[:2], view.result.storage_offset())
            view = replace(view, args=args, source=parent.tensor)
        if view.result is not view.source:
            self._places[id(view.result)] = Place(
                view.result, parent.memory, parent, view, several=several, index=index
            )

    def laid_out(self, tensor: Tensor, like: Tensor) -> Tensor:
        """Return a tensor with the same content, in the layout of another.

        A view stays at its place; any other tensor gets a memory of its own.
        """
        place = self.place(tensor)
        if place.view is None:
            made = self.alike(like)
            self.own(made, self.content(place))
            return made
        with self._fake:
            made = torch.as_strided(tensor, like.shape, like.stride())
        view = replace(place.view, result=made)
        self._places[id(made)] = replace(place, tensor=made, view=view, node=None)
        return made

    # What is read.

    def read(self, tensor: Tensor) -> fx.Node:
        """Return a node with the current content of a tensor."""
        return self.content(self.place(tensor))

    def content(self, place: Place) -> fx.Node:
        """Return a node with the current content of a place.

        Raises:
            Unwritable: a memory that may be this one has been written.
        """
        memory = place.memory
        if memory.stale is not None:
            raise memory.stale
        if place.node is None or place.version != memory.version:
            place.node = self._viewed(place)
            place.version = memory.version
        return place.node

    def snapshot(self, place: Place) -> Tensor:
        """Return a tensor with the current content of a place, in other memory."""
        made = self.alike(place.tensor)
        self.own(made, self.content(place))
        return made

    def _viewed(self, place: Place) -> fx.Node:
        view, parent = place.view, place.parent
        if parent is None or view is None:
            return place.memory.value
        if view.op in _UNCHANGED:
            return self.content(parent)
        is_complex = view.source.is_complex() or view.result.is_complex()
        if view.op is _aten.as_strided.default or is_complex:
            made = self.taken_apart(view.op, self.snapshot(parent), *view.args)
            if isinstance(made, Tensor):
                return self.read(made)
        several, version = place.several, parent.memory.version
        if several is None:
            return self._of_place(view.op, parent, view.args, view.result)
        node = several.node_of(version)
        if node is None:
            node = self._of_place(several.op, parent, several.args, several.results)
            several.keep(node, version)
        return self._item(node, place.index, view.result)

    def _of_place(
        self, op: OpOverload, place: Place, args: Arguments, value: object
    ) -> fx.Node:
        """Add a node that calls an operator on the content of a place."""
        return self.add(op, (self.content(place), *args), {}, value)
