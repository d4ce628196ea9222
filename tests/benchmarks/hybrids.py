"""Write bundles of a transformer, a hybrid and recurrent models of the same size.

`python tests/benchmarks/hybrids.py FOLDER [RECIPE]` builds them with random weights,
twelve layers of 576 (Mamba 2: twenty), and prints their parameters. `kvc bench` then
compares them.
"""

import sys
from collections.abc import Mapping
from pathlib import Path

from transformers import AutoModelForCausalLM, PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from kvc.compiler import CacheConfig, export_hf

_LAYERS, _WIDTH, _LENGTH = 12, 576, 8192
_ALIKE: Mapping[str, object] = {
    "vocab_size": 16_384,
    "hidden_size": _WIDTH,
    "num_hidden_layers": _LAYERS,
    "max_position_embeddings": _LENGTH,
    "tie_word_embeddings": True,
}
_HEADS: Mapping[str, object] = {"num_attention_heads": 9, "num_key_value_heads": 3}
# Of each, what makes it about as large: a transformer; eight convolutions and four
# layers that attend; a recurrence in each layer.
_CONFIGS: Mapping[str, Mapping[str, object]] = {
    "llama": {**_HEADS, "intermediate_size": 1536},
    "lfm2": {
        **_HEADS,
        "intermediate_size": 1408,
        "block_auto_adjust_ff_dim": False,
        "layer_types": ["conv", "conv", "full_attention"] * (_LAYERS // 3),
    },
    "mamba2": {"num_hidden_layers": 20, "num_heads": 18, "n_groups": 1},
    "rwkv": {"intermediate_size": 1600, "context_length": _LENGTH},
}


def main(folder: Path, recipe: str = "cpu_q8") -> None:
    """Write a bundle for each."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, own in _CONFIGS.items():
        settings = {**_ALIKE, **own}
        if name in ("rwkv", "mamba2"):
            del settings["max_position_embeddings"]
        config: PreTrainedConfig = CONFIG_MAPPING[name](**settings)
        model = AutoModelForCausalLM.from_config(config).eval()
        path = folder / f"{name}.kvc"
        export_hf(model, recipe=recipe, cache=CacheConfig(_LENGTH)).save(path)
        count = sum(parameter.numel() for parameter in model.parameters())
        print(f"{path}: {count / 1e6:.1f} M parameters", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
