"""What may be passed, and how it is taken."""

from dataclasses import replace

import numpy as np
import pytest
from counting_model import VOCAB, counting_program
from hand_built import cache_program, write_bundle
from sample_programs import sample_program

from kvc.runtime import CacheOverflow, InputMismatch, generate, load
from kvc.runtime.calls.entries import make_entry
from kvc.runtime.calls.inputs import InputSignature, take_inputs
from kvc.runtime.states.owner import group_states
from kvc.schema.dtypes import DType
from kvc.schema.types import Affine, Symbol, TensorType


def signature(dtype):
    return InputSignature("run", ["x"], [TensorType(dtype, (2,))], [dtype.numpy], {})


def test_an_array_is_taken_without_a_copy():
    x = np.zeros(2, np.float32)
    assert take_inputs(signature(DType.FLOAT32), [x]).arrays[0] is x


def test_a_tensor_is_taken_without_a_copy():
    import torch

    x = torch.zeros(2)
    taken = take_inputs(signature(DType.FLOAT32), [x])
    assert taken.as_tensors
    assert taken.arrays[0].ctypes.data == x.data_ptr()


def test_a_lazily_negated_tensor_is_resolved():
    import torch

    x = torch.tensor([1 + 2j, 3 - 4j]).conj().imag
    assert x.is_neg()
    assert take_inputs(signature(DType.FLOAT32), [x]).arrays[0].tolist() == [-2, 4]


@pytest.mark.parametrize("value", [1, 1.5, True, "text", object()])
def test_what_is_no_array_is_refused_by_its_kind(value):
    with pytest.raises(InputMismatch, match=f"a Python {type(value).__name__}; pass"):
        take_inputs(signature(DType.INT64), [value])


def test_a_sparse_tensor_is_refused():
    import torch

    with pytest.raises(InputMismatch, match="a tensor that numpy cannot view"):
        take_inputs(signature(DType.FLOAT32), [torch.zeros(2).to_sparse()])


@pytest.mark.parametrize("dtype", ["float64", "int32", "complex64", ">f4", "<U3"])
def test_another_dtype_is_refused(dtype):
    with pytest.raises(InputMismatch, match=r"expected float32\[2\], got "):
        take_inputs(signature(DType.FLOAT32), [np.zeros(2, dtype)])


SYMBOLS = {"s": Symbol("s", 1, 10), "t": Symbol("t", 2, 4)}
S, T = Affine(0, (("s", 1),)), Affine(0, (("t", 1),))


def sized(*dims):
    types = [TensorType(DType.FLOAT32, d) for d in dims]
    return InputSignature("run", ["a", "b"][: len(types)], types, [], SYMBOLS)


def test_a_symbol_is_solved_from_any_linear_expression():
    assert sized((Affine(1, (("s", 2),)),)).solve([(9,)], {}) == {"s": 4}
    assert sized((Affine(5, (("s", -1),)),)).solve([(2,)], {}) == {"s": 3}


def test_a_second_symbol_follows_from_the_first():
    both = Affine(0, (("s", 1), ("t", 1)))
    assert sized((S, both)).solve([(3, 5)], {}) == {"s": 3, "t": 2}


def test_a_size_that_does_not_divide_is_refused():
    with pytest.raises(InputMismatch, match=r"float32\[2\*s\] with s in 1..10"):
        sized((Affine(0, (("s", 2),)),)).solve([(5,)], {})


def test_inputs_that_share_a_symbol_must_agree():
    with pytest.raises(InputMismatch) as caught:
        sized((S,), (S,)).solve([(3,), (4,)], {})
    assert caught.value.input == "b"
    assert caught.value.expected == "float32[s] with s in 1..10 (here s = 3)"
    assert caught.value.found == "float32[4]"


def test_bounds_are_inclusive():
    assert sized((T,)).solve([(2,)], {}) == {"t": 2}
    assert sized((T,)).solve([(4,)], {}) == {"t": 4}
    for size in (1, 5):
        with pytest.raises(InputMismatch, match=r"t in 2\.\.4"):
            sized((T,)).solve([(size,)], {})


def test_sizes_that_are_fixed_are_kept():
    assert sized((S,)).solve([(3,)], {"s": 3, "t": 4}) == {"s": 3, "t": 4}
    with pytest.raises(InputMismatch, match="here s = 2"):
        sized((S,)).solve([(3,)], {"s": 2})


def test_a_symbol_that_nothing_settles_is_named():
    with pytest.raises(InputMismatch, match="no input determines s"):
        sized((Affine(0, (("s", 1), ("t", 1))),)).solve([(5,)], {})


def test_a_wrong_rank_is_refused():
    with pytest.raises(
        InputMismatch, match=r"expected float32\[3\], got float32\[3, 1\]"
    ):
        sized((3,)).solve([(3, 1)], {})


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
    def found(program, number, **changes):
        methods = list(program.methods)
        methods[number] = replace(methods[number], **changes)
        groups = group_states(program.states, methods)
        whole = replace(program, methods=tuple(methods))
        symbols = {symbol.name: symbol for symbol in program.symbols}
        return make_entry(whole, number, symbols, groups).tokens

    counting = counting_program()[0]
    tokens = found(counting, 0)
    assert (tokens.name, tokens.vocabulary) == ("tokens", VOCAB)
    assert found(counting, 0, role="") is None
    assert found(sample_program(), 1, role="encode") is None


def test_a_role_does_not_make_other_inputs_into_tokens(tmp_path):
    made, arrays = cache_program()
    methods = (replace(made.methods[0], role="encode"), *made.methods[1:])
    built = (replace(made, methods=methods), arrays)
    with load(write_bundle(tmp_path / "r.kvc", built)) as program:
        shape = (1, 1, 2, made.states[0].type.dims[-1])
        with program.session() as opened:
            opened.call(methods[0].name, np.ones(shape, np.float32))
            assert opened.position == 2
