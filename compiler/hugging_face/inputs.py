"""What a model's forward is given beside tokens: positions, cache, settings.

Models differ in what they take; each is given what its signature names.
"""

import inspect

import torch
from transformers import PreTrainedModel
from transformers.cache_utils import Cache

from kvc.compiler.hugging_face.attention import Call


def inputs_of(
    decoder: PreTrainedModel, call: Call, seq: int, cache: Cache, keep: int
) -> dict[str, object]:
    """Return the arguments of one call, the tokens or embeddings apart.

    Args:
        decoder: the model.
        call: where the caches are.
        seq: tokens of this call.
        cache: the caches.
        keep: how many of the last positions need logits; 0: all.
    """
    known = inspect.signature(decoder.forward).parameters
    given: dict[str, object] = {"past_key_values": cache, "use_cache": True}
    if "position_ids" in known:
        given["position_ids"] = call.start[:, None] + torch.arange(seq)
    if "logits_to_keep" in known:
        given["logits_to_keep"] = keep
    return given
