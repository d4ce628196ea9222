"""`kvc::adapted`: add to the results of a layer what a row's adapter adds to them.

In: the results of a linear layer, its inputs, the low-rank matrices of several
adapters, and the adapter of each row of a batch. Out: the adapted results. Adapters are
LoRA (Hu et al., 2021) and DoRA (Liu et al., 2024). Only the matrices of adapters that a
row has are read. No shape depends on which adapters rows have.
"""

import torch
from torch import Tensor

from kvc.schema.errors import IndexOutOfRange


@torch.library.custom_op("kvc::adapted", mutates_args=())
def adapted(
    y: Tensor,
    x: Tensor,
    a: Tensor | None,
    b: Tensor,
    factors: Tensor | None,
    ranks: Tensor,
    adapters: Tensor,
    scales: Tensor,
    gain: Tensor | None = None,
    offset: Tensor | None = None,
) -> Tensor:
    """Return `y * gain + offset + scale * (x @ a.T) @ b` with each row's adapter.

    With a gain of 0 and without `a`, an adapter has a whole matrix in place of the
    layer's.

    Args:
        y: float32 [batch, ..., out], the results of a layer.
        x: float32 [batch, ..., in], the inputs of the layer.
        a: [adapters, rank, in], dtype as `b`; None: the rank is that of the inputs, and
            `b` multiplies them.
        b: float32 or int8 [adapters, rank, out].
        factors: float32 [adapters, rank], what multiplies each rank; None for 1.
        ranks: int64 [adapters], how many of the ranks an adapter uses, from the first;
            a number below 0 counts as 0, one above `rank` as `rank`.
        adapters: int64 [batch], the index of each row's adapter.
        scales: float32 [batch], what multiplies each row's product.
        gain: float32 [adapters, out], what multiplies `y`; None for 1.
        offset: float32 [adapters, out], what is added; None for 0. An adapter that has
            no ranks leaves `y` as it is, whatever `gain` and `offset` are.

    Returns:
        float32 [batch, ..., out]: `y` itself where the adapter has no ranks.

    Raises:
        ValueError: arguments do not fit each other.
        IndexOutOfRange: an index of an adapter is out of range.
    """
    _check_arguments(y, x, a, b, factors, ranks, adapters, scales, gain, offset)
    out = y.new_empty(y.shape)
    adapt_into(out, y, x, a, b, factors, ranks, adapters, scales, gain, offset)
    return out


@adapted.register_fake
def _(
    y: Tensor,
    x: Tensor,
    a: Tensor | None,
    b: Tensor,
    factors: Tensor | None,
    ranks: Tensor,
    adapters: Tensor,
    scales: Tensor,
    gain: Tensor | None = None,
    offset: Tensor | None = None,
) -> Tensor:
    _check_arguments(y, x, a, b, factors, ranks, adapters, scales, gain, offset)
    return y.new_empty(y.shape)


def adapt_into(
    out: Tensor,
    y: Tensor,
    x: Tensor,
    a: Tensor | None,
    b: Tensor,
    factors: Tensor | None,
    ranks: Tensor,
    adapters: Tensor,
    scales: Tensor,
    gain: Tensor | None,
    offset: Tensor | None,
) -> None:
    """Write the result of `adapted` into `out`; the caller checks the arguments.

    Raises:
        IndexOutOfRange: an index of an adapter is out of range, and nothing has been
            written.
    """
    count, most = b.shape[:2]
    chosen = adapters.tolist()
    for index in chosen:
        if not 0 <= index < count:
            raise IndexOutOfRange(place="", index=index, size=count)
    for row, index in enumerate(chosen):
        used = min(max(int(ranks[index]), 0), most)
        if not used:
            out[row].copy_(y[row])
            continue
        base = y[row] if gain is None else y[row] * gain[index]
        base = base if offset is None else base + offset[index]
        low = x[row][..., :used] if a is None else x[row] @ a[index, :used].float().t()
        factor = scales[row] if factors is None else factors[index, :used] * scales[row]
        low = low * factor
        out[row].copy_(base + low @ b[index, :used].float())


def _check_arguments(
    y: Tensor,
    x: Tensor,
    a: Tensor | None,
    b: Tensor,
    factors: Tensor | None,
    ranks: Tensor,
    adapters: Tensor,
    scales: Tensor,
    gain: Tensor | None,
    offset: Tensor | None,
) -> None:
    """Check the arguments of `adapted` without reading tensor values.

    Raises:
        ValueError: an argument does not fit; the message has all shapes.
    """
    each = (y, x, a, b, factors, ranks, adapters, scales, gain, offset)
    text = f"adapted: {', '.join('none' if t is None else _text(t) for t in each)}"
    _check(y.dim() >= 2 and y.dim() == x.dim() and b.dim() == 3, text)
    _check(y.dtype == x.dtype == scales.dtype == torch.float32, text)
    _check(b.dtype in (torch.float32, torch.int8), text)
    _check(ranks.dtype == adapters.dtype == torch.int64, text)
    _check(ranks.dim() == adapters.dim() == scales.dim() == 1, text)
    count, rank, width = b.shape
    sizes = [*zip(y.shape[:-1], x.shape[:-1], strict=True)]
    sizes += [(adapters.shape[0], y.shape[0]), (scales.shape[0], y.shape[0])]
    sizes += [(width, y.shape[-1]), (count, ranks.shape[0])]
    if a is None:
        sizes.append((rank, x.shape[-1]))
    else:
        _check(a.dim() == 3 and a.dtype == b.dtype, text)
        sizes += zip(a.shape, (count, rank, x.shape[-1]), strict=True)
    for part, other in ((factors, rank), (gain, width), (offset, width)):
        if part is not None:
            _check(part.dtype == torch.float32 and part.dim() == 2, text)
            sizes += zip(part.shape, (count, other), strict=True)
    for size, expected in sizes:  # one by one: `and` would fix sizes that are symbols
        _check(size == expected, text)


def _text(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def _check(condition: bool | torch.SymBool, text: str) -> None:
    torch._check_value(condition, lambda: text)  # type: ignore[no-untyped-call]
