"""A model of transformers on Ethos-U85: all of its blocks, on integers."""

from pathlib import Path

import numpy as np
from hf_models import build
from torch import nn

from kvc.compiler import CacheConfig, export_hf
from kvc.runtime import load
from kvc.runtime.calibration import Samples
from kvc.schema.container import BundleFile

RECIPE = """
[backend]
name = "ethosu"
rest = "cpu"
[backend.options]
activations = "int16"
[buckets]
seq = [1, 8]
capacity = [32]
"""
TOKENS = np.random.default_rng(0).integers(0, 50, (2, 24))


def round_weights(model: nn.Module) -> None:
    """Store the weights of linear layers as the recipe does."""
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            scale = layer.weight.data.abs().amax(1, keepdim=True) / 127
            layer.weight.data = (layer.weight.data / scale).round() * scale


def test_a_llama_on_int16_is_near_the_model_with_int8_weights(tmp_path: Path):
    (tmp_path / "mine.toml").write_text(RECIPE)
    np.savez(tmp_path / "tokens.npz", tokens=TOKENS)
    samples, model = Samples(tmp_path / "tokens.npz"), build("llama", shallow=True)
    results = []
    for recipe in (str(tmp_path / "mine.toml"), "fp32"):
        path = tmp_path / f"{Path(recipe).stem}.kvc"
        given = samples if recipe != "fp32" else None
        config = CacheConfig(max_length=32)
        export_hf(model, recipe=recipe, cache=config, calibrate=given).save(path)
        with load(path) as program, program.session() as session:
            prompt = session.prefill(TOKENS[:1, :13])
            results.append(np.stack([prompt, session.decode(TOKENS[:1, 13:14])]))
        round_weights(model)
    far = np.abs(results[0] - results[1]).max()
    assert 0 < far < 0.003 * np.abs(results[1]).max()
    with BundleFile.open(tmp_path / "mine.kvc") as file:
        for method in file.program.methods:
            left = {step.op for step in method.graph.instructions}
            own = [
                {step.op for step in method.blocks[one.block].graph.instructions}
                for one in file.program.delegates
                if one.backend == "ethosu"
                and file.program.methods[one.method].name == method.name
            ]
            assert not left & {"kvc::attention", "aten::rms_norm", "aten::linear"}
            assert any("kvc::attention" in ops for ops in own)
