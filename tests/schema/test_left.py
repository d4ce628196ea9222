"""What is left to PyTorch: of a method, of the blocks that it runs, in words."""

from dataclasses import replace

from hand_built import affine_program

from kvc.schema.left import left_of, needs_torch, why_torch


def test_each_instruction_that_computes_is_counted_by_op():
    (method,) = affine_program()[0].methods
    assert left_of(method) == {
        "aten::mul.Tensor": 1,
        "aten::add.Tensor": 1,
        "aten::relu": 1,
    }


def test_the_first_is_named_with_its_line_and_the_others_are_counted():
    (method,) = affine_program()[0].methods
    said = why_torch(method.graph, ())
    assert said == "no backend runs aten::mul.Tensor at model:1 nor 2 more instructions"


def test_one_other_is_told_as_one():
    (method,) = affine_program()[0].methods
    graph = replace(method.graph, instructions=method.graph.instructions[:2])
    assert why_torch(graph, ()).endswith(" nor 1 more instruction")


def test_one_alone_without_a_line_is_named_alone():
    (method,) = affine_program()[0].methods
    step = replace(method.graph.instructions[0], source="")
    graph = replace(method.graph, instructions=(step,))
    assert why_torch(graph, ()) == "no backend runs aten::mul.Tensor"


def test_of_a_backends_own_code_its_reference_is_blamed():
    (method,) = affine_program()[0].methods
    said = why_torch(method.graph, (), reference=True)
    assert (
        said
        == "the reference of a backend computes aten::mul.Tensor at model:1 with it"
    )


def test_no_instructions_need_nothing():
    (method,) = affine_program()[0].methods
    assert not needs_torch(replace(method.graph, instructions=()), ())
