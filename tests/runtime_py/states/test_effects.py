"""What calls do to states and to the caller's arrays, read off a method."""

from dataclasses import replace
from time import process_time

from sample_programs import sample_program

from kvc.runtime.states.effects import find_effects
from kvc.schema.graph import Alias, Caller, Graph, Instruction, Ref, Value
from kvc.schema.model import Update
from kvc.schema.types import DType, TensorType

WRITES = 50_000


def test_many_writes_in_a_row_take_little_time():
    program = sample_program()
    written = TensorType(DType.FLOAT32, (2,))
    values = [Value(written, Caller())]
    values += [Value(written, Alias(base)) for base in range(WRITES)]
    steps = [
        Instruction("aten::copy", (Ref(i), Ref(0)), (i + 1,), "") for i in range(WRITES)
    ]
    graph = Graph(tuple(values), (0,), (WRITES,), tuple(steps), 0, 0)
    updates = tuple(Update(i, "", ()) for i in range(WRITES))
    method = replace(program.methods[0], graph=graph, updates=updates)
    start = process_time()
    (borrowed,) = find_effects(method, program.states).borrowed
    assert process_time() - start < 5  # not half a minute
    assert borrowed.outputs == (0,)
