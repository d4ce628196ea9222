"""A mode that records operators as a graph without writes.

In: operators on tensors without values, one after the other. Out: nodes of a graph, by
one rule: a view is a path into a memory, a write gives the memory a new value, and what
is read is the path applied to the current value. The decision is in
`decisions/writes-become-values-by-one-rule.md`.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch._ops import OpOverload

from kvc.compiler.functional.by_size import BY_LAYOUT, ByLayout, is_dynamic
from kvc.compiler.functional.contents import Arguments, Named
from kvc.compiler.functional.operators import Kind, has_kernel, kind_of
from kvc.compiler.functional.stores import Stores
from kvc.compiler.functional.views import Unwritable, may_be_one
from kvc.compiler.functional.writes import write

_aten = torch.ops.aten
_OTHER_SIGN = (
    "it writes into a tensor, and reads a view of its conjugate or its negative; take "
    ".clone() of one"
)
# Views in another sign -> the operators that compute them.
_TURNED = {
    _aten._conj.default: _aten.conj_physical.default,
    _aten._neg_view.default: _aten.neg.default,
}
_ITSELF = (
    "it writes into a tensor, or into what sum_to_size returns of it, which is the "
    "tensor itself at some sizes; take .clone() of one"
)
_REFUSED = {
    _aten._has_compatible_shallow_copy_type.default: (
        "it assigns to .data of a tensor; use copy_(...), or the other tensor"
    )
}
# Checks of sizes and types: torch has answered them, and kvc checks sizes at each call.
_DROPPED = {
    _aten._assert_scalar.default,
    _aten._assert_tensor_metadata.default,
    _aten.sym_constrain_range.default,
    _aten.sym_constrain_range_for_size.default,
}


class Recorder(Stores):  # type: ignore[no-untyped-call]
    """Records what is computed while it is active."""

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: Arguments = (),
        kwargs: Named | None = None,
    ) -> object:
        return self.call(func, args, kwargs or {})

    def call(self, op: OpOverload, args: Arguments, kwargs: Named) -> object:
        """Record a call, and return its results as tensors without values."""
        if op in _DROPPED:
            return None
        if op.namespace == "prim":  # asks for a device or a layout
            return op(*args, **kwargs)
        if op in _REFUSED:
            raise Unwritable(_REFUSED[op])
        args = [self.without_values(each) for each in args]
        kwargs = {name: self.without_values(each) for name, each in kwargs.items()}
        kind = kind_of(op)
        if kind is Kind.WRITE:
            return write(self, op, args, kwargs)
        source = args[0] if args else None
        if kind is Kind.VIEW and isinstance(source, Tensor):
            if op in _TURNED:
                return self._turned(op, source)
            if op is _aten.squeeze.default:
                ones = [i for i, n in enumerate(source.shape) if may_be_one(n)]
                return self.view(_aten.squeeze.dims, [source, ones], {})
            if op is not _aten.unfold.default or source.dim():
                return self.view(op, args, kwargs)
        made = self._new(op, args, kwargs)
        if isinstance(source, Tensor) and isinstance(made, Tensor):
            self._relate(ByLayout(op, args, kwargs, source, made))
        return made

    def _relate(self, call: ByLayout) -> None:
        """Note that the result of a call may be a view at some sizes."""
        if not is_dynamic(call.source) or self.is_within(call.result, [call.source]):
            return
        if call.op in BY_LAYOUT:
            self.couple(call)
        if call.op is _aten.sum_to_size.default:
            self.link(call.result, call.source, _ITSELF)

    def _new(self, op: OpOverload, args: Arguments, kwargs: Named) -> object:
        """Record a call that is no view and no write, or the calls of its parts."""
        if op is _aten.lift_fresh_copy.default and isinstance(args[0], Tensor):
            return self.snapshot(self.place(args[0]))
        made = self.taken_apart(op, *args, **kwargs)
        is_composite = kind_of(op) is Kind.COMPOSITE and op not in self._kept
        if made is NotImplemented and is_composite:
            with self:
                made = op.decompose(*args, **kwargs)
        if made is NotImplemented:
            return self.record(op, args, kwargs, self.computed(op, args, kwargs))
        if not isinstance(made, Tensor) or not has_kernel(op):
            return made
        return self.snapshot(self.place(made)) if self.is_within(made, args) else made

    def _turned(self, op: OpOverload, source: Tensor) -> Tensor:
        """Compute what torch views in another sign; neither may be written then."""
        made = self.call(_TURNED[op], [source], {})
        assert isinstance(made, Tensor)
        self.link(made, source, _OTHER_SIGN)
        return made
