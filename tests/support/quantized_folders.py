"""Folders of a tiny Llama whose matrices are quantized in the formats of other tools.

Each writer packs one integer at a time, by the description of its format, and returns
the weights that the integers stand for.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from hf_folders import save_folder, tiny_llama
from safetensors.torch import load_file, save_file
from small_floats import small_floats
from torch import Tensor
from transformers import LlamaForCausalLM

Tensors = dict[str, Tensor]
Written = tuple[Tensors, Tensor]  # tensors by the ends of names, and the weights
Write = Callable[[Tensor], Written]

SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1}
GROUP = 32


@dataclass(frozen=True)
class Format:
    """A format: what config.json says, and how a matrix is written."""

    config: dict[str, object]
    write: Write
    key: str = "quantization_config"
    embedding: bool = False


def _packed(values: np.ndarray, bits: int) -> Tensor:
    """Pack integers [rows, n] into int32, the lowest bits of a word first."""
    rows, count = values.shape
    words = np.zeros((rows, -(-count * bits // 32)), np.uint64)
    for i in range(count):
        for bit in range(bits):
            at = i * bits + bit
            one = values[:, i].astype(np.uint64) >> np.uint64(bit) & np.uint64(1)
            words[:, at // 32] |= one << np.uint64(at % 32)
    return torch.from_numpy(words.astype(np.uint32).view(np.int32))


def _affine(weight: Tensor, bits: int, group: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return integers [out, in], and scales and zeros [out, groups]."""
    parts = weight.view(len(weight), -1, group)
    low, high = parts.amin(-1).clamp(max=0), parts.amax(-1).clamp(min=0)
    most = 2**bits - 1
    scales = ((high - low) / most).half().float().clamp(min=1e-4).half()
    zeros = (-low / scales.float()).round().clamp(0, most)
    values = (parts / scales.float()[..., None]).round() + zeros[..., None]
    return values.clamp(0, most).view_as(weight), scales, zeros


def _symmetric(weight: Tensor, bits: int, group: int) -> tuple[Tensor, Tensor]:
    """Return integers [out, in] from 0 on, and scales [out, groups]."""
    parts = weight.view(len(weight), -1, group)
    middle = 2 ** (bits - 1)
    scales = (parts.abs().amax(-1) / (middle - 1)).clamp(min=1e-4).half()
    values = (parts / scales.float()[..., None]).round().clamp(-middle, middle - 1)
    return (values + middle).view_as(weight), scales


def _widened(values: Tensor, scales: Tensor, zeros: Tensor) -> Tensor:
    parts = values.view(len(values), scales.shape[1], -1)
    return ((parts - zeros[..., None]) * scales.float()[..., None]).view_as(values)


def gptq(bits: int, symmetric: bool, version: int, reordered: bool = False) -> Write:
    """Return a writer of GPTQ's files, of version 1 or 2."""

    def write(weight: Tensor) -> Written:
        order = torch.arange(weight.shape[1]) // GROUP
        taken = torch.arange(weight.shape[1])
        if reordered:
            generator = torch.Generator().manual_seed(weight.numel())
            taken = torch.randperm(weight.shape[1], generator=generator)
        sorted_weight = weight[:, taken].contiguous()
        if symmetric:
            values, scales = _symmetric(sorted_weight, bits, GROUP)
            zeros = torch.full(scales.shape, 2.0 ** (bits - 1))
        else:
            values, scales, zeros = _affine(sorted_weight, bits, GROUP)
        weights = _widened(values, scales, zeros)
        back = torch.empty_like(taken)
        back[taken] = torch.arange(len(taken))
        values, weights = values[:, back], weights[:, back]
        stored = (zeros - float(version == 1)) % 2**bits
        return {
            "qweight": _packed(values.numpy(), bits).T.contiguous(),
            "qzeros": _packed(stored.T.numpy(), bits),
            "scales": scales.T.contiguous(),
            "g_idx": order[back].int(),
        }, weights

    return write


def awq(weight: Tensor) -> Written:
    """Write AWQ's gemm form."""
    values, scales, zeros = _affine(weight, 4, GROUP)
    order = [0, 2, 4, 6, 1, 3, 5, 7]

    def interleaved(columns: Tensor) -> Tensor:
        eights = columns.reshape(len(columns), -1, 8)[..., order]
        return _packed(eights.reshape(len(columns), -1).numpy(), 4)

    return {
        "qweight": interleaved(values.T),
        "qzeros": interleaved(zeros.T),
        "scales": scales.T.contiguous(),
    }, _widened(values, scales, zeros)


def pack_quantized(bits: int, symmetric: bool) -> Write:
    """Return a writer of compressed-tensors' pack-quantized."""

    def write(weight: Tensor) -> Written:
        if symmetric:
            values, scales = _symmetric(weight, bits, GROUP)
            zeros = torch.full(scales.shape, 2.0 ** (bits - 1))
        else:
            values, scales, zeros = _affine(weight, bits, GROUP)
        tensors = {
            "weight_packed": _packed(values.numpy(), bits),
            "weight_scale": scales,
            "weight_shape": torch.tensor(weight.shape),
        }
        if not symmetric:
            packed = _packed(zeros.T.contiguous().numpy(), bits)
            tensors["weight_zero_point"] = packed.T.contiguous()
        return tensors, _widened(values, scales, zeros)

    return write


def int8_rows(weight: Tensor) -> Written:
    """Write compressed-tensors' int-quantized."""
    scale = weight.abs().amax(1, keepdim=True) / 127
    values = (weight / scale).round().to(torch.int8)
    return {"weight": values, "weight_scale": scale}, values.float() * scale


def bitsandbytes_int8(weight: Tensor) -> Written:
    """Write bitsandbytes' LLM.int8."""
    most = weight.abs().amax(1)
    values = (weight / most[:, None] * 127).round().to(torch.int8)
    tensors = {"weight": values, "SCB": most, "weight_format": torch.tensor(0).byte()}
    return tensors, values.float() * (most / 127)[:, None]


def fp8(weight: Tensor) -> Written:
    """Write blocks of 32 x 32 of float8 e4m3."""
    rows, columns = weight.shape
    scales = torch.empty(-(-rows // 32), -(-columns // 32))
    values = torch.empty(rows, columns, dtype=torch.float8_e4m3fn)
    widened = torch.empty(rows, columns)
    for i in range(0, rows, 32):
        for j in range(0, columns, 32):
            block = weight[i : i + 32, j : j + 32]
            scale = block.abs().max() / 448
            scales[i // 32, j // 32] = scale
            values[i : i + 32, j : j + 32] = (block / scale).to(values.dtype)
            exact = values[i : i + 32, j : j + 32].float() * scale
            widened[i : i + 32, j : j + 32] = exact
    return {"weight": values, "weight_scale_inv": scales}, widened


def fp8_by(axis: int | None) -> Write:
    """Return a writer of float8 with a scale for each row, or one for all."""

    def write(weight: Tensor) -> Written:
        most = weight.abs().amax(1, keepdim=True) if axis == 1 else weight.abs().max()
        scale = most / 448
        values = (weight / scale).to(torch.float8_e4m3fn)
        tensors = {"weight": values, "weight_scale": scale, "input_scale": scale.mean()}
        return tensors, values.float() * scale

    return write


def gptq_bfloat16(weight: Tensor) -> Written:
    """Write GPTQ's files with scales of bfloat16, and biases of zeros."""
    tensors, _ = gptq(4, True, 2)(weight)
    tensors["scales"] = tensors["scales"].bfloat16()
    values = unpacked_columns(tensors["qweight"])
    scales = tensors["scales"].float().T
    tensors["bias"] = torch.zeros(len(weight))
    return tensors, _widened(values, scales, torch.full(scales.shape, 8.0))


def unpacked_columns(words: Tensor) -> Tensor:
    """Return the int4 of GPTQ's words int32 [in / 8, out]: float32 [out, in]."""
    nibbles = [(words >> (4 * i)) & 15 for i in range(8)]
    return torch.stack(nibbles, 1).reshape(-1, words.shape[1]).T.float().contiguous()


def int8_groups(weight: Tensor) -> Written:
    """Write compressed-tensors' int-quantized with a scale for each group."""
    values, scales = _symmetric(weight, 8, GROUP)
    widened = _widened(values, scales, torch.full(scales.shape, 128.0))
    return {"weight": (values - 128).to(torch.int8), "weight_scale": scales}, widened


def int8_zeros(weight: Tensor) -> Written:
    """Write compressed-tensors' int-quantized by rows, with zeros."""
    values, scales, zeros = _affine(weight, 8, weight.shape[1])
    tensors = {
        "weight": (values - 128).to(torch.int8),
        "weight_scale": scales,
        "weight_zero_point": (zeros - 128).to(torch.int8),
    }
    return tensors, _widened(values, scales, zeros)


def mlx(bits: int) -> Write:
    """Return a writer of MLX's affine form."""

    def write(weight: Tensor) -> Written:
        values, scales, zeros = _affine(weight, bits, GROUP)
        biases = (-zeros * scales.float()).half()
        parts = values.view(len(values), scales.shape[1], -1)
        widened = parts * scales.float()[..., None] + biases.float()[..., None]
        words = _packed(values.numpy(), bits).view(torch.uint32)
        tensors = {"weight": words, "scales": scales, "biases": biases}
        return tensors, widened.view_as(weight)

    return write


def nf4(nested: bool) -> Write:
    """Return a writer of bitsandbytes' tables of 16 values, here any table."""
    table = torch.linspace(-1, 1, 16) ** 3

    def write(weight: Tensor) -> Written:
        blocks = weight.reshape(-1, 64)
        scales = blocks.abs().amax(1)
        state: dict[str, object] = {
            "quant_type": "nf4", "blocksize": 64, "dtype": "float16",
            "shape": list(weight.shape),
        }  # fmt: skip
        tensors: Tensors = {}
        if nested:
            codes = torch.linspace(-1, 1, 256)
            offset = float(scales.mean())
            most = (scales - offset).abs().amax().reshape(1)
            nearest = ((scales - offset)[:, None] / most - codes).abs().argmin(1)
            tensors["weight.nested_absmax"] = most.repeat(-(-len(scales) // 256))
            tensors["weight.nested_quant_map"] = codes
            state |= {"nested_blocksize": 256, "nested_offset": offset}
            tensors["weight.absmax"] = nearest.byte()
            scales = codes[nearest] * most + offset
        else:
            tensors["weight.absmax"] = scales
        values = ((blocks / scales[:, None])[..., None] - table).abs().argmin(-1)
        widened = (table[values] * scales[:, None]).view_as(weight)
        flat = values.reshape(-1)
        tensors["weight"] = (flat[::2] << 4 | flat[1::2]).byte()[:, None]
        tensors["weight.quant_map"] = table
        text = torch.frombuffer(
            bytearray(json.dumps(state).encode()), dtype=torch.uint8
        )
        tensors["weight.quant_state.bitsandbytes__nf4"] = text
        return tensors, widened

    return write


def _gptq_config(bits: int, symmetric: bool, version: int) -> dict[str, object]:
    named = "gptq" if version == 1 else "gptq_v2"
    return {
        "quant_method": "gptq", "bits": bits, "group_size": GROUP, "sym": symmetric,
        "checkpoint_format": named, "desc_act": False,
    }  # fmt: skip


def _compressed(form: str, bits: int, symmetric: bool) -> dict[str, object]:
    weights = {
        "num_bits": bits, "type": "int", "symmetric": symmetric, "strategy": "group",
        "group_size": GROUP,
    }  # fmt: skip
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    return {
        "quant_method": "compressed-tensors", "format": form, "config_groups": groups,
        "ignore": ["lm_head"],
    }  # fmt: skip


def _mlx(mode: str, bits: int, group: int) -> Format:
    config: dict[str, object] = {"group_size": group, "bits": bits, "mode": mode}
    return Format(config, small_floats(mode, "mlx"), "quantization", True)


FORMATS = {
    "gptq": Format(_gptq_config(4, True, 1), gptq(4, True, 1)),
    "gptq_v2": Format(_gptq_config(4, True, 2), gptq(4, True, 2)),
    "gptq_zeros": Format(_gptq_config(4, False, 1), gptq(4, False, 1)),
    "gptq_zeros_v2": Format(_gptq_config(4, False, 2), gptq(4, False, 2)),
    "gptq_reordered": Format(_gptq_config(4, True, 1), gptq(4, True, 1, True)),
    "gptq_reordered_zeros": Format(_gptq_config(4, False, 1), gptq(4, False, 1, True)),
    "gptq_2": Format(_gptq_config(2, False, 1), gptq(2, False, 1)),
    "gptq_3": Format(_gptq_config(3, True, 1), gptq(3, True, 1)),
    "gptq_8": Format(_gptq_config(8, True, 1), gptq(8, True, 1)),
    "gptq_8_zeros": Format(_gptq_config(8, False, 1), gptq(8, False, 1)),
    "awq": Format(
        {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm",
         "zero_point": True}, awq,
    ),
    "compressed_4": Format(
        _compressed("pack-quantized", 4, True), pack_quantized(4, True)
    ),
    "compressed_4_zeros": Format(
        _compressed("pack-quantized", 4, False), pack_quantized(4, False)
    ),
    "compressed_8": Format(
        _compressed("pack-quantized", 8, True), pack_quantized(8, True)
    ),
    "compressed_int8": Format(_compressed("int-quantized", 8, True), int8_rows),
    "compressed_int8_groups": Format(
        _compressed("int-quantized", 8, True), int8_groups
    ),
    "compressed_int8_zeros": Format(
        _compressed("int-quantized", 8, False), int8_zeros
    ),
    "compressed_mxfp4": Format(
        _compressed("mxfp4-pack-quantized", 4, True),
        small_floats("mxfp4", "compressed"),
    ),
    "compressed_nvfp4": Format(
        _compressed("nvfp4-pack-quantized", 4, True),
        small_floats("nvfp4", "compressed"),
    ),
    "fp8_mx": Format(
        _compressed("mxfp8-quantized", 8, True), small_floats("mxfp8", "compressed")
    ),
    "mlx_mxfp4": _mlx("mxfp4", 4, 32),
    "mlx_mxfp8": _mlx("mxfp8", 8, 32),
    "mlx_nvfp4": _mlx("nvfp4", 4, 16),
    "fp8": Format({"quant_method": "fp8", "weight_block_size": [32, 32]}, fp8),
    "fp8_rows": Format(_compressed("float-quantized", 8, True), fp8_by(1)),
    "fp8_whole": Format({"quant_method": "fp8"}, fp8_by(None)),
    "gptq_bfloat16": Format(
        {"quant_method": "gptq", "bits": 4, "format": "gptq_v2"}, gptq_bfloat16
    ),
    "nf4": Format({"quant_method": "bitsandbytes", "load_in_4bit": True}, nf4(False)),
    "nf4_nested": Format(
        {"quant_method": "bitsandbytes", "load_in_4bit": True}, nf4(True)
    ),
    "llm_int8": Format(
        {"quant_method": "bitsandbytes", "load_in_8bit": True}, bitsandbytes_int8
    ),
    "mlx_4": Format({"group_size": GROUP, "bits": 4}, mlx(4), "quantization", True),
    "mlx_3": Format({"group_size": GROUP, "bits": 3}, mlx(3), "quantization", True),
    "mlx_6": Format({"group_size": GROUP, "bits": 6}, mlx(6), "quantization", True),
    "mlx_8": Format({"group_size": GROUP, "bits": 8}, mlx(8), "quantization", True),
}  # fmt: skip


def quantized_folder(path: Path, name: str) -> LlamaForCausalLM:
    """Write a folder in a format; return the model whose weights it stands for."""
    form = FORMATS[name]
    model = tiny_llama(**SIZES)
    save_folder(path, model)
    file = path / "model.safetensors"
    tensors, written = load_file(file), dict[str, Tensor]()
    state = model.state_dict()
    for key, weight in tensors.items():
        linear = weight.dim() == 2 and "embed" not in key and "lm_head" not in key
        if linear or (form.embedding and weight.dim() == 2):
            parts, widened = form.write(weight)
            stem = key.removesuffix(".weight")
            written |= {f"{stem}.{end}": part for end, part in parts.items()}
            with torch.no_grad():
                state[key].copy_(widened)
        else:
            written[key] = weight
    save_file(
        {
            key: part.clone(memory_format=torch.contiguous_format)
            for key, part in written.items()
        },
        file,
    )
    config = json.loads((path / "config.json").read_text())
    config[form.key] = form.config
    (path / "config.json").write_text(json.dumps(config))
    return model
