"""What an instruction must be like whatever the sizes, beyond its op's shape rule."""

from dataclasses import replace

import pytest

from kvc.schema.dtypes import DType
from kvc.schema.graph import Instruction, Ref
from kvc.schema.ops import OPS
from kvc.schema.types import Affine, Symbol, TensorType
from kvc.schema.verify.dims import CheckedTypes
from kvc.schema.verify.limits import Reporter
from kvc.schema.verify.signatures import Misfit, check_signature

F32 = DType.FLOAT32
ROTARY = "kvc::rotary_embedding"


@pytest.mark.parametrize("upper", [6, 8])  # 4 between 2 and 6 is even, 5 is not
def test_rotary_embeddings_have_a_width_that_is_a_number(upper: int):
    sizes = CheckedTypes((Symbol("w", 2, upper),), Reporter("m.kvc"))
    x = TensorType(F32, (3, Affine(0, (("w", 1),))))
    types = [x, TensorType(F32, x.dims[1:]), TensorType(F32, x.dims[1:]), x]
    turned = Instruction(ROTARY, (Ref(0), Ref(1), Ref(2)), (3,))
    with pytest.raises(Misfit, match="halves of w elements, which must be a number"):
        check_signature(turned, OPS[ROTARY], types, sizes)
    with pytest.raises(Misfit):
        check_signature(replace(turned, results=()), OPS[ROTARY], types, sizes)
    even = [TensorType(F32, (*kind.dims[:-1], 4)) for kind in types]
    check_signature(turned, OPS[ROTARY], even, sizes)
