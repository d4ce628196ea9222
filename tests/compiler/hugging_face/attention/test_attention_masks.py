"""What stands in the place of a mask behaves as one, or is refused with the line."""

import re

import numpy as np
import pytest
import torch

from kvc.compiler.hugging_face.attention.attention_masks import MaskStandIn
from kvc.schema.errors import UnsupportedModel

WINDOW = MaskStandIn(8)


@pytest.mark.parametrize(
    "handed_on",
    [
        lambda mask: mask[:, :, 0:],
        lambda mask: mask[:, :, :, :12],
        lambda mask: mask[..., :12],
        lambda mask: mask.to(torch.float32),
        lambda mask: mask.to(device="cpu").half(),
        lambda mask: mask.expand(2, 4, -1, -1).contiguous(),
        lambda mask: {"full_attention": mask}["full_attention"],
    ],
)
def test_a_mask_that_is_cut_or_converted_shows_the_same_keys(handed_on):
    assert handed_on(WINDOW) == WINDOW


def test_masks_are_equal_where_they_show_the_same():
    assert MaskStandIn(8) == WINDOW
    assert MaskStandIn(7) != WINDOW
    assert WINDOW is not None
    assert (WINDOW.ndim, WINDOW.dim(), WINDOW.device.type) == (4, 4, "cpu")
    assert len({MaskStandIn(8), WINDOW, MaskStandIn(None)}) == 2


@pytest.mark.parametrize(
    ("computed", "what"),
    [
        (lambda mask: mask + 1, "add"),
        (lambda mask: torch.zeros(2) + mask, "add()"),
        (lambda mask: 1.0 - mask, "rsub"),
        (lambda mask: mask == 0, "=="),
        (lambda mask: mask & mask, "and"),
        (lambda mask: ~mask, "invert"),
        (abs, "abs"),
        (lambda mask: 2**mask, "rpow"),
        (np.asarray, "array"),
        (lambda mask: torch.where(mask, 1.0, 0.0), "where()"),
        (lambda mask: torch.nn.functional.pad(mask, (0, 1)), "pad()"),
        (lambda mask: mask.shape[-1], ".shape"),
        (lambda mask: mask.masked_fill(torch.ones(1) > 0, 0.0), ".masked_fill"),
        (lambda mask: mask.bool(), ".bool"),
        (lambda mask: mask.to("cpu", torch.bool), ".to(torch.bool)"),
        (lambda mask: mask.type(dtype=torch.int64), ".type(torch.int64)"),
        (lambda mask: mask.type_as(torch.ones(1) > 0), ".type_as(torch.bool)"),
        (lambda mask: mask[:, :, 3:], "[...]"),
        (lambda mask: mask[:, :, -1:], "[...]"),  # attention would spread it
        (lambda mask: mask[..., :1], "[...]"),
        (lambda mask: mask[..., :-1], "[...]"),
        (lambda mask: mask[:, :, 0], "[...]"),
        (lambda mask: mask[:, :, :, -4:], "[...]"),
        (lambda mask: mask[torch.zeros(1) > 0], "[...]"),
        (lambda mask: 1 if mask else 0, "bool()"),
        (len, "len"),
        (list, "iter"),
    ],
)
def test_a_mask_that_is_computed_with_is_refused_with_the_line(computed, what):
    said = rf"computes with an attention mask \({re.escape(what)}\)"
    line = rf"test_attention_masks:\d+ {said}"
    with pytest.raises(UnsupportedModel, match=line):
        computed(WINDOW)
