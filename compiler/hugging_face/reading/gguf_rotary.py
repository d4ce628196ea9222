"""Find the settings of scaled rotary frequencies that a GGUF file has as numbers.

Files of Llama 3.1 and later have no settings of their scaling, only a tensor of
factors, one for each frequency, by which it is divided; transformers leaves the tensor
out. The scaling is that of Llama 3.1's reference code.
"""

from math import prod
from typing import Final

import torch
from torch import Tensor
from transformers import PreTrainedConfig

from kvc.compiler.checkpoints.gguf_file import GgufTensor
from kvc.schema.errors import UnsupportedModel

FACTORS: Final = "rope_freqs.weight"
# Llama 3.1's: the numbers of periods, in a text of such a length, from which on a
# frequency is scaled in part, and not at all.
_LOW: Final = 1.0
_HIGH: Final = 4.0
_LENGTHS: Final = (8192, 4096, 2048, 16384, 32768)
_TOLERANCE: Final = 1e-3


def with_factors(config: PreTrainedConfig, tensor: GgufTensor) -> None:
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
