"""Recognize the memory of a model while it is traced, however code refers to it.

torch traces the tensors that modules have registered. The same memory may also be an
attribute of a plain object, an item of a list, a variable of a closure, a second
buffer, or a view of any of these. In: a model. Out: `RegisteredMemory`, which finds the
registered tensor that contains the memory of a given tensor, and `AliasMode`, a
dispatch mode that replaces a real tensor over such memory by the same part of the
traced tensor.
"""

import threading
from collections import Counter
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
    Set,
)
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
)
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

from kvc.compiler.request.spec import tensors_of
from kvc.compiler.trace.geometry import (
    StridedLayout,
    Views,
    taken,
    touched_axes,
    views_between,
)
from kvc.compiler.trace.registered import same_shape
from kvc.compiler.weights.tensor_identity import Extent, memory_of

_MEMBERS = nn.Module._named_members
# Errors of torch when code asks for values, which traced tensors do not have.
_OF_TRACING = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    GuardOnDataDependentSymNode,
)
_SET_DATA = Tensor.data.__set__  # type: ignore[attr-defined]


def is_real(tensor: Tensor) -> bool:
    """Tell whether a tensor has memory that holds values."""
    if isinstance(tensor, FakeTensor) or tensor.is_meta or not tensor.numel():
        return False
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    return not wrapped and tensor.layout is torch.strided


@dataclass(frozen=True, slots=True)
class RegisteredView:
    """A registered tensor, and views that lead from it to a tensor in its memory."""

    name: str
    views: Views


@dataclass(frozen=True, slots=True)
class Table:
    """A dict in which a module registers tensors, some of them hidden from torch.

    Attributes:
        table: the module's dict of parameters or of buffers, by name.
        whole: a copy of the dict in which no name is hidden.
        hidden: the hidden names.
    """

    table: dict[str, Any]
    whole: Mapping[str, Tensor | None]
    hidden: frozenset[str]

    def hide(self) -> None:
        """Remove the hidden names from the table."""
        for name in self.hidden:
            self.table.pop(name, None)

    def show(self, hidden: Mapping[str, object]) -> None:
        """Insert the hidden names with new values, at their old positions."""
        known = {**hidden, **self.table}
        self.table.clear()
        self.table.update({name: known.pop(name) for name in self.whole}, **known)


class RegisteredMemory:
    """The registered tensors of a model, each part of memory under one name.

    Attributes:
        named: name -> tensor. Each tensor has one name, and buffers that are parts of
            other buffers are left out.
        tables: the tables of modules that have names left out of `named`.
    """

    def __init__(self, model: nn.Module) -> None:
        self._all = tensors_of(model)
        self._wholes = _wholes(self._all)
        self.named = {n: t for n, t in self._all.items() if n not in self._wholes}
        kept = {_slot(model, name) for name in self.named}
        hidden = {_slot(model, name) for name in self._wholes} - kept
        self.tables = [*_tables(model, hidden)]
        real = {n: t for n, t in self.named.items() if is_real(t)}
        self._extents = {name: Extent.of(tensor) for name, tensor in real.items()}
        self._layouts = {
            name: StridedLayout.of(tensor) for name, tensor in real.items()
        }
        modules = model.named_modules()  # a module that is mounted twice comes once
        tables = ((p, t) for p, m in modules for t in (m._parameters, m._buffers))
        self._slots = [f"{p}.{n}" if p else n for p, table in tables for n in table]

    def whole_of(self, name: str) -> str | None:
        """Return the name of the larger tensor that contains tensor `name`, or None."""
        return self._wholes.get(name)

    def other_name(self, name: str) -> str | None:
        """Return another name in the model for the memory of a registered tensor."""
        whole = self._wholes.get(name, name)
        others = (n for n in self._slots if self._wholes.get(n, n) == whole)
        return next((other for other in others if other != name), None)

    def alias(self, tensor: Tensor) -> RegisteredView | None:
        """Return the registered tensor, and views of it, that equal a real tensor.

        Return None if no registered tensor contains the memory of `tensor`.
        """
        extent, layout = Extent.of(tensor), StridedLayout.of(tensor)
        for name, own in self._extents.items():
            if own.holds(extent):
                views = views_between(self._layouts[name], layout)
                if views == () or (views and not self._is_weight(name)):
                    return RegisteredView(name, views)
        return None

    def _is_weight(self, name: str) -> bool:
        # Part of a parameter is a weight too: it is stored and packed separately.
        return isinstance(self.named[name], nn.Parameter)

    def overlapping(self, extent: Extent) -> str | None:
        """Return the name of a registered tensor with bytes in `extent`, or None."""
        return next((n for n, own in self._extents.items() if own.meets(extent)), None)


def _slot(model: nn.Module, name: str) -> tuple[int, str]:
    """Return (id of the module that registers `name`, last part of the name)."""
    owner, _, leaf = name.rpartition(".")
    return id(model.get_submodule(owner)), leaf


def _tables(model: nn.Module, hidden: Set[tuple[int, str]]) -> Iterator[Table]:
    for module in model.modules():
        for table in (module._parameters, module._buffers):
            names = frozenset(name for name in table if (id(module), name) in hidden)
            if names:
                yield Table(table, dict(table), names)


def _wholes(everything: Mapping[str, Tensor]) -> dict[str, str]:
    """Return name of a tensor -> name of the tensor that contains its memory.

    Only tensors that lie in another tensor are keys. A tensor with several names is
    represented by its first name. A part of a parameter stays separate, since weights
    are stored and packed one by one.
    """
    found: dict[str, str] = {}
    wholes: list[tuple[str, Tensor, Extent]] = []
    extents = {n: Extent.of(t) for n, t in everything.items() if is_real(t)}
    for name in sorted(extents, key=lambda n: (extents[n].begin, -extents[n].end)):
        tensor, extent = everything[name], extents[name]
        wholes = [one for one in wholes if one[2].end > extent.begin]
        around = (n for n, whole, own in wholes if _is_part(tensor, extent, whole, own))
        whole = next(around, None)
        if whole is None:
            wholes.append((name, tensor, extent))
        else:
            found[name] = whole
    return found


def _is_part(tensor: Tensor, extent: Extent, whole: Tensor, around: Extent) -> bool:
    if not around.holds(extent):
        return False
    views = views_between(StridedLayout.of(whole), StridedLayout.of(tensor))
    return views == () or (views is not None and not isinstance(whole, nn.Parameter))


class AliasMode(TorchFunctionMode):
    """Replaces the real memory of the model by traced tensors in operator calls.

    Attributes:
        used: name of a registered tensor -> a real tensor over its memory that was
            passed to an operator.
        given: a real tensor whose memory the model's code replaced (`.data = ...`), or
            None.
        failed: an error that tracing raised, kept here because the model's code may
            catch it; None if there was no error.
    """

    def __init__(
        self,
        memory: RegisteredMemory,
        traced: Mapping[str, Tensor],
        sized: Mapping[str, Sequence[int]],
    ) -> None:
        """Create the mode for the tensors of one trace.

        Args:
            memory: the memory of the model, before it is traced.
            traced: name of a registered tensor -> the traced tensor that replaces it.
            sized: name of a tensor -> axes whose size is chosen when a session is
                opened. A view that cuts such an axis would lie elsewhere in memory for
                another size.
        """
        super().__init__()
        self.used: dict[str, Tensor] = {}
        self.given: Tensor | None = None
        self.failed: Exception | None = None
        self._memory = memory
        self._traced = traced
        self._sized = sized
        # id -> the real tensor, its replacement, and the size of the replacement
        self._met: dict[int, tuple[Tensor, Tensor, torch.Size]] = {}

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        own: dict[int, Tensor] = {}
        if func == _SET_DATA and isinstance(args[0], Tensor) and is_real(args[0]):
            self.given = args[0]
            return None

        def traced(tensor: Tensor) -> Tensor:
            stand_in = self._stand_in(tensor)
            if stand_in is not tensor:
                own[id(stand_in)] = tensor
            return stand_in

        inputs = [_mapped(argument, traced) for argument in args]
        named = {name: _mapped(one, traced) for name, one in (kwargs or {}).items()}
        if isinstance(func, HigherOrderOperator):
            inputs = _without_shared_memory(inputs, own)
        try:
            result = func(*inputs, **named)
        except _OF_TRACING as error:
            self.failed = self.failed or error
            raise
        # `box.k += 1` assigns the result of the operator: return the original tensor.
        return own.get(id(result), result)

    def traced(self, structure: object) -> object:
        """Return nested results with traced tensors in place of the model's."""
        return tree_map_only(Tensor, self._stand_in, structure)

    def reshaped(self) -> Tensor | None:
        """Return a real tensor whose traced replacement has changed its shape."""
        met = self._met.values()
        others = (a for a, stood, shape in met if not same_shape(stood.shape, shape))
        return next(others, None)

    def _stand_in(self, tensor: Tensor) -> Tensor:
        if not is_real(tensor):
            return tensor
        if id(tensor) not in self._met:
            stand_in = self._found(tensor)
            self._met[id(tensor)] = (tensor, stand_in, stand_in.shape)
        return self._met[id(tensor)][1]

    def _found(self, tensor: Tensor) -> Tensor:
        alias = self._memory.alias(tensor)
        if alias is None:
            return tensor
        whole = self._traced[alias.name]
        if touched_axes(alias.views, whole.dim()) & {*self._sized.get(alias.name, ())}:
            return tensor
        self.used.setdefault(alias.name, tensor)
        return taken(whole, alias.views)


def _without_shared_memory(
    inputs: list[object], stand_ins: Collection[int]
) -> list[object]:
    """Clone captured tensors of a branch or loop that share memory with each other.

    torch refuses operands that share memory. Bodies do not write into captured tensors,
    so clones give the same results.
    """
    tensors = [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor)]
    shared = Counter(map(memory_of, tensors))

    def unshared(tensor: Tensor) -> Tensor:
        several = shared[memory_of(tensor)] > 1
        return tensor.clone() if several and id(tensor) in stand_ins else tensor

    return [_mapped(argument, unshared) for argument in inputs]


def _mapped(thing: object, change: Callable[[Tensor], Tensor]) -> object:
    """Return nested arguments or results with `change` applied to each tensor."""
    if isinstance(thing, Tensor):
        return change(thing)
    if type(thing) is list:
        return [_mapped(one, change) for one in thing]
    if type(thing) is tuple:
        return tuple(_mapped(one, change) for one in thing)
    if isinstance(thing, tuple) and hasattr(thing, "_fields"):
        made: Callable[..., object] = type(thing)
        return made(*(_mapped(one, change) for one in thing))
    if type(thing) is dict:
        return {key: _mapped(one, change) for key, one in thing.items()}
    if type(thing) is slice:
        ends = (thing.start, thing.stop, thing.step)
        return slice(*(_mapped(end, change) for end in ends))
    return thing


@contextmanager
def one_name_each(memory: RegisteredMemory) -> Iterator[None]:
    """Show torch each part of a model's memory under one name.

    torch cannot trace two inputs over the same bytes if one of them is written. Only
    this model is changed, so other threads can use other models.
    """
    thread = threading.get_ident()

    def named(
        self: nn.Module,
        members_of: Callable[[nn.Module], Iterable[tuple[str, Tensor]]],
        prefix: str = "",
        recurse: bool = True,
        remove_duplicate: bool = True,
    ) -> Iterator[tuple[str, Tensor]]:
        once = remove_duplicate or threading.get_ident() == thread
        yield from _MEMBERS(self, members_of, prefix, recurse, once)

    with patch.object(nn.Module, "_named_members", named):
        try:
            for table in memory.tables:
                table.hide()
            yield
        finally:
            for table in memory.tables:
                table.show(table.whole)


@contextmanager
def all_names(memory: RegisteredMemory, aliases: AliasMode) -> Iterator[None]:
    """Show every registered name to the traced method, within this context.

    Names that were hidden from torch get the traced tensors of the same memory.
    """
    with patch.object(nn.Module, "_named_members", _MEMBERS):
        try:
            for table in memory.tables:
                table.show({n: aliases.traced(t) for n, t in table.whole.items()})
            yield
        finally:
            for table in memory.tables:
                table.hide()
