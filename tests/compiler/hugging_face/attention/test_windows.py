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

from kvc.compiler.hugging_face.attention.attention_masks import MaskStandIn
from kvc.compiler.hugging_face.attention.windows import (
    ALL,
    find_both_ways,
    find_sight,
    sees_all,
)
from kvc.schema.errors import UnsupportedModel


def test_a_causal_mask_has_no_window():
    assert find_sight(causal_mask_function, "model") == MaskStandIn(None)


@pytest.mark.parametrize("width", [1, 2, 7, 4096, 100_000])
def test_a_windows_width_counts_the_query_itself(width):
    mask = sliding_window_causal_mask_function(width)
    assert find_sight(mask, "model") == MaskStandIn(width)


@pytest.mark.parametrize("length", [2, 3, 8, 8192, 100_000])
def test_of_chunks_a_query_sees_its_own(length):
    padding = torch.zeros(1, dtype=torch.int64)
    mask = chunked_causal_mask_function(length, padding)
    assert find_sight(mask, "model") == MaskStandIn(length, chunk=length)


def test_of_two_windows_the_smaller_one_holds():
    masks = [sliding_window_causal_mask_function(width) for width in (8, 5)]
    assert find_sight(and_masks(*masks), "model") == MaskStandIn(5)


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
    with pytest.raises(
        UnsupportedModel,
        match=r"asks for more than positions: .*test_windows:\d+ computes",
    ):
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


@pytest.mark.parametrize("distance", [1, 2, 7, 64, 4096])
def test_of_a_call_a_query_may_see_a_window_to_both_sides(distance):
    mask = sliding_window_bidirectional_mask_function(distance)
    found = find_both_ways(mask, "model")
    assert (found.window, found.ahead) == (distance + 1, distance)


def test_of_a_call_a_query_may_see_all_or_what_comes_before_it():
    assert find_both_ways(bidirectional_mask_function, "model") == ALL
    assert ALL.ahead is None
    assert find_both_ways(causal_mask_function, "model") == MaskStandIn(None)
    window = sliding_window_causal_mask_function(5)
    assert find_both_ways(window, "model") == MaskStandIn(5)
    assert MaskStandIn(5).ahead == 0


@pytest.mark.parametrize(
    "mask",
    [
        lambda b, h, q, k: (q - k).lt(4) & (k - q).lt(3),
        lambda b, h, q, k: (q - k).abs().lt(4) | k.eq(0),
        lambda b, h, q, k: torch.zeros(1, 4)[b, q] == 0,
    ],
    ids=["uneven sides", "a first token that all see", "more than positions"],
)
def test_what_is_no_even_window_is_refused_of_a_call_too(mask):
    with pytest.raises(UnsupportedModel, match="its attention mask"):
        find_both_ways(mask, "model")


def test_a_window_wider_than_a_short_text_is_not_all():
    assert sees_all(bidirectional_mask_function)
    assert not sees_all(sliding_window_bidirectional_mask_function(100_000))
