"""Models that read a picture in parts, each of which is a picture to the model.

Idefics 3 and SmolVLM take all parts of all pictures in one tensor. In this tensor,
parts of zeros pad each picture to the same number of parts; the model drops these
parts. In: a model. Out: inside `parts_given`, the model takes only real parts, float32
[parts, channels, height, width]; kvc passes one part in each call.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPooling

from kvc.compiler.hugging_face.encoder.encoding_methods import PICTURE_FEATURES
from kvc.compiler.hugging_face.reading.model_lines import name_of

if TYPE_CHECKING:
    from transformers.models.idefics3.modeling_idefics3 import (
        Idefics3Model,
        Idefics3VisionEmbeddings,
    )


@contextmanager
def parts_given(model: PreTrainedModel) -> Iterator[None]:
    """Let a model take only real parts, without padding."""
    with ExitStack() as stack:
        for module in model.modules():
            if name_of(module) in _STAND_INS:
                method, function = _STAND_INS[name_of(module)]
                vars(module)[method] = partial(function, module)
                stack.callback(vars(module).pop, method)
        yield


def _features(
    module: "Idefics3Model", pixel_values: Tensor, *_: object, **__: object
) -> BaseModelOutputWithPooling:
    """Replace `get_image_features`; return features [parts * positions, hidden]."""
    made: BaseModelOutputWithPooling = module.vision_model(
        pixel_values=pixel_values, return_dict=True
    )
    features: Tensor = module.connector(made.last_hidden_state)
    made.pooler_output = features.flatten(0, 1)
    return made


def _embedded(
    module: "Idefics3VisionEmbeddings",
    pixel_values: Tensor,
    patch_attention_mask: Tensor,
) -> Tensor:
    """Replace the module that embeds patches; no patch is padding.

    The position table covers a side of a picture with a fixed number of entries. A
    patch gets the entry at the same fraction of the side.
    """
    patches: Tensor = module.patch_embedding(pixel_values).flatten(2).transpose(1, 2)
    side = module.num_patches_per_side
    ends = torch.arange(1 / side, 1.0, 1 / side)
    rows, columns = (_places(n, ends) for n in patch_attention_mask.shape[1:])
    places = (rows[:, None] * side + columns).flatten()
    made: Tensor = patches + module.position_embedding(places)
    return made


def _places(count: int, ends: Tensor) -> Tensor:
    """Return the index of the interval of a side in which each patch begins, int64.

    `ends` are the fractions of the side at which the intervals end. This computes
    `torch.bucketize`, which backends lack, with the same float32 steps.
    """
    shares = torch.arange(count).float() * (1.0 / torch.full((1,), float(count)))
    return (shares.clamp(max=1.0 - 1e-6)[:, None] >= ends).to(torch.int64).sum(1)


_STAND_INS: Final[dict[str, tuple[str, Callable[..., object]]]] = {
    "idefics3.Idefics3Model": (PICTURE_FEATURES, _features),
    "smolvlm.SmolVLMModel": (PICTURE_FEATURES, _features),
    "idefics3.Idefics3VisionEmbeddings": ("forward", _embedded),
    "smolvlm.SmolVLMVisionEmbeddings": ("forward", _embedded),
}
