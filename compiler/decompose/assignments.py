"""Rewrite assignments that torch cannot trace as they are written.

`cache[:, p] = x` fails while tracing if `p` is a number read from a tensor, or an
integer tensor of shape [], although `cache[:, p]` and `cache[:, p : p + 1] = x` work.
The assignment is replaced by a write into the view `cache[:, p]`.

`x.data`, which would return a tensor that is not traced, is replaced by `x.detach()`,
which has the same memory.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from kvc.compiler.decompose.replacements import rephrased

_GET_DATA = Tensor.data.__get__  # type: ignore[attr-defined]
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8)


class TraceableAssignments(TorchFunctionMode):
    """A mode that replaces untraceable assignments while a method is traced."""

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        if func is Tensor.__setitem__:
            target, places, value = args
            assert isinstance(target, Tensor)
            places = places if isinstance(places, tuple) else (places,)
            if any(map(_is_read, places)) and not any(map(_picks_many, places)):
                _assign(target[places], value)
                return None
        if func is torch._C._set_grad_enabled:
            # There are no gradients; torch would make a branch of this call.
            return None
        # Dynamo, which traces bodies of control flow, knows the attribute itself.
        if not torch.compiler.is_dynamo_compiling() and func == _GET_DATA:
            (tensor,) = args
            assert isinstance(tensor, Tensor)
            return tensor.detach()
        return rephrased(func, args, kwargs or {})


def _is_read(place: object) -> bool:
    """Tell whether an index, or a bound of a slice, is a number read from a tensor."""
    if isinstance(place, slice):
        return _is_read(place.start) or _is_read(place.stop)
    if isinstance(place, Tensor):
        return place.dim() == 0 and place.dtype in _INTEGERS
    return isinstance(place, torch.SymInt)


def _picks_many(place: object) -> bool:
    """Tell whether an index is a list, a bool or a tensor of several indices.

    A view cannot select the elements at such an index.
    """
    return isinstance(place, list | tuple | bool) or (
        isinstance(place, Tensor) and not _is_read(place)
    )


def _assign(view: object, value: object) -> None:
    assert isinstance(view, Tensor)
    if not isinstance(value, Tensor):
        view.fill_(value)  # type: ignore[call-overload]
        return
    while value.dim() > view.dim() and value.shape[0] == 1:
        value = value[0]  # as torch does in assignments
    view.copy_(value)
