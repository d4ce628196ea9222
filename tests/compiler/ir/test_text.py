import torch
from golden import assert_golden
from ir_samples import CACHE, I64, constant, method, node, program, value

from kvc.compiler.ir.text import program_text
from kvc.schema.dtypes import DType
from kvc.schema.types import Affine, Symbol


def test_the_text_of_a_program_is_stable():
    seq = Affine(0, (("seq", 1),))
    x, old, new = value(0, 1, seq, 4), value(1, *CACHE), value(2, *CACHE)
    slots, doubled, w = value(3, seq, dtype=I64), value(4, 1, seq, 4), value(5, 4)
    parts = (value(6, 1, seq, 2), value(7, 1, seq, 2))
    half = value(8, 1, seq, 2, dtype=DType.BFLOAT16)
    whole = program(
        method(
            node("aten::mul.Tensor", x, w, to=doubled),
            node("aten::index_copy", old, 1, slots, doubled, to=new),
            node("aten::split_with_sizes", x, (2, 2), 2, to=parts),
            node("aten::_to_copy", parts[0], DType.BFLOAT16, to=half),
            node(
                "kvc::cache_update",
                new,
                x,
                None,
                1,
                "linear",
                None,
                0,
                to=value(9, *CACHE),
            ),
            inputs=(x, slots),
            constants=((w, "scale"),),
            state_in=((old, "cache"),),
            state_out=((value(9, *CACHE), "cache"),),
            outputs=(half, parts[1]),
        ),
        symbols=(Symbol("seq", 1, 8),),
        constants=(constant("scale", torch.ones(4)),),
        states=("cache",),
    )
    assert_golden("ir_text", program_text(whole))
