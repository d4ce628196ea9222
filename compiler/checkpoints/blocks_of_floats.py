"""Matrices of small floats, or of int8 rows: FP8, bitsandbytes, MXFP4."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Final

import torch
from torch import Tensor

from kvc.compiler.checkpoints.packed_integers import AGAIN, BLOCK
from kvc.compiler.checkpoints.packed_tensor import PackedTensor, Parts, read
from kvc.compiler.checkpoints.tensor_file import FileTensor
from kvc.compiler.weights.stored_layout import StoredLayout, StoredRows
from kvc.schema.checkpoints.problems import bad_checkpoint
from kvc.schema.errors import BadCheckpoint

Files = Mapping[str, FileTensor]
Settings = Mapping[str, object]

_SIDE: Final = 128  # of FP8's blocks, unless settings say otherwise
# The values of E2M1, OCP Microscaling Formats 1.0, table 4.
_E2M1: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_E8M0_BIAS: Final = 127


def fp8(name: str, parts: Files, settings: Settings) -> PackedTensor:
    """Return a matrix of float8 with a scale for each block of rows and inputs.

    Raises:
        BadCheckpoint: sizes of the tensors do not fit.
    """
    rows, columns = _matrix(name, parts)
    sides = settings.get("weight_block_size") or [_SIDE, _SIDE]
    assert isinstance(sides, list)
    high, wide = (int(side) for side in sides)
    scales = parts["weight_scale_inv"].shape
    if scales != (-(-rows // high), -(-columns // wide)):
        wrong = f"scales {list(scales)} of blocks {sides} of {[rows, columns]}"
        raise _bad(parts, f"{name}: {wrong}")

    def widened(found: Parts) -> Tensor:
        scale = found["weight_scale_inv"].float()
        each = scale.repeat_interleave(wide, 1)[:, :columns]
        weight = found["weight"].float()
        for begin in range(0, rows, high):
            weight[begin : begin + high] *= each[begin // high]
        return weight

    return PackedTensor(name, "FP8", (rows, columns), parts, widened)


def int8_rows(name: str, parts: Files, settings: Settings) -> PackedTensor:
    """Return a matrix of int8 or float8 with a scale for each row, or one for all.

    bitsandbytes' scales, SCB, are 127 times as large.

    Raises:
        BadCheckpoint: sizes of the tensors do not fit.
    """
    rows, columns = _matrix(name, parts)
    own = "SCB" if "SCB" in parts else "weight_scale"
    count = prod(parts[own].shape)
    if count not in (1, rows):
        raise _bad(parts, f"{name}: {count} scales of {rows} rows")
    unit = 127.0 if own == "SCB" else 1.0
    is_int8 = parts["weight"].dtype == torch.int8

    def integers(found: Parts) -> StoredRows | Tensor:
        scales = (found[own].float().reshape(-1, 1) / unit).expand(rows, 1).clone()
        if is_int8:
            return StoredRows(found["weight"], scales)
        return found["weight"].float() * scales

    layout = StoredLayout(8, columns) if is_int8 else None
    kind = "int8" if is_int8 else "FP8"
    return PackedTensor(name, kind, (rows, columns), parts, integers, layout)


def table4(name: str, parts: Files, settings: Settings) -> PackedTensor:
    """Return a matrix of bitsandbytes': the file's table of 16, and blocks of inputs.

    The first value of a byte is in its high half. Scales may be 8 bits themselves.

    Raises:
        BadCheckpoint: the description of the state is damaged, or sizes do not fit.
    """
    end = next(end for end in parts if "quant_state" in end)
    try:
        state = json.loads(bytes(read(parts[end]).tolist()))
        shape = tuple(int(size) for size in state["shape"])
        block = int(state["blocksize"])
        nested = int(state.get("nested_blocksize") or 0)
        offset = float(state.get("nested_offset") or 0)
        if (
            block < 1
            or len(shape) != 2
            or prod(shape) != 2 * prod(parts["weight"].shape)
        ):
            raise ValueError(f"{list(shape)} in blocks of {block}")
    except (ValueError, KeyError, TypeError) as error:
        raise _bad(parts, f"{name}: its quant_state is damaged: {error}") from error
    count = -(-prod(shape) // block)
    if prod(parts["weight.absmax"].shape) != count:
        raise _bad(parts, f"{name}: it has not {count} scales, one for {block} values")

    def widened(found: Parts) -> Tensor:
        packed = found["weight"].reshape(-1)
        both = torch.stack((packed >> 4, packed & 15), dim=1).reshape(-1)
        values = found["weight.quant_map"].float()[both.long()]
        scales = found["weight.absmax"].reshape(-1)
        if "weight.nested_absmax" in found:
            known = found["weight.nested_quant_map"].float()[scales.long()]
            outer = found["weight.nested_absmax"].float().reshape(-1)
            scales = known * outer.repeat_interleave(nested)[: len(known)] + offset
        values *= scales.float().repeat_interleave(block)[: len(values)]
        return values.view(shape)

    layout = StoredLayout(8, BLOCK, loss=AGAIN) if shape[1] % BLOCK == 0 else None
    return PackedTensor(name, "bitsandbytes", shape, parts, widened, layout)


@dataclass(frozen=True, slots=True)
class _Experts:
    """Matrices of experts in MXFP4, of which one at a time is widened.

    blocks is uint8 [experts, out, in / 32, 16], the first value of a byte in its low
    half; scales uint8 [experts, out, in / 32], powers of two. The parameter is
    [experts, in, out].
    """

    name: str
    blocks: FileTensor
    scales: FileTensor
    shape: tuple[int, int, int]

    @property
    def path(self) -> str:
        return self.blocks.path

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32

    @property
    def kind(self) -> str:
        return "MXFP4"

    def elements(self, begin: int, end: int) -> Tensor:
        each = self.shape[1] * self.shape[2]
        first, last = begin // each, -(-end // each)
        found = [self._expert(i).reshape(-1) for i in range(first, last)]
        flat = torch.cat(found) if found else torch.empty(0)
        return flat[begin - first * each : end - first * each]

    def _expert(self, index: int) -> Tensor:
        _, columns, rows = self.shape
        count = rows * columns
        packed = self.blocks.elements(index * count // 2, (index + 1) * count // 2)
        scales = self.scales.elements(index * count // 32, (index + 1) * count // 32)
        both = torch.stack((packed & 15, packed >> 4), dim=1).view(-1, 32)
        table = torch.tensor([*_E2M1, *(-value for value in _E2M1)])
        powers = torch.ldexp(torch.ones(()), scales.int() - _E8M0_BIAS)
        weight = table[both.long()] * powers[:, None]
        return weight.view(rows, columns).T.contiguous()


def mxfp4(name: str, parts: Files, settings: Settings) -> _Experts:
    """Return matrices of experts in MXFP4, as gpt-oss has them.

    Raises:
        BadCheckpoint: sizes of the tensors do not fit.
    """
    blocks, scales = parts["_blocks"], parts["_scales"]
    if (
        len(blocks.shape) != 4
        or scales.shape != blocks.shape[:3]
        or blocks.shape[3] != 16
    ):
        wrong = f"blocks {list(blocks.shape)} and scales {list(scales.shape)}"
        raise _bad(parts, f"{name}: {wrong}")
    experts, rows, fours, _ = blocks.shape
    return _Experts(name, blocks, scales, (experts, 32 * fours, rows))


def _matrix(name: str, parts: Files) -> tuple[int, int]:
    shape = parts["weight"].shape
    if len(shape) != 2:
        raise _bad(parts, f"{name}: it is no matrix, but {list(shape)}")
    return shape[0], shape[1]


def _bad(parts: Files, wrong: str) -> BadCheckpoint:
    return bad_checkpoint([wrong], next(iter(parts.values())).path)
