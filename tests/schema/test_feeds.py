"""What an input of the position holds."""

import pytest
from growing_programs import positioned_program
from sample_programs import F32, SEQ

from kvc.schema.feeds import Feed, feed_of, find_feed
from kvc.schema.types import TensorType, affine

BATCH = affine(0, {"batch": 1})
TOKENS = TensorType(F32, (2, 3, 4))


@pytest.mark.parametrize("advance", [None, 1, 2, SEQ])
@pytest.mark.parametrize("dims", [(), (1,)])
def test_a_single_number_is_one_place(dims, advance):
    assert find_feed(dims, advance, [TOKENS], {"batch"}) is Feed.ONE


@pytest.mark.parametrize("advance", [None, 1, SEQ, BATCH])
def test_a_size_that_the_session_fixes_is_of_rows(advance):
    kind = TensorType(F32, (SEQ, BATCH))
    assert find_feed((BATCH,), advance, [kind], {"batch"}) is Feed.ROWS


@pytest.mark.parametrize(
    ("dim", "advance", "feed"),
    [
        (SEQ, SEQ, Feed.PLACES),
        (3, 3, Feed.PLACES),
        (3, 1, Feed.ROWS),
        (2, SEQ, Feed.ROWS),
    ],
)
def test_where_tokens_are_added_their_number_tells(dim, advance, feed):
    assert find_feed((dim,), advance, [], {"batch"}) is feed


@pytest.mark.parametrize(
    ("dim", "others", "feed"),
    [
        (3, [TOKENS], Feed.PLACES),
        (2, [TOKENS], Feed.ROWS),
        (5, [TOKENS], Feed.PLACES),
        (2, [TOKENS, TensorType(F32, (1, 2))], Feed.PLACES),
        (2, [TensorType(F32, (2,))], Feed.ROWS),
        (SEQ, [TensorType(F32, ())], Feed.PLACES),
    ],
)
def test_where_none_are_added_the_other_inputs_tell(dim, others, feed):
    assert find_feed((dim,), None, others, {"batch"}) is feed


def test_a_method_without_such_an_input_is_fed_nothing():
    made = positioned_program()
    (method,) = made.methods
    assert feed_of(method, made.position, made.states) is Feed.ONE
    assert feed_of(method, None, made.states) is None
