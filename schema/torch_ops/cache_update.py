"""`kvc::cache_update`: write a block of rows into a cache, functionally.

In: a cache, the new rows, one start index per batch row. Out: the cache with the
rows written. The operator is functional; the runtime calls `write_rows` on the
cache itself where the compiler has proven that this is safe. Semantics are those
of ONNX TensorScatter (opset 24), with both ends of the index range checked.
"""

import torch
from torch import Tensor

from kvc.schema.errors import CacheOverflow


@torch.library.custom_op("kvc::cache_update", mutates_args=())
def cache_update(
    cache: Tensor,
    update: Tensor,
    write_indices: Tensor | None = None,
    axis: int = -2,
    mode: str = "linear",
) -> Tensor:
    """Return `cache` with `update` written along `axis`.

    Args:
        cache: [batch, ..., slots, ...], any dtype; `slots` is the size of `axis`.
        update: as `cache`, but with `seq <= slots` on `axis`.
        write_indices: int64 [batch], the first slot of each row; None means zeros.
        axis: the sequence axis; not the batch axis 0.
        mode: "linear", where all of `update` must fit, or "circular", where the
            slot is taken modulo `slots`.

    Raises:
        CacheOverflow: a linear write would begin before slot 0 or end behind the
            last one. Nothing has been written then.
    """
    written = cache.clone()
    write_cache(written, update, write_indices, axis, mode)
    return written


@cache_update.register_fake
def _(
    cache: Tensor,
    update: Tensor,
    write_indices: Tensor | None = None,
    axis: int = -2,
    mode: str = "linear",
) -> Tensor:
    _check_arguments(cache, update, axis, mode)
    return torch.empty_like(cache, memory_format=torch.contiguous_format)


def write_cache(
    cache: Tensor,
    update: Tensor,
    write_indices: Tensor | None,
    axis: int,
    mode: str,
) -> None:
    """Write `update` into `cache` itself; arguments and errors as `cache_update`."""
    _check_arguments(cache, update, axis, mode)
    write_rows(cache, update, write_indices, axis, mode)


def write_rows(
    cache: Tensor,
    update: Tensor,
    write_indices: Tensor | None,
    axis: int,
    mode: str,
) -> None:
    """Do as `write_cache` where shapes and dtypes are known to fit."""
    slots, seq = cache.shape[axis], update.shape[axis]
    rows = cache.shape[0]
    starts = [0] * rows if write_indices is None else write_indices.tolist()
    if mode == "linear":
        _check_range(starts, seq, slots)
    if seq == 0:
        return
    if rows == 1:
        _write_row(cache, update, axis, starts[0] % slots)
        return
    for row, start in enumerate(starts):
        target, source = cache.narrow(0, row, 1), update.narrow(0, row, 1)
        _write_row(target, source, axis, start % slots)


def _write_row(cache: Tensor, update: Tensor, axis: int, first: int) -> None:
    """Write one row from slot `first` on, going round at the last slot."""
    slots, seq = cache.shape[axis], update.shape[axis]
    head = slots - first
    if seq <= head:
        cache.narrow(axis, first, seq).copy_(update)
        return
    cache.narrow(axis, first, head).copy_(update.narrow(axis, 0, head))
    rest = update.narrow(axis, head, seq - head)
    cache.narrow(axis, 0, seq - head).copy_(rest)


def _check_arguments(cache: Tensor, update: Tensor, axis: int, mode: str) -> int:
    """Check what does not depend on values; return the axis counted from 0."""
    if cache.dim() != update.dim():
        raise ValueError(
            f"cache_update: the update has {update.dim()} dimensions, "
            f"the cache has {cache.dim()}"
        )
    positive = axis % cache.dim()
    if positive == 0:
        raise ValueError(
            "cache_update: axis 0 is the batch and cannot be written along"
        )
    if mode not in ("linear", "circular"):
        raise ValueError(f"cache_update: mode {mode!r} is not 'linear' or 'circular'")
    if cache.dtype != update.dtype:
        raise ValueError(
            f"cache_update: the update is {update.dtype}, the cache {cache.dtype}"
        )
    for dim in range(cache.dim()):
        if dim != positive and cache.shape[dim] != update.shape[dim]:
            raise ValueError(
                f"cache_update: dimension {dim} of the update is {update.shape[dim]}, "
                f"of the cache {cache.shape[dim]}"
            )
    torch._check(  # type: ignore[no-untyped-call]
        update.shape[positive] <= cache.shape[positive],
        lambda: "cache_update: the update is longer than the cache",
    )
    return positive


def _check_range(starts: list[int], seq: int, slots: int) -> None:
    for row, start in enumerate(starts):
        if start < 0 or start + seq > slots:
            raise CacheOverflow(row=row, start=start, count=seq, capacity=slots)
