"""Leave out the biases of zeros that AutoGPTQ gives to layers without a bias."""

from collections.abc import Mapping
from math import prod

from transformers import PreTrainedModel

from kvc.compiler.checkpoints.loading import NamedTensor
from kvc.compiler.checkpoints.packed_tensor import PackedTensor


def without_zero_biases(
    model: PreTrainedModel, found: Mapping[str, NamedTensor]
) -> dict[str, NamedTensor]:
    """Return the tensors without biases of quantized layers that the model lacks.

    AutoGPTQ gives every layer a bias, of zeros where the model has none; others are
    left to be refused.
    """
    own = model.state_dict().keys()

    def is_nothing(name: str, tensor: NamedTensor) -> bool:
        weight = found.get(f"{name.removesuffix('.bias')}.weight")
        if name in own or not name.endswith(".bias"):
            return False
        made = isinstance(weight, PackedTensor)
        return made and not bool(tensor.elements(0, prod(tensor.shape)).any())

    return {n: t for n, t in found.items() if not is_nothing(n, t)}
