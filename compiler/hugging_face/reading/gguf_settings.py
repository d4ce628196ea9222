"""Complete a configuration by what transformers leaves out of a GGUF file.

Its table has no key for scaled positions, widths of experts, windows of Phi-3, and what
llama.cpp knows by the size of a model. Files of Llama 3.1 and later have no settings of
their scaling, only a tensor of factors, one for each frequency, by which it is divided.
The scaling is that of Llama 3.1's reference code.
"""

from collections.abc import Mapping
from math import prod
from typing import Final

import torch
from torch import Tensor
from transformers import PreTrainedConfig

from kvc.compiler.checkpoints.gguf_file import GgufCheckpoint, GgufTensor
from kvc.schema.checkpoints.gguf_header import Metadata
from kvc.schema.errors import UnsupportedModel

FACTORS: Final = "rope_freqs.weight"
# Llama 3.1's: the numbers of periods, in a text of such a length, from which on a
# frequency is scaled in part, and not at all.
_LOW: Final = 1.0
_HIGH: Final = 4.0
_LENGTHS: Final = (8192, 4096, 2048, 16384, 32768)
_TOLERANCE: Final = 1e-3


# Architecture and number of layers -> what llama.cpp divides queries by, squared.
_SCALES: Final = {("gemma2", 46): 144, ("gemma3", 62): 168}
_OWN: Final = ("gpt-oss", "gpt_oss")  # whose scaling transformers reads


def complete(config: PreTrainedConfig, checkpoint: GgufCheckpoint) -> None:
    """Set what a file says and transformers' table of keys lacks.

    Raises:
        UnsupportedModel: the file scales positions in a way that is not known.
    """
    metadata = checkpoint.metadata
    architecture = str(metadata["general.architecture"])
    if architecture not in _OWN:
        _scale(config, metadata, architecture, checkpoint.path)
    if FACTORS in checkpoint.tensors:
        _take_factors(config, checkpoint.tensors[FACTORS])
    found = _SCALES.get((architecture, config.num_hidden_layers))
    if found is not None:
        config.query_pre_attn_scalar = found
    experts = metadata.get(f"{architecture}.expert_feed_forward_length")
    if isinstance(experts, int) and hasattr(config, "moe_intermediate_size"):
        config.moe_intermediate_size = experts
    shared = metadata.get(f"{architecture}.expert_shared_feed_forward_length")
    if isinstance(shared, int) and hasattr(config, "shared_expert_intermediate_size"):
        config.shared_expert_intermediate_size = shared
    window = metadata.get("phi3.attention.sliding_window")
    if isinstance(window, int) and window > 0:
        config.sliding_window = window


def _scale(
    config: PreTrainedConfig,
    metadata: Mapping[str, Metadata],
    architecture: str,
    path: str,
) -> None:
    """Scale positions linearly, where a file says so.

    Raises:
        UnsupportedModel: the file scales them otherwise.
    """
    kind = metadata.get(f"{architecture}.rope.scaling.type", "none")
    factor = metadata.get(f"{architecture}.rope.scaling.factor")
    older = metadata.get(f"{architecture}.rope.scale_linear")
    if older is not None and kind == "none":
        kind, factor = "linear", older
    if kind == "none" or (kind == "linear" and factor in (0, 1)):
        return
    if kind != "linear" or not isinstance(factor, int | float) or factor <= 0:
        reason = (
            f"it scales positions by {kind!r}, which transformers does not read from "
            "GGUF files; compile the model's folder of .safetensors files"
        )
        raise UnsupportedModel(model=path, reason=reason)
    given = dict(config.rope_parameters or {})
    scaled = {"rope_type": "linear", "factor": float(factor)}
    if "full_attention" in given:  # windows keep their positions
        own = given["full_attention"]
        config.rope_parameters = {**given, "full_attention": {**own, **scaled}}
    else:
        config.rope_parameters = {**given, **scaled}


def _take_factors(config: PreTrainedConfig, tensor: GgufTensor) -> None:
    """Give a configuration the scaling that a file's factors are of.

    Raises:
        UnsupportedModel: the factors are of another scaling.
    """
    factors = tensor.elements(0, prod(tensor.shape)).double()
    if bool((factors == 1).all()):
        return
    given = dict(config.rope_parameters or {})
    theta, most = float(given.get("rope_theta", 1e4)), round(float(factors.max()), 3)
    for length in _LENGTHS:
        expected = _llama3(theta, len(factors), most, length)
        if torch.allclose(factors, expected, rtol=_TOLERANCE):
            config.rope_parameters = {
                **given, "rope_type": "llama3", "factor": most,
                "low_freq_factor": _LOW, "high_freq_factor": _HIGH,
                "original_max_position_embeddings": length,
            }  # fmt: skip
            return
    reason = f"its {FACTORS} scales frequencies of positions otherwise than Llama 3.1"
    raise UnsupportedModel(model=tensor.path, reason=reason)


def _llama3(theta: float, count: int, factor: float, length: int) -> Tensor:
    """Return the factors by which Llama 3.1 divides frequencies: float64 [count]."""
    places = torch.arange(count, dtype=torch.float64) / count
    periods = length * theta**-places / (2 * torch.pi)
    share = ((periods - _LOW) / (_HIGH - _LOW)).clamp(0, 1)
    return 1 / ((1 - share) / factor + share)
