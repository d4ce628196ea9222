"""Graphs of a few steps with memory laid out by hand, and the verdicts on each plan.

The two checks of a plan are `sweep` and `replay` of `kvc.schema.verify`.
"""

from kvc.schema.dtypes import DType
from kvc.schema.graph import (
    Alias,
    Caller,
    Graph,
    Instruction,
    Ref,
    Scratch,
    StateSlot,
    Value,
)
from kvc.schema.types import TensorType
from kvc.schema.verify.memory import sweep
from kvc.schema.verify.replay import Conflict, replay

KIND, LONGER = TensorType(DType.FLOAT32, (16,)), TensorType(DType.FLOAT32, (17,))
MUL, COPY, VIEW = "aten::mul.Tensor", "aten::copy", "aten::alias"
MATMUL, SORT, EXPAND = "aten::matmul", "aten::sort", "aten::expand"
APPEND, REPLACE, CHECK = "kvc::append", "kvc::replace", "kvc::check_index"


def scratch(offset, nbytes=64):
    return Value(KIND, Scratch(offset, nbytes))


def state():
    return Value(KIND, StateSlot(0))


def caller():
    return Value(KIND, Caller())


def alias(base, kind=KIND):
    return Value(kind, Alias(base))


def graph(values, inputs, outputs, *steps):
    instructions = tuple(
        Instruction(op, tuple(Ref(i) for i in reads), results)
        for op, reads, results in steps
    )
    return Graph(tuple(values), inputs, outputs, instructions, 1 << 20, 0)


def verdict(check, made):
    operands = [tuple(a.value for a in step.arguments) for step in made.instructions]
    try:
        check(made, operands)
    except Conflict as conflict:
        return str(conflict) or "conflict"
    return ""


def verdicts(made):
    return verdict(sweep, made), verdict(replay, made)


def sound(*parts):
    return verdicts(graph(*parts)) == ("", "")


def unsound(*parts):
    return all(verdicts(graph(*parts)))
