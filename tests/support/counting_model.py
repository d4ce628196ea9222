"""A language model, built by hand, that can only count: 1, 2, 3 and so on."""

import json
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from hand_built import (
    F32,
    I64,
    POSITION_TYPE,
    SEQ,
    Built,
    adds,
    cache_states,
    method,
    program,
)

from kvc.schema.graph import (
    Alias,
    Constant,
    Graph,
    Instruction,
    Ref,
    Scratch,
    StateSlot,
    Value,
)
from kvc.schema.model import Cursor, CursorKind
from kvc.schema.types import Affine, Symbol, TensorType

VOCAB = 32
NO_METADATA: Mapping[str, object] = {}


def _step_graph(seq: int | Affine, greatest: int) -> Graph:
    """Return the code that adds to the position and returns logits for the last token.

    Row r of the weight table is the logits after token r; they are largest for r + 1.
    """
    tokens, table = TensorType(I64, (1, seq)), TensorType(F32, (VOCAB, VOCAB))
    logits = TensorType(F32, (1, VOCAB))
    last = Affine(-1, (("seq", 1),)) if isinstance(seq, Affine) else seq - 1
    return Graph(
        values=(
            Value(tokens, Scratch(0, greatest * 8)),
            Value(table, Constant(0)),
            Value(POSITION_TYPE, StateSlot(0)),
            Value(TensorType(I64, (1,)), Alias(0)),
            Value(logits, Scratch(256, 4 * VOCAB)),
            Value(POSITION_TYPE, Scratch(512, 8)),
            Value(POSITION_TYPE, Alias(2)),
        ),
        inputs=(0,),
        outputs=(4,),
        instructions=(
            Instruction("aten::select.int", (Ref(0), 1, last), (3,)),
            Instruction("aten::embedding", (Ref(1), Ref(3)), (4,), "model:50"),
            Instruction("aten::add.Scalar", (Ref(2), seq, 1), (5,)),
            Instruction("aten::copy", (Ref(2), Ref(5)), (6,)),
        ),
        scratch_nbytes=576,
        peak_nbytes=576,
    )


def counting_program(
    lower: int = 1,
    upper: int = 4,
    capacity: int | None = 16,
    more: int | None = None,
    metadata: Mapping[str, object] = NO_METADATA,
) -> Built:
    """Return a model that counts modulo 32.

    Args:
        lower, upper: bounds of the number of tokens in a prefill.
        capacity: the greatest position, None for no limit.
        more: the fixed number of tokens of a second prefill method; None for no such
            method.
        metadata: the metadata of the program.
    """
    table = np.ones((VOCAB, VOCAB), np.float32)
    table[np.arange(VOCAB), (np.arange(VOCAB) + 1) % VOCAB] = 6
    touched = {"reads": (0,), "writes": (0,)}
    prefill, decode = _step_graph(SEQ, upper), _step_graph(1, 1)
    fill = {"role": "prefill", "advances": adds(SEQ), **touched}
    methods = [
        method("fill", prefill, ["tokens"], **fill),
        method("step", decode, ["token"], role="decode", advances=adds(1), **touched),
    ]
    if more is not None:
        graph, fill = _step_graph(more, more), fill | {"advances": adds(more)}
        methods.append(method(f"fill_{more}", graph, ["tokens"], **fill))
    made, arrays = program(
        methods,
        {"table": table},
        symbols=[Symbol("seq", lower, upper)],
        states=cache_states()[1:],
        cursors=[Cursor("position", CursorKind.STATE, 0, None, capacity)],
    )
    texts = {name: json.dumps(value) for name, value in metadata.items()}
    return replace(made, metadata=texts), arrays
