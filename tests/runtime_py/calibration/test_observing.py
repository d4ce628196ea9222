"""The scores of attention: of what a cache holds, with heads that share keys."""

import numpy as np
import pytest

from kvc.runtime.calibration.observing import SCORES

RANDOM = np.random.default_rng(0)
Q = RANDOM.standard_normal((2, 4, 3, 8), np.float32)
K = RANDOM.standard_normal((2, 2, 9, 8), np.float32)
TOTAL = np.array([5, 7])


def expected(keys: np.ndarray, scale: float) -> np.ndarray:
    """Return the scores in float64, each head with its group's keys."""
    shared = np.repeat(keys, 2, axis=1).astype(np.float64)
    return np.einsum("bhqw,bhkw->bhqk", Q.astype(np.float64), shared) * scale


@pytest.mark.parametrize(("given", "scale"), [(0.25, 0.25), (None, 8**-0.5)])
def test_scores_are_of_the_positions_that_a_cache_holds(
    given: float | None, scale: float
):
    held = SCORES["kvc::attention"](Q, K, K, TOTAL, given, True)
    wanted = expected(K[:, :, :7], scale)
    np.testing.assert_allclose(held.reshape(wanted.shape), wanted, rtol=0, atol=1e-5)
    every = SCORES["aten::scaled_dot_product_attention"](Q, K, K, None, False, given)
    wanted = expected(K, scale)
    np.testing.assert_allclose(every.reshape(wanted.shape), wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("q", "k"),
    [
        (Q[0, 0], K[0, 0]),
        (Q[0], K[0, :1]),
        (Q[:, :1], K),
        (Q[:, :2], K[:1]),
        (Q[0, 0], K),
    ],
    ids=["matrices", "one group", "one head", "one batch", "one matrix"],
)
def test_operands_that_broadcast_have_scores(q: np.ndarray, k: np.ndarray):
    found = SCORES["aten::scaled_dot_product_attention"](q, k, k, None, False, 0.5)
    wanted = np.matmul(q.astype(np.float64), np.swapaxes(k, -1, -2)) * 0.5
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5)


def test_an_empty_cache_and_int8_keys_have_no_scores():
    attention = SCORES["kvc::attention"]
    assert attention(Q, K, K, np.array([0, 0]), None, True).size == 0
    assert attention(Q, K.astype(np.int8), K, TOTAL, None, True).size == 0
