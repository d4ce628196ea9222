"""Matrices of checkpoints that other tools have quantized."""

import json
from itertools import pairwise
from math import prod
from pathlib import Path

import numpy as np
import pytest
import torch
from quantized_folders import FORMATS, quantized_folder
from safetensors.torch import load_file, save_file

from kvc.compiler.checkpoints import Checkpoint
from kvc.compiler.checkpoints.quantized import unpack
from kvc.compiler.weights.sources import StoredSource, layout_of
from kvc.schema.errors import BadCheckpoint, UnsupportedModel

EXACT = {"gptq", "gptq_v2", "gptq_zeros", "gptq_zeros_v2", "gptq_2", "gptq_3", "gptq_8",
         "gptq_bfloat16", "awq", "compressed_4", "compressed_4_zeros", "compressed_8",
         "compressed_int8", "compressed_int8_groups", "llm_int8", "mlx_4",
         "mlx_3"}  # fmt: skip


def opened(folder: Path):
    config = json.loads((folder / "config.json").read_text())
    return unpack(config, Checkpoint(folder).tensors, str(folder))


def test_experts_of_mxfp4_are_widened_one_at_a_time(tmp_path):
    random = torch.Generator().manual_seed(0)
    blocks = torch.randint(0, 256, (2, 6, 3, 16), generator=random).byte()
    scales = torch.randint(120, 134, (2, 6, 3), generator=random).byte()
    save_file({"w_blocks": blocks, "w_scales": scales}, tmp_path / "model.safetensors")
    config = {"quantization_config": {"quant_method": "mxfp4"}}
    tensor = unpack(config, Checkpoint(tmp_path).tensors, "gpt-oss")["w"]
    assert tensor.shape == (2, 96, 6)
    table = [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]
    expected = torch.empty(2, 6, 96)
    for expert, row, column in np.ndindex(2, 6, 96):
        byte = int(blocks[expert, row, column // 32, column % 32 // 2])
        nibble = byte >> 4 if column % 2 else byte & 15
        power = 2.0 ** (int(scales[expert, row, column // 32]) - 127)
        expected[expert, row, column] = table[nibble] * power
    cuts = [0, 100, 576, 700, 1152]
    parts = [tensor.elements(a, b) for a, b in pairwise(cuts)]
    assert torch.equal(torch.cat(parts), expected.mT.reshape(-1))


def test_scales_of_caches_and_activations_are_left_out(tmp_path):
    quantized_folder(tmp_path, "compressed_int8")
    file = tmp_path / "model.safetensors"
    more = {
        "model.layers.0.self_attn.k_scale": torch.ones(1),
        "model.layers.0.self_attn.v_proj.output_scale": torch.ones(1),
        "model.layers.0.self_attn.v_proj.input_zero_point": torch.ones(1).char(),
    }
    names = opened(tmp_path).keys()
    save_file(load_file(file) | more, file)
    assert opened(tmp_path).keys() == names


def test_settings_of_the_part_that_reads_texts_are_found(tmp_path):
    quantized_folder(tmp_path, "awq")
    config = json.loads((tmp_path / "config.json").read_text())
    config["text_config"] = {"quantization_config": config.pop("quantization_config")}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert "model.layers.0.mlp.up_proj.weight" in opened(tmp_path)


@pytest.mark.parametrize("name", FORMATS)
def test_weights_are_those_that_the_format_says(tmp_path, name):
    model = quantized_folder(tmp_path, name)
    found = opened(tmp_path)
    assert found.keys() >= {n for n, p in model.named_parameters() if p.dim() == 2}
    kept = 0
    for key, expected in model.state_dict().items():
        if key not in found:  # tied
            continue
        tensor, count = found[key], expected.numel()
        assert tensor.shape == tuple(expected.shape)
        cut = count // 3
        parts = [tensor.elements(0, cut), tensor.elements(cut, count)]
        read = torch.cat(parts).view_as(expected).float()
        torch.testing.assert_close(read, expected, rtol=1e-6, atol=1e-7)
        layout = layout_of(StoredSource(tensor, torch.float32))
        if layout is None:
            continue
        kept += 1
        assert (layout.loss == "") == (name in EXACT)
        rows = [tensor.stored_rows(0, 8), tensor.stored_rows(8, len(expected))]
        used = torch.cat([each.widened() for each in rows])
        if name in EXACT:
            torch.testing.assert_close(used, expected, rtol=1e-6, atol=1e-7)
        else:
            blocks = expected.view(-1, layout.block)
            step = blocks.abs().amax(1, keepdim=True) / 127
            error = (used.view_as(blocks) - blocks).abs()
            assert bool((error <= step * 0.5001 + 1e-9).all())
    assert kept == (
        0 if name.startswith("fp8") else 9 if FORMATS[name].embedding else 7
    )


def changed(folder: Path, end: str, change) -> str:
    """Change the first tensor whose name ends so; return the name of its matrix."""
    file = folder / "model.safetensors"
    tensors = load_file(file)
    key = next(each for each in sorted(tensors) if each.endswith(end))
    tensors[key] = change(tensors[key])
    save_file(tensors, file)
    return key.removesuffix(end).removesuffix(".")


def out_of_range(order):
    order[3] = 99
    return order


WRONG = [
    ("gptq", "g_idx", out_of_range, "g_idx has groups from 0 to 99, there are 4"),
    ("gptq", "g_idx", lambda t: t[:-1], r"its \[127\] groups are not those of 128"),
    ("gptq", "scales", lambda t: t[:, :-8], r"scales is \[4, 56\], expected \[4, 64\]"),
    ("gptq", "scales", lambda t: t[:0], "0 groups do not divide 128 inputs"),
    ("awq", "qzeros", lambda t: t[:, 1:], r"qzeros is \[4, 7\], expected"),
    ("compressed_4", "weight_scale", lambda t: t[1:], "weight_scale is"),
    ("compressed_4", "weight_packed", lambda t: t[:, 1:], "holds no integers of .4. b"),
    ("fp8", "weight_scale_inv", lambda t: t[:1], "of blocks .32, 32. of"),
    ("llm_int8", "SCB", lambda t: t[1:], r"scales \[63\] of 64 rows"),
    ("nf4", "weight.absmax", lambda t: t[1:], "weight.absmax has"),
    ("nf4", "bitsandbytes__nf4", lambda t: t[3:], "its quant_state is damaged"),
    ("mlx_4", "biases", lambda t: t[:, 1:], "biases is"),
    ("gptq", "qweight", lambda t: t.half(), r"its qweight is F16 \[16, 64\]"),
    ("gptq", "qweight", lambda t: t[0], r"its qweight is I32 \[64\]"),
    ("gptq", "scales", lambda t: t.double(), "its scales is F64"),
    ("compressed_4", "weight_shape", lambda t: t[:1], "it is no matrix, but"),
    ("compressed_4", "weight_shape", lambda t: t.float(), "its weight_shape is F32"),
    ("fp8_rows", "weight_scale", lambda t: t[1:], "scales .* of "),
    ("nf4", "weight.quant_map", lambda t: t[1:], "quant_map has 15 numbers, not 16"),
    ("compressed_int8_groups", "weight_scale", lambda t: t[1:], "of 64 rows"),
    ("compressed_int8_zeros", "weight_zero_point", lambda t: t[1:], r"zeros \[63, 1"),
    ("compressed_int8_zeros", "weight_zero_point", lambda t: t.int(), "is I32"),
    ("compressed_mxfp4", "weight_scale", lambda t: t[:, 1:], "weight_scale is .* exp"),
    ("compressed_mxfp4", "weight_packed", lambda t: t.int(), "weight_packed is I32"),
    ("compressed_nvfp4", "weight_scale", lambda t: t.byte(), "goes with scales of"),
    ("mlx_nvfp4", "scales", lambda t: t[:, 1:], "scales is .*, expected"),
    ("nf4_nested", "weight.nested_absmax", lambda t: t[:0], "has 0 numbers, not 1"),
]


@pytest.mark.parametrize(("name", "end", "change", "said"), WRONG)
def test_parts_that_do_not_fit_are_named(tmp_path, name, end, change, said):
    quantized_folder(tmp_path, name)
    stem = changed(tmp_path, end, lambda t: change(t.clone()).contiguous())
    with pytest.raises(BadCheckpoint, match=said) as caught:
        opened(tmp_path)
    assert stem.partition(".weight")[0] in str(caught.value)


def test_zeros_that_contradict_the_settings_are_named(tmp_path):
    quantized_folder(tmp_path, "gptq_zeros")
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"]["sym"] = True
    (tmp_path / "config.json").write_text(json.dumps(config))
    tensor = opened(tmp_path)["model.layers.0.self_attn.q_proj.weight"]
    with pytest.raises(BadCheckpoint, match=r"layers.0.self_attn.q_proj.*`sym`"):
        tensor.elements(0, prod(tensor.shape))


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("gptq", {"bits": 9}, "bits 9, and kvc reads 2 to 8"),
        ("gptq", {"bits": None}, "bits None"),
        ("gptq", {"checkpoint_format": "marlin"}, "'marlin', and kvc reads gptq"),
        ("awq", {"version": "gemv"}, "version 'gemv', and kvc reads gemm"),
        (
            "fp8",
            {"weight_block_size": [0, 32]},
            "size is .0, 32., not two",
        ),
        ("fp8", {"weight_block_size": "32"}, "weight_block_size is '32', not two"),
        ("mlx_4", {"mode": "mxfp4"}, "mode 'mxfp4', and kvc reads affine"),
        ("mlx_mxfp4", {"mode": "fp6"}, "mode 'fp6', and kvc reads without biases mx"),
    ],
)
def test_unknown_settings_are_refused(tmp_path, name, changes, said):
    quantized_folder(tmp_path, name)
    config = json.loads((tmp_path / "config.json").read_text())
    config[FORMATS[name].key] |= changes
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedModel, match=said):
        opened(tmp_path)
