from dataclasses import replace

import pytest
from growing_programs import growing_program, positioned_program
from sample_programs import sample_program

from kvc.schema.dtypes import DType
from kvc.schema.errors import BadProgram, FormatError
from kvc.schema.model import Instruction, Ref, Scratch, Update, Value
from kvc.schema.types import Affine, TensorType, affine
from kvc.schema.verify import verify_program

P, GROWING, POSITIONED = sample_program(), growing_program(), positioned_program()
PREFILL, DECODE = P.methods
GROW, RESTART = GROWING.methods
WRITE = POSITIONED.methods[0]
I64 = DType.INT64
# Instructions of decode: 1 writes the cache in place, 6 copies over the position.
IN_PLACE, COPIED = DECODE.updates


def refuse(program, text, error=BadProgram):
    with pytest.raises(error, match=text) as caught:
        verify_program(program, "m.kvc")
    assert str(caught.value).startswith("m.kvc: ")


def refuse_decode(text, **changes):
    refuse(replace(P, methods=(PREFILL, replace(DECODE, **changes))), text)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"name": "decode"}, "twice"),
        ({"name": "a b\n"}, "printed"),
        ({"role": "decode"}, r"several decode: \['prefill', 'decode'\]"),
        ({"role": "other"}, "role 'other'"),
        ({"role": "prefill_all"}, r"its tokens and logits are float32\[1, seq, 8\]"),
        ({"input_names": ()}, "names and inputs"),
        ({"input_names": ("",)}, "empty"),
        ({"input_tree": "["}, "method 'prefill'"),
        ({"input_tree": '{"parameters":[],"arguments":[]}'}, "0 leaves for 1 inputs"),
        ({"output_tree": "0"}, "1 leaves, 2 outputs"),
        ({"output_tree": "{}"}, "unknown part"),
        ({"reads": ()}, r"it reads the states \(0, 1\)"),
        ({"writes": (0,)}, r"it writes the states \(0, 1\)"),
    ],
)
def test_a_bad_method_is_refused(change, text):
    refuse(replace(P, methods=(replace(PREFILL, **change), DECODE)), text)


def test_a_method_declares_what_it_does_through_new_ops():
    refuse(replace(GROWING, methods=(replace(GROW, reads=()), RESTART)), "it reads")
    refuse(replace(GROWING, methods=(GROW, replace(RESTART, reads=(0,)))), "it reads")
    refuse(replace(GROWING, methods=(GROW, replace(RESTART, writes=()))), "it writes")


@pytest.mark.parametrize(
    ("advance", "text"),
    [
        (-1, "the dim -1 can be -1"),
        (affine(-2, {"seq": 1}), "can be -1"),
        (affine(0, {"other": 1}), "undeclared"),
        (affine(0, {}, {("other", "seq"): 1}), "undeclared"),
        (None, "it writes a counter without an advance"),
    ],
)
def test_a_bad_advance_is_refused(advance, text):
    refuse_decode(text, advance=advance)


@pytest.mark.parametrize(
    ("advance", "text"),
    [
        (affine(0, {"seq": 1}, {("capacity", "seq"): -1}), "can be -"),
        (Affine(0, (), ((("capacity", "seq"), 0),)), "canonical"),
        (Affine(0, (), ((("seq", "capacity"), 1),)), "canonical"),
        (Affine(0, (), ((("seq",), 1),)), "canonical"),
        (Affine(0, (), ((("seq", "seq"), 1),)), "canonical"),
        (Affine(0, (), ((("capacity", "seq"), 1),) * 2), "canonical"),
    ],
)
def test_a_bad_product_of_sizes_is_refused(advance, text):
    refuse(replace(GROWING, methods=(replace(GROW, advance=advance), RESTART)), text)


def test_an_advance_may_be_too_large():
    refuse(replace(P, methods=(replace(PREFILL, advance=2**40),)), "limit", FormatError)


def test_without_a_position_nothing_advances():
    cache = replace(P.states[0], at_position=False)
    program = replace(P, states=(cache, P.states[1]), position=None)
    refuse(program, "it advances a position that is not there")


def test_a_method_that_advances_writes_the_position():
    graph = replace(DECODE.graph, instructions=DECODE.graph.instructions[:6])
    values = graph.values[:11]
    idle = replace(
        DECODE, graph=replace(graph, values=values), writes=(0,), updates=(IN_PLACE,)
    )
    text = "it advances a position that it does not write"
    refuse(replace(P, methods=(PREFILL, idle)), text)
    quiet = replace(idle, advance=None)
    verify_program(replace(P, methods=(PREFILL, quiet)), "m.kvc")


@pytest.mark.parametrize(
    ("updates", "text"),
    [
        ((), r"verdicts on \(\), its writes in place are \(1, 6\)"),
        ((IN_PLACE,), r"verdicts on \(1,\)"),
        ((COPIED,), r"verdicts on \(6,\)"),
        ((COPIED, IN_PLACE), r"verdicts on \(6, 1\)"),
        ((IN_PLACE, IN_PLACE, COPIED), r"verdicts on \(1, 1, 6\)"),
        ((Update(0, "", ()), IN_PLACE, COPIED), r"verdicts on \(0, 1, 6\)"),
        ((IN_PLACE, Update(99, "", ())), r"verdicts on \(1, 99\)"),
    ],
)
def test_every_write_in_place_has_one_verdict(updates, text):
    refuse_decode(text, updates=updates)


@pytest.mark.parametrize(
    ("update", "text"),
    [
        (Update(6, "", (6,)), r"reason '' for copies \(6,\)"),
        (Update(6, "why", ()), r"reason 'why' for copies \(\)"),
        (Update(6, "a\n", (6,)), "cannot be printed"),
        (Update(6, "x" * 257, (6,)), "longer than 256"),
        (Update(6, "why", (7,)), r"copies \(7,\)"),
        (Update(6, "why", (-1,)), r"copies \(-1,\)"),
        (Update(6, "why", (6, 6)), r"copies \(6, 6\)"),
        (Update(6, "why", (1,)), r"\['kvc::cache_update'\] copy nothing"),
        (Update(6, "why", (5, 6)), r"\['aten::add.Scalar'\] copy nothing"),
    ],
)
def test_a_bad_verdict_is_refused(update, text):
    refuse_decode(f"verdict on 6: .*{text}", updates=(IN_PLACE, update))


def test_copies_are_ascending_clones_copies_and_replacements():
    graph = DECODE.graph
    kind = TensorType(I64, (1,))
    clone = Instruction("aten::clone", (Ref(4),), (12,))
    place = Value(kind, Scratch(graph.scratch_nbytes, 8))
    changed = replace(
        graph,
        values=(*graph.values, place),
        instructions=(clone, *graph.instructions),
        scratch_nbytes=graph.scratch_nbytes + 64,
    )
    updates = (Update(2, "", ()), Update(7, "why", (0, 7)))
    method = replace(DECODE, graph=changed, updates=updates)
    verify_program(replace(P, methods=(PREFILL, method)), "m.kvc", thorough=True)
    turned = replace(method, updates=(updates[0], Update(7, "why", (7, 0))))
    refuse(replace(P, methods=(PREFILL, turned)), r"copies \(7, 0\)")


def with_position(**changes):
    """Return the program with another value as the position's input."""
    graph = WRITE.graph
    values = list(graph.values)
    values[1] = replace(values[1], **changes)
    method = replace(WRITE, graph=replace(graph, values=tuple(values)))
    return replace(POSITIONED, methods=(method,))


@pytest.mark.parametrize(
    "kind",
    [TensorType(DType.INT32, (1,)), TensorType(I64, (1, 1))],
)
def test_a_position_s_input_is_int64_of_rank_one_at_most(kind):
    program = with_position(type=kind)
    refuse(program, f"its position 'position' is {kind.dtype.label}")


def test_the_session_s_input_is_not_among_the_arguments():
    tree = '{"parameters":["x","position"],"arguments":[["x",0],["position",1]]}'
    program = replace(POSITIONED, methods=(replace(WRITE, input_tree=tree),))
    refuse(program, "2 leaves for 1 inputs")


def test_an_input_of_another_name_is_among_the_arguments():
    method = replace(WRITE, input_names=("x", "other"))
    refuse(replace(POSITIONED, methods=(method,)), "1 leaves for 2 inputs")
