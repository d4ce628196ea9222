"""Build the XNNPACK subgraph of a partition.

In: a verified block of supported nodes (`kvc.schema.backends.xnnpack`), and its named
data. Out: a `Subgraph`, from which runtimes are created. The library's ids of inputs
and outputs, *external ids*, number the partition's inputs, then its outputs. The
library derives inner shapes from the shapes of the inputs, so runtimes can be reshaped
for all sizes that `handles.py` does not exclude.

Precision: the library treats subnormal numbers as zeros, in inputs and results, and
does not keep the sign of a zero. `elementwise.py`, `norms.py` and `products.py` list
other differences from torch.
"""

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np

from kvc.runtime.delegates.xnnpack.functions import (
    EXTERNAL_INPUT,
    EXTERNAL_OUTPUT,
    EXTRA_NBYTES,
    INVALID_ID,
    Datatype,
)
from kvc.runtime.delegates.xnnpack.layouts import PLAIN, shape_of, size_array
from kvc.runtime.delegates.xnnpack.library import Library
from kvc.runtime.delegates.xnnpack.nodes import (
    Constant,
    Literal,
    Node,
    Tensor,
    Weight,
)
from kvc.runtime.delegates.xnnpack.translation import Translated, translate
from kvc.runtime.memory.arrays import Array
from kvc.schema.graph import Graph

# For runtimes: XNN_FLAG_NO_OPERATOR_FUSION, so that nodes run as they are defined. kvc
# has already merged what the library would merge, and the library's own rewriting has
# faults: a maximum of two tensors of which it takes one for a constant 0 (`x * 0`)
# becomes a clamp of the other, without NaN and without broadcast (tried 2026-11). And
# XNN_FLAG_BASIC_PROFILING: the library notes the time after each operator, for
# recordings of calls.
RUNTIME_FLAGS: Final = 0x80000000 | 0x00000008

_INT4_ZERO_POINT: Final = 8  # the stored integer for 0


class Statics(Protocol):
    """The named data of a partition, by id of the name."""

    def pinned(self, name: int, layout: str = PLAIN) -> Array:
        """Return data at an address that is fixed while the partition's handle lives.

        The data is in a layout of `layouts.py`. 64 bytes past the data can be read: the
        library reads up to 16 bytes past the end of an operand, and up to 15 floats
        past the end of an array of scales.
        """

    def packed(
        self,
        key: tuple[int | None, ...],
        layout: str,
        shape: tuple[int, ...],
        call: str,
    ) -> int:
        """Return an address by which the library knows a weight that XNNPACK packs.

        Calls that differ in any argument return different addresses.

        Args:
            key: names of the weight, its scales and the bias that is packed with it.
            layout: a layout of `layouts.py`.
            shape: the weight's shape as passed to the library.
            call: the function that packs the weight, with its numeric arguments.
        """


@dataclass(eq=False, slots=True)
class Subgraph:
    """A subgraph, and the objects that must live as long as runtimes are made from it.

    Attributes:
        library: the library.
        translated: the nodes that the subgraph was built from.
        pointer: the library's pointer to the subgraph, `xnn_subgraph_t`.
        held: arrays that the subgraph and its runtimes read.
    """

    library: Library
    translated: Translated
    pointer: ctypes.c_void_p = field(default_factory=ctypes.c_void_p)
    held: list[object] = field(default_factory=list)

    @property
    def inputs(self) -> range:
        """Return the external ids of the partition's inputs, in order."""
        return range(len(self.translated.inputs))

    @property
    def outputs(self) -> range:
        """Return the external ids of the partition's outputs, in order."""
        first = len(self.translated.inputs)
        return range(first, first + len(self.translated.outputs))

    def external_shapes(self, sizes: Mapping[str, int]) -> list[tuple[int, ...]]:
        """Return the shapes of inputs and outputs, by external id.

        A shape can differ from the shape in the partition's graph, but it has the same
        number of elements, in the same order.
        """
        ends = (*self.translated.inputs, *self.translated.outputs)
        return [shape_of(tensor.dims, sizes) for tensor in ends]

    def close(self) -> None:
        """Delete the subgraph; its runtimes continue to exist, and to read `held`."""
        if self.pointer.value is not None:
            self.library.xnn.xnn_delete_subgraph(self.pointer)
            self.pointer = ctypes.c_void_p()


def build_subgraph(
    library: Library,
    graph: Graph,
    statics: Statics,
    sizes: Mapping[str, int],
    what: str,
) -> Subgraph:
    """Return the subgraph of a partition.

    Args:
        library: the library.
        graph: the verified graph of a partition, of supported operators only.
        statics: the partition's named data.
        sizes: any allowed sizes of the graph's symbols, for the initial shapes.
        what: description of the partition, for messages.

    Raises:
        NativeCallFailed: the library refuses a value or a node.
    """
    translated = translate(graph, sizes)
    subgraph = Subgraph(library, translated)
    count = len(translated.inputs) + len(translated.outputs)
    made = library.xnn.xnn_create_subgraph(count, 0, ctypes.byref(subgraph.pointer))
    library.check(made, f"{what}: xnn_create_subgraph")
    try:
        _Emitter(subgraph, statics, sizes, what).emit(translated)
    except BaseException:
        subgraph.close()
        raise
    return subgraph


class _Emitter:
    """Defines a subgraph's values when they are first used, and its nodes in order."""

    def __init__(
        self,
        subgraph: Subgraph,
        statics: Statics,
        sizes: Mapping[str, int],
        what: str,
    ) -> None:
        self._library = subgraph.library
        self._graph = subgraph.pointer
        self._held = subgraph.held
        self._statics = statics
        self._sizes = sizes
        self._what = what
        self._ids: dict[object, int] = {}

    def emit(self, translated: Translated) -> None:
        """Define all inputs, outputs and nodes."""
        for external, tensor in enumerate(translated.inputs):
            self._define_plain(tensor, None, external, EXTERNAL_INPUT)
        for external, tensor in enumerate(translated.outputs, len(translated.inputs)):
            self._define_plain(tensor, None, external, EXTERNAL_OUTPUT)
        for node in translated.nodes:
            self._define_node(node)

    def _define_node(self, node: Node) -> None:
        for tensor in node.inputs:
            if isinstance(tensor, Weight):
                self._ids[tensor] = self._define_weight(tensor, node)
        arguments = [self._given(argument) for argument in node.arguments]
        self._call(node.function, *arguments)

    def _given(self, argument: object) -> object:
        if isinstance(argument, Tensor):
            return self._id_of(argument)
        if isinstance(argument, tuple):
            ids = [self._id_of(tensor) for tensor in argument]
            return (ctypes.c_uint32 * len(ids))(*ids)
        return argument

    def _id_of(self, tensor: Tensor) -> int:
        key = (tensor.name, tensor.dims) if isinstance(tensor, Constant) else tensor
        if key not in self._ids:
            self._ids[key] = self._define(tensor)
        return self._ids[key]

    def _define(self, tensor: Tensor) -> int:
        match tensor:
            case Constant():
                array = self._statics.pinned(tensor.name)
                self._held.append(array)
                return self._define_plain(tensor, array.ctypes.data)
            case Literal():
                assert tensor.array is not None
                # The library reads some bytes after the end.
                copy = np.zeros(tensor.array.nbytes + EXTRA_NBYTES, np.uint8)
                copy[: tensor.array.nbytes] = np.frombuffer(
                    tensor.array.tobytes(), np.uint8
                )
                self._held.append(copy)
                return self._define_plain(tensor, copy.ctypes.data)
        if tensor.rows:
            rank, shape = self._shape(tensor)
            return self._value(
                "dynamically_quantized_tensor", Datatype.QDINT8, rank, 1, shape
            )
        return self._define_plain(tensor, None)

    def _define_plain(
        self,
        tensor: Tensor,
        address: int | None,
        external: int = INVALID_ID,
        flags: int = 0,
    ) -> int:
        made = self._value(
            *("tensor", Datatype.FP32, *self._shape(tensor), address),
            external=external,
            flags=flags,
        )
        self._ids.setdefault(tensor, made)
        return made

    def _define_weight(self, weight: Weight, node: Node) -> int:
        rank, shape = self._shape(weight)
        # More than most packings depend on: strides, for example, matter only where
        # they decide which kind of operator a convolution uses.
        numbers = [each for each in node.arguments if isinstance(each, int | float)]
        address = self._statics.packed(
            weight.names,
            weight.layout,
            tuple(shape),
            f"{node.function} {weight.kind} {' '.join(map(str, numbers))}",
        )
        if weight.kind == "float32":
            return self._define_plain(weight, address)
        assert weight.names[1] is not None
        given = self._statics.pinned(weight.names[1], weight.layout)
        self._held.append(given)
        scales = given.ctypes.data
        if weight.kind == "int8":
            return self._value(
                *("channelwise_quantized_tensor", Datatype.QCINT8),
                *(scales, rank, 0, shape, address),
            )
        block = shape[1] // given.shape[1]
        return self._value(
            *("blockwise_quantized_tensor", Datatype.QBINT4, _INT4_ZERO_POINT),
            *(scales, rank, 0, block, shape, address),
        )

    def _shape(self, tensor: Tensor) -> tuple[int, "ctypes.Array[ctypes.c_size_t]"]:
        shape = shape_of(tensor.dims, self._sizes)
        return len(shape), size_array(shape)

    def _value(
        self, kind: str, *arguments: object, external: int = INVALID_ID, flags: int = 0
    ) -> int:
        made = ctypes.c_uint32()
        self._call(f"{kind}_value", *arguments, external, flags, ctypes.byref(made))
        return made.value

    def _call(self, function: str, *arguments: object) -> None:
        name = f"xnn_define_{function}"
        status = getattr(self._library.xnn, name)(self._graph, *arguments)
        self._library.check(status, f"{self._what}: {name}")
