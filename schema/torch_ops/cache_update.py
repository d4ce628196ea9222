"""`kvc::cache_update`: return a cache with new rows written into it.

In: a cache, the new rows, a start index for each batch row, and the row lengths. Out: a
new cache, which contains the new rows. If the compiler has proven that it is safe, the
runtime calls `write_rows` on the given cache instead. The semantics are those of ONNX
TensorScatter (opset 24), with two differences: row lengths are added, and writes out of
range in linear mode raise an error (undefined in ONNX). Both ends of the written range
are checked, for all rows, before anything is written.
"""

import torch
from torch import Tensor

from kvc.schema.errors import CacheOverflow, IndexOutOfRange
from kvc.schema.rings import can_keep, slot_runs
from kvc.schema.torch_ops.rows import (
    check_row_lengths,
    check_slots,
    read_row_lengths,
)


@torch.library.custom_op("kvc::cache_update", mutates_args=())
def cache_update(
    cache: Tensor,
    update: Tensor,
    write_indices: Tensor | None = None,
    axis: int = -2,
    mode: str = "linear",
    row_lengths: Tensor | None = None,
    keep: int = 0,
) -> Tensor:
    """Return `cache` with `update` written along `axis`.

    Args:
        cache: [batch, ..., slots, ...], any dtype; `slots` is the size of `axis`.
        update: the new rows, with the shape and dtype of `cache`, except that `axis`
            has the size `seq`, at most `slots` unless `row_lengths` limits the number
            of written rows. For a float16 cache, `update` can also be float32; it is
            rounded to nearest, halves to even, and 65520 and more become infinite.
        write_indices: int64 [batch], the first slot to write in each batch row; None
            for slot 0.
        axis: the sequence axis; not the batch axis 0.
        mode: "linear": all of `update` must fit. "circular": slot numbers are taken
            modulo `slots`, also negative slot numbers.
        row_lengths: int64 [batch], from 0 to `seq`: the number of rows of `update` to
            write in each batch row, from the first row on; None to write all rows.
        keep: the number of first positions that are never overwritten, 0 <= keep <
            `slots`; only in circular mode. Position p >= keep is in slot keep + (p -
            keep) % (slots - keep).

    Raises:
        ValueError: shapes, dtypes, axis or mode do not fit.
        RowLengthOutOfRange: a row length is negative, or more than `seq`.
        IndexOutOfRange: a write would begin before slot 0, in linear mode or with
            `keep` above 0.
        CacheOverflow: a write would end past the last slot, or, in circular mode, write
            a slot twice. All errors are raised before anything is written.
    """
    written = cache.clone(memory_format=torch.contiguous_format)
    write_cache(written, update, write_indices, axis, mode, row_lengths, keep)
    return written


@cache_update.register_fake
def _(
    cache: Tensor,
    update: Tensor,
    write_indices: Tensor | None = None,
    axis: int = -2,
    mode: str = "linear",
    row_lengths: Tensor | None = None,
    keep: int = 0,
) -> Tensor:
    _check_arguments(cache, update, write_indices, axis, mode, row_lengths, keep)
    return torch.empty_like(cache, memory_format=torch.contiguous_format)


def write_cache(
    cache: Tensor,
    update: Tensor,
    write_indices: Tensor | None,
    axis: int,
    mode: str,
    row_lengths: Tensor | None = None,
    keep: int = 0,
) -> None:
    """Write `update` into `cache` in place; `cache_update` explains the arguments."""
    _check_arguments(cache, update, write_indices, axis, mode, row_lengths, keep)
    write_rows(cache, update, write_indices, axis, mode, row_lengths, keep)


def write_rows(
    cache: Tensor,
    update: Tensor,
    write_indices: Tensor | None,
    axis: int,
    mode: str,
    row_lengths: Tensor | None = None,
    keep: int = 0,
) -> None:
    """Write `update` into `cache` in place, without checks of shapes and dtypes.

    `cache_update` explains the arguments.
    """
    slots, seq = cache.shape[axis], update.shape[axis]
    rows = cache.shape[0]
    if rows == 1 and row_lengths is None and write_indices is not None:
        first = int(write_indices)
        if 0 <= first <= slots - seq:  # a shortcut for decode: one copy
            cache.narrow(axis, first, seq).copy_(update)
            return
    starts = [0] * rows if write_indices is None else write_indices.tolist()
    written = read_row_lengths(row_lengths, rows, seq)
    if mode == "linear":
        check_slots(starts, written, slots)
    else:
        _check_once_round(starts, written, slots, keep)
    for row, (start, count) in enumerate(zip(starts, written, strict=True)):
        if count:
            source = update.narrow(0, row, 1).narrow(axis, 0, count)
            _write_row(cache.narrow(0, row, 1), source, axis, start, keep)


def _write_row(cache: Tensor, update: Tensor, axis: int, start: int, keep: int) -> None:
    """Write one batch row from position `start` on, and wrap after the last slot."""
    done = 0
    seq, slots = update.shape[axis], cache.shape[axis]
    for slot, count in slot_runs(start, seq, slots, keep):
        part = update.narrow(axis, done, count)
        cache.narrow(axis, slot, count).copy_(part)
        done += count


def _check_arguments(
    cache: Tensor,
    update: Tensor,
    write_indices: Tensor | None,
    axis: int,
    mode: str,
    row_lengths: Tensor | None = None,
    keep: int = 0,
) -> None:
    """Check the arguments of `cache_update` without reading tensor values.

    Sizes may be symbolic.
    """
    rank = cache.dim()
    _check(update.dim() == rank, f"an update of {update.dim()} dimensions, not {rank}")
    _check(-rank <= axis < rank, f"axis {axis} of a cache of {rank} dimensions")
    _check(axis % rank != 0, "axis 0 is the batch and cannot be written along")
    _check(
        mode in ("linear", "circular"), f"mode {mode!r} is not 'linear' or 'circular'"
    )
    fits = can_keep(keep, mode, cache.shape[axis])
    _check(fits, f"{keep} of {cache.shape[axis]} positions kept, {mode}")
    narrow = cache.dtype == torch.float16 and update.dtype == torch.float32
    _check(
        cache.dtype == update.dtype or narrow,
        f"the update is {update.dtype}, the cache {cache.dtype}",
    )
    for dim, (new, size) in enumerate(zip(update.shape, cache.shape, strict=True)):
        if dim == axis % rank:
            if row_lengths is not None or _is_chosen(mode, new, size):
                continue  # padding need not fit; lengths are checked later
            _check(new <= size, f"the update is longer than the cache: {new} > {size}")
        else:
            text = f"dimension {dim} of the update is {new}, of the cache {size}"
            _check(new == size, text)
    if write_indices is not None:
        _check_indices(write_indices, cache.shape[0])
    check_row_lengths(row_lengths, cache.shape[0], "cache_update")


def _is_chosen(mode: str, new: int | torch.SymInt, size: int | torch.SymInt) -> bool:
    """Tell whether a session selects the length of a linear cache.

    If the selected length is too small for a call with a fixed number of tokens, the
    call is refused when it runs.

    Args:
        mode: the argument `mode` of `cache_update`.
        new: the number of new rows.
        size: the length of the cache.
    """
    fixed = not isinstance(new, torch.SymInt)
    return mode == "linear" and isinstance(size, torch.SymInt) and fixed


def _check_indices(write_indices: Tensor, rows: int) -> None:
    _check(
        write_indices.dtype == torch.int64 and write_indices.dim() == 1,
        f"write_indices are {write_indices.dtype} of {write_indices.dim()} dimensions, "
        f"not int64 of one",
    )
    count = write_indices.shape[0]
    _check(count == rows, f"{count} write indices for {rows} rows")


def _check(condition: bool | torch.SymBool, text: str) -> None:
    torch._check_value(condition, lambda: f"cache_update: {text}")  # type: ignore[no-untyped-call]


def _check_once_round(
    starts: list[int], written: list[int], slots: int, keep: int
) -> None:
    """Check that no batch row writes a slot twice, or begins before slot 0.

    Raises:
        IndexOutOfRange: a row would begin before slot 0 of a ring with kept positions.
        CacheOverflow: a row would write a slot twice.
    """
    for row, (start, count) in enumerate(zip(starts, written, strict=True)):
        if keep and start < 0:
            raise IndexOutOfRange(place="", index=start, size=slots)
        if count > slots - max(0, min(start, keep)):
            raise CacheOverflow(row=row, start=start, count=count, capacity=slots)
