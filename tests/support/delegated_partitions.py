"""A program built by hand whose only method is a single delegate."""

import numpy as np
from hand_built import F32, SEQ, Built, method, program

from kvc.schema.graph import (
    Alias,
    Caller,
    Constant,
    Graph,
    Instruction,
    Ref,
    Scratch,
    Value,
)
from kvc.schema.model import Block, Delegate, MemoryKind
from kvc.schema.types import Symbol, TensorType


def partition_graph() -> Graph:
    """Return code with the results y as [4, seq], softmax(y) and x; y = x * scale."""
    x, turned = TensorType(F32, (SEQ, 4)), TensorType(F32, (4, SEQ))
    return Graph(
        values=(
            Value(x, Caller()),
            Value(TensorType(F32, (4,)), Constant(0)),
            Value(x, Scratch(0, 128)),
            Value(turned, Alias(2)),
            Value(x, Scratch(128, 128)),
        ),
        inputs=(0,),
        outputs=(3, 4, 0),
        instructions=(
            Instruction("aten::mul.Tensor", (Ref(0), Ref(1)), (2,), "model:40"),
            Instruction("aten::view", (Ref(2), (4, SEQ)), (3,), "model:41"),
            Instruction("aten::softmax.int", (Ref(2), 1), (4,), "model:42"),
        ),
        scratch_nbytes=256,
        peak_nbytes=256,
    )


def delegated_program(backend: str = "xnnpack", graph: Graph | None = None) -> Built:
    """Return a program with `forward(x)`, x float32 [seq, 4], which a delegate runs."""
    x, turned = TensorType(F32, (SEQ, 4)), TensorType(F32, (4, SEQ))
    called = (0, (Ref(0),), (None, None, None))
    outer = Graph(
        values=(
            Value(x, Scratch(0, 128)),
            Value(turned, Scratch(128, 128)),
            Value(x, Scratch(256, 128)),
            Value(x, Scratch(384, 128)),
        ),
        inputs=(0,),
        outputs=(1, 2, 3),
        instructions=(Instruction("kvc::delegate", called, (1, 2, 3), "model:39"),),
        scratch_nbytes=512,
        peak_nbytes=512,
    )
    partition = Delegate(backend, 0, 0, b"", (0,), MemoryKind.PLANNED, 384, 0)
    block = Block(graph or partition_graph(), ())
    return program(
        [method("forward", outer, ["x"], blocks=(block,))],
        {"scale": np.array([1, 2, 3, -4], np.float32)},
        symbols=[Symbol("seq", 1, 8)],
        delegates=[partition],
    )
