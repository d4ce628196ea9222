import pytest
import torch
from transformers.masking_utils import (
    and_masks,
    bidirectional_mask_function,
    causal_mask_function,
    chunked_causal_mask_function,
    or_masks,
    sliding_window_bidirectional_mask_function,
    sliding_window_causal_mask_function,
)

from kvc.compiler.hugging_face.windows import Sight, find_sight, sees_all
from kvc.schema.errors import UnsupportedModel


def test_a_causal_mask_has_no_window():
    assert find_sight(causal_mask_function, "model") == Sight(None)


@pytest.mark.parametrize("width", [1, 2, 7, 4096, 100_000])
def test_a_windows_width_counts_the_query_itself(width):
    mask = sliding_window_causal_mask_function(width)
    assert find_sight(mask, "model") == Sight(width)


@pytest.mark.parametrize("length", [2, 3, 8, 8192, 100_000])
def test_of_chunks_a_query_sees_its_own(length):
    padding = torch.zeros(1, dtype=torch.int64)
    mask = chunked_causal_mask_function(length, padding)
    assert find_sight(mask, "model") == Sight(length, chunk=length)


def test_of_two_windows_the_smaller_one_holds():
    masks = [sliding_window_causal_mask_function(width) for width in (8, 5)]
    assert find_sight(and_masks(*masks), "model") == Sight(5)


@pytest.mark.parametrize(
    "mask",
    [
        bidirectional_mask_function,
        sliding_window_bidirectional_mask_function(4),
        and_masks(
            sliding_window_causal_mask_function(4),
            chunked_causal_mask_function(8, torch.zeros(1, dtype=torch.int64)),
        ),
        or_masks(sliding_window_causal_mask_function(4), lambda b, h, q, k: k.eq(0)),
    ],
    ids=["all", "both sides", "a window in chunks", "a sink token"],
)
def test_what_is_no_causal_window_is_refused(mask):
    with pytest.raises(
        UnsupportedModel, match="its attention mask is no causal window"
    ):
        find_sight(mask, "model")


def test_a_mask_that_asks_for_more_than_positions_is_refused():
    packed = torch.zeros(1, 4)
    with pytest.raises(UnsupportedModel, match="asks for more than positions"):
        find_sight(lambda b, h, q, k: packed[b, k] == packed[b, q], "model")


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (bidirectional_mask_function, True),
        (sliding_window_bidirectional_mask_function(400), False),
        (sliding_window_causal_mask_function(4), False),
        (lambda b, h, q, k: q >= k, False),
        (lambda b, h, q, k: k >= q, False),
    ],
)
def test_whether_an_encoders_mask_hides_nothing_is_known(mask, expected):
    assert sees_all(mask) is expected
