"""The layers of a model of transformers that adapters can change, if none are named."""

from dataclasses import replace

from torch import nn
from transformers import PreTrainedModel

from kvc.compiler.adapters.slots import linear_layers
from kvc.compiler.request.adapter_slots import AdapterSlots


def but_output(
    asked: AdapterSlots, model: nn.Module, decoder: PreTrainedModel
) -> AdapterSlots:
    """Return slots for all linear layers but the output layer, unless layers are named.

    `model` is the module that is compiled; its layers are those of `decoder`.
    """
    if asked.targets:
        return asked
    output = decoder.get_output_embeddings()  # type: ignore[no-untyped-call]
    paths = (path for path, one in linear_layers(model).items() if one is not output)
    return replace(asked, targets=tuple(paths))
