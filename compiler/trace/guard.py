"""Refuse writes into real memory before they happen, while a method is traced.

A trace computes with tensors that have no values. With a real tensor that is not part
of the trace, torch computes real values, and really writes. In: every operator of a
trace. Out: a `CaptureError` before such a write, and the names of registered tensors
whose memory was read outside of the trace.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from kvc.compiler.functional.operators import written_arguments
from kvc.compiler.trace.aliases import RegisteredMemory, is_real
from kvc.compiler.trace.python_state import PythonState
from kvc.compiler.trace.sources import user_place
from kvc.compiler.weights.tensor_identity import Extent, memory_of
from kvc.schema.errors import CaptureError, StateConflict


class Guard(TorchDispatchMode):
    """Checks every operator that a trace runs, before it runs.

    Attributes:
        refused: the first write that was refused; code may have caught the error.
        missed: name of a registered tensor -> ` at module:line` where the values in its
            memory were read.
    """

    supports_higher_order_operators = True

    def __init__(
        self, method: str, memory: RegisteredMemory, state: PythonState
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.refused: CaptureError | None = None
        self.missed: dict[str, str] = {}
        self._method = method
        self._memory = memory
        self._state = state
        # Tensors that the trace has made, by their memory; kept alive.
        self._fresh: dict[object, Tensor] = {}

    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        if isinstance(func, torch._ops.OpOverload):
            self._check(func, args, kwargs)
        results = func(*args, **kwargs)
        given = {memory_of(tensor) for tensor in _real((args, kwargs))}
        self._add_fresh(one for one in _real(results) if memory_of(one) not in given)
        return results

    def _check(
        self,
        func: torch._ops.OpOverload,
        args: Sequence[object],
        kwargs: dict[str, object],
    ) -> None:
        if func._schema.name.startswith("aten::lift_fresh"):
            self._add_fresh(_real(args))  # a new tensor of torch.tensor(...)
        for tensor in _real(written_arguments(func, args, kwargs)):
            if not self._is_fresh(tensor):
                self.refused = self.refused or self._refusal(func, tensor)
                raise self.refused
        for tensor in _real((args, kwargs)):
            name = None if self._is_fresh(tensor) else self._met(tensor)
            if name is not None:
                self.missed.setdefault(name, user_place(sys._getframe(2)))

    def _met(self, tensor: Tensor) -> str | None:
        return self._memory.overlapping(Extent.of(tensor))

    def _add_fresh(self, made: Iterable[Tensor]) -> None:
        for tensor in made:
            self._fresh.setdefault(memory_of(tensor), tensor)

    def _is_fresh(self, tensor: Tensor) -> bool:
        return memory_of(tensor) in self._fresh

    def _refusal(self, func: torch._ops.OpOverload, tensor: Tensor) -> CaptureError:
        path = self._state.path_of(tensor)
        held = self._met(tensor)
        what = f"{path!r}" if path else "a tensor that is kept outside of the model"
        if held is not None:
            remedy = f"shares memory with {held!r}; write into that, or a view of it"
        else:
            remedy = "is no buffer; make it a buffer with register_buffer"
        return CaptureError(
            method=self._method,
            place=user_place(sys._getframe(3)),
            reason=f"{func} would write into {what}, which {remedy}",
        )


def unseen(method: str, name: str, place: str) -> StateConflict:
    """Return the error for a read of a state's memory outside of the trace."""
    reason = (
        f"method {method}{place} uses its memory through a tensor that cannot be "
        "traced as a part of it, so that it would keep the value of one moment; take "
        "views of the buffer itself, in the code"
    )
    return StateConflict(state=name, reason=reason)


def _real(structure: object) -> Iterator[Tensor]:
    leaves = tree_leaves(structure)
    return (one for one in leaves if isinstance(one, Tensor) and is_real(one))
