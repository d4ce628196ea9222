"""The XNNPACK backend, at run time: its numerics on the runtime's own kernels.

In: a payload that is a graph of the ops below. Out: a handle that runs it with the
reference implementation, which computes what XNNPACK computes: int8 linears over
activations quantized per row, float32 between them.
"""

from collections.abc import Mapping

from kvc.runtime.data import FreeableBuffer
from kvc.runtime.delegates.base import Handle, Options
from kvc.runtime.delegates.reference import ReferenceHandle
from kvc.schema.codec import decode_payload
from kvc.schema.errors import BadProgram
from kvc.schema.model import Delegate, Payload
from kvc.schema.verify import verify_payload

ACCEPTED = frozenset(
    {
        "kvc::quantize_rows",
        "kvc::linear_qd8",
        "aten::rms_norm",
        "aten::layer_norm",
        "aten::silu",
        "aten::gelu",
        "aten::relu",
        "aten::sigmoid",
        "aten::tanh",
        "aten::exp",
        "aten::neg",
        "aten::abs",
        "aten::sqrt",
        "aten::rsqrt",
        "aten::add.Tensor",
        "aten::add.Scalar",
        "aten::sub.Tensor",
        "aten::sub.Scalar",
        "aten::mul.Tensor",
        "aten::mul.Scalar",
        "aten::div.Tensor",
        "aten::div.Scalar",
        "aten::softmax.int",
        "aten::cat",
        "aten::reshape",
        "aten::clone",
        "aten::view",
        "aten::transpose.int",
        "aten::permute",
        "aten::slice.Tensor",
        "aten::select.int",
        "aten::unsqueeze",
        "aten::squeeze.dims",
        "aten::split_with_sizes",
    }
)


class Xnnpack:
    """Runs float32 and dynamically quantized int8 graphs."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def init(self, part: Delegate, data: Mapping[str, FreeableBuffer]) -> Handle:
        """Decode and check a payload; see `Delegate.init`."""
        options = self._options
        method = options.program.methods[part.method].name
        where = f"{options.path}: a delegate of method {method!r}"
        payload = decode_payload(part.payload, where)
        verify_payload(payload, options.program, part, options.path)
        _check_ops(payload, where)
        return ReferenceHandle(payload, data, method)

    def packed(self) -> Mapping[str, int]:
        """Return nothing: the kernels use the data as it is."""
        return {}

    def close(self) -> None:
        """Nothing is shared."""


def _check_ops(payload: Payload, where: str) -> None:
    for index, instruction in enumerate(payload.graph.instructions):
        if instruction.op not in ACCEPTED:
            raise BadProgram(
                path=where,
                where=f"instruction {index}",
                what=f"the backend xnnpack does not take {instruction.op}",
            )
