"""Replace functions of transformers by kvc's while a model is compiled.

In: a model. Out: inside `using_kvc`, functions of kvc compute the model's attention,
masks, experts, latents and recurrences; afterwards the model is unchanged. Functions in
transformers' Python modules, which all models share, are replaced too, so a lock lets
threads compile only one model at a time.
"""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from transformers import PreTrainedModel

from kvc.compiler.hugging_face.attention.experts import own_experts
from kvc.compiler.hugging_face.attention.own_attention import adapted, has_own_attention
from kvc.compiler.hugging_face.attention.picture_masks import without_blocks
from kvc.compiler.hugging_face.attention.replaced import NAME, register
from kvc.compiler.hugging_face.attention.windows import unpadded_chunks
from kvc.compiler.hugging_face.caches.latents import unexpanded
from kvc.compiler.hugging_face.caches.shared_caches import last_alone
from kvc.compiler.hugging_face.pictures.picture_parts import parts_given
from kvc.compiler.hugging_face.reading.model_code import without_interface
from kvc.compiler.hugging_face.reading.ordered_sets import in_order
from kvc.compiler.hugging_face.recurrent.recurrences import own_recurrences
from kvc.compiler.hugging_face.recurrent.recurrent_layers import adapted_layers
from kvc.compiler.hugging_face.recurrent.rwkv_layers import adapted_rwkv, is_rwkv

# Replacements that are active while a model is traced.
_REPLACED = (
    adapted, adapted_layers, adapted_rwkv, unexpanded, own_experts, own_recurrences,
    unpadded_chunks, parts_given, last_alone, without_blocks, in_order,
)  # fmt: skip

_ONE_AT_A_TIME = threading.RLock()


@contextmanager
def using_kvc(model: PreTrainedModel) -> Iterator[None]:
    """Let kvc's functions compute a model's attention in this context.

    The model is in evaluation mode in the context.

    Raises:
        UnsupportedModel: the model's own code computes attention in a way unknown to
            kvc.
    """
    register()
    if not _is_adapted(model) and not model._can_set_attn_implementation():
        raise without_interface(model)
    with _ONE_AT_A_TIME, _attending_here(model), ExitStack() as stack:
        for replaced in _REPLACED:
            stack.enter_context(replaced(model))
        yield


@contextmanager
def _attending_here(model: PreTrainedModel) -> Iterator[None]:
    """Select kvc's attention function in a model and its parts."""
    training, parts = model.training, _by_interface(model)
    before = [part.config._attn_implementation for part in parts]
    for part in parts:
        part.set_attn_implementation(NAME)
    model.train(False)
    try:
        yield
    finally:
        for part, found in zip(parts, before, strict=True):
            part.set_attn_implementation(found)
        model.train(training)


def _by_interface(model: PreTrainedModel) -> list[PreTrainedModel]:
    """Return the parts of a model that use transformers' attention interface.

    If kvc replaces no code of the model, the only part is the model itself.
    """
    if not _is_adapted(model):
        return [model]
    return [
        part
        for part in model.modules()
        if isinstance(part, PreTrainedModel)
        and not _is_adapted(part)
        and part._can_set_attn_implementation()
    ]


def _is_adapted(model: PreTrainedModel) -> bool:
    """Tell whether kvc can replace a model's own code for attention or recurrences."""
    return has_own_attention(model) or is_rwkv(model)
