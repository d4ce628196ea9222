from ir_samples import CACHE, I64, method, node, value

from kvc.compiler.place.aliasing import analyse
from kvc.compiler.place.lifetimes import requests_of
from kvc.compiler.place.plan import Request
from kvc.schema.types import Affine, Symbol

X, Y, Z = value(0, 2, 4), value(1, 2, 4), value(2, 2, 4)
NEG = node("aten::neg", X, to=Y)


def requests(step, **symbols):
    return requests_of(step, analyse(step), symbols)


def test_an_input_lives_from_before_the_first_node_to_its_last_read():
    step = method(NEG, node("aten::exp", Y, to=Z), inputs=(X,), outputs=(Z,))
    assert requests(step)[0] == Request(0, 32, -1, 0)


def test_a_result_lives_to_its_last_read_and_an_output_behind_the_last_node():
    step = method(NEG, node("aten::flip", Y, (0,), to=Z), inputs=(X,), outputs=(Z,))
    assert requests(step)[1:] == (Request(1, 32, 0, 1), Request(2, 32, 1, 2))


def test_a_result_that_nobody_reads_lives_while_it_is_written():
    assert requests(method(NEG, inputs=(X,)))[1] == Request(1, 32, 0, 0)


def test_an_input_that_nobody_reads_still_has_memory():
    assert requests(method(inputs=(X,))) == (Request(0, 32, -1, -1),)


def test_reading_a_view_keeps_its_base_alive():
    view = node("aten::transpose.int", Y, 0, 1, to=value(3, 4, 2))
    late = node("aten::exp", value(3, 4, 2), to=value(4, 4, 2))
    other = node("aten::exp", X, to=Z)
    step = method(NEG, view, other, late, inputs=(X,), outputs=(value(4, 4, 2),))
    assert Request(1, 32, 0, 3) in requests(step)
    assert {request.key for request in requests(step)} == {0, 1, 2, 4}


def test_a_view_handed_out_keeps_its_base_to_the_end():
    view = node("aten::transpose.int", X, 0, 1, to=value(3, 4, 2))
    step = method(view, NEG, inputs=(X,), outputs=(value(3, 4, 2),))
    assert requests(step)[0] == Request(0, 32, -1, 2)


def test_states_and_what_is_written_over_them_need_no_scratch():
    old, new = value(5, *CACHE), value(6, *CACHE)
    row, slot = value(0, 1, 1, 4), value(1, 1, dtype=I64)
    step = method(
        node("aten::index_copy", old, 1, slot, row, to=new),
        inputs=(row, slot),
        state_in=((old, "k"),),
        state_out=((new, "k"),),
    )
    assert {request.key for request in requests(step)} == {0, 1}


def test_symbolic_sizes_count_at_their_upper_bound():
    seq = Affine(1, (("seq", 2),))
    step = method(inputs=(value(0, seq, 4),))
    (request,) = requests(step, seq=Symbol("seq", 1, 10))
    assert request.nbytes == 21 * 4 * 4
