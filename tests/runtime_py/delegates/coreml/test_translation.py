"""Which values are float16, and what the delegate refuses."""

from dataclasses import replace
from pathlib import Path

import pytest
from delegated_partitions import delegated_program, partition_graph
from hand_built import F32, write_bundle

from kvc.runtime import load
from kvc.runtime.delegates.coreml.translation import computed_halves, stored_halves
from kvc.schema.errors import BadProgram
from kvc.schema.graph import Caller, Constant, Graph, Instruction, Ref, Scratch, Value
from kvc.schema.types import TensorType


def graph(*steps: tuple[str, tuple[object, ...]], outputs: tuple[int, ...]) -> Graph:
    """Return code over float32 [4, 4]: value 0 is an input, value 1 a constant."""
    kind = TensorType(F32, (4, 4))
    values = [Value(kind, Caller()), Value(kind, Constant(0))]
    made = []
    for op, arguments in steps:
        made.append(Instruction(op, arguments, (len(values),)))
        values.append(Value(kind, Scratch(64 * len(values), 64)))
    return Graph(tuple(values), (0,), outputs, tuple(made), 1024, 1024)


LINEAR = ("aten::linear", (Ref(2), Ref(1), None))


def test_what_products_make_is_float16_and_what_is_computed_with_it():
    code = graph(
        ("aten::sin", (Ref(0),)),
        LINEAR,
        ("aten::add.Tensor", (Ref(3), Ref(0), 1)),
        ("aten::cos", (Ref(0),)),
        outputs=(4, 5),
    )
    assert computed_halves(code) == {3, 4}
    # The input is also read by what is exact; sin is for the product alone.
    assert stored_halves(code) == {2, 3, 4}


def test_what_is_exact_is_rounded_where_float16_alone_reads_it():
    turned = ("aten::transpose.int", (Ref(2), 0, 1))
    product = ("aten::linear", (Ref(3), Ref(1), None))
    code = graph(("aten::sin", (Ref(0),)), turned, product, outputs=(4,))
    assert computed_halves(code) == {4}
    assert stored_halves(code) == {2, 3, 4}
    assert stored_halves(replace(code, outputs=(3, 4))) == {4}


def test_rows_of_a_cache_say_what_it_is_and_places_do_not():
    place = ("kvc::cache_update", (Ref(0), Ref(2), None, 2, "linear", None, 0))
    assert computed_halves(graph(("aten::sin", (Ref(0),)), place, outputs=(3,))) == {
        *()
    }
    code = graph(("aten::linear", (Ref(0), Ref(1), None)), place, outputs=(3,))
    assert computed_halves(code) == {2, 3}


def test_a_payload_is_refused(tmp_path: Path):
    program, arrays = delegated_program(backend="coreml")
    (delegate,) = program.delegates
    delegates = (replace(delegate, payload=b"12"),)
    path = write_bundle(
        tmp_path / "d.kvc", (replace(program, delegates=delegates), arrays)
    )
    with load(path) as loaded, pytest.raises(BadProgram, match="a payload of 2 bytes"):
        loaded.pack()


def test_an_operator_that_is_not_taken_is_refused(tmp_path: Path):
    code = partition_graph()
    first, *rest = code.instructions
    steps = (replace(first, op="aten::fmod.Tensor"), *rest)
    built = delegated_program("coreml", replace(code, instructions=steps))
    path = write_bundle(tmp_path / "d.kvc", built)
    with (
        load(path) as loaded,
        pytest.raises(BadProgram, match=r"does not take aten::fmod.Tensor"),
    ):
        loaded.pack()
