"""What models hand to their attention beside queries, keys and values."""

import pytest
import torch
from torch import nn
from transformers.masking_utils import (
    causal_mask_function,
    sliding_window_causal_mask_function,
)

from kvc.compiler.hugging_face.attention.attention_masks import MaskStandIn
from kvc.compiler.hugging_face.attention.replaced import attend, sight
from kvc.compiler.hugging_face.reading.calls import Kept, ModelCall, attending
from kvc.schema.errors import UnsupportedModel

Q = torch.ones(1, 2, 1, 4)
CACHE = torch.ones(1, 1, 8, 4)


def attended(**others):
    length = torch.ones(1, dtype=torch.int64)
    with attending(ModelCall(length - 1, length, kept=[Kept(0, CACHE, CACHE)])):
        return attend(nn.Identity(), Q, CACHE, CACHE, MaskStandIn(None), **others)


@pytest.mark.parametrize(
    "name", ["position_bias", "head_mask", "indices", "block_indices", "sinks"]
)
def test_a_tensor_that_may_choose_among_keys_is_refused(name):
    with pytest.raises(UnsupportedModel, match=f"its attention is given {name}"):
        attended(**{name: torch.zeros(1, 1, 1, dtype=torch.int64)})


def test_what_says_nothing_about_the_result_is_let_through():
    plain, _ = attended()
    others = {"indices": None, "use_cache": True, "position_ids": torch.zeros(1, 1)}
    assert torch.equal(attended(**others)[0], plain)


def test_a_mask_that_a_model_hands_on_stays_what_it_is():
    made = sight(mask_function=sliding_window_causal_mask_function(8))
    assert made == MaskStandIn(8)
    within = sight(mask_function=causal_mask_function, attention_mask=made)
    assert within == MaskStandIn(8)
