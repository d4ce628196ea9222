"""Matrices of floats of 4 or 8 bits with a scale for each block of inputs.

MXFP4 and MXFP8 (OCP Microscaling Formats 1.0) have scales that are powers of two, for
32 inputs; NVFP4 has scales of float8 e4m3 for 16 inputs. In: the parts of a matrix in
the files of compressed-tensors or MLX. Out: a `PackedTensor`.
"""

from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor

from kvc.compiler.checkpoints.packed_tensor import PackedTensor, Parts
from kvc.compiler.checkpoints.tensor_file import FileTensor
from kvc.compiler.weights.stored_layout import AGAIN, BLOCK, StoredLayout
from kvc.schema.checkpoints.problems import bad_checkpoint
from kvc.schema.errors import UnsupportedModel

Files = Mapping[str, FileTensor]
Settings = Mapping[str, object]

# The values of E2M1, OCP Microscaling Formats 1.0, table 4; then those below zero.
_E2M1: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_E8M0_BIAS: Final = 127
_TOGETHER: Final = 64  # rows that are widened at a time
_GLOBAL: Final = "weight_global_scale"
# Mode of MLX -> the format's name, and inputs that share a scale.
_MODES: Final = {"mxfp4": ("MXFP4", 32), "mxfp8": ("MXFP8", 32), "nvfp4": ("NVFP4", 16)}


def compressed_floats(name: str, parts: Files, settings: Settings) -> PackedTensor:
    """Return a matrix of compressed-tensors' mxfp4- or nvfp4-pack-quantized.

    weight_packed is uint8 [out, in / 2]; weight_scale [out, groups] is uint8, powers of
    two, or float8 e4m3, divided by weight_global_scale, float32 [1].

    Raises:
        BadCheckpoint: sizes of the tensors do not fit.
    """
    powers_of_two = parts["weight_scale"].dtype == torch.uint8
    if powers_of_two == (_GLOBAL in parts):
        wrong = f"{name}: {_GLOBAL} goes with scales of float8 e4m3"
        raise bad_checkpoint([wrong], parts["weight_packed"].path)
    kind, block = ("MXFP4", 32) if powers_of_two else ("NVFP4", 16)
    return _matrix(name, (kind, block), parts, "weight_packed", "weight_scale")


def mlx_floats(name: str, parts: Files, settings: Settings) -> PackedTensor:
    """Return a matrix of MLX's modes mxfp4, mxfp8 and nvfp4.

    weight is uint32 [out, in * bits / 32], scales uint8 [out, groups], the bits of a
    power of two or of a float8 e4m3.

    Raises:
        UnsupportedModel: the mode is another one.
        BadCheckpoint: sizes of the tensors do not fit.
    """
    own = settings.get(name.removesuffix(".weight"))
    mode = (own if isinstance(own, Mapping) else settings).get("mode", "affine")
    if mode not in _MODES:
        reason = (
            f"its quantization has mode {mode!r}, and kvc reads without biases "
            f"{', '.join(_MODES)}"
        )
        raise UnsupportedModel(model=name, reason=reason)
    return _matrix(name, _MODES[str(mode)], parts, "weight", "scales")


def _matrix(
    name: str, form: tuple[str, int], parts: Files, own: str, scaled: str
) -> PackedTensor:
    """Return a matrix of values in the part `own`, with scales in `scaled`.

    Raises:
        BadCheckpoint: there are other scales than one for each block.
    """
    kind, block = form
    rows, words = parts[own].shape
    each = 1 if kind == "MXFP8" else 2  # values in a byte
    columns = words * each * (1 if parts[own].dtype == torch.uint8 else 4)
    expected = (rows, columns // block)
    if not rows or not columns or columns % block or parts[scaled].shape != expected:
        wrong = f"{scaled} is {list(parts[scaled].shape)}, expected {list(expected)}"
        raise bad_checkpoint([f"{name}: {wrong}"], parts[own].path)

    def widened(found: Parts) -> Tensor:
        raw = found[own].contiguous().view(torch.uint8)
        scales = _scales(found[scaled], kind)
        if _GLOBAL in found:
            scales = scales / found[_GLOBAL].float().reshape(())
        values = torch.empty(rows, columns // block, block)
        for begin in range(0, rows, _TOGETHER):
            some = slice(begin, begin + _TOGETHER)
            part = e4m3(raw[some]) if each == 1 else e2m1(raw[some])
            values[some] = part.view(len(part), -1, block)
            values[some] *= scales[some, :, None]
        return values.view(rows, columns)

    return PackedTensor(
        name, kind, (rows, columns), parts, widened, StoredLayout(8, BLOCK, loss=AGAIN)
    )


def _scales(found: Tensor, kind: str) -> Tensor:
    """Return scales [out, groups] of a format as float32."""
    if kind != "NVFP4":
        return powers(found)
    return e4m3(found) if found.dtype == torch.uint8 else found.float()


def e2m1(packed: Tensor) -> Tensor:
    """Return the floats of bytes, low halves first: uint8 [..., n] -> [..., 2 * n]."""
    table = torch.tensor([*_E2M1, *(-value for value in _E2M1)])
    both = torch.stack((packed & 15, packed >> 4), dim=-1)
    return table[both.int()].flatten(-2)


def e4m3(raw: Tensor) -> Tensor:
    """Return as float32 the float8 e4m3 that uint8 [...] are the bits of."""
    return raw.contiguous().view(torch.float8_e4m3fn).float()


def powers(exponents: Tensor) -> Tensor:
    """Return 2 ** (exponent - 127) of uint8, of the same shape: E8M0."""
    ones = torch.ones(exponents.shape)
    return torch.ldexp(ones, exponents.int() - _E8M0_BIAS)
