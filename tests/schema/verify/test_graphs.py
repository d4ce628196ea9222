from dataclasses import replace

import pytest
from sample_programs import sample_program, with_graph

from kvc.schema.dtypes import DType
from kvc.schema.errors import FormatError, LimitExceeded
from kvc.schema.graph import (
    Alias,
    Constant,
    Instruction,
    Ref,
    Scratch,
    StateSlot,
    Value,
)
from kvc.schema.types import Affine, TensorType
from kvc.schema.verify import graphs, verify_program

P = sample_program()
G = P.methods[1].graph  # decode
F32 = DType.FLOAT32
# Values: 0 x, 1 weight, 2 bias, 3 cache, 4 position, 5 y, 6 cache', 7 flat, 8 total,
# 9 scaled, 10 moved, 11 position'.
LINEAR, UPDATE, VIEW, SUM, MUL, ADD, COPY = range(7)


def refuse(text, **changes):
    with pytest.raises(FormatError, match=text) as caught:
        verify_program(with_graph(P, 1, replace(G, **changes)), "m.kvc", thorough=True)
    return str(caught.value)


def put(things, index, **changes):
    listed = list(things)
    listed[index] = replace(listed[index], **changes)
    return tuple(listed)


def refuse_value(text, index, **changes):
    return refuse(text, values=put(G.values, index, **changes))


def refuse_step(text, index, **changes):
    return refuse(text, instructions=put(G.instructions, index, **changes))


def test_a_message_names_method_instruction_op_and_source():
    text = refuse_step("arguments", UPDATE, arguments=())
    where = "method 'decode', instruction 1, kvc::cache_update (model:13 (layers.0))"
    assert text.startswith(f"m.kvc: {where}: ")


@pytest.mark.parametrize(
    "op",
    [
        "aten::from_file",
        "aten::linear ",
        "ATEN::linear",
        "aten::linear.out",
        "",
        "linear",
    ],
)
def test_an_op_that_is_not_on_the_list_is_refused(op):
    refuse_step("there is no such op", LINEAR, op=op)


def test_a_value_must_be_defined_before_it_is_read():
    refuse_step("reads value 10 too early", LINEAR, arguments=(Ref(10), Ref(1), Ref(2)))


def test_a_value_in_a_list_must_be_defined_too():
    step = Instruction("aten::cat", ((Ref(9), Ref(9)), 0), (8,))
    refuse("reads value 9 too early", instructions=put_step(SUM, step))


def put_step(index, step):
    steps = list(G.instructions)
    steps[index] = step
    return tuple(steps)


def test_a_value_is_defined_once():
    refuse_step("defines value 8 again", MUL, results=(8,))
    refuse_step("defines value 0 again", LINEAR, results=(0,))
    refuse_step("defines value 4 again", COPY, results=(4,))


def test_a_value_must_be_defined_at_all():
    spare = Value(TensorType(F32, (1,)), Scratch(0, 4))
    refuse("value 13: is never defined", values=(*G.values, spare))


def test_outputs_are_defined():
    refuse("the output 9 is never defined", instructions=G.instructions[:4])


def test_inputs_have_scratch_and_are_distinct():
    refuse("an input must have scratch", inputs=(1,))
    refuse("an input must have scratch", inputs=(3,))
    tree = '{"parameters":["x","y"],"arguments":[["x",0],["y",1]]}'
    graph = replace(G, inputs=(0, 0))
    method = replace(P.methods[1], graph=graph, input_names=("x", "y"), input_tree=tree)
    program = replace(P, methods=(P.methods[0], method))
    with pytest.raises(FormatError, match="an input must have scratch"):
        verify_program(program, "m.kvc")


@pytest.mark.parametrize(
    ("index", "storage", "text"),
    [
        (5, Scratch(0, 31), "takes 32 bytes, it has 31"),
        (5, Scratch(8, 32), "no multiple of 64"),
        (5, Scratch(-64, 32), "leave the arena"),
        (5, Scratch(2**40, 32), "leave the arena"),
        (5, Alias(0), "fresh kind may not lie"),
        (5, Constant(0), "named data 0 is"),
        (5, StateSlot(0), "state 0 has a value already"),
        (6, Alias(0), "update kind may not lie"),
        (6, Alias(99), "shares memory with value 99"),
        (7, Alias(3), "view kind may not lie"),
        (7, Scratch(0, 512), "view kind may not lie|leave the arena"),
        (1, Constant(3), "there is no named data 3"),
        (1, Constant(1), "named data 1 is"),
        (3, StateSlot(2), "there is no state 2"),
        (3, StateSlot(1), "state 1 is"),
    ],
)
def test_storage_that_cannot_be_is_refused(index, storage, text):
    refuse_value(text, index, storage=storage)


def test_a_constant_is_never_written():
    steps = put_step(COPY, Instruction("aten::copy", (Ref(2), Ref(2)), (11,)))
    values = put(G.values, 11, type=G.values[2].type, storage=Alias(2))
    refuse("writes over a constant", instructions=steps, values=values)


def test_a_view_of_a_constant_is_never_written():
    kind = G.values[2].type
    values = (*put(G.values, 11, type=kind, storage=Alias(13)), Value(kind, Alias(2)))
    steps = (
        *G.instructions[:COPY],
        Instruction("aten::alias", (Ref(2),), (13,)),
        Instruction("aten::copy", (Ref(13), Ref(2)), (11,)),
    )
    refuse("writes over a constant", instructions=steps, values=values)


@pytest.mark.parametrize(
    ("index", "arguments", "text"),
    [
        (LINEAR, (Ref(0), Ref(1)), "2 arguments for 3; compile the model again"),
        (LINEAR, (Ref(0), Ref(1), None, None), "4 arguments for 3$"),
        (LINEAR, (Ref(0),), "1 arguments for 3$"),
        (LINEAR, (Ref(0), None, None), "weight must be Tensor"),
        (LINEAR, (Ref(0), 1, None), "weight must be Tensor"),
        (LINEAR, (Ref(0), (Ref(1),), None), "weight must not be a list"),
        (LINEAR, (Ref(0), Ref(2), None), "not a matrix"),
        (VIEW, (Ref(6), 128), "size must be a list"),
        (VIEW, (Ref(6), (1, 128.0)), "size must be int"),
        (VIEW, (Ref(6), (1, None)), "size must be int"),
        (VIEW, (Ref(6), (True, 128)), "size must be int"),
        (VIEW, (Ref(6), (1, DType.INT8)), "size must be int"),
        (VIEW, (Ref(6), (2, -1)), r"it gives float32\[2, 64\]"),
        (VIEW, (Ref(6), (1,) * 100_001), "limit is 100000"),
        (SUM, (Ref(7), (1,), 0), "keepdim must be bool"),
        (SUM, (Ref(7), (1,), True), r"it gives float32\[1, 1\]"),
        (SUM, (Ref(7), (5,), False), "axis 5"),
        (MUL, (Ref(8), "1"), "other must be Scalar"),
        (MUL, (Ref(8), Ref(8)), "other must be Scalar"),
        (UPDATE, (Ref(3), Ref(5), Ref(4), 1, "odd", None, 0), "mode 'odd'"),
        (UPDATE, (Ref(3), Ref(5), Ref(4), 1, 1, None, 0), "mode must be str"),
        (UPDATE, (Ref(3), Ref(5), Ref(4), 1, "linear"), "5 arguments for 7"),
        (
            UPDATE,
            (Ref(3), Ref(5), Ref(4), 1, "linear", 1, 0),
            "row_lengths must be Tensor",
        ),
        (
            UPDATE,
            (Ref(3), Ref(5), Ref(4), 1, "linear", Ref(5), 0),
            "row_lengths float32",
        ),
        (
            UPDATE,
            (Ref(3), Ref(5), Ref(4), Affine(1, (("n", 1),)), "linear", None, 0),
            "undeclared",
        ),
        (
            UPDATE,
            (Ref(3), Ref(5), Ref(4), Affine(1, ()), "linear", None, 0),
            "canonical",
        ),
        (
            UPDATE,
            (Ref(3), Ref(5), Ref(4), Affine(1, (("seq", 0),)), "linear", None, 0),
            "canonical",
        ),
    ],
)
def test_an_argument_that_does_not_fit_is_refused(index, arguments, text):
    refuse_step(text, index, arguments=arguments)


def test_a_result_too_many_is_refused():
    values = (*G.values, Value(TensorType(F32, (1,)), Scratch(0, 4)))
    steps = put(G.instructions, SUM, results=(8, 12))
    refuse("it gives 1 results, not 2", values=values, instructions=steps)


def test_a_shape_that_only_fits_one_size_is_refused():
    graph = P.methods[0].graph
    narrow = TensorType(F32, (1, 8, 8))
    values = put(graph.values, 5, type=narrow)
    changed = with_graph(P, 0, replace(graph, values=values))
    with pytest.raises(FormatError, match="seq = 1"):
        verify_program(changed, "m.kvc")


def test_each_of_many_equal_instructions_is_still_ordered():
    double = (*G.instructions, G.instructions[LINEAR])
    refuse("defines value 5 again", instructions=double)


def test_a_source_must_be_printable():
    refuse_step("printed", COPY, source="a\x1b")


@pytest.mark.parametrize("name", ["MAX_VALUES", "MAX_INSTRUCTIONS"])
def test_values_and_instructions_have_limits(monkeypatch, name):
    monkeypatch.setattr(graphs, name, 1)
    what = name.removeprefix("MAX_").lower()
    with pytest.raises(LimitExceeded, match=f"the number of {what}"):
        verify_program(P, "x")


def test_the_arena_has_a_limit_and_holds_its_peak():
    refuse("limit", scratch_nbytes=2**41)
    refuse("peak", peak_nbytes=G.scratch_nbytes + 1)
