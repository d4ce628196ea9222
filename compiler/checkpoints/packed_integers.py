"""Matrices of integers with scales and zeros: GPTQ, AWQ, compressed-tensors, MLX."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

import torch
from torch import Tensor

from kvc.compiler.checkpoints.packed_tensor import (
    Decode,
    PackedTensor,
    Parts,
    read,
    unpacked,
)
from kvc.compiler.checkpoints.tensor_file import FileTensor
from kvc.compiler.weights.stored_layout import (
    AGAIN,
    BLOCK,
    OFFSET,
    StoredLayout,
    StoredRows,
)
from kvc.schema.checkpoints.problems import bad_checkpoint
from kvc.schema.errors import BadCheckpoint, UnsupportedModel

Files = Mapping[str, FileTensor]
Settings = Mapping[str, object]

ORDERED: Final = f"columns reordered (act-order), {AGAIN}"
_WORD: Final = 32  # bits
_TOGETHER: Final = 64  # rows that are widened at a time
# Which of eight columns each nibble of a word of AWQ is.
_AWQ_ORDER: Final = (0, 2, 4, 6, 1, 3, 5, 7)


def gptq(name: str, parts: Files, settings: Settings) -> PackedTensor:
    """Return a matrix of GPTQ's.

    qweight is int32 [in * bits / 32, out], scales [groups, out], qzeros int32 [groups,
    out * bits / 32], and g_idx int32 [in] the group of each input. Version 1 stores
    zeros less one.

    Raises:
        UnsupportedModel: a setting is unknown.
        BadCheckpoint: sizes of the tensors do not fit, or groups are out of range.
    """
    bits = _bits(settings.get("bits"), name)
    named = settings.get("checkpoint_format") or settings.get("format") or "gptq"
    version = str(named).lower()
    if version not in ("gptq", "gptq_v2"):
        raise _unknown(name, "checkpoint_format", version, "gptq or gptq_v2")
    qweight, scales = parts["qweight"], parts["scales"]
    columns, rows = qweight.shape[0] * _WORD // bits, qweight.shape[1]
    groups = _checked(name, parts, (rows, columns), _groups(scales, 0))
    _check_shape(name, parts, "scales", (groups, rows))
    _check_shape(name, parts, "qzeros", (groups, rows * bits // _WORD))
    middle = 1 << bits - 1
    symmetric = bool(settings.get("sym", True))
    ordered = _order(name, parts.get("g_idx"), columns, groups)

    def integers(found: Parts) -> StoredRows:
        values = unpacked(found["qweight"].T, bits, columns)
        zeros = unpacked(found["qzeros"], bits, rows).short()
        if symmetric:
            if not bool(((zeros == middle - 1) | (zeros == middle)).all()):
                wrong = f"{name}: `sym` is true in config.json, but zeros differ"
                raise _bad(parts, wrong)
            zeros[:] = middle
        elif version == "gptq":
            zeros = (zeros + 1) & (1 << bits) - 1
        return _rows(values, found["scales"].T, zeros.T, bits, symmetric)

    form = _Form(bits, symmetric, columns // groups, _scale(scales), ordered)
    return _packed(name, "GPTQ", (rows, columns), parts, integers, form)


def awq(name: str, parts: Files, settings: Settings) -> PackedTensor:
    """Return a matrix of AWQ's: qweight int32 [in, out / 8], qzeros [groups, out / 8].

    Raises:
        UnsupportedModel: a setting is unknown.
        BadCheckpoint: sizes of the tensors do not fit.
    """
    version = str(settings.get("format") or settings.get("version") or "gemm").lower()
    if version != "gemm":
        raise _unknown(name, "version", version, "gemm")
    bits = _bits(settings.get("bits", settings.get("w_bit", 4)), name)
    if bits != 4:
        raise _unknown(name, "bits", bits, "4")
    qweight, scales = parts["qweight"], parts["scales"]
    columns, rows = qweight.shape[0], qweight.shape[1] * 8
    groups = _checked(name, parts, (rows, columns), _groups(scales, 0))
    _check_shape(name, parts, "scales", (groups, rows))
    _check_shape(name, parts, "qzeros", (groups, rows // 8))

    def integers(found: Parts) -> StoredRows:
        values = _awq_columns(found["qweight"])
        zeros = _awq_columns(found["qzeros"]).short()
        return _rows(values.T, found["scales"].T, zeros.T, bits, False)

    form = _Form(bits, False, columns // groups, _scale(scales))
    return _packed(name, "AWQ", (rows, columns), parts, integers, form)


def _awq_columns(words: Tensor) -> Tensor:
    """Return the integers of words int32 [n, out / 8] in order: uint8 [n, out]."""
    nibbles = unpacked(words, 4, 8 * words.shape[1]).view(-1, 8)
    ordered = torch.empty_like(nibbles)
    ordered[:, list(_AWQ_ORDER)] = nibbles
    return ordered.view(len(words), -1)


def compressed(name: str, parts: Files, settings: Settings) -> PackedTensor:
    """Return a matrix of compressed-tensors' pack-quantized.

    weight_packed is int32 [out, in * bits / 32], values above their middle;
    weight_scale [out, groups]; weight_zero_point int32 [out * bits / 32, groups];
    weight_shape int64 [2].

    Raises:
        BadCheckpoint: sizes of the tensors do not fit each other, or the settings.
    """
    shape = [int(size) for size in read(parts["weight_shape"])]
    packed, scales = parts["weight_packed"], parts["weight_scale"]
    if len(shape) != 2 or len(packed.shape) != 2:
        raise _bad(parts, f"{name}: it is no matrix, but {shape}")
    rows, columns = shape
    widths = {bits for bits in _widths(settings) if -(-columns * bits // _WORD) ==
              packed.shape[1]}  # fmt: skip
    if len(widths) != 1 or packed.shape[0] != rows:
        wide = f"{list(packed.shape)} holds no integers of {sorted(_widths(settings))}"
        raise _bad(parts, f"{name}: weight_packed {wide} bits for {shape}")
    bits = widths.pop()
    groups = _checked(name, parts, (rows, columns), _groups(scales, 1))
    _check_shape(name, parts, "weight_scale", (rows, groups))
    zeros = parts.get("weight_zero_point")
    if zeros is not None:
        many = -(-rows * bits // _WORD)
        _check_shape(name, parts, "weight_zero_point", (many, groups))
    ordered = _order(name, parts.get("weight_g_idx"), columns, groups)

    def integers(found: Parts) -> StoredRows:
        values = unpacked(found["weight_packed"], bits, columns)
        if zeros is None:
            offs = torch.full((rows, groups), 1 << bits - 1, dtype=torch.int16)
        else:
            offs = unpacked(found["weight_zero_point"].T, bits, rows).T.short()
        return _rows(values, found["weight_scale"], offs, bits, zeros is None)

    form = _Form(bits, zeros is None, columns // groups, _scale(scales), ordered)
    return _packed(name, "compressed-tensors", (rows, columns), parts, integers, form)


def _widths(settings: Settings) -> set[int]:
    """Return the widths of weights that the groups of settings have."""
    groups = settings.get("config_groups")
    found = set[int]()
    for group in groups.values() if isinstance(groups, Mapping) else ():
        weights = group.get("weights") if isinstance(group, Mapping) else None
        bits = weights.get("num_bits") if isinstance(weights, Mapping) else None
        if isinstance(bits, int) and 1 <= bits <= 8:
            found.add(bits)
    return found


def mlx(name: str, parts: Files, settings: Settings) -> PackedTensor:
    """Return a matrix of MLX's: weight uint32 [out, in * bits / 32], scales and biases.

    A weight is value * scale + bias; both are [out, groups].

    Raises:
        UnsupportedModel: a setting is unknown.
        BadCheckpoint: sizes of the tensors do not fit.
    """
    own = settings.get(name.removesuffix(".weight"))
    given = own if isinstance(own, Mapping) else settings
    mode = given.get("mode", "affine")
    if mode != "affine":
        raise _unknown(name, "mode", mode, "affine")
    bits = _bits(given.get("bits"), name)
    weight, scales = parts["weight"], parts["scales"]
    rows, columns = weight.shape[0], weight.shape[1] * _WORD // bits
    groups = _checked(name, parts, (rows, columns), _groups(scales, 1))
    _check_shape(name, parts, "scales", (rows, groups))
    _check_shape(name, parts, "biases", (rows, groups))
    four = bits <= 4
    halves = parts["biases"].dtype == torch.float16
    layout = StoredLayout(
        4, columns // groups, _scale(scales), torch.float16 if halves else torch.float32
    )

    def integers(found: Parts) -> StoredRows | Tensor:
        values = unpacked(found["weight"], bits, columns)
        least = found["biases"]
        read = StoredRows(values, found["scales"], least if halves else least.float())
        return read if four else read.widened()

    kept = layout if four else StoredLayout(8, BLOCK, loss=AGAIN)
    return PackedTensor(name, "MLX", (rows, columns), parts, integers, kept)


# What the formats have in common.


@dataclass(frozen=True, slots=True)
class _Form:
    """How the integers of a matrix stand for weights.

    Attributes:
        bits: the width of the integers.
        symmetric: whether all zeros are in the middle.
        block: how many inputs of a row share a scale.
        scale: dtype of the scales.
        order: int64 [in], the group of each input; None if a group lies together.
    """

    bits: int
    symmetric: bool
    block: int
    scale: torch.dtype
    order: Tensor | None = None


def _packed(
    name: str,
    kind: str,
    shape: tuple[int, int],
    parts: Files,
    integers: Callable[[Parts], StoredRows],
    form: _Form,
) -> PackedTensor:
    """Return a matrix, whose `integers` are as `_rows` returns them.

    Columns in another order, and integers of 8 bits with zeros, are quantized again.
    """
    decode: Decode = integers
    order = form.order
    if order is not None:
        layout = StoredLayout(8, BLOCK, loss=ORDERED)
        decode = partial(_in_order, integers, order)
    elif form.bits <= 4:
        plain = form.symmetric and 1 << form.bits - 1 == OFFSET
        least = None if plain else torch.float32
        layout = StoredLayout(4, form.block, form.scale, least)
    elif form.symmetric:
        layout = StoredLayout(8, form.block)
    else:
        layout = StoredLayout(8, BLOCK, loss=AGAIN)
        decode = partial(_in_order, integers, None)
    return PackedTensor(name, kind, shape, parts, decode, layout)


def _in_order(
    integers: Callable[[Parts], StoredRows], order: Tensor | None, found: Parts
) -> Tensor:
    """Return the weights of integers as float32 [out, in]; `order` is as in `_Form`."""
    rows = integers(found)
    return rows.widened() if order is None else _widened(rows, order)


def _rows(
    values: Tensor, scales: Tensor, zeros: Tensor, bits: int, symmetric: bool
) -> StoredRows:
    """Return the rows of integers with zeros: (value - zero) * scale.

    Args:
        values: uint8 [out, in].
        scales: [out, groups].
        zeros: int16 [out, groups].
        bits: the width of the integers.
        symmetric: whether all zeros are in the middle.
    """
    scales = scales.contiguous()
    if bits > 4 and symmetric:
        middle = 1 << bits - 1
        return StoredRows((values.short() - middle).to(torch.int8), scales.float())
    if symmetric and 1 << bits - 1 == OFFSET:
        return StoredRows(values, scales)
    return StoredRows(values, scales, -(zeros.float() * scales.float()))


def _widened(rows: StoredRows, order: Tensor) -> Tensor:
    """Return float32 [out, in] of rows each of whose inputs has a group of its own."""
    widened = torch.empty(rows.values.shape)
    offset = OFFSET if rows.values.dtype == torch.uint8 else 0
    for begin in range(0, len(widened), _TOGETHER):
        some = slice(begin, begin + _TOGETHER)
        values, scales = rows.values[some].float(), rows.scales[some].float()[:, order]
        if rows.minimums is not None:
            widened[some] = values.mul_(scales).add_(rows.minimums[some][:, order])
        else:
            widened[some] = values.sub_(offset).mul_(scales)
    return widened


def _order(
    name: str, found: FileTensor | None, columns: int, groups: int
) -> Tensor | None:
    """Return the group of each input, None if groups are inputs that lie together.

    Raises:
        BadCheckpoint: there are not as many, or a group is out of range.
    """
    if found is None:
        return None
    order = read(found).long()
    if tuple(order.shape) != (columns,):
        wrong = f"its {list(order.shape)} groups are not those of {columns} inputs"
        raise _bad({"g_idx": found}, f"{name}: {wrong}")
    if bool((order == -1).all()):  # compressed-tensors: not reordered
        return None
    low, high = int(order.min()), int(order.max())
    if low < 0 or high >= groups:
        wrong = f"g_idx has groups from {low} to {high}, there are {groups}"
        raise _bad({"g_idx": found}, f"{name}: {wrong}")
    plain = torch.arange(columns) // (columns // groups)
    return None if torch.equal(order, plain) else order


def _groups(scales: FileTensor, axis: int) -> int:
    return scales.shape[axis] if len(scales.shape) == 2 else 0


def _checked(name: str, parts: Files, shape: tuple[int, int], groups: int) -> int:
    """Return `groups`, the number of groups of a row's inputs, after a check.

    Raises:
        BadCheckpoint: the groups do not divide the inputs.
    """
    rows, columns = shape
    if not rows or not columns or groups < 1 or columns % groups:
        wrong = f"{groups} groups do not divide {columns} inputs of {rows} rows"
        raise _bad(parts, f"{name}: {wrong}")
    return groups


def _check_shape(name: str, parts: Files, end: str, shape: tuple[int, ...]) -> None:
    found = parts[end].shape
    if found != shape:
        wrong = f"{end} is {list(found)}, expected {list(shape)}"
        raise _bad(parts, f"{name}: {wrong}")


def _scale(scales: FileTensor) -> torch.dtype:
    """Return the dtype of scales, float32 for one that products do not have."""
    halves = (torch.float16, torch.bfloat16)
    return scales.dtype if scales.dtype in halves else torch.float32


def _bits(found: object, name: str) -> int:
    if not isinstance(found, int) or not 2 <= found <= 8:
        raise _unknown(name, "bits", found, "2 to 8")
    return found


def _unknown(name: str, key: str, found: object, known: str) -> UnsupportedModel:
    reason = f"its quantization has {key} {found!r}, and kvc reads {known}"
    return UnsupportedModel(model=name, reason=reason)


def _bad(parts: Files, wrong: str) -> BadCheckpoint:
    return bad_checkpoint([wrong], next(iter(parts.values())).path)
