"""Replace functions that torch traces for one size only, or with unknown operators.

In: a call of such a function. Out: the result of the call, computed by functions that
torch traces for all sizes.

torch splits tensors, pools along one axis, and runs recurrent layers (`recurrent`) in
code that turns a dynamic size into a number. Other functions are replaced as follows.
Fourier transforms become products with matrices (`fourier`). Linear interpolation
becomes a sum with constant weights (`resampled`). Windows of signals become constants.
`embedding` with bounded norms leaves a table of the model unchanged (`renormed`).
Margin losses ignore NaN (`margin_losses`).
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import torch
from torch import SymInt, Tensor, fx
from torch.nn import functional

from kvc.compiler.decompose.claims import claim
from kvc.compiler.decompose.fourier import FOURIER
from kvc.compiler.decompose.margin_losses import (
    bound_multi_margin_loss,
    multi_margin_loss,
    numbered_multi_margin_loss,
)
from kvc.compiler.decompose.recurrent import RECURRENT
from kvc.compiler.decompose.renormed import bounded_embedding
from kvc.compiler.decompose.resampled import interpolate

# Windows of signals of fixed lengths as constants.


Numbers = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


def _window(
    symmetric: Callable[..., Numbers],
    window_length: int | torch.SymInt,
    periodic: bool = True,
    *settings: float,
    dtype: torch.dtype | None = None,
    layout: object = None,
    device: object = None,
    pin_memory: object = None,
    requires_grad: object = None,
    **named: float,
) -> Tensor | None:
    """Return a window [window_length]; None if its length is dynamic.

    A periodic window is a symmetric window that is one value longer, without its last
    value. `symmetric` computes the symmetric window of a length. All other arguments
    are as in torch.
    """
    kind = torch.get_default_dtype() if dtype is None else dtype
    fixed = isinstance(window_length, int) and window_length >= 0
    if not fixed or not kind.is_floating_point:
        return None
    longer = periodic and window_length > 1
    numbers = symmetric(window_length + longer, *settings, **named)
    return torch.from_numpy(numbers[:window_length].copy()).to(kind)


def _raised_cosine(length: int, alpha: float = 0.54, beta: float = 0.46) -> Numbers:
    if length == 1:
        return np.ones(1)
    angles = 2 * np.pi / max(length - 1, 1) * np.arange(length)
    made: Numbers = alpha - beta * np.cos(angles)
    return made


def _kaiser(length: int, beta: float = 12.0) -> Numbers:
    return np.kaiser(length, beta)


WINDOWS: Mapping[Callable[..., object], Callable[..., object]] = {
    torch.bartlett_window: partial(_window, np.bartlett),
    torch.blackman_window: partial(_window, np.blackman),
    torch.hamming_window: partial(_window, _raised_cosine),
    torch.hann_window: partial(_window, np.hanning),
    torch.kaiser_window: partial(_window, _kaiser),
}


# Replace functions.


_aten = torch.ops.aten
Size = int | SymInt
Pieces = Sequence[Tensor]


def rephrased(
    func: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object]
) -> object:
    """Call a function, or its replacement if it has one."""
    replacement = _REPLACEMENTS.get(func)
    if replacement is not None:
        found = replacement(
            *args, **{_NAMES.get(name, name): kwargs[name] for name in kwargs}
        )
        if found is not None:
            return found
    return func(*args, **kwargs)


def rephrase_bodies(module: fx.GraphModule) -> None:
    """Replace functions in the bodies of a module's branches and loops.

    torch has traced the bodies before.
    """
    for body in module.modules():
        if isinstance(body, fx.GraphModule):
            for node in body.graph.nodes:
                _rephrase(node)
            body.recompile()


def _rephrase(node: fx.Node) -> None:
    func: object = node.target
    if node.op == "call_method":
        func = getattr(Tensor, str(node.target), None)
    elif node.op != "call_function":
        return
    if not callable(func) or func not in _REPLACEMENTS or func in _OUTSIDE:
        return

    def replaced(*args: object, **kwargs: object) -> object:
        return rephrased(func, args, kwargs)

    node.op, node.target = "call_function", replaced


def _size(x: Tensor, dim: int) -> SymInt | None:
    """Return the size of an axis if it is dynamic, else None."""
    size: object = x.shape[dim] if -x.dim() <= dim < x.dim() else None
    return size if isinstance(size, SymInt) else None


def _split(x: Tensor, into: Size | Sequence[Size], dim: int = 0) -> Pieces | None:
    whole = _size(x, dim)
    if whole is None or not isinstance(into, Size):
        return None
    count = claim((whole + into - 1) // into)
    return _cut(x, [*[into] * (count - 1), whole - (count - 1) * into], dim)


def _chunk(x: Tensor, into: int, dim: int = 0) -> Pieces | None:
    whole = _size(x, dim)
    return None if whole is None else _split(x, (whole + into - 1) // into, dim)


def _tensor_split(x: Tensor, into: object, dim: int = 0) -> Pieces | None:
    whole = _size(x, dim)
    if whole is None or not isinstance(into, int):
        return None
    return _cut(x, [(whole + into - 1 - i) // into for i in range(into)], dim)


def _cut(x: Tensor, sizes: Sequence[Size], dim: int) -> Pieces:
    pieces: Pieces = torch.ops.aten.split_with_sizes.default(x, sizes, dim)
    return tuple(pieces)


def _max_pool1d(
    x: Tensor,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Tensor | Pieces | None:
    """Pool along one axis, as a pool over planes [1, length]."""
    if _size(x, -1) is None:
        return None
    kernel, padded, apart = (_one(each) for each in (kernel_size, padding, dilation))
    step = _one(stride) if stride else kernel
    values, places = functional.max_pool2d_with_indices(
        x.unsqueeze(-2), (1, kernel), (1, step), (0, padded), (1, apart), ceil_mode
    )
    pooled = values.squeeze(-2)
    return (pooled, places.squeeze(-2)) if return_indices else pooled


def _narrow(x: Tensor, dim: int, start: object, length: Size) -> Tensor | None:
    """Return a part of an axis that begins at a number in a tensor."""
    if not isinstance(start, Tensor):
        return None
    if isinstance(length, int) and length == 0:
        return x.narrow(dim, 0, 0)
    if start.dim() or start.is_floating_point() or start.dtype == torch.bool:
        return None
    place = torch.where(start < 0, start + x.shape[dim], start).item()
    torch._check(place >= 0)  # type: ignore[no-untyped-call]
    torch._check(place + length <= x.shape[dim])  # type: ignore[no-untyped-call]
    return x.narrow(dim, place, length)  # type: ignore[arg-type]  # an integer


def _polygamma_(x: Tensor, n: int) -> Tensor:
    """Compute polygamma and copy it into x, since torch cannot trace `polygamma_`."""
    return x.copy_(torch.polygamma(n, x))


def _unsafe_split(
    x: Tensor, into: Size | Sequence[Size], dim: int = 0
) -> Sequence[Tensor]:
    """Split a tensor into views; as in torch, writes to the views change the tensor."""
    return _split(x, into, dim) or x.split(into, dim)  # type: ignore[no-untyped-call]


def _unsafe_chunk(x: Tensor, into: int, dim: int = 0) -> Sequence[Tensor]:
    return _chunk(x, into, dim) or x.chunk(into, dim)


def _one(setting: int | Sequence[int]) -> int:
    return setting if isinstance(setting, int) else setting[0]


def _unfold(x: Tensor, dimension: int, size: int, step: int) -> Tensor | None:
    """Unfold an axis into slices, since torch's own trace would fix dynamic sizes."""
    if not x.dim() or _size(x, dimension) is not None or not 0 < size <= step:
        return None
    dim, whole = dimension % x.dim(), x.shape[dimension]
    count = (whole - size) // step + 1
    if size == 1 and whole:
        every: Tensor = _aten.slice.Tensor(x, dim, 0, whole, step)
        return every.unsqueeze(-1)
    if whole < size or count * step > whole:
        return None
    parts: Tensor = x.narrow(dim, 0, count * step).unflatten(dim, (count, step))  # type: ignore[no-untyped-call]
    return parts.narrow(dim + 1, 0, size).movedim(dim + 1, -1)


def _may_be_itself(
    func: Callable[..., Tensor],
) -> Callable[..., Tensor | None]:
    """Replace a conversion of x by the same conversion of an alias of x.

    The conversion may return x itself, depending on the layout of x, which may be wrong
    in torch's trace. With the alias, the conversion is in the trace.
    """

    def apart(x: Tensor, *args: object, **kwargs: object) -> Tensor | None:
        formats = [*args, *kwargs.values()]
        if not any(isinstance(each, torch.memory_format) for each in formats):
            return None
        return func(_aten.alias(x), *args, **kwargs)

    return apart


def _contiguous(
    x: Tensor, memory_format: torch.memory_format = torch.contiguous_format
) -> Tensor:
    """Call the operator `contiguous` on an alias of x.

    torch's Python method may return x itself in a trace.
    """
    made: Tensor = _aten.contiguous.default(_aten.alias(x), memory_format=memory_format)
    return made


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor | None:
    """Compute attention after expanding query, key and value to equal leading axes."""
    given = query, key, value
    if enable_gqa or len({x.dim() for x in given}) == 1:
        return None
    rows = torch.broadcast_shapes(*(x.shape[:-2] for x in given))  # type: ignore[no-untyped-call]
    query, key, value = (x.expand(*rows, *x.shape[-2:]) for x in given)
    return functional.scaled_dot_product_attention(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale
    )


# Functions that convert a dtype, and the memory order if one is given.
_BY_FORMAT: tuple[Callable[..., Tensor], ...] = (
    *(Tensor.to, Tensor.cpu, Tensor.float, Tensor.double, Tensor.half),
    *(Tensor.bfloat16, Tensor.int, Tensor.long, Tensor.short, Tensor.char),
    *(Tensor.byte, Tensor.bool),
)
# torch's parameter names -> the names here.
_NAMES = {
    "input": "x",
    "self": "x",
    "tensor": "x",
    "split_size_or_sections": "into",
    "split_size": "into",
    "split_sizes": "into",
    "chunks": "into",
    "indices_or_sections": "into",
    "sections": "into",
    "indices": "into",
}
# Functions kept in bodies: tables are recorded, and complex numbers replaced, outside.
_OUTSIDE = {functional.embedding, *FOURIER}
_REPLACEMENTS: dict[Callable[..., object], Callable[..., object]] = {
    torch.split: _split,
    Tensor.split: _split,
    torch.chunk: _chunk,
    Tensor.chunk: _chunk,
    torch.tensor_split: _tensor_split,
    Tensor.tensor_split: _tensor_split,
    torch.max_pool1d: _max_pool1d,
    functional.max_pool1d: _max_pool1d,
    torch.narrow: _narrow,
    Tensor.narrow: _narrow,
    Tensor.polygamma_: _polygamma_,
    torch.unsafe_split: _unsafe_split,
    Tensor.unsafe_split: _unsafe_split,
    _aten.unsafe_split: _unsafe_split,
    _aten.unsafe_split.Tensor: _unsafe_split,
    torch.unsafe_split_with_sizes: _unsafe_split,
    Tensor.unsafe_split_with_sizes: _unsafe_split,
    _aten.unsafe_split_with_sizes: _unsafe_split,
    _aten.unsafe_split_with_sizes.default: _unsafe_split,
    torch.unsafe_chunk: _unsafe_chunk,
    Tensor.unsafe_chunk: _unsafe_chunk,
    _aten.unsafe_chunk: _unsafe_chunk,
    _aten.unsafe_chunk.default: _unsafe_chunk,
    Tensor.unfold: _unfold,
    _aten.unfold: _unfold,
    _aten.unfold.default: _unfold,
    Tensor.contiguous: _contiguous,
    _aten.contiguous: _contiguous,
    _aten.contiguous.default: _contiguous,
    **{func: _may_be_itself(func) for func in _BY_FORMAT},
    functional.multi_margin_loss: multi_margin_loss,
    torch._C._nn.multi_margin_loss: bound_multi_margin_loss,
    _aten.multi_margin_loss: numbered_multi_margin_loss,
    _aten.multi_margin_loss.default: numbered_multi_margin_loss,
    functional.scaled_dot_product_attention: _attention,
    functional.embedding: bounded_embedding,
    functional.interpolate: interpolate,
    **RECURRENT,
    **FOURIER,
    **WINDOWS,
}
