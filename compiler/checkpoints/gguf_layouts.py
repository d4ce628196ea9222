"""What the blocks of GGUF's quantized types hold, as integers, scales and minimums.

The layouts are those of ggml's ggml-common.h. Values in words of any other form, such
as those of tables or of two levels of scales, are widened to float32 by the `gguf`
package, and quantized anew to int8 in blocks of 32.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from kvc.compiler.weights.int8 import quantize_in_blocks
from kvc.compiler.weights.stored_layout import (
    AGAIN,
    BLOCK,
    StoredLayout,
    StoredRows,
)

_HALF: Final = torch.float16
Bytes = npt.NDArray[np.uint8]  # [rows, nbytes]

# How products use a type of GGUF.
LAYOUTS: Final[Mapping[str, StoredLayout]] = MappingProxyType(
    {
        "Q4_0": StoredLayout(4, BLOCK, _HALF),
        "Q4_1": StoredLayout(4, BLOCK, _HALF, _HALF),
        "Q4_K": StoredLayout(
            4, BLOCK, _HALF, _HALF, "scales and minimums rounded to float16"
        ),
        "Q5_0": StoredLayout(8, BLOCK),
        "Q8_0": StoredLayout(8, BLOCK),
    }
    | {
        kind: StoredLayout(8, BLOCK, loss=AGAIN)
        for kind in (
            "Q5_1", "Q2_K", "Q3_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "IQ3_S",
            "IQ3_XXS", "IQ2_S", "IQ2_XS", "IQ2_XXS", "IQ1_S", "IQ1_M", "MXFP4",
            "NVFP4", "TQ1_0", "TQ2_0",
        )
    }
)  # fmt: skip


def dequantized(kind: str, raw: Bytes) -> npt.NDArray[np.float32]:
    """Return rows of a quantized type as float32 [rows, in], by the `gguf` package."""
    from gguf import GGMLQuantizationType, dequantize

    if not raw.size:
        return np.empty(0, np.float32)
    # Blocks without a finite scale are told when the weights are quantized or stored.
    with np.errstate(all="ignore"):
        found: npt.NDArray[np.float32] = dequantize(raw, GGMLQuantizationType[kind])
    return np.ascontiguousarray(found, np.float32)


def stored_rows(kind: str, raw: Bytes) -> StoredRows:
    """Return rows of a quantized type as `LAYOUTS` describes them."""
    if kind in _READERS:
        return _READERS[kind](raw)
    rows = torch.from_numpy(dequantized(kind, raw)).view(len(raw), -1)
    return StoredRows(*quantize_in_blocks(rows, BLOCK))


def _blocks(raw: Bytes, nbytes: int) -> Bytes:
    return raw.reshape(len(raw), -1, nbytes)


def _halves(blocks: Bytes, begin: int) -> torch.Tensor:
    """Return the float16 at byte `begin` of each block: [rows, blocks]."""
    found = np.ascontiguousarray(blocks[..., begin : begin + 2]).view(np.float16)
    return torch.from_numpy(found[..., 0])


def _nibbles(packed: Bytes) -> Bytes:
    """Return low halves of some bytes, then their high halves: [..., 2 * nbytes]."""
    return np.concatenate((packed & 15, packed >> 4), axis=-1)


def _flat(values: npt.NDArray[np.generic]) -> torch.Tensor:
    return torch.from_numpy(values.reshape(len(values), -1))


def _q4_0(raw: Bytes) -> StoredRows:
    blocks = _blocks(raw, 18)
    return StoredRows(_flat(_nibbles(blocks[..., 2:])), _halves(blocks, 0))


def _q4_1(raw: Bytes) -> StoredRows:
    blocks = _blocks(raw, 20)
    values = _flat(_nibbles(blocks[..., 4:]))
    return StoredRows(values, _halves(blocks, 0), _halves(blocks, 2))


def _q4_k(raw: Bytes) -> StoredRows:
    """Eight blocks of 32, whose scales and minimums are 6 bits times two float16."""
    from gguf.quants import Q4_K

    blocks = _blocks(raw, 144)
    count = (len(raw), -1)
    found = Q4_K.get_scale_min(np.ascontiguousarray(blocks[..., 4:16]).reshape(-1, 12))
    scales, minimums = (
        (_halves(blocks, 2 * i).float().reshape(-1, 1) * torch.from_numpy(each))
        .view(count)
        .to(_HALF)
        for i, each in enumerate(found)
    )
    fours = blocks[..., 16:].reshape(len(raw), -1, 4, BLOCK)
    return StoredRows(_flat(_nibbles(fours)), scales, -minimums)


def _q5_0(raw: Bytes) -> StoredRows:
    blocks = _blocks(raw, 22)
    fifth = np.unpackbits(blocks[..., 2:6], axis=-1, bitorder="little")
    values = (_nibbles(blocks[..., 6:]) | fifth << 4).astype(np.int8) - np.int8(16)
    return StoredRows(_flat(values), _halves(blocks, 0).float())


def _q8_0(raw: Bytes) -> StoredRows:
    blocks = _blocks(raw, 34)
    values = np.ascontiguousarray(blocks[..., 2:]).view(np.int8)
    return StoredRows(_flat(values), _halves(blocks, 0).float())


_READERS: Final[Mapping[str, Callable[[Bytes], StoredRows]]] = MappingProxyType(
    {"Q4_0": _q4_0, "Q4_1": _q4_1, "Q4_K": _q4_k, "Q5_0": _q5_0, "Q8_0": _q8_0}
)
