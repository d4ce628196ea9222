"""Batches as transformers pads them, as kvc takes them."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvc.runtime import BadSetting, right_padded


def test_left_padding_goes_to_the_right():
    tokens = [[0, 0, 5, 6], [7, 8, 9, 4]]
    padded, lengths = right_padded(tokens, [[0, 0, 1, 1], [1, 1, 1, 1]])
    assert padded.tolist() == [[5, 6, 0, 0], [7, 8, 9, 4]]
    assert lengths.tolist() == [2, 4]
    assert padded.dtype == lengths.dtype == np.int64


def test_no_row_is_wider_than_the_longest():
    padded, lengths = right_padded(
        [[0, 5, 6, 0], [0, 0, 9, 0]], [[0, 1, 1, 0], [0, 0, 1, 0]]
    )
    assert padded.tolist() == [[5, 6], [9, 0]]
    assert lengths.tolist() == [2, 1]


def test_without_a_mask_all_count():
    tokens = np.array([[1, 2], [3, 4]], np.int32)
    padded, lengths = right_padded(tokens)
    assert padded.tolist() == [[1, 2], [3, 4]]
    assert lengths.tolist() == [2, 2]
    assert not np.shares_memory(padded, tokens)


def test_a_row_may_have_no_tokens():
    padded, lengths = right_padded([[1, 2], [3, 4]], [[0, 0], [0, 1]])
    assert padded.tolist() == [[0], [4]]
    assert lengths.tolist() == [0, 1]
    assert right_padded(np.zeros((2, 0), int))[0].shape == (2, 0)


def test_tensors_and_boolean_masks_are_taken():
    mask = torch.tensor([[False, True]])
    padded, lengths = right_padded(torch.tensor([[0, 3]]), mask)
    assert padded.tolist() == [[3]]
    assert lengths.tolist() == [1]


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 4), st.integers(0, 3)),
        min_size=1,
        max_size=4,
    )
)
def test_wherever_the_padding_is_the_tokens_are_the_same(rows):
    width = max(map(sum, rows))
    tokens, mask = np.full((len(rows), width), 99), np.zeros((len(rows), width), int)
    for row, (left, count, _) in enumerate(rows):
        tokens[row, left : left + count] = np.arange(count) + 10 * row
        mask[row, left : left + count] = 1
    padded, lengths = right_padded(tokens, mask)
    assert lengths.tolist() == [count for _, count, _ in rows]
    for row, (_, count, _) in enumerate(rows):
        assert padded[row, :count].tolist() == [10 * row + i for i in range(count)]
        assert not padded[row, count:].any()


@pytest.mark.parametrize(
    ("tokens", "mask", "message"),
    [
        ([[1, 2, 3]], [[1, 0, 1]], "zeros between ones in row 0"),
        ([[1, 2, 3]] * 2, [[0, 1, 1], [1, 0, 1]], "zeros between ones in row 1"),
        ([[1, 2]], [[1, 2]], "expected 0 or 1 for each token, got 2"),
        ([[1, 2]], [[1]], r"expected the tokens' shape, \[1, 2\], got \[1, 1\]"),
        ([1, 2], [[1, 1]], r"tokens: expected two axes, \[batch, n\], got 1"),
        ([[1, 2]], [1, 1], r"attention_mask: expected two axes, \[batch, n\], got 1"),
        ([[1.0, 2.0]], None, "tokens: expected whole numbers, got float64"),
        ([[1, 2]], [[0.5, 1]], "attention_mask: expected whole numbers, got float64"),
        ([[1, 2], [3]], None, "tokens: expected numbers"),
        (["ab"], None, r"tokens: expected two axes"),
        ([["ab"]], None, "tokens: expected whole numbers"),
    ],
)  # fmt: skip
def test_what_is_no_batch_is_refused(tokens, mask, message):
    with pytest.raises(BadSetting, match=message):
        right_padded(tokens, mask)
