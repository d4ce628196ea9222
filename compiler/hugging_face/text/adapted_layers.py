"""The layers of a model of transformers that adapters can change."""

from dataclasses import replace

from torch import nn
from transformers import PreTrainedModel

from kvc.compiler.adapters.slots import linear_layers, named_layers
from kvc.compiler.request.adapter_slots import AdapterSlots


def of_decoder(
    asked: AdapterSlots, model: nn.Module, decoder: PreTrainedModel, rows: int
) -> AdapterSlots:
    """Return slots that name the paths of layers.

    If no targets are asked for, all linear layers but the output layer are. For several
    rows, layers that read pictures are left out: these have one picture at a time.

    Args:
        asked: the slots that the caller asked for.
        model: the module that is compiled.
        decoder: the model of transformers, whose layers are those of `model`.
        rows: the maximum number of rows.

    Raises:
        BadModelSetting: no layer ends in one of the targets.
    """
    linear = linear_layers(model)
    output = decoder.get_output_embeddings()  # type: ignore[no-untyped-call]
    found = named_layers(linear, "targets", asked.targets)
    if not asked.targets:
        found = {path: one for path, one in linear.items() if one is not output}
    vision = set[nn.Module]()
    for name in ("vision_tower", "vision_model", "visual"):
        towers = (part for path, part in decoder.named_modules() if path.endswith(name))
        vision.update(one for tower in towers for one in tower.modules())
    paths = (path for path, one in found.items() if rows == 1 or one not in vision)
    return replace(asked, targets=tuple(paths))
