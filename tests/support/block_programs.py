"""A program with every kind of control flow, made directly from the compiler's IR.

The program has a method step(p bool [], x float32 [3, 3]). One branch updates state a,
and the other branch leaves it unchanged. Then come a loop of two iterations and a scan
over x, which both have results with memory of their own.
"""

from dataclasses import replace

import torch
from ir_samples import I64, constant, method, node, program, value
from sample_programs import changed

from kvc.compiler.backends import Lowered
from kvc.compiler.emit.program import DelegateCall, emit_program
from kvc.compiler.ir import Method, Program
from kvc.compiler.lower.lowering import update_in_place
from kvc.schema import model
from kvc.schema.dtypes import DType
from kvc.schema.graph import Graph, Instruction
from kvc.schema.model import Blob
from kvc.schema.ops import COND, DELEGATE, SCAN, WHILE
from kvc.schema.provenance import Provenance
from kvc.schema.trees import describe_call, flatten

SQUARE = (3, 3)
BOOL = DType.BOOL
_NOTHING = Lowered()


def _square(key: int):
    return value(key, *SQUARE)


def _branches():
    """Yield blocks 0 and 1: a branch that returns c times x, and one that returns c."""
    c, x, y = (_square(i) for i in range(3))
    product = node("aten::index_copy", c, 0, value(3, 3, dtype=I64), x, to=y)
    places = node("aten::arange.start_step", 0, 3, 1, I64, to=value(3, 3, dtype=I64))
    yield method(places, product, inputs=(c, x), outputs=(y,))
    yield method(inputs=(c, x), outputs=(c,))


def _loop():
    """Yield blocks 2 and 3, a loop's condition and body: while i < 2, add x to y."""
    i, more = value(0, dtype=I64), value(3, dtype=I64)
    y, x, z = (_square(k) for k in (1, 2, 4))
    less = value(5, dtype=BOOL)
    test = node("aten::lt.Scalar", i, 2, to=less)
    yield method(test, inputs=(i, y, x), outputs=(less,))
    step = node("aten::add.Scalar", i, 1, 1, to=more)
    add = node("aten::add.Tensor", y, x, 1, to=z)
    yield method(step, add, inputs=(i, y, x), outputs=(more, z))


def _turn():
    """Yield block 4, the body of a scan: from y and a row, y + 1 and twice the row."""
    y, row, z, twice = _square(0), value(1, 3), _square(2), value(3, 3)
    add = node("aten::add.Scalar", y, 1, 1, to=z)
    double = node("aten::mul.Scalar", row, 2, to=twice)
    yield method(add, double, inputs=(y, row), outputs=(z, twice))


def control_ir() -> Program:
    p, x, a = value(0, dtype=BOOL), _square(1), _square(2)
    b, y, z, rows = (_square(k) for k in (3, 6, 7, 8))
    i, zero = (value(k, dtype=I64) for k in (4, 5))
    nodes = (
        node(COND, p, 0, 1, (a, x), (None,), to=b),
        node("aten::full", (), 0, I64, to=zero),
        node(WHILE, 2, 3, 2, (zero, x, x), (None, None), to=(i, y)),
        node(SCAN, 4, 1, 1, (y, x), (None, None), to=(z, rows)),
    )
    ends = {"inputs": (p, x), "outputs": (i, z, rows)}
    made = method(*nodes, **ends, state_in=((a, "a"),), state_out=((b, "a"),))
    blocks = [
        replace(each, name=f"step/{k}", block=k, filled=(1,) if k == 4 else ())
        for k, each in enumerate((*_branches(), *_loop(), *_turn()))
    ]
    return program(_callable(made), *blocks, states=("a",), shape=SQUARE)


def control_program() -> model.Program:
    return _emitted(control_ir())


def _asking(p, c, to, *blocks: int):
    """Return a method that returns the result of one of two branches.

    Args:
        p: the condition.
        c: the operand of the branches.
        to: the result.
        blocks: the ids of the two branches.
    """
    branch = node(COND, p, *blocks, (p, c), (None,), to=to)
    return method(branch, inputs=(p, c), outputs=(to,))


def nested_program() -> model.Program:
    """Return a program whose block 1, the second branch, runs blocks 2 and 3."""
    p, c, y, z = value(0, dtype=BOOL), _square(1), _square(2), _square(3)
    last = [method(node("aten::neg", c, to=y), inputs=(p, c), outputs=(y,))] * 2
    first = [method(inputs=(p, c), outputs=(c,)), _asking(p, c, z, 2, 3)]
    made = _asking(p, c, y, 0, 1)
    return _emitted(program(_callable(made), *_numbered(*first, *last)))


def delegated_branches() -> model.Program:
    """Return a program whose block 0, of a delegate, runs one of two branches.

    Block 1 multiplies its input by the program's only weight; block 2 returns its
    input.
    """
    p, c, w, y = value(0, dtype=BOOL), *(_square(k) for k in (1, 2, 3))
    product = node("aten::mul.Tensor", c, w, to=y)
    weighed = method(product, inputs=(p, c), outputs=(y,), constants=((w, "w"),))
    made = method(node(DELEGATE, 0, (p, c), (None,), to=y), inputs=(p, c), outputs=(y,))
    blocks = _numbered(
        _asking(p, c, y, 1, 2), weighed, method(inputs=(p, c), outputs=(c,))
    )
    weight = constant("w", torch.ones(SQUARE))
    return _emitted(program(_callable(made), *blocks, constants=(weight,)), blocks[0])


def branching_delegate(tail_nbytes: int = 0) -> model.Program:
    """Return a program whose block 0, a branch, calls a delegate that runs block 2."""
    p, c, y = value(0, dtype=BOOL), _square(1), _square(2)
    call = node(DELEGATE, 2, (c,), (None,), to=y)
    made = _asking(p, c, y, 0, 1)
    blocks = _numbered(
        method(call, inputs=(p, c), outputs=(y,)),
        method(inputs=(p, c), outputs=(c,)),
        method(node("aten::neg", c, to=y), inputs=(c,), outputs=(y,)),
    )
    lowered = Lowered(tail_nbytes=tail_nbytes)
    return _emitted(program(_callable(made), *blocks), blocks[2], lowered=lowered)


def nested_delegates(in_branch: bool) -> model.Program:
    """Return an invalid program, in which delegate 0 runs delegate 1.

    Args:
        in_branch: whether delegate 0 runs delegate 1 in a branch, or directly.
    """
    p, c, y = value(0, dtype=BOOL), _square(1), _square(2)
    ends = {"inputs": (p, c), "outputs": (y,)}
    made = method(node(DELEGATE, 0, (p, c), (None,), to=y), **ends)
    last = method(node("aten::neg", c, to=y), **ends)
    call = method(node(DELEGATE, 1, (p, c), (None,), to=y), **ends)
    nested = (_asking(p, c, y, 2, 3), last, call, last)
    blocks = _numbered(*(nested if in_branch else (call, last)))
    return _emitted(program(_callable(made), *blocks), *blocks[:2])


def _numbered(*blocks: Method) -> list[Method]:
    return [replace(each, name=f"step/{k}", block=k) for k, each in enumerate(blocks)]


def _emitted(whole, *partitions, lowered=_NOTHING) -> model.Program:
    proven, verdicts = update_in_place(whole)
    source = Provenance("0", "0", "fp32", "", "")
    calls = [DelegateCall("sample", partition, lowered) for partition in partitions]
    made = emit_program(proven, verdicts, calls, source, {})
    blobs = tuple(
        Blob(bytes([i] * 32), named.type.nbytes({}), 0, 4096 * i, 64)
        for i, named in enumerate(made.names)
    )
    names = tuple(replace(named, blob=i) for i, named in enumerate(made.names))
    return replace(made, blobs=blobs, names=names)


def _callable(made: Method) -> Method:
    given = [object() for _ in made.inputs]
    tree, *_ = describe_call(made.input_names, given, {})
    output = flatten(tuple(object() for _ in made.outputs))[1]
    return replace(made, input_tree=tree, output_tree=output)


def with_method(program: model.Program, **fields: object) -> model.Program:
    return replace(program, methods=changed(program.methods, 0, **fields))


def changed_step(graph: Graph, index: int, **fields: object) -> Graph:
    return replace(graph, instructions=changed(graph.instructions, index, **fields))


def with_argument(
    program: model.Program, index: int, at: int, argument: object
) -> model.Program:
    step: Instruction = program.methods[0].graph.instructions[index]
    arguments = (*step.arguments[:at], argument, *step.arguments[at + 1 :])
    graph = changed_step(program.methods[0].graph, index, arguments=arguments)
    return with_method(program, graph=graph)


def with_block(program: model.Program, number: int, graph: Graph) -> model.Program:
    blocks = changed(program.methods[0].blocks, number, graph=graph)
    return with_method(program, blocks=blocks)


def with_value(graph: Graph, number: int, **fields: object) -> Graph:
    return replace(graph, values=changed(graph.values, number, **fields))
