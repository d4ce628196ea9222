"""The XNNPACK backend, ahead of time.

Takes quantized linears with their activation quantization, and the float32 ops that
lie between them. A payload is a graph in the program's own form, with weights by
name; `kvc.runtime` runs it with XNNPACK's numerics.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from kvc.compiler.backends.base import Lowered, Partition
from kvc.compiler.emit_graph import emit_graph
from kvc.compiler.ir import Constant, Method, Node
from kvc.schema.codec import encode_payload
from kvc.schema.dtypes import DType
from kvc.schema.model import MemoryKind, Payload
from kvc.schema.types import Symbol, symbols_in

_OPS = frozenset(
    [
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
    ]
)
_INNER = frozenset({DType.FLOAT32, DType.INT8, DType.INT32})


@dataclass(frozen=True, slots=True)
class Xnnpack:
    """Runs float32 and dynamically quantized int8 graphs."""

    name: ClassVar[str] = "xnnpack"

    def supports(self, method: Method) -> frozenset[int]:
        """Return the nodes to take; none unless there is a linear to accelerate."""
        taken = frozenset(i for i, node in enumerate(method.nodes) if _is_taken(node))
        if any(method.nodes[i].op == "kvc::linear_qd8" for i in taken):
            return taken
        return frozenset()

    def lower(
        self,
        partitions: Mapping[str, Sequence[Partition]],
        constants: Mapping[str, Constant],
        symbols: tuple[Symbol, ...],
    ) -> Mapping[str, Sequence[Lowered]]:
        """Return a payload for each partition."""
        return {
            name: tuple(
                self._lower_one(part.graph, constants, symbols) for part in parts
            )
            for name, parts in partitions.items()
        }

    def _lower_one(
        self,
        graph: Method,
        constants: Mapping[str, Constant],
        symbols: tuple[Symbol, ...],
    ) -> Lowered:
        names = tuple(sorted({name for _, name in graph.constants}))
        emitted = emit_graph(
            graph, {name: i for i, name in enumerate(names)}, {}, symbols
        )
        used = symbols_in(value.type for value in emitted.values)
        payload = Payload(
            backend=self.name,
            symbols=tuple(s for s in symbols if s.name in used),
            names=names,
            types=tuple(constants[name].type for name in names),
            graph=emitted,
        )
        return Lowered(
            payload=encode_payload(payload),
            names=names,
            memory=MemoryKind.OPAQUE,
            workspace_nbytes=emitted.scratch_nbytes,
            tail_nbytes=0,
        )


def _is_taken(node: Node) -> bool:
    if node.op not in _OPS:
        return False
    types = {value.type.dtype for value in (*node.inputs, *node.outputs)}
    return types <= _INNER and DType.FLOAT32 in types
