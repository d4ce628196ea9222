from dataclasses import replace

import numpy as np
import pytest
from counting_model import VOCAB, counting_program
from hand_built import cache_program, write_bundle
from sample_programs import sample_program

from kvc.runtime import CacheOverflow, InputMismatch, generate, load
from kvc.runtime.calls.tokens import find_tokens


@pytest.fixture
def session(tmp_path):
    path = write_bundle(tmp_path / "c.kvc", counting_program())
    with load(path) as program, program.session() as opened:
        yield opened


@pytest.mark.parametrize("token", [VOCAB, -1, 2**40])
def test_a_token_out_of_range_is_named_with_the_range(session, token):
    with pytest.raises(InputMismatch) as caught:
        session.fill(np.array([[1, token, 2]]))
    expected = (
        f"method fill, input tokens: expected tokens of 0 to 31, got token {token}"
    )
    assert str(caught.value) == expected
    assert session.position == 0
    with pytest.raises(InputMismatch, match=f"method step.* got token {token}"):
        session.step(np.array([[token]]))


def test_a_prompt_with_a_token_out_of_range_says_so(session):
    with pytest.raises(InputMismatch, match="got token 99"):
        list(generate(session, [1, 99], max_tokens=1))


def test_the_tokens_are_counted_along_their_last_axis(session):
    for start in (0, 4, 8):
        session.fill(np.array([[1, 2, 3, start]]))
    session.fill(np.array([[1, 2, 3]]))
    with pytest.raises(CacheOverflow) as caught:
        session.fill(np.array([[1, 2]]))
    assert (caught.value.start, caught.value.count) == (15, 2)


def test_a_wrong_rank_is_told_as_a_wrong_shape(session):
    with pytest.raises(InputMismatch, match=r"expected int64\[1, seq\]"):
        session.fill(np.zeros(3, np.int64))


def test_a_method_without_role_or_without_tokens_has_no_input_of_tokens():
    filling = counting_program()[0].methods[0]
    tokens = find_tokens(filling)
    assert tokens is not None
    assert (tokens.name, tokens.vocabulary) == ("tokens", VOCAB)
    assert find_tokens(replace(filling, role="")) is None
    decode = sample_program().methods[1]
    assert decode.role == "decode"
    assert find_tokens(decode) is None


def test_a_role_does_not_make_other_inputs_into_tokens(tmp_path):
    made, arrays = cache_program()
    methods = (replace(made.methods[0], role="prefill"), *made.methods[1:])
    built = (replace(made, methods=methods), arrays)
    with load(write_bundle(tmp_path / "r.kvc", built)) as program:
        shape = (1, 1, 2, made.states[0].type.dims[-1])
        with program.session() as opened:
            opened.call(methods[0].name, np.ones(shape, np.float32))
            assert opened.position == 2
